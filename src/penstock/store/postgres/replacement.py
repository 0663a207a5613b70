"""Replacing the store in a schema, in one transaction.

An import fills the new store in a schema next to the old one, whose name ends in `_restoring`. Then one transaction
drops the tables of the old store and moves the new ones into their place: the schema itself stays, with all grants on
it. A role that may not create schemas can only build where there is no store: in the schema itself, where nothing opens
the store before it is whole.

A hold keeps all servers from writing for longer than one transaction. Its session has the lock that every write takes,
so no server can change anything. Other servers end a session that is idle with that lock for too long, so the hold
sends a statement now and then. It recognises servers by their sessions' name (`application_name`), and asks you to stop
them first instead of making their writes fail; the lock is what makes it safe.
"""

import re
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import PenstockError, PlaceRefused, StorageFailure, StoreError, StoreInUse
from penstock.store.contract import ACCESS_TABLES, StoreIdentity
from penstock.store.postgres import schema
from penstock.store.postgres.connection import QUERIES, Target, translate
from penstock.store.postgres.database import PostgresDatabase
from penstock.store.postgres.reader import PostgresReader
from penstock.store.record import Record
from penstock.store.replacement import NO_NOTE, SOURCE, Replaced, StoreHold, StoreReplacement
from penstock.store.tables.database import NO_VALUES, Values
from penstock.store.tables.imports import ImportIndex, StoreImport
from penstock.store.tables.store import Store, state_table

OTHERS_S_MAX: Final = 3.0
"""How long sessions that were just closed may take to end."""
OWNING_S_MAX: Final = 10.0
"""How long a hold waits for another session's lock."""
PAUSE_S: Final = 0.05
BEAT_S: Final = 2.0
PIDS_SHOWN_MAX: Final = 5
ASIDE: Final = "_restoring"
NAME_BYTES_MAX: Final = 63
"""Of PostgreSQL."""
_CREATED: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_SEARCH_PATH: Final = re.compile(r"(?:-c\s*search_path=|--search[_-]path=)\S+")
_NUMBER: Final = "int8"
_COPIED: Final = {
    "add_stream": ("copy_streams", (_NUMBER, _NUMBER, "text")),
    "add_record": ("copy_records", (_NUMBER, "int4", _NUMBER, _NUMBER, "bytea")),
    "add_commit": ("copy_commits", (_NUMBER, _NUMBER, _NUMBER)),
    "add_block": ("copy_blocks", (_NUMBER, _NUMBER, _NUMBER)),
}
"""The COPY statements for rows of the history, and the types of their columns."""


# --- imports --------------------------------------------------------------------------------------------------


class _ImportDatabase(PostgresDatabase):
    """COPY is the fastest way to add rows."""

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if name not in _COPIED:
            super().run_many(name, rows)
            return
        query, types = _COPIED[name]
        with self.connection.cursor().copy(QUERIES[query]) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)


class PostgresImport(StoreImport):
    """A new store in a schema without a store, or with an unused one; or an interrupted import that goes on."""

    _db: PostgresDatabase

    def __init__(self, url: str) -> None:
        self._target = Target.of(url)
        self._db = _ImportDatabase(self._target, write=True)
        try:
            if not self._db.value("own", self._target.import_lock):
                raise StoreInUse(self._target.shown, "another restore or copy")
            self._mark()
        except BaseException:
            self._db.close()
            raise

    def _mark(self) -> None:
        version = schema.check(self._db)
        if version == 0:
            schema.migrate(self._db, self._now(), importing=True)
        elif self._db.value("importing"):
            if version != schema.SCHEMA_VERSION:
                raise PlaceRefused(self._target.shown, "another version of Penstock began to fill it; remove it")
        else:
            schema.migrate(self._db, self._now())
            with self._transaction():
                if self._db.value("is_used"):
                    raise PlaceRefused(self._target.shown, "it holds a store already")
                self._db.later("set_meta", {"key": SOURCE, "value": NO_NOTE})

    def _now(self) -> int:
        return int(self._db.value("now"))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._db.turn():
            self._db.ask("lock", self._target.lock)
            yield

    def _end_add(self, index: ImportIndex, last: Record) -> None:
        numbers = {"stream_id": index.last_stream, "context_id": len(index.contexts)}
        self._db.later("import_head", {**numbers, "head": last.last, "recorded": last.runs()[-1].recorded})

    def _end_finish(self) -> None:
        self._db.later("count_allocations")
        self._db.later("next_numbers")


