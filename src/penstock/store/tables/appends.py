"""Appends: commits get positions and sequences, and become rows.

A batch stages what it changes. The staged state becomes the known state when the database has committed the batch, and
a transaction that fails inside the batch takes its own changes back. The appender buffers rows and writes them
together, just before the commit or before a read that needs them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar

from penstock.errors import InvalidRequest, VersionConflict
from penstock.model import ANY, LOG_CONTEXT, Appended, check_context, check_stream
from penstock.model.events import random_id
from penstock.store.contract import Commit
from penstock.store.record import encode_commit
from penstock.store.seals import BLOCK_BITS
from penstock.store.tables.database import Database

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
StreamKey = tuple[str, str]


class StreamState(NamedTuple):
    """A stream's number (0 for a new stream), its last sequence, and its encoded name."""

    id: int
    head: int
    name: bytes


class ContextState(NamedTuple):
    """A context's number, its counters, its highest event time, and its last block in the index."""

    id: int
    events: int
    commits: int
    streams: int
    bytes: int
    top: int
    block: int


class NewRows(NamedTuple):
    """Rows of records and of what finds them, until they are written together."""

    records: list[tuple[int, int, int | None, int | None, bytes]]
    commits: list[tuple[int, int, int]]
    streams: list[tuple[int, int, str]]
    blocks: list[tuple[int, int, int]]


class Appender(ABC):
    """The state behind appends. One batch at a time: begin, place commits, flush, settle."""

    def __init__(self, db: Database, cache_max: int) -> None:
        self._db = db
        self._cache_max = cache_max
        self._streams: dict[StreamKey, StreamState] = {}
        self._contexts: dict[str, ContextState] = {}
        self.head = self._stream_id = self._context_id = 0
        """`head` is the last position, with this batch."""

    def begin(self, recorded: int) -> None:
        """Start a batch whose commits get this recorded time."""
        self._recorded = recorded
        self._staged_streams: dict[StreamKey, StreamState] = {}
        self._staged_contexts: dict[str, ContextState] = {}
        self._rows = NewRows([], [], [], [])
        self._changed: set[str] = set()
        self._log_bytes: dict[str, int] = {}
        self._undo: list[Callable[[], object]] | None = None

    def savepoint(self) -> Callable[[], None]:
        """Start to record changes; the answer undoes them. The caller rolls back rows that the database already has."""
        numbers = self.head, self._stream_id, self._context_id
        rows: tuple[list[Any], ...] = self._rows
        lengths, changed, log_bytes = list(map(len, rows)), set(self._changed), dict(self._log_bytes)
        undo = self._undo = []

        def roll_back() -> None:
            self.head, self._stream_id, self._context_id = numbers
            for step in reversed(undo):
                step()
            self._undo = None
            rows: tuple[list[Any], ...] = self._rows
            for kept, length in zip(rows, lengths, strict=True):
                del kept[length:]
            self._changed, self._log_bytes = changed, log_bytes

        return roll_back

    def release(self) -> None:
        self._undo = None

    def _clear_rows(self) -> None:
        for rows in self._rows:
            rows.clear()
        self._changed.clear()
        self._log_bytes.clear()

    @abstractmethod
    def flush(self) -> None: ...

    def place(self, commit: Commit) -> Appended:
        """Give a commit its place in the history. If it raises, nothing has changed."""
        key = (commit.context, commit.stream)
        stream = self._staged_streams.get(key) or self._streams.get(key) or self._load_stream(key)
        if commit.expected not in (ANY, stream.head + 1):
            return self._repeat_or_conflict(commit, stream)
        columns = commit.columns
        context = self._context(commit.context)
        position, sequence = self.head + 1, stream.head + 1
        last = stream.head + columns.length
        stream_id = stream.id or self._add_stream(context.id, commit.stream)
        commit_id = random_id()
        data = encode_commit(
            columns, position, commit.context.encode(), stream.name, sequence, commit_id, self._recorded
        )
        self._rows.records.append((position, columns.length, context.id, stream_id, data))
        self._rows.commits.append((stream_id, last, position))
        block = position >> BLOCK_BITS
        if block != context.block:
            self._rows.blocks.append((context.id, block, context.top))
        self._stage(self._staged_streams, key, StreamState(stream_id, last, stream.name))
        grown = ContextState(
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
        self.head += columns.length
        return Appended(commit_id, position, sequence, columns.length)

    def is_behind(self, commit: Commit) -> bool:
        """Whether the stream is already past the expected version: the commit is a repeat or a conflict."""
        return 1 <= commit.expected <= self.stream_head(commit.context, commit.stream)

    def stream_head(self, context: str, stream: str) -> int:
        """A stream's last sequence, with this batch."""
        key = (context, stream)
        return (self._staged_streams.get(key) or self._streams.get(key) or self._load_stream(key)).head

    def look_up(self, _keys: Iterable[StreamKey]) -> None:
        """Load streams together, if the backend would wait for each alone."""
        return

    def settle(self) -> None:
        """The database has committed the batch: the staged state is now the known state."""
        remember(self._streams, self._staged_streams, self._cache_max)
        remember(self._contexts, self._staged_contexts, self._cache_max)

    def _stage(self, staged: dict[_Key, _Value], key: _Key, value: _Value) -> None:
        if self._undo is not None:
            before = staged.get(key)
            undo = partial(staged.pop, key) if before is None else partial(staged.__setitem__, key, before)
            self._undo.append(undo)
        staged[key] = value

    def _load_stream(self, key: StreamKey) -> StreamState:
        context, stream = key
        if reason := check_context(context):
            raise InvalidRequest("context", reason)
        if reason := check_stream(stream):
            raise InvalidRequest("stream", reason)
        return self._find_stream(context, stream) or StreamState(0, 0, stream.encode())

    @abstractmethod
    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        """Look up a stream in the database, and remember it if it exists."""

    def _context(self, name: str) -> ContextState:
        found = self._staged_contexts.get(name) or self._contexts.get(name)
        if found is None:
            row = self._db.row("context_state", {"name": name})
            if row is None:
                # The number is taken when the first commit stages the context.
                return ContextState(self._context_id + 1, 0, 0, 0, 0, -1, -1)
            found = self._contexts[name] = ContextState(*row)
        return found

    def _add_stream(self, context_id: int, name: str) -> int:
        self._context_id = max(self._context_id, context_id)
        self._stream_id += 1
        self._rows.streams.append((self._stream_id, context_id, name))
        return self._stream_id

    def _repeat_or_conflict(self, commit: Commit, stream: StreamState) -> Appended:
        """The first result of a commit that the store already has; raises VersionConflict for any other commit."""
        first, total = commit.expected, commit.columns.length
        conflict = VersionConflict(commit.context, commit.stream, commit.expected, stream.head)
        if first < 1:
            raise InvalidRequest("expected version", f"is {first}; it must be -1 or at least 1")
        if first + total - 1 > stream.head:
            raise conflict
        ids, number, position = self._stored_ids(commit, stream)
        if ids != commit.columns.fixed[: 16 * total]:
            raise conflict
        return Appended(number, position, first, total, repeated=True)

    @abstractmethod
    def _stored_ids(self, commit: Commit, stream: StreamState, /) -> tuple[bytes, bytes, int]:
        """The event ids at the sequences of a commit, and the commit id and position of the first."""


def remember(known: dict[_Key, _Value], staged: dict[_Key, _Value], limit: int) -> None:
    """Add to what is known, which is bounded: the oldest entries go first."""
    known.update(staged)
    if len(known) > limit:
        for key in list(known)[: len(known) - limit * 3 // 4]:
            del known[key]
