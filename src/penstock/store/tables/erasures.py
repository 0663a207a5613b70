"""Erasures: new entries of the ledger, and the steps that erase what the entries hide.

An entry hides its events at once (`penstock.store.erasure_filter`). Iterators that have read them restart under a new
number, and the ledger also gets the output of the old number, which may hold what must go. Steps then put tombstones
into records and remove rows of output. A step rewrites a record once for everything that an erasure has in it: a sealed
record may hold a thousand commits of a stream.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from penstock.errors import DamagedRecord, InvalidRequest
from penstock.model import LOG_CONTEXT, Over
from penstock.store.contract import Hid, HideEvents, HideStream, IteratorState
from penstock.store.erasure_filter import Hidden, add_entry, after, pack_ranges, unpack_ranges, visible
from penstock.store.record import Record
from penstock.store.tables.appends import Appender
from penstock.store.tables.database import Database
from penstock.store.tables.logs import restart_iterators

log = logging.getLogger(__name__)

COMMITS_PER_QUERY: Final = 256


def hide_stream(db: Database, op: HideStream, heads: Appender, now: int) -> Hid:
    """Add an entry for a stream's present events, up to a sequence if the operation has one."""
    if op.context == LOG_CONTEXT:
        raise InvalidRequest("context", f"{LOG_CONTEXT} is that of logs; delete the log instead")
    place = {"context": op.context, "stream": op.stream}
    head = heads.stream_head(op.context, op.stream)
    heads.flush()
    if op.last is not None:
        head = min(head, op.last)
    done = db.value("erased_up_to", place) or 0
    if done >= head:
        return Hid(0, [])
    add_entry(db, now, **place, last=head, done=done, events=head - done)
    db.later("erase_letters_of_stream", {**place, "last": head})
    return Hid(head - done, _restart(db, [(op.context, op.stream)], now))


def hide_events(db: Database, op: HideEvents, heads: Appender, now: int) -> Hid:
    heads.flush()
    before = 0
    for first, last in op.ranges:
        if not before < first <= last <= heads.head:
            reason = f"have {first} to {last} after {before}, and the last position is {heads.head}"
            raise InvalidRequest("ranges", reason)
        before = last
    if not op.ranges:
        return Hid(0, [])
    for first, last in op.ranges:
        db.later("erase_letters", {"first": first, "last": last})
    events = sum(last - first + 1 for first, last in op.ranges)
    add_entry(db, now, ranges=pack_ranges(op.ranges), last=op.ranges[-1][1], events=events)
    return Hid(events, _restart(db, op.streams, now))


def _restart(db: Database, streams: Sequence[tuple[str, str]], now: int) -> list[IteratorState]:
    """Restart all iterators that read these streams, directly or through other iterators."""
    restarted: list[IteratorState] = []
    for context, stream in dict.fromkeys(streams):
        source = (stream, Over.LOG) if context == LOG_CONTEXT else (f"{context}/{stream}", Over.STREAM)
        restarted += restart_iterators(db, *source, now)
    return restarted


class LedgerEntry(NamedTuple):
    id: int
    context: str | None
    stream: str | None
    iterator: int | None
    ranges: bytes | None
    last: int
    done: int


class ErasureStep(ABC):
    """One step of the oldest erasures, and its budget of records and bytes."""

    def __init__(self, db: Database, records_max: int, bytes_max: int) -> None:
        self._db = db
        self.records_left = records_max
        self._bytes_left = bytes_max
        self._damaged = 0
        self._rewritten = 0

    @property
    def is_over(self) -> bool:
        return self.records_left <= 0 or self._bytes_left < 0

    def spend(self, size: int, rows: int = 1) -> None:
        self.records_left -= rows
        self._bytes_left -= size

    def run(self) -> int:
        for entry in map(LedgerEntry._make, self._db.rows("unerased", {"limit": self.records_left})):
            if self.is_over:
                break
            self._damaged = 0
            if entry.iterator is not None:
                done = self._remove_output(entry.iterator, entry)
            else:
                done = self._erase_stream(entry) if entry.ranges is None else self._erase_ranges(entry)
            self._db.later("advance_erasure", {"id": entry.id, "done": done, "damaged": self._damaged})
        if self._rewritten:
            self._db.later("rewritten")
        return int(self._db.value("open_erasures"))

    @abstractmethod
    def _remove_output(self, iterator: int, entry: LedgerEntry) -> int:
        """Remove rows of an iterator's output; answers the item up to which that is done."""

    def _erase_stream(self, entry: LedgerEntry) -> int:
        """Put tombstones into records of a stream; answers the sequence up to which that is done."""
        context, stream, done = entry.context or "", entry.stream or "", entry.done
        stream_id = self._db.value("find_stream", {"context": context, "stream": stream})
        hidden = Hidden({(context, stream): entry.last})
        reached = 0
        while done < entry.last:
            values = {"stream_id": stream_id, "sequence": done + 1, "limit": COMMITS_PER_QUERY}
            commits = self._db.rows("commits_forward", values)
            for end, position in commits:
                if position > reached:
                    if self.is_over or done >= entry.last:
                        return done
                    reached = self._rewrite(position, hidden, f"{context}/{stream}")
                done = end
            if not commits:
                return entry.last
        return done

    def _erase_ranges(self, entry: LedgerEntry) -> int:
        """Put tombstones at positions; answers the position up to which that is done."""
        ranges, done = after(unpack_ranges(entry.ranges), entry.done), entry.done
        hidden = Hidden({}, ranges)
        for first, last in ranges:
            done = max(done, first - 1)
            while done < last:
                if self.is_over:
                    return done
                done = self._rewrite(done + 1, hidden, f"{len(unpack_ranges(entry.ranges))} ranges of positions")
        return max(done, entry.last)

    def _rewrite(self, position: int, hidden: Hidden, what: str) -> int:
        """Put tombstones into the record that holds a position; answers its last position. Skips a damaged record."""
        try:
            return self._erase_record(position, hidden)
        except DamagedRecord as error:
            # Readers cannot read it either. If erasures waited for it, they would never go on.
            log.warning("deleted events of %s cannot be erased in a damaged record: %s", what, error)
            self._damaged += 1
            self.spend(0)
            following: int | None = self._db.value("next_record_start", {"position": position})
            return position if following is None else following - 1

    def _erase_record(self, position: int, hidden: Hidden) -> int:
        first, data = self._db.row("record_at", {"position": position}) or (position, None)
        record = Record(data, first)
        if record.last < position:
            raise DamagedRecord(position, "it is missing")
        changed = visible(record, hidden)
        if changed is not record:
            self._replace(record, changed.data)
            self._rewritten += 1
        self.spend(len(record.data))
        return record.last

    @abstractmethod
    def _replace(self, record: Record, data: bytes) -> None: ...