# --- holds and replacements -----------------------------------------------------------------------------------


class PostgresHold(StoreHold):
    """A session that keeps others from writing. `is_strict`: refuses while other sessions of our name are connected."""

    def __init__(self, target: Target, *, is_strict: bool, is_changing: bool = False) -> None:
        self.target = target
        self._is_strict = is_strict
        # Creating or migrating a schema takes another lock.
        self._locks = [target.lock, target.migration_lock] if is_changing else [target.lock]
        self._ending = threading.Event()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self.db = PostgresDatabase(self.target, write=True)
            undo.callback(self.db.close)
            if self._is_strict:
                self._refuse_others()
            for lock in self._locks:
                self._own(lock)
            undo.callback(self._release_quietly)
            beating = threading.Thread(target=self._beat, name="penstock-hold", daemon=True)
            beating.start()
            undo.callback(beating.join)
            undo.callback(self._ending.set)
            self._undo = undo.pop_all()
        return self

    def ask(self, name: str, values: Values = NO_VALUES) -> list[Any]:
        """The rows of a query. It never reconnects: a new session would not have the locks."""
        return self.db.ask(name, values)()

    def _refuse_others(self) -> None:
        deadline = time.monotonic() + OTHERS_S_MAX
        while found := [pid for (pid,) in self.ask("others")]:
            if time.monotonic() > deadline:
                pids = ", ".join(map(str, found[:PIDS_SHOWN_MAX])) + ", …" * (len(found) > PIDS_SHOWN_MAX)
                name = self.db.connection.info.parameter_status("application_name")
                raise StoreInUse(self.target.shown, f"sessions of the application {name} (PostgreSQL processes {pids})")
            time.sleep(PAUSE_S)

    def _own(self, lock: dict[str, int]) -> None:
        deadline = time.monotonic() + OWNING_S_MAX
        while not self.ask("own", lock)[0][0]:
            if time.monotonic() > deadline:
                raise StoreInUse(self.target.shown, "another session, which writes it or holds it")
            time.sleep(PAUSE_S)

    def _beat(self) -> None:
        while not self._ending.wait(BEAT_S):
            # `check` reports a lost session.
            with suppress(PenstockError):
                self.ask("beat")

    def _release_quietly(self) -> None:
        # A closed session has its locks until it has ended.
        with suppress(PenstockError):
            self.release()

    def release(self) -> None:
        """Let others write again; the session stays open."""
        for lock in self._locks:
            self.ask("give_up", lock)
        self._locks = []

    def check(self) -> None:
        try:
            held = 0 if self.db.is_lost else self.ask("beat")[0][0]
        except StorageFailure:
            held = 0
        if held < len(self._locks):
            raise StorageFailure("the session that kept others from writing was lost; run it again")

    def __exit__(self, *_error: object) -> None:
        self._undo.close()


def own_tables() -> set[str]:
    return {name for text in schema.migrations() for name in _CREATED.findall(text)}


def beside(url: str) -> tuple[str, str]:
    """The schema next to a store's in which a new one is built, and its URL."""
    name = Target.of(url).schema[: NAME_BYTES_MAX - len(ASIDE)] + ASIDE
    others = _SEARCH_PATH.sub("", str(conninfo_to_dict(url).get("options") or ""))
    options = f"{others} -csearch_path={name}".strip()
    # libpq uses the last of two equal parameters.
    return name, f"{url}{'&' if '?' in url else '?'}options={quote(options)}"


