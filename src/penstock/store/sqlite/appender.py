"""Placing commits in the history of a store on SQLite: see `penstock.store.tables.appender`.

Stream heads and context counters are kept in memory, because this process alone writes.
"""

from typing import NamedTuple

from penstock.store.contract import Commit
from penstock.store.sqlite.database import Database
from penstock.store.sqlite.history import History
from penstock.store.tables.appender import Placing, StreamState


class _Point(NamedTuple):
    """What to return to when a transaction fails."""

    head: int
    stream_id: int
    context_id: int


class Appender(Placing[Database]):
    """The state behind appends on SQLite."""

    def __init__(self, db: Database, history: History, cache_max: int) -> None:
        super().__init__(db, cache_max)
        self._history = history
        self._head = db.value("head") or 0
        self._stream_id = db.value("last_stream_id") or 0
        self._context_id = db.value("last_context_id") or 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """Start a batch whose commits are recorded at `now`."""
        self._begin(now)

    def point(self) -> _Point:
        """Remember this point; everything before it is flushed."""
        self.flush()
        self._undo = []
        return _Point(self._head, self._stream_id, self._context_id)

    def back_to(self, point: _Point) -> None:
        """Take back what was placed since a point; the caller rolls the database back."""
        self._head, self._stream_id, self._context_id = point
        self._take_back()
        self._drop_rows()

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

    def _find_stream(self, context: str, stream: str) -> StreamState | None:
        stream_id = self._db.value("stream_id", {"context_id": self._context(context).id, "name": stream})
        if stream_id is None:
            return None
        head = self._db.value("stream_head", {"stream_id": stream_id})
        found = self._streams[context, stream] = StreamState(stream_id, head, stream.encode())
        return found

    def _place_of(self, commit: Commit, _stream: StreamState) -> tuple[bytes, bytes, int]:
        self.flush()
        last = commit.expected + commit.columns.length - 1
        return self._history.place_of(commit.context, commit.stream, commit.expected, last)
