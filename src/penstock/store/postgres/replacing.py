"""Putting a new store in the place of the one in a schema, in one transaction.

The new store is built in a schema beside it, whose name ends in `_restoring`. Then the tables of the old one are
dropped and those of the new one moved into their place: the schema itself stays, with what was granted on it.

A role that may not create schemas can have a store built only where there is none: in the schema itself, where nobody
opens it before it is whole.
"""

import re
import struct
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import PlaceRefused, StoreError, StoreInUse
from penstock.store.contract import Store, StoreIdentity, StoreImport
from penstock.store.postgres import schema
from penstock.store.postgres.connecting import Target
from penstock.store.postgres.holding import Hold
from penstock.store.postgres.importing import PostgresImport
from penstock.store.postgres.store import PostgresReader
from penstock.store.postgres.translation import translate
from penstock.store.replacing import Replaced, StoreReplacement
from penstock.store.tables.state import table

ASIDE: Final = "_restoring"
NAME_BYTES_MAX: Final = 63
"""Of PostgreSQL."""
_CREATED: Final = re.compile(r"^CREATE TABLE (\w+)", re.MULTILINE)
_SEARCH_PATH: Final = re.compile(r"(?:-c\s*search_path=|--search[_-]path=)\S+")


def own_tables() -> set[str]:
    """The tables that a store consists of."""
    return {name for text in schema.migrations() for name in _CREATED.findall(text)}


def beside(url: str) -> tuple[str, str]:
    """The schema beside a store's in which a new one is built, and its URL."""
    name = Target.of(url).schema[: NAME_BYTES_MAX - len(ASIDE)] + ASIDE
    others = _SEARCH_PATH.sub("", str(conninfo_to_dict(url).get("options") or ""))
    options = f"{others} -csearch_path={name}".strip()
    # Of a parameter that comes twice, the last one counts.
    return name, f"{url}{'&' if '?' in url else '?'}options={quote(options)}"


class Replacement(StoreReplacement):
    """A schema of which the store is being replaced, or that gets one. Nobody is connected, and nobody writes it."""

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
        with Hold(self._target, is_strict=True) as hold:
            self._look(hold)

    def _look(self, hold: Hold) -> None:
        version = schema.check(hold.db)
        self._is_there = bool(version) and not hold.db.value("importing")
        self._is_in_place = not hold.value("may_create_schemas")
        # One that was never used holds nothing.
        if self._is_there and not self._replace and hold.db.value("is_used"):
            raise PlaceRefused(self.shown, f"it holds a store; {self.advice}")
        if self._is_in_place and (self._is_there or not hold.value("schema_exists", {"schema": self._schema})):
            reason = "the new store is built in a schema of its own, and the role may not create any"
            raise PlaceRefused(self.shown, f"{reason}: GRANT CREATE ON DATABASE")
        if foreign := self._tables(hold, self._aside) - own_tables():
            raise PlaceRefused(self.shown, f"its schema {self._aside} has a table {min(foreign)} of others")

    def _tables(self, hold: Hold, name: str) -> set[str]:
        return {found for (found,) in hold.rows("tables", {"schema": name})}

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            self._hold = undo.enter_context(Hold(self._target, is_strict=True, is_changing=True))
            self._look(self._hold)
            self._begin()
            self._undo = undo.pop_all()
        return self

    def _begin(self) -> None:
        if self._is_there:
            self._settle()
        if self._is_in_place:
            # A store that was not finished is of no use to a restore, which begins anew.
            self._change(self._drop_tables)
            self._hold.release()
            return
        self._change(self._drop_aside)
        self._try_to_drop()

    def _settle(self) -> None:
        """Read what outlives the old store."""
        db = self._hold.db
        try:
            schema.migrate(db, int(db.value("now")))
            identity = StoreIdentity(*db.row("identity"))
            self.replaced = Replaced(identity, table(db, "timelines"), table(db, "erasures"))
        except (StoreError, struct.error, ValueError, TypeError):
            if db.is_lost:
                raise
            # Where something is damaged, any value can be in it.
            self.is_damaged = True

    def _try_to_drop(self) -> None:
        """Find out now, not when all is built, whether the old tables can go."""
        self._change(self._drop_tables, is_trial=True)

    # -- changes

    def _change(self, work: Callable[[], None], *, is_trial: bool = False) -> None:
        """Do something in one transaction of the session that has the lock; a trial is taken back."""
        try:
            with self._hold.db.connection.transaction(force_rollback=is_trial):
                work()
        except psycopg.errors.LockNotAvailable as error:
            raise StoreInUse(self.shown, "somebody who reads it") from error
        except psycopg.errors.DependentObjectsStillExist as error:
            words = " ".join((error.diag.message_detail or str(error)).split())
            raise PlaceRefused(self.shown, f"other things hang on its tables: {words}") from error
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
        if not self._hold.value("schema_exists", {"schema": self._schema}):
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._was_put and not self._hold.db.is_lost:
                self._change(self._drop_tables if self._is_in_place else self._drop_aside)
        finally:
            self._undo.close()
