"""Steps of erasures: tombstones take the place of what nobody shall read any more, and rows of output go.

A record is rewritten once for all that an erasure has in it: a sealed one may hold a thousand commits of a stream.
"""

import logging
from abc import ABC, abstractmethod
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.errors import DamagedRecord
from penstock.store.record import Record
from penstock.store.tables.hiding import after, ranges_of
from penstock.store.tables.queries import Statements
from penstock.store.tombstones import Gone, shown

log = logging.getLogger(__name__)

COMMITS_PER_QUERY: Final = 256

_Db = TypeVar("_Db", bound=Statements)


class Entry(NamedTuple):
    """An open entry of the ledger."""

    id: int
    context: str | None
    stream: str | None
    iterator: int | None
    ranges: bytes | None
    last: int
    done: int

    @property
    def what(self) -> str:
        """What it erases, for people."""
        return f"{self.context}/{self.stream}" if self.context else f"{len(ranges_of(self.ranges))} ranges of positions"


class Step(ABC, Generic[_Db]):
    """One step of the oldest erasures: what may still be rewritten in it, and what was."""

    def __init__(self, db: _Db, records_max: int, bytes_max: int) -> None:
        self._db = db
        self.records_left = records_max
        self._bytes_left = bytes_max
        self._damaged = 0
        self._rewritten = 0

    @property
    def is_over(self) -> bool:
        """Whether it is enough for now."""
        return self.records_left <= 0 or self._bytes_left < 0

    def spend(self, size: int, rows: int = 1) -> None:
        """Rows of this size were rewritten."""
        self.records_left -= rows
        self._bytes_left -= size

    def carry_out(self) -> int:
        """Take the step; how many erasures are open after it."""
        for entry in map(Entry._make, self._db.rows("unerased", {"limit": self.records_left})):
            if self.is_over:
                break
            self._damaged = 0
            done = self._advance(entry)
            self._db.later("advance_erasure", {"id": entry.id, "done": done, "damaged": self._damaged})
        if self._rewritten:
            self._db.later("rewritten")
        return int(self._db.value("open_erasures"))

    def _advance(self, entry: Entry) -> int:
        """Erase some of an entry; up to where that is done."""
        if entry.iterator is not None:
            return self._remove_output(entry.iterator, entry)
        return self._entomb_stream(entry) if entry.ranges is None else self._entomb_ranges(entry)

    @abstractmethod
    def _remove_output(self, iterator: int, entry: Entry) -> int:
        """Remove rows of an iterator's output; up to which item that is done."""

    def _entomb_stream(self, entry: Entry) -> int:
        """Put tombstones into records of a stream; up to which sequence that is done."""
        context, stream, done = entry.context or "", entry.stream or "", entry.done
        stream_id = self._db.value("find_stream", {"context": context, "stream": stream})
        gone = Gone({(context, stream): entry.last})
        reached = 0
        while done < entry.last:
            values = {"stream_id": stream_id, "sequence": done + 1, "limit": COMMITS_PER_QUERY}
            commits = self._db.rows("commits_forward", values)
            for end, position in commits:
                if position > reached:
                    if self.is_over or done >= entry.last:
                        return done
                    reached = self._rewrite(position, gone, entry.what)
                done = end
            if not commits:
                return entry.last
        return done

    def _entomb_ranges(self, entry: Entry) -> int:
        """Put tombstones at positions; up to which of them that is done."""
        ranges, done = after(ranges_of(entry.ranges), entry.done), entry.done
        gone = Gone({}, ranges)
        for first, last in ranges:
            done = max(done, first - 1)
            while done < last:
                if self.is_over:
                    return done
                done = self._rewrite(done + 1, gone, entry.what)
        return max(done, entry.last)

    def _rewrite(self, position: int, gone: Gone, what: str) -> int:
        """Put tombstones into the record that holds a position; its last position. A damaged one is passed over."""
        try:
            return self._entomb_record(position, gone)
        except DamagedRecord as error:
            # Nobody can read it either. If all waited for it, nothing would ever be erased again.
            log.warning("what was deleted of %s cannot be erased there: %s", what, error)
            self._damaged += 1
            self.spend(0)
            return self._before_next(position)

    def _entomb_record(self, position: int, gone: Gone) -> int:
        first, data = self._db.row("record_at", {"position": position}) or (position, None)
        record = Record(data, first)
        if record.last < position:
            raise DamagedRecord(position, "it is missing")
        changed = shown(record, gone)
        if changed is not record:
            self._put(record, changed.data)
            self._rewritten += 1
        self.spend(len(record.data))
        return record.last

    @abstractmethod
    def _put(self, record: Record, data: bytes) -> None:
        """Put other data into the place of a record's."""

    def _before_next(self, position: int) -> int:
        following: int | None = self._db.value("next_record_start", {"position": position})
        return position if following is None else following - 1