class PostgresReplacement(StoreReplacement):
    """A schema whose store is being replaced, or that gets one. No server is connected to it."""

    def __init__(self, url: str, *, replace: bool) -> None:
        self._url = url
        self._target = Target.of(url)
        self.shown = self._target.shown
        self._schema = self._target.schema
        self._aside, self._aside_url = beside(url)
        self._replace = replace
        self._is_in_place = False
        self._is_there = False
        self._was_put = False
        self._undo = ExitStack()

    def look(self) -> None:
        with PostgresHold(self._target, is_strict=True) as hold:
            self._look(hold)

    def _look(self, hold: PostgresHold) -> None:
        version = schema.check(hold.db)
        self._is_there = bool(version) and not hold.db.value("importing")
        self._is_in_place = not hold.ask("may_create_schemas")[0][0]
        # An unused store holds nothing.
        if self._is_there and not self._replace and hold.db.value("is_used"):
            raise PlaceRefused(self.shown, f"it holds a store; {self.advice}")
        if self._is_in_place and (self._is_there or not hold.ask("schema_exists", {"schema": self._schema})[0][0]):
            reason = "the new store is built in another schema, and the role may not create one"
            raise PlaceRefused(self.shown, f"{reason}: GRANT CREATE ON DATABASE")
        if foreign := self._tables(hold, self._aside) - own_tables():
            raise PlaceRefused(self.shown, f"its schema {self._aside} has a table {min(foreign)} of others")

    def _tables(self, hold: PostgresHold, name: str) -> set[str]:
        return {found for (found,) in hold.ask("tables", {"schema": name})}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._hold = undo.enter_context(PostgresHold(self._target, is_strict=True, is_changing=True))
            self._look(self._hold)
            if self._is_there:
                self._settle()
            if self._is_in_place:
                # A restore starts again, so it has no use for an unfinished store.
                self._change(self._drop_tables)
                self._hold.release()
            else:
                self._change(self._drop_aside)
                # Try now whether the old tables can be dropped, not when the new store is built.
                self._change(self._drop_tables, is_trial=True)
            self._undo = undo.pop_all()
        return self

    def _settle(self) -> None:
        """Read what the new store inherits from the old one."""
        db = self._hold.db
        try:
            schema.migrate(db, int(db.value("now")))
            identity = StoreIdentity(*db.row("identity"))
            access = {name: state_table(db, name) for name in ACCESS_TABLES}
            self.replaced = Replaced(identity, state_table(db, "timelines"), state_table(db, "erasures"), access)
        except (StoreError, struct.error, ValueError, TypeError):
            if db.is_lost:
                raise
            # A damaged store can have any value.
            self.is_damaged = True

    # -- changes

    def _change(self, work: Callable[[], None], *, is_trial: bool = False) -> None:
        """Do something in one transaction of the session with the lock; a trial is rolled back."""
        try:
            with self._hold.db.connection.transaction(force_rollback=is_trial):
                work()
        except psycopg.errors.LockNotAvailable as error:
            raise StoreInUse(self.shown, "a session that reads it") from error
        except psycopg.errors.DependentObjectsStillExist as error:
            words = " ".join((error.diag.message_detail or str(error)).split())
            raise PlaceRefused(self.shown, f"other objects depend on its tables: {words}") from error
        except psycopg.Error as error:
            raise translate(error) from error

    def _execute(self, text: str, *names: str) -> None:
        self._hold.db.connection.execute(sql.SQL(text).format(*map(sql.Identifier, names)))

    def _drop_tables(self) -> None:
        found = sorted(self._tables(self._hold, self._schema) & own_tables())
        if found:
            named = sql.SQL(", ").join(sql.Identifier(self._schema, name) for name in found)
            self._hold.db.connection.execute(sql.SQL("DROP TABLE {}").format(named))

    def _drop_aside(self) -> None:
        self._execute("DROP SCHEMA IF EXISTS {} CASCADE", self._aside)

    def _move(self) -> None:
        self._drop_tables()
        if not self._hold.ask("schema_exists", {"schema": self._schema})[0][0]:
            self._execute("CREATE SCHEMA {}", self._schema)
        for name in sorted(self._tables(self._hold, self._aside)):
            self._execute("ALTER TABLE {}.{} SET SCHEMA {}", self._aside, name, self._schema)
        self._drop_aside()

    # -- the new store

    def filling(self) -> StoreImport:
        return PostgresImport(self._url if self._is_in_place else self._aside_url)

    def built(self) -> Store:
        return PostgresReader(self._url if self._is_in_place else self._aside_url)

    def swap(self) -> None:
        self._hold.check()
        if not self._is_in_place:
            self._change(self._move)
        self._was_put = True

    def __exit__(self, *_error: object) -> None:
        try:
            if not self._was_put and not self._hold.db.is_lost:
                self._change(self._drop_tables if self._is_in_place else self._drop_aside)
        finally:
            self._undo.close()
