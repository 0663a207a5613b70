"""Erasing what a deleted log held, in steps, until no file of the store has any of it.

From the moment of the deletion nobody can read it: readers see tombstones in its place (`hidden`, `shown`). A step
then puts tombstones into some records, or empties some rows of output; SQLite clears what it frees
(`secure_delete`), and rows are only ever made smaller, so that none is moved and leaves a copy behind. What is left
after the last step are old pages in the WAL. They are gone when it has been emptied, and only then is an erasure
finished.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from penstock.store.contract import Erase
from penstock.store.record import Record
from penstock.store.sqlite.database import Database
from penstock.store.tombstones import entomb

STEP_BYTES_MAX: Final = 4 << 20
"""A step goes no further once it has rewritten so much: everyone who writes waits for it."""

Hidden = Sequence[tuple[str, str, int]]
"""Context, stream and last sequence of what is being erased."""


def hidden(db: Database, context: str | None) -> Hidden:
    """What records of a context, or of all, may still hold although nobody shall see it."""
    return db.rows("hidden", {"context": context})


def shown(record: Record, gone: Hidden) -> Record:
    """A record as readers see it."""
    for context, stream, last in gone:
        if any((run.context, run.stream) == (context, stream) and run.sequence <= last for run in record.runs()):
            record = Record(entomb(record, context, stream, last), record.position)
    return record


def erase(db: Database, op: Erase, now: int, emptied: Collection[int]) -> int:
    """One step of the oldest erasure; how many are open after it. Those in `emptied` have left the WAL too."""
    if emptied:
        db.run_many("finish_erasure", [(now, number) for number in emptied])
    row = db.row("open_erasure")
    if row is not None:
        number, context, stream, iterator, last, done = row
        if iterator is None:
            done = _entomb(db, op, context, stream, last, done)
        else:
            done = _clear(db, op, iterator, last, done)
        db.run("advance_erasure", {"id": number, "done": done})
    return int(db.value("open_erasures"))


def cleared(db: Database) -> list[int]:
    """The erasures of which only the WAL may hold something; none while there are others."""
    if db.row("open_erasure") is not None:
        return []
    return [number for (number,) in db.rows("cleared_erasures")]


def _entomb(db: Database, op: Erase, context: str, stream: str, last: int, done: int) -> int:
    """Put tombstones into records of a stream; up to where that is done."""
    stream_id = db.value("stream_id", {"context_id": db.value("context_id", {"name": context}), "name": stream})
    commits: list[Any] = db.rows(
        "commits_forward", {"stream_id": stream_id, "sequence": done + 1, "limit": op.records_max}
    )
    size = 0
    for end, position in commits:
        if done >= last or size > STEP_BYTES_MAX:
            return done
        first, data = db.row("record_at", {"position": position})
        db.run("replace_record", {"data": entomb(Record(data, first), context, stream, last), "position": first})
        size += len(data)
        done = end
    return done if commits else last


def _clear(db: Database, op: Erase, iterator: int, last: int, done: int) -> int:
    """Empty rows of an iterator's output; up to where that is done."""
    rows = db.rows("outputs_to_clear", {"id": iterator, "ordinal": done, "limit": op.records_max})
    size = 0
    for ordinal, length in rows:
        if size > STEP_BYTES_MAX:
            return done
        db.run("clear_output", {"id": iterator, "ordinal": ordinal})
        size += length
        done = ordinal + 1
    return done if rows else last
