"""Placing commits in the history of a store on PostgreSQL: see `penstock.store.tables.appender`.

What a batch needs to know of streams and contexts is asked for in one go when it begins. It is remembered as long as no
other store object writes, which the row of `state` tells.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from penstock.model import check_context, check_stream
from penstock.store.contract import Commit
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import Database
from penstock.store.postgres.history import History
from penstock.store.record import Record
from penstock.store.tables.appender import ContextState, Placing, StreamKey, StreamState


class Start(NamedTuple):
    """The row of `state` as a batch finds it, its transaction, who carries it out, the database's clock and dangers."""

    head: int
    recorded: int
    writer: UUID | None
    stream_id: int
    context_id: int
    transaction: str
    process: int
    now: int
    switched_off: str
    """The names of settings that must be on and are not, separated by blanks."""


class Point(NamedTuple):
    """What to return to when a transaction fails."""

    head: int
    stream_id: int
    context_id: int
    is_touched: bool
    rows: tuple[int, ...]
    changed: frozenset[str]
    log_bytes: dict[str, int]


class Appender(Placing[Database]):
    """The state behind appends on PostgreSQL."""

    def __init__(self, db: Database, history: History, writer: UUID, cache_max: int) -> None:
        super().__init__(db, cache_max)
        self._history = history
        self._writer = writer

    def forget(self) -> None:
        """Somebody else has written, or something went wrong: ask the database again."""
        self._streams = {}
        self._contexts = {}

    def unknown(self, keys: Iterable[StreamKey]) -> tuple[list[StreamKey], list[str]]:
        """Of these streams, those of which nothing is remembered, and the contexts; what cannot be a name is not."""
        names = {context: check_context(context) is None for context, _ in keys}
        streams = [
            (context, stream)
            for context, stream in keys
            if (context, stream) not in self._streams and names[context] and check_stream(stream) is None
        ]
        return streams, [name for name, is_name in names.items() if is_name and name not in self._contexts]

    def begin(self, start: Start, now: int) -> None:
        """Start a batch whose commits are recorded at `now`."""
        self._begin(now)
        self._start = start.head
        self._head, self._stream_id, self._context_id = start.head, start.stream_id, start.context_id
        self._is_touched = False
        self._absent: set[StreamKey] = set()

    def load(self, asked: Iterable[StreamKey], streams: list[Any], contexts: list[Any]) -> None:
        """What the database says of streams that were asked for, and of contexts."""
        found = {(context, name): StreamState(number, head, name.encode()) for context, name, number, head in streams}
        self._streams |= found
        self._absent |= set(asked) - found.keys()
        self._contexts |= {name: ContextState(*row) for name, *row in contexts}

    def look_up(self, keys: Iterable[StreamKey]) -> None:
        """Ask for streams that are needed in a moment, all together: one by one each would be a round trip."""
        unknown, _ = self.unknown(keys)
        asked = [key for key in unknown if key not in self._staged_streams and key not in self._absent]
        if asked:
            contexts, streams = zip(*asked, strict=True)
            values = {"contexts": Texts(contexts), "streams": Texts(streams)}
            self.load(asked, self._db.rows("batch_streams", values), [])

    def point(self) -> Point:
        """Remember this point."""
        self._undo = []
        rows = len(self._records), len(self._commits), len(self._new_streams), len(self._blocks)
        numbers = self._head, self._stream_id, self._context_id, self._is_touched
        return Point(*numbers, rows, frozenset(self._changed), dict(self._log_bytes))

    def back_to(self, point: Point) -> None:
        """Take back what was placed since a point; if rows were sent since, the caller rolls the database back."""
        self._head, self._stream_id, self._context_id, self._is_touched = point[:4]
        self._take_back()
        rows: tuple[list[Any], ...] = (self._records, self._commits, self._new_streams, self._blocks)
        for kept, length in zip(rows, point.rows, strict=True):
            del kept[length:]
        self._changed, self._log_bytes = set(point.changed), point.log_bytes

    def touch(self) -> None:
        """Something has changed that other store objects may remember."""
        self._is_touched = True

    @property
    def touched(self) -> Iterable[StreamKey]:
        """The streams that have new events."""
        return self._staged_streams.keys()

    def flush(self) -> None:
        """Send the buffered rows."""
        if not self._records:
            return
        if self._new_streams:
            ids, contexts, names = zip(*self._new_streams, strict=True)
            values = {"ids": Numbers(ids), "contexts": Numbers(contexts), "names": Texts(names)}
            self._db.later("add_streams", values)
        self._send_commits()
        if self._blocks:
            contexts, blocks, tops = zip(*self._blocks, strict=True)
            values = {"contexts": Numbers(contexts), "blocks": Numbers(blocks), "tops": Numbers(tops)}
            self._db.later("add_blocks", values)
        if self._log_bytes:
            sizes = {"names": Texts(self._log_bytes), "sizes": Numbers(self._log_bytes.values())}
            self._db.later("grow_logs", sizes)
        self._drop_rows()

    def _send_commits(self) -> None:
        positions, counts, contexts, streams, data = zip(*self._records, strict=True)
        records = {"positions": positions, "counts": counts, "record_contexts": contexts, "record_streams": streams}
        names = sorted(self._changed)
        fields = ("ids", "events", "commits", "streams", "bytes", "tops", "blocks")
        columns = zip(*(self._staged_contexts[name] for name in names), strict=True)
        numbers = {
            **records,
            **dict(zip(fields, columns, strict=True)),
            "lasts": [last for _, last, _ in self._commits],
        }
        values = {name: Numbers(column) for name, column in numbers.items()}
        self._db.later("add_commits", {**values, "data": Blobs(data), "names": Texts(names)})

    def finish(self, told: Mapping[str, str]) -> None:
        """Send the rest of the batch, and what others are told."""
        self.flush()
        if self._is_touched or self._head != self._start:
            numbers = {"head": self._head, "stream_id": self._stream_id, "context_id": self._context_id}
            self._db.later("batch_end", {**numbers, "recorded": self._now, "writer": self._writer, **told})
        elif told["payload"]:
            self._db.later("notify", told)

    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        self.look_up([(context, stream)])
        return self._streams.get((context, stream))

    def _place_of(self, commit: Commit, stream: StreamState, /) -> tuple[bytes, bytes, int]:
        mine = [(Record(row[4], row[0]), row[0]) for row in self._records if row[3] == stream.id]
        last = commit.expected + commit.columns.length - 1
        return self._history.place_of(commit.context, commit.stream, commit.expected, last, mine)
