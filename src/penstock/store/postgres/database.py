"""One connection: its named queries, its transactions, and what becomes of it when it is lost.

Statements of a transaction are sent one behind the other (pipeline mode) and waited for only where an answer is needed:
`later` sends, `rows` and its kin send and wait. A read whose connection was lost is tried once more on a new one;
inside a transaction whoever began it decides.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from penstock.errors import NotDurable, PenstockError, StorageFailure
from penstock.store.postgres import arrays
from penstock.store.postgres.connecting import QUERIES, Target, connect, refusal_of
from penstock.store.postgres.translation import translate

READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
LOOKUP_S_MAX: Final = 10.0
"""How long the outcome of a commit is looked for."""
LOOKUP_PAUSE_S: Final = 0.05

Values = Mapping[str, Any]
_NONE: Final[Values] = {}


class Database:
    """A connection to a store's database. Belongs to one thread at a time."""

    def __init__(self, target: Target, *, write: bool) -> None:
        self.target = target
        self.has_sent = False
        """Whether something that writes was sent since this was last set to False."""
        self._is_for_writing = write
        self._pipeline: ExitStack | None = None
        self._is_in_turn = False
        self.connection = connect(target, write=write)
        try:
            if write and (refusal := self.refusal()) is not None:
                raise refusal
            self.timeline = self._timeline()
        except BaseException:
            self.close()
            raise

    def refusal(self) -> NotDurable | None:
        """Why nothing may be written here, if a setting is off that must be on."""
        return refusal_of(self.value("switched_off"))

    def _timeline(self) -> str:
        """Which line of PostgreSQL's own history is written here; another after a failover, and transactions of the
        old one may mean something else there."""
        return str(self.value("wal_timeline")) if self._is_for_writing else ""

    # -- statements

    def later(self, name: str, values: Values = _NONE) -> psycopg.Cursor[Any]:
        """Send a statement that writes; inside a transaction its result is there after the next wait."""
        sent = self._execute(name, values)
        self.has_sent = True
        return sent

    def _execute(self, name: str, values: Values) -> psycopg.Cursor[Any]:
        arrays.check(values.values())
        try:
            return self.connection.execute(QUERIES[name], values, binary=True)
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def rows(self, name: str, values: Values = _NONE) -> list[Any]:
        """All rows of a query."""
        try:
            return self._fetch(name, values)
        except StorageFailure:
            if not self.can_begin_anew():
                raise
        return self._fetch(name, values)

    def _fetch(self, name: str, values: Values) -> list[Any]:
        return fetched(self._execute(name, values), write=self._is_for_writing)

    def ask(self, name: str, values: Values = _NONE) -> psycopg.Cursor[Any]:
        """Send a query; see `fetched`."""
        return self._execute(name, values)

    def row(self, name: str, values: Values = _NONE) -> Any:
        """The first row of a query, or None."""
        rows = self.rows(name, values)
        return rows[0] if rows else None

    def value(self, name: str, values: Values = _NONE) -> Any:
        """The first column of the first row, or None."""
        row = self.row(name, values)
        return row[0] if row else None

    def each(self, name: str, values: Values = _NONE) -> Iterator[Any]:
        """Rows one by one, of a query that limits itself."""
        yield from self.rows(name, values)

    def run(self, name: str, values: Values = _NONE) -> int:
        """Carry out a statement that writes and returns its rows, and wait; how many there were."""
        return len(fetched(self.later(name, values)))

    # -- transactions

    @property
    def is_held(self) -> bool:
        """Whether a transaction is open here."""
        return self._pipeline is not None or self._is_in_turn

    @contextmanager
    def turn(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction whose statements are waited for one by one: for what is seldom done, and for COPY."""
        self._is_in_turn = True
        try:
            with self.connection.transaction():
                yield self.connection
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error
        finally:
            self._is_in_turn = False

    def begin(self, text: str) -> None:
        """Open a transaction; everything is sent without waiting from here on."""
        self._pipeline = ExitStack()
        try:
            self._sync = self._pipeline.enter_context(self.connection.pipeline()).sync
            self.connection.execute(text)
        except psycopg.Error as error:
            self.abandon()
            raise translate(error, write=self._is_for_writing) from error

    def sync(self) -> None:
        """Wait for all that was sent. From here on the database knows that it waits for us, and for how long."""
        try:
            self._sync()
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def commit(self) -> None:
        """End the transaction; what was sent is carried out when this returns."""
        try:
            done = self.connection.execute("COMMIT")
            self._leave_pipeline()
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error
        if done.statusmessage != "COMMIT":
            raise StorageFailure(f"the database answered a commit with {done.statusmessage}")

    def command(self, text: str) -> None:
        """SAVEPOINT and its like; sent without waiting."""
        try:
            self.connection.execute(text)
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def _leave_pipeline(self) -> None:
        stack, self._pipeline = self._pipeline, None
        if stack is not None:
            stack.close()

    def abandon(self) -> None:
        """Roll back whatever is open; never raises. A connection that cannot is closed."""
        with suppress(psycopg.Error):
            # That something failed is known already.
            self._leave_pipeline()
        try:
            if not self.is_lost and self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Reads inside see one state. Keep it short: it keeps VACUUM from its work."""
        if self.is_held:
            yield
            return
        self.begin(READ)
        try:
            yield
        except BaseException:
            self.abandon()
            raise
        self.commit()

    # -- the connection

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be sent any more."""
        return self.connection.closed

    def can_begin_anew(self) -> bool:
        """After a failed read: connect again if the connection was lost; whether it may be tried once more."""
        if self.is_held or not self.is_lost:
            return False
        self.reconnect()
        return True

    def reconnect(self) -> None:
        """Give up this connection for a new one; raises if there is none."""
        self.close()
        self.connection = connect(self.target, write=self._is_for_writing)
        self.timeline = self._timeline()

    def close(self) -> None:
        """Close the connection."""
        with suppress(psycopg.Error):
            self._leave_pipeline()
        self.connection.close()

    def was_committed(self, transaction: str, process: int) -> bool:
        """Whether a transaction of the connection that was lost is committed; StorageFailure if nobody can say."""
        timeline, deadline = self.timeline, time.monotonic() + LOOKUP_S_MAX
        while time.monotonic() < deadline:
            try:
                if self.is_lost:
                    self.reconnect()
                status = self.value("transaction_status", {"transaction": transaction})
                if status == "in progress":
                    # It is still in its turn, perhaps waiting for the end of what we sent.
                    self.rows("end_transaction", {"transaction": transaction, "process": process})
            except PenstockError:
                time.sleep(LOOKUP_PAUSE_S)
                continue
            if self.timeline != timeline or status is None:
                break
            if status != "in progress":
                return bool(status == "committed")
            time.sleep(LOOKUP_PAUSE_S)
        raise StorageFailure("the connection was lost during a commit, and what became of it cannot be found out")


def fetched(sent: psycopg.Cursor[Any], *, write: bool = True) -> list[Any]:
    """The rows of a statement that was sent; waits for them."""
    try:
        return sent.fetchall()
    except psycopg.Error as error:
        raise translate(error, write=write) from error


# --- reading once more ----------------------------------------------------------------------------------------


class _HasDatabase(Protocol):
    db: Database


_Self = TypeVar("_Self", bound=_HasDatabase)
_Params = ParamSpec("_Params")
_Answer = TypeVar("_Answer")


def rereading(
    method: Callable[Concatenate[_Self, _Params], _Answer],
) -> Callable[Concatenate[_Self, _Params], _Answer]:
    """A read of several statements that is done once more on a new connection if its own was lost."""

    @wraps(method)
    def read(self: _Self, /, *given: _Params.args, **named: _Params.kwargs) -> _Answer:
        try:
            return method(self, *given, **named)
        except StorageFailure:
            if not self.db.can_begin_anew():
                raise
        return method(self, *given, **named)

    return read
