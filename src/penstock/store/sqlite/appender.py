"""Placing commits in the history: positions, sequences, and the rows that an append writes.

Stream heads and context counters are kept in memory, because this process alone writes. What a batch changes is
staged and becomes the truth when the database has committed it; a transaction that fails inside a batch takes its
own part back. Rows are buffered and written together, just before the commit or before somebody must read them.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from penstock.errors import InvalidRequest, VersionConflict
from penstock.model import ANY, Appended, check_context, check_stream
from penstock.model.events import random_id
from penstock.store.contract import LOG_CONTEXT, Commit
from penstock.store.record import encode_commit
from penstock.store.sealing import BLOCK_BITS
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.history import History

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


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


class _Point(NamedTuple):
    """What to return to when a transaction fails."""

    head: int
    stream_id: int
    context_id: int


class Appender:
    """The state behind appends. One batch at a time: begin, place commits, flush, settle."""

    def __init__(self, db: Database, history: History, cache_max: int) -> None:
        self._db = db
        self._history = history
        self._cache_max = cache_max
        self._streams: dict[tuple[str, str], _Stream] = {}
        self._contexts: dict[str, _Context] = {}
        self._head: int = db.value("head") or 0
        self._stream_id: int = db.value("last_stream_id") or 0
        self._context_id: int = db.value("last_context_id") or 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """Start a batch whose commits are recorded at `now`."""
        self._now = now
        self._staged_streams: dict[tuple[str, str], _Stream] = {}
        self._staged_contexts: dict[str, _Context] = {}
        self._records: list[tuple[int, int, int, int, bytes]] = []
        self._commits: list[tuple[int, int, int]] = []
        self._new_streams: list[tuple[int, int, str]] = []
        self._blocks: list[tuple[int, int, int]] = []
        self._changed: set[str] = set()
        self._log_bytes: dict[str, int] = {}
        self._undo: list[Callable[[], object]] | None = None

    def point(self) -> _Point:
        """Remember this point; everything before it is flushed."""
        self.flush()
        self._undo = []
        return _Point(self._head, self._stream_id, self._context_id)

    def back_to(self, point: _Point) -> None:
        """Take back what was placed since a point; the caller rolls the database back."""
        self._head, self._stream_id, self._context_id = point
        for step in reversed(self._undo or []):
            step()
        self._undo = None
        self._drop_rows()

    def keep(self) -> None:
        """What was placed since the point stays."""
        self._undo = None

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

    def flush(self) -> None:
        """Write the buffered rows."""
        if not self._records:
            return
        if self._new_streams:
            self._db.run_many("add_stream", self._new_streams)
        self._db.run_many("add_record", self._records)
        self._db.run_many("add_commit", self._commits)
        if self._blocks:
            self._db.run_many("add_block", self._blocks)
        if self._log_bytes:
            self._db.run_many("grow_log", [(size, name) for name, size in self._log_bytes.items()])
        states = ((name, self._staged_contexts[name]) for name in self._changed)
        self._db.run_many("save_context", [(state.id, name, *state[1:]) for name, state in states])
        self._drop_rows()

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

    def _drop_rows(self) -> None:
        self._records.clear()
        self._commits.clear()
        self._new_streams.clear()
        self._blocks.clear()
        self._changed.clear()
        self._log_bytes.clear()

    def _stream(self, key: tuple[str, str]) -> _Stream:
        found = self._staged_streams.get(key) or self._streams.get(key)
        return found or self._load_stream(key)

    def _load_stream(self, key: tuple[str, str]) -> _Stream:
        context, stream = key
        if reason := check_context(context):
            raise InvalidRequest("context", reason)
        if reason := check_stream(stream):
            raise InvalidRequest("stream", reason)
        values = {"context_id": self._context(context).id, "name": stream}
        stream_id = self._db.value("stream_id", values)
        if stream_id is None:
            return _Stream(0, 0, stream.encode())
        loaded = _Stream(stream_id, self._db.value("stream_head", {"stream_id": stream_id}), stream.encode())
        self._streams[key] = loaded
        return loaded

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
        self.flush()
        ids, number, position = self._history.place_of(commit.context, commit.stream, first, first + total - 1)
        if ids != commit.columns.fixed[: 16 * total]:
            raise conflict
        return Appended(number, position, first, total, repeated=True)


def _shrink(cache: dict[_Key, _Value], limit: int) -> None:
    if len(cache) > limit:
        for key in list(cache)[: len(cache) - limit * 3 // 4]:
            del cache[key]
