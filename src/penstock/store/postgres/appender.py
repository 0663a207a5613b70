"""Placing commits in the history: positions, sequences, and the rows that an append writes.

What a batch needs to know of streams and contexts is asked for in one go when it begins. It is remembered as long as no
other store object writes, which the row of `state` tells. What a batch changes is staged and becomes the truth when the
database has committed it; a transaction that fails inside a batch takes its own part back. Rows are buffered and sent
together, just before the commit or before somebody must read them.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from penstock.errors import InvalidRequest, VersionConflict
from penstock.model import ANY, Appended, check_context, check_stream
from penstock.model.events import random_id
from penstock.store.contract import LOG_CONTEXT, Commit
from penstock.store.postgres.arrays import Blobs, Numbers, Texts
from penstock.store.postgres.database import Database
from penstock.store.postgres.history import History
from penstock.store.record import Record, encode_commit
from penstock.store.sealing import BLOCK_BITS

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
StreamKey = tuple[str, str]


class _Stream(NamedTuple):
    id: int
    head: int
    name: bytes


class _Context(NamedTuple):
    id: int
    events: int
    commits: int
    streams: int
    bytes: int
    top: int
    block: int


class Start(NamedTuple):
    """The row of `state` as a batch finds it, its transaction, who carries it out, and the database's clock."""

    head: int
    recorded: int
    writer: UUID | None
    stream_id: int
    context_id: int
    transaction: str
    process: int
    now: int


class Point(NamedTuple):
    """What to return to when a transaction fails."""

    head: int
    stream_id: int
    context_id: int
    has_changed: bool
    rows: tuple[int, ...]
    changed: frozenset[str]
    log_bytes: dict[str, int]


