"""One connection: its named queries, its transactions, and what happens when it is lost.

A transaction sends its statements one after the other (pipeline mode) and waits only where it needs an answer: `later`
and `send` do not wait, `rows` and the like do. A read outside a transaction that loses its connection is retried once
on a new one.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from penstock.errors import NotDurable, PenstockError, StorageFailure
from penstock.store.postgres import arrays
from penstock.store.postgres.connection import QUERIES, Target, connect, refusal_of, translate
from penstock.store.tables.database import NO_VALUES, Database, Values

READ: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
WRITE: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
LOOKUP_S_MAX: Final = 10.0
"""How long to look for the outcome of a commit."""
LOOKUP_PAUSE_S: Final = 0.05


class PostgresDatabase(Database):
    """A connection to a store's database."""

    def __init__(self, target: Target, *, write: bool) -> None:
        self.target = target
        self.has_sent = False
        """Whether a statement that writes was sent since this was last set to False."""
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
        """PostgreSQL's timeline. A failover starts another, in which the old transaction numbers mean nothing."""
        return str(self.value("wal_timeline")) if self._is_for_writing else ""

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    # -- statements

    def later(self, name: str, values: Values = NO_VALUES) -> psycopg.Cursor[Any]:
        """Send a statement that writes; inside a transaction its result is there after the next wait."""
        sent = self._execute(name, values)
        self.has_sent = True
        return sent

    def send(self, name: str, values: Values = NO_VALUES) -> Callable[[], list[Any]]:
        return partial(fetched, self.later(name, values))

    def ask(self, name: str, values: Values = NO_VALUES) -> Callable[[], list[Any]]:
        """Like `send`, for a query that writes nothing."""
        return partial(fetched, self._execute(name, values))

    def _execute(self, name: str, values: Values) -> psycopg.Cursor[Any]:
        arrays.check(values.values())
        try:
            return self.connection.execute(QUERIES[name], values, binary=True)
        except psycopg.Error as error:
            raise translate(error, write=self._is_for_writing) from error

    def rows(self, name: str, values: Values = NO_VALUES) -> list[Any]:
        try:
            return fetched(self._execute(name, values), write=self._is_for_writing)
        except StorageFailure:
            if not self.can_retry():
                raise
        return fetched(self._execute(name, values), write=self._is_for_writing)

    def each(self, name: str, values: Values = NO_VALUES) -> Iterator[Any]:
        # The queries limit themselves.
        yield from self.rows(name, values)

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._translated(), self.connection.cursor() as cursor:
            cursor.executemany(QUERIES[name], rows)

    # -- transactions

    @property
    def is_held(self) -> bool:
        return self._pipeline is not None or self._is_in_turn

    @contextmanager
    def turn(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction that waits for each statement: for rare work, and for COPY."""
        self._is_in_turn = True
        try:
            with self._translated(), self.connection.transaction():
                yield self.connection
        finally:
            self._is_in_turn = False

    def begin(self, text: str) -> None:
        """Open a transaction; from here on statements are sent without waiting."""
        self._pipeline = ExitStack()
        try:
            self._sync = self._pipeline.enter_context(self.connection.pipeline()).sync
            self.connection.execute(text)
        except psycopg.Error as error:
            self.abandon()
            raise translate(error, write=self._is_for_writing) from error

    def sync(self) -> None:
        """Wait for everything that was sent. From here on the database can measure how long we are idle."""
        with self._translated():
            self._sync()

    def commit(self) -> None:
        with self._translated():
            done = self.connection.execute("COMMIT")
            self._leave_pipeline()
        if done.statusmessage != "COMMIT":
            raise StorageFailure(f"the database answered a commit with {done.statusmessage}")

    def command(self, text: str) -> None:
        with self._translated():
            self.connection.execute(text)

    def _leave_pipeline(self) -> None:
        stack, self._pipeline = self._pipeline, None
        if stack is not None:
            stack.close()

    def abandon(self) -> None:
        """Roll back an open transaction; never raises. Closes a connection that cannot roll back."""
        with suppress(psycopg.Error):
            self._leave_pipeline()
        try:
            if not self.is_lost and self.connection.info.transaction_status != TransactionStatus.IDLE:
                self.connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
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
        return self.connection.closed

    def can_retry(self) -> bool:
        if self.is_held or not self.is_lost:
            return False
        self.reconnect()
        return True

    def reconnect(self) -> None:
        self.close()
        self.connection = connect(self.target, write=self._is_for_writing)
        self.timeline = self._timeline()

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._leave_pipeline()
        self.connection.close()

    def was_committed(self, transaction: str, process: int) -> bool:
        """Whether a transaction of the lost connection is committed; StorageFailure if that cannot be found out."""
        timeline, deadline = self.timeline, time.monotonic() + LOOKUP_S_MAX
        while time.monotonic() < deadline:
            try:
                if self.is_lost:
                    self.reconnect()
                status = self.value("transaction_status", {"transaction": transaction})
                if status == "in progress":
                    # Its session may still wait for the rest of a statement.
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
    try:
        return sent.fetchall()
    except psycopg.Error as error:
        raise translate(error, write=write) from error
