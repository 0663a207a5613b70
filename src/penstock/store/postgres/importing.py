"""Filling a new store on PostgreSQL with the records and the state of another.

Each call of `add` is one durable transaction, whose rows come in by COPY. Until `finish` the store is marked, and
nobody opens it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg

from penstock.errors import InvalidRequest, PlaceRefused, StoreInUse
from penstock.store.contract import STATE_TABLES, StoreImport, StoreState
from penstock.store.postgres import schema
from penstock.store.postgres.arrays import Numbers, Texts
from penstock.store.postgres.connecting import QUERIES, Target
from penstock.store.postgres.database import Database
from penstock.store.postgres.translation import translate
from penstock.store.record import Record
from penstock.store.tables.hiding import packed
from penstock.store.tables.logs import LAST_LOG
from penstock.store.tables.state import Row

if TYPE_CHECKING:
    from penstock.store.tables.indexing import Indexing

_RANGES: Final = STATE_TABLES["erasures"].index("ranges")
_FINISHED: Final = STATE_TABLES["erasures"].index("finished")
_INDEXED: Final = STATE_TABLES["iterators"].index("indexed")
_NOTHING: Final = "yes"
"""The mark of a store that is being filled, as long as nothing is noted of its source."""
_NUMBER: Final = "int8"
_COPIED: Final = {
    "add_stream": ("copy_streams", (_NUMBER, _NUMBER, "text")),
    "add_record": ("copy_records", (_NUMBER, "int4", _NUMBER, _NUMBER, "bytea")),
    "add_commit": ("copy_commits", (_NUMBER, _NUMBER, _NUMBER)),
    "add_block": ("copy_blocks", (_NUMBER, _NUMBER, _NUMBER)),
}
"""How rows of the history come in: the statement, and the types of its columns."""


class _Rows:
    """Rows as `Indexing` asks for them and hands them over."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.last_stream: int = db.value("last_stream_id")
        self.last_context = 0

    def rows(self, name: str) -> list[Any]:
        rows = self._db.rows(name)
        self.last_context = len(rows)
        return rows

    def value(self, name: str, values: Mapping[str, Any] | None = None) -> Any:
        return self.last_stream if values is None else self._db.value(f"{name}", values)

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        if not rows:
            return
        if name == "import_top":
            self._contexts(rows)
            return
        if name == "add_stream":
            self.last_stream = rows[-1][0]
        query, types = _COPIED[name]
        with self._db.connection.cursor().copy(QUERIES[query]) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def _contexts(self, rows: Sequence[Sequence[Any]]) -> None:
        ids, names, tops, blocks = zip(*rows, strict=True)
        self.last_context = max(self.last_context, *ids)
        columns = {"ids": Numbers(ids), "names": Texts(names), "tops": Numbers(tops), "blocks": Numbers(blocks)}
        self._db.later("import_top", columns)


class PostgresImport(StoreImport):
    """A store in a schema that has none, or one that was never used; or an import that was interrupted goes on."""

    def __init__(self, url: str) -> None:
        self._target = Target.of(url)
        self._db = Database(self._target, write=True)
        try:
            if not self._db.value("lock_import", self._target.import_lock):
                raise StoreInUse(self._target.shown, "another restore or copy")
            self._begin()
            self._load()
        except BaseException:
            self._db.close()
            raise

    def _load(self) -> None:
        self._rows = _Rows(self._db)
        self._indexing = _indexing_of(self._rows)

    def _begin(self) -> None:
        version = schema.check(self._db)
        if version == 0:
            schema.migrate(self._db, int(self._db.value("now")), importing=True)
        elif self._db.value("importing"):
            if version != schema.SCHEMA_VERSION:
                raise PlaceRefused(self._target.shown, "another version of Penstock began to fill it; remove it")
        else:
            schema.migrate(self._db, int(self._db.value("now")))
            self._in_transaction(self._mark)

    def _mark(self) -> None:
        if self._db.value("is_used"):
            raise PlaceRefused(self._target.shown, "it holds a store already")
        self._db.later("set_meta", {"key": "importing", "value": _NOTHING})

    def begin(self, source: str) -> str:
        kept = str(self._db.value("importing"))
        if kept != _NOTHING:
            return kept
        if self.head():
            return ""
        self._in_transaction(lambda: self._db.later("set_meta", {"key": "importing", "value": source}))
        return source

    def head(self) -> int:
        return int(self._db.value("head"))

    def add(self, records: Sequence[Record]) -> None:
        try:
            self._in_transaction(lambda: self._add(records))
        except BaseException:
            if not self._db.is_lost:
                self._load()
            raise

    def _add(self, records: Sequence[Record]) -> None:
        expected = self.head() + 1
        for record in records:
            if record.position != expected:
                raise InvalidRequest("record", f"begins at {record.position}, and {expected} comes next")
            self._indexing.add(record)
            expected = record.last + 1
        self._indexing.write()
        if records:
            numbers = {"stream_id": self._rows.last_stream, "context_id": self._rows.last_context}
            recorded = records[-1].runs()[-1].recorded
            self._db.later("import_head", {**numbers, "head": expected - 1, "recorded": recorded})

    def finish(self, state: StoreState) -> None:
        if self.head() != state.head:
            raise InvalidRequest("state", f"is of position {state.head}, and the records end at {self.head()}")
        self._in_transaction(lambda: self._finish(state))

    def _finish(self, state: StoreState) -> None:
        db = self._db
        db.later("set_meta", {"key": "store_id", "value": state.identity.id})
        db.later("import_sealed", {"sealed": state.sealed})
        db.later("forget_timelines")
        now = int(db.value("now"))
        for name in STATE_TABLES:
            rows = [_stored(name, row, now) for row in state.tables[name]]
            with db.connection.cursor() as cursor:
                cursor.executemany(QUERIES[f"import_{name}"], rows)
        db.later("next_numbers")
        db.later("delete_meta", {"key": "importing"})
        db.later("delete_meta", {"key": LAST_LOG})

    def _in_transaction(self, work: Callable[[], object]) -> None:
        try:
            with self._db.turn():
                self._db.ask("lock", self._target.lock)
                work()
        except psycopg.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        self._db.close()


def _stored(table: str, row: Row, now: int) -> list[Any]:
    """A row as it is stored. Erasures are finished, because records that are added have no erased contents."""
    values = list(row)
    if table == "erasures":
        values[_RANGES] = packed(row[_RANGES]) or None
        values[_FINISHED] = now if row[_FINISHED] is None else row[_FINISHED]
    elif table == "iterators":
        values[_INDEXED] = bool(row[_INDEXED])
    return values


def _indexing_of(rows: _Rows) -> "Indexing":
    # It needs NumPy, which only those who import wait for.
    from penstock.store.tables.indexing import Indexing  # noqa: PLC0415

    return Indexing(rows)