class Appender:
    """The state behind appends. One batch at a time: begin, place commits, finish, settle."""

    def __init__(self, db: Database, history: History, writer: UUID, cache_max: int) -> None:
        self._db = db
        self._history = history
        self._writer = writer
        self._cache_max = cache_max
        self.forget()

    def forget(self) -> None:
        """Somebody else has written, or something went wrong: ask the database again."""
        self._streams: dict[StreamKey, _Stream] = {}
        self._contexts: dict[str, _Context] = {}

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
        self._now = now
        self._head, self._stream_id, self._context_id = start.head, start.stream_id, start.context_id
        self._has_changed = False
        self._absent: set[StreamKey] = set()
        self._staged_streams: dict[StreamKey, _Stream] = {}
        self._staged_contexts: dict[str, _Context] = {}
        self._records: list[tuple[int, int, int, int, bytes]] = []
        self._commits: list[tuple[int, int, int]] = []
        self._new_streams: list[tuple[int, int, str]] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._changed: set[str] = set()
        self._log_bytes: dict[str, int] = {}
        self._undo: list[Callable[[], object]] | None = None

    def load(self, asked: Iterable[StreamKey], streams: list[Any], contexts: list[Any]) -> None:
        """What the database says of streams that were asked for, and of contexts."""
        found = {(context, name): _Stream(number, head, name.encode()) for context, name, number, head in streams}
        self._streams |= found
        self._absent |= set(asked) - found.keys()
        self._contexts |= {name: _Context(*row) for name, *row in contexts}

    def point(self) -> Point:
        """Remember this point."""
        self._undo = []
        rows = len(self._records), len(self._commits), len(self._new_streams), len(self._blocks)
        numbers = self._head, self._stream_id, self._context_id, self._has_changed
        return Point(*numbers, rows, frozenset(self._changed), dict(self._log_bytes))

    def back_to(self, point: Point) -> None:
        """Take back what was placed since a point; if rows were sent since, the caller rolls the database back."""
        self._head, self._stream_id, self._context_id, self._has_changed = point[:4]
        for step in reversed(self._undo or []):
            step()
        self._undo = None
        rows: tuple[list[Any], ...] = (self._records, self._commits, self._new_streams, self._blocks)
        for kept, length in zip(rows, point.rows, strict=True):
            del kept[length:]
        self._changed, self._log_bytes = set(point.changed), point.log_bytes

    def keep(self) -> None:
        """What was placed since the point stays."""
        self._undo = None

    def touch(self) -> None:
        """Something has changed that other store objects may remember."""
        self._has_changed = True

    def place(self, commit: Commit) -> Appended:
        """Give a commit its place, or say why it has none. Nothing changes in that case."""
        key = (commit.context, commit.stream)
        stream = self._stream(key)
        if commit.expected not in (ANY, stream.head + 1):
            return self._repeated(commit, stream)
        columns = commit.columns
        context = self._context(commit.context)
        position, sequence = self._head + 1, stream.head + 1
        last = stream.head + columns.length
        stream_id = stream.id or self._add_stream(context.id, commit.stream)
        commit_id = random_id()
        data = encode_commit(columns, position, commit.context.encode(), stream.name, sequence, commit_id, self._now)
        self._records.append((position, columns.length, context.id, stream_id, data))
        self._commits.append((stream_id, last, position))
        block = position >> BLOCK_BITS
        if block != context.block:
            self._blocks.append((context.id, block, context.top))
        self._stage(self._staged_streams, key, _Stream(stream_id, last, stream.name))
        grown = _Context(
            context.id,
            context.events + columns.length,
            context.commits + 1,
            context.streams + (not stream.id),
            context.bytes + columns.size,
            max(context.top, columns.top_ticks),
            block,
        )
        self._stage(self._staged_contexts, commit.context, grown)
        self._changed.add(commit.context)
        if commit.context == LOG_CONTEXT:
            self._log_bytes[commit.stream] = self._log_bytes.get(commit.stream, 0) + len(columns.bodies)
        self._head += columns.length
        self._has_changed = True
        return Appended(commit_id, position, sequence, columns.length)

    def is_behind(self, commit: Commit) -> bool:
        """Whether the stream has gone on from where this commit wants to be: it is a repeat or a conflict."""
        return 1 <= commit.expected <= self.stream_head(commit.context, commit.stream)

    def stream_head(self, context: str, stream: str) -> int:
        """A stream's last sequence, this batch included."""
        return self._stream((context, stream)).head

    @property
    def head(self) -> int:
        """The last position, this batch included."""
        return self._head

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
        for rows in (self._records, self._commits, self._new_streams, self._blocks, self._changed, self._log_bytes):
            rows.clear()

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
        if self._has_changed:
            numbers = {"head": self._head, "stream_id": self._stream_id, "context_id": self._context_id}
            self._db.later("batch_end", {**numbers, "recorded": self._now, "writer": self._writer, **told})
        elif told["payload"]:
            self._db.later("notify", told)

    def settle(self) -> None:
        """The batch is on disk: what was staged is the truth."""
        self._streams.update(self._staged_streams)
        self._contexts.update(self._staged_contexts)
        _shrink(self._streams, self._cache_max)
        _shrink(self._contexts, self._cache_max)

    def _stage(self, staged: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        if self._undo is not None:
            before = staged.get(key)
            undo = partial(staged.pop, key) if before is None else partial(staged.__setitem__, key, before)
            self._undo.append(undo)
        staged[key] = value

    def _stream(self, key: StreamKey) -> _Stream:
        found = self._staged_streams.get(key) or self._streams.get(key)
        return found or self._load_stream(key)

    def _load_stream(self, key: StreamKey) -> _Stream:
        context, stream = key
        if reason := check_context(context):
            raise InvalidRequest("context", reason)
        if reason := check_stream(stream):
            raise InvalidRequest("stream", reason)
        if key not in self._absent:
            values = {"contexts": Texts([context]), "streams": Texts([stream])}
            self.load([key], self._db.rows("batch_streams", values), [])
        return self._streams.get(key) or _Stream(0, 0, stream.encode())

    def _context(self, name: str) -> _Context:
        found = self._staged_contexts.get(name) or self._contexts.get(name)
        if found is None:
            row = self._db.row("context_state", {"name": name})
            if row is None:
                # Staged with its first commit; until then the number is not taken.
                return _Context(self._context_id + 1, 0, 0, 0, 0, -1, -1)
            found = self._contexts[name] = _Context(*row)
        return found

    def _add_stream(self, context_id: int, name: str) -> int:
        self._context_id = max(self._context_id, context_id)
        self._stream_id += 1
        self._new_streams.append((self._stream_id, context_id, name))
        return self._stream_id

    def _repeated(self, commit: Commit, stream: _Stream) -> Appended:
        """The first result of a commit whose events are there already, else the conflict."""
        first, total = commit.expected, commit.columns.length
        conflict = VersionConflict(commit.context, commit.stream, commit.expected, stream.head)
        if first < 1:
            raise InvalidRequest("expected version", f"is {first}; it must be -1 or at least 1")
        if first + total - 1 > stream.head:
            raise conflict
        mine = [(Record(row[4], row[0]), row[0]) for row in self._records if row[3] == stream.id]
        place = self._history.place_of(commit.context, commit.stream, first, first + total - 1, mine)
        ids, number, position = place
        if ids != commit.columns.fixed[: 16 * total]:
            raise conflict
        return Appended(number, position, first, total, repeated=True)


def _shrink(cache: dict[_Key, _Value], limit: int) -> None:
    if len(cache) > limit:
        for key in list(cache)[: len(cache) - limit * 3 // 4]:
            del cache[key]
