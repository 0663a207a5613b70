"""Placing commits in the history: positions, sequences, and the rows that an append writes.

What a batch changes is staged and becomes the truth when the database has committed it; a transaction that fails inside
a batch takes its own part back. Rows are buffered and written together, just before the commit or before somebody must
read them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from penstock.errors import InvalidRequest, VersionConflict
from penstock.model import ANY, Appended, check_context, check_stream
from penstock.model.events import random_id
from penstock.store.contract import LOG_CONTEXT, Commit
from penstock.store.record import encode_commit
from penstock.store.sealing import BLOCK_BITS
from penstock.store.tables.queries import AnyQueries

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
StreamKey = tuple[str, str]


class StreamState(NamedTuple):
    """A stream's number, its last sequence, and its name as it is written; its number is 0 if it is not there yet."""

    id: int
    head: int
    name: bytes


class ContextState(NamedTuple):
    """A context's number, what it has, its highest event time, and the last block that is entered for it."""

    id: int
    events: int
    commits: int
    streams: int
    bytes: int
    top: int
    block: int


class Placing(ABC, Generic[AnyQueries]):
    """The state behind appends. One batch at a time: begin, place commits, flush, settle."""

    def __init__(self, db: AnyQueries, cache_max: int) -> None:
        self._db = db
        self._cache_max = cache_max
        self._streams: dict[StreamKey, StreamState] = {}
        self._contexts: dict[str, ContextState] = {}
        self._head = self._stream_id = self._context_id = 0

    def _begin(self, now: int) -> None:
        """Start a batch whose commits are recorded at `now`."""
        self._now = now
        self._staged_streams: dict[StreamKey, StreamState] = {}
        self._staged_contexts: dict[str, ContextState] = {}
        self._records: list[tuple[int, int, int, int, bytes]] = []
        self._commits: list[tuple[int, int, int]] = []
        self._new_streams: list[tuple[int, int, str]] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._changed: set[str] = set()
        self._log_bytes: dict[str, int] = {}
        self._undo: list[Callable[[], object]] | None = None

    def _take_back(self) -> None:
        """Take back what was staged since the point."""
        for step in reversed(self._undo or []):
            step()
        self._undo = None

    def keep(self) -> None:
        """What was placed since the point stays."""
        self._undo = None

    def _drop_rows(self) -> None:
        self._records.clear()
        self._commits.clear()
        self._new_streams.clear()
        self._blocks.clear()
        self._changed.clear()
        self._log_bytes.clear()

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
        self._head += columns.length
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

    def _stream(self, key: StreamKey) -> StreamState:
        found = self._staged_streams.get(key) or self._streams.get(key)
        return found or self._load_stream(key)

    def _load_stream(self, key: StreamKey) -> StreamState:
        context, stream = key
        if reason := check_context(context):
            raise InvalidRequest("context", reason)
        if reason := check_stream(stream):
            raise InvalidRequest("stream", reason)
        return self._find_stream(context, stream) or StreamState(0, 0, stream.encode())

    @abstractmethod
    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        """What the database says of a stream, remembered if there is one."""

    def _context(self, name: str) -> ContextState:
        found = self._staged_contexts.get(name) or self._contexts.get(name)
        if found is None:
            row = self._db.row("context_state", {"name": name})
            if row is None:
                # Staged with its first commit; until then the number is not taken.
                return ContextState(self._context_id + 1, 0, 0, 0, 0, -1, -1)
            found = self._contexts[name] = ContextState(*row)
        return found

    def _add_stream(self, context_id: int, name: str) -> int:
        self._context_id = max(self._context_id, context_id)
        self._stream_id += 1
        self._new_streams.append((self._stream_id, context_id, name))
        return self._stream_id

    def _repeated(self, commit: Commit, stream: StreamState) -> Appended:
        """The first result of a commit whose events are there already, else the conflict."""
        first, total = commit.expected, commit.columns.length
        conflict = VersionConflict(commit.context, commit.stream, commit.expected, stream.head)
        if first < 1:
            raise InvalidRequest("expected version", f"is {first}; it must be -1 or at least 1")
        if first + total - 1 > stream.head:
            raise conflict
        ids, number, position = self._place_of(commit, stream)
        if ids != commit.columns.fixed[: 16 * total]:
            raise conflict
        return Appended(number, position, first, total, repeated=True)

    @abstractmethod
    def _place_of(self, commit: Commit, stream: StreamState, /) -> tuple[bytes, bytes, int]:
        """The ids that a stream has where a commit wants to be, and the commit and position they begin with."""


def _shrink(cache: dict[_Key, _Value], limit: int) -> None:
    if len(cache) > limit:
        for key in list(cache)[: len(cache) - limit * 3 // 4]:
            del cache[key]
