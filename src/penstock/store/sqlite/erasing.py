"""Erasing what a deleted log held, in steps, until no file of the store has any of it.

From the moment of the deletion nobody can read it: readers see tombstones in its place (`hidden`, `shown`). A step
then puts tombstones into some records, or empties some rows of output; SQLite clears what it frees
(`secure_delete`), and rows are only ever made smaller, so that none is moved and leaves a copy behind. What is left
after the last step are old pages in the WAL. They are gone when it has been emptied, and only then is an erasure
finished.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from penstock.errors import DamagedRecord
from penstock.store.contract import Erase
from penstock.store.record import Record
from penstock.store.sqlite.database import Database
from penstock.store.tombstones import entomb

log = logging.getLogger(__name__)

STEP_BYTES_MAX: Final = 4 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""

Hidden = Mapping[tuple[str, str], int]
"""What is being erased: of a context's stream all up to this sequence."""


def hidden(db: Database, context: str | None) -> Hidden:
    """What records of a context, or of all, may still hold although nobody shall see it."""
    return {(context, stream): last for context, stream, last in db.rows("hidden", {"context": context})}


def hidden_of_stream(db: Database, context: str, stream: str) -> Hidden:
    """The same for one stream."""
    last = db.value("hidden_of_stream", {"context": context, "stream": stream})
    return {} if last is None else {(context, stream): last}


def shown(record: Record, gone: Hidden) -> Record:
    """A record as readers see it."""
    hit: dict[tuple[str, str], int] = {}
    for run in record.runs():
        last = gone.get((run.context, run.stream), 0)
        if run.sequence <= last:
            hit[run.context, run.stream] = last
    for (context, stream), last in hit.items():
        record = Record(entomb(record, context, stream, last), record.position)
    return record


def erase(db: Database, op: Erase, now: int, emptied: Collection[int]) -> int:
    """One step of the oldest erasures; how many are open after it. Those in `emptied` have left the WAL too."""
    if emptied:
        db.run_many("finish_erasure", [(now, number) for number in emptied])
    step = _Step(op.records_max)
    for number, context, stream, iterator, last, before in db.rows("unerased", {"limit": op.records_max}):
        if step.is_over:
            break
        if iterator is None:
            done = _entomb(db, step, context, stream, last, before)
        else:
            done = _clear(db, step, iterator, last, before)
        db.run("advance_erasure", {"id": number, "done": done})
    return int(db.value("open_erasures"))


def cleared(db: Database) -> list[int]:
    """The erasures of which only the WAL may hold something."""
    return [number for (number,) in db.rows("cleared_erasures")]


class _Step:
    """What may still be rewritten in a step."""

    def __init__(self, records_max: int) -> None:
        self.records_left = records_max
        self._bytes_left = STEP_BYTES_MAX

    @property
    def is_over(self) -> bool:
        """Whether it is enough for now."""
        return self.records_left <= 0 or self._bytes_left < 0

    def spend(self, size: int) -> None:
        """A record of this size was rewritten."""
        self.records_left -= 1
        self._bytes_left -= size


def _entomb(db: Database, step: _Step, context: str, stream: str, last: int, done: int) -> int:
    """Put tombstones into records of a stream; up to where that is done."""
    stream_id = db.value("stream_id", {"context_id": db.value("context_id", {"name": context}), "name": stream})
    commits: list[Any] = db.rows(
        "commits_forward", {"stream_id": stream_id, "sequence": done + 1, "limit": step.records_left}
    )
    for end, position in commits:
        if done >= last or step.is_over:
            return done
        step.spend(_entomb_record(db, position, context, stream, last))
        done = end
    return done if commits else last


def _entomb_record(db: Database, position: int, context: str, stream: str, last: int) -> int:
    """Put tombstones into the record that holds a position; its size. One that is damaged is passed over."""
    first, data = db.row("record_at", {"position": position}) or (position, None)
    try:
        record = Record(data, first)
        if record.last < position:
            raise DamagedRecord(position, "it is missing")
        db.run("replace_record", {"data": entomb(record, context, stream, last), "position": first})
    except DamagedRecord as error:
        # Nobody can read it either. If all waited for it, nothing would ever be erased again.
        log.warning("what was deleted of %s/%s cannot be erased there: %s", context, stream, error)
        return 0
    return len(record.data)


def _clear(db: Database, step: _Step, iterator: int, last: int, done: int) -> int:
    """Empty rows of an iterator's output; up to where that is done."""
    rows = db.rows("outputs_to_clear", {"id": iterator, "ordinal": done, "limit": step.records_left})
    for ordinal, length in rows:
        if step.is_over:
            return done
        db.run("clear_output", {"id": iterator, "ordinal": ordinal})
        step.spend(length)
        done = ordinal + 1
    return done if rows else last
