"""Filling a store on PostgreSQL from another store, and taking a store out of it again."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, PlaceRefused, StoreInUse, StoreUnfinished
from penstock.model import LOG_CONTEXT, EventFilter, SubscriptionInfo
from penstock.store import Store, open_import
from penstock.store.contract import AddIterator, AddLog, Erase, HideStream, ReadLimits, Register, Transaction
from penstock.store.postgres import PostgresReader, PostgresStore
from penstock.store.postgres.replacement import PostgresImport
from penstock.store.record import Record
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.replacement import SqliteImport
from penstock.store.tables.imports import StoreImport
from tests.postgres import Schemas
from tests.store.contract.keeping import furnish
from tests.store.contract.transactions import picture
from tests.store.kit import append, commit, do_one, everything, findings, some


def records(store: Store, start: int = 1) -> Iterator[list[Record]]:
    while True:
        span = store.read_records(start, EventFilter(), ReadLimits(events_max=100))
        yield span.records
        if span.end:
            return
        start = span.next


def fill(target: StoreImport, source: Store) -> None:
    for some_ in records(source, target.head() + 1):
        target.add(some_)
    target.finish(source.state())


@pytest.fixture
def source(tmp_path: Path) -> Iterator[SqliteStore]:
    """Some of everything, most of it sealed, some of it erased."""
    with closing(SqliteStore(tmp_path / "source")) as store:
        # With a real clock, a short lease could expire between two pictures of the store.
        furnish(store, lease_ms=3_600_000)
        many = (commit(f"s{n % 7}", some(1, ticks=n % 50), context=f"c{n % 3}") for n in range(4200))
        store.write([Transaction((one,)) for one in many])
        do_one(store, HideStream("c1", "s1"))
        while do_one(store, Erase(1000)):
            pass
        while (step := next_seal(store)) is not None:
            do_one(store, step)
        append(store, "late", some(3))
        yield store


def without_output(store: Store) -> list[object]:
    """All that can be seen of a store but how far its iterators have come, which is not copied."""
    return picture(store)[:-1]


def test_a_store_comes_over_from_sqlite_and_goes_back(source: SqliteStore, schemas: Schemas, tmp_path: Path) -> None:
    url = schemas.url()
    with closing(PostgresImport(url)) as target:
        fill(target, source)
    with closing(PostgresStore(url)) as store:
        assert without_output(store) == without_output(source)
        assert store.identity() == source.identity()
        assert store.state() == source.state()
        assert findings(store) == []
        for wanted in (EventFilter("c1"), EventFilter("c2", "s3"), EventFilter(None, "l")):
            assert everything(store, wanted) == everything(source, wanted)
        with closing(SqliteImport(tmp_path / "back")) as target:
            fill(target, store)
        with closing(SqliteStore(tmp_path / "back")) as back:
            assert without_output(back) == without_output(source)
            assert back.state() == source.state()
            assert findings(back) == []


def test_a_filled_store_goes_on_where_the_other_stood(source: SqliteStore, schemas: Schemas) -> None:
    url = schemas.url()
    with closing(open_import(url)) as target:
        fill(target, source)
    with closing(PostgresStore(url)) as store:
        assert append(store, "late", some(1), 4).position == source.head() + 1
        assert append(store, "new", some(1), 1, "new").sequence == 1
        made = do_one(store, Register("you", "shop", "", 1))
        assert isinstance(made, SubscriptionInfo)
        assert made.id > max(one.id for one in source.subscriptions(0, 100))
        do_one(store, AddLog("another"))
        do_one(store, AddIterator("more", "another", "map", "return msg", True))
        append(store, "another", some(1), context=LOG_CONTEXT)
        assert findings(store) == []


def test_an_import_that_was_interrupted_goes_on(source: SqliteStore, schemas: Schemas) -> None:
    url = schemas.url()
    parts = list(records(source))
    for number, part in enumerate(parts):
        with closing(PostgresImport(url)) as target:
            assert target.head() == (parts[number - 1][-1].last if number else 0)
            target.add(part)
        for kind in (PostgresStore, PostgresReader):
            with pytest.raises(StoreUnfinished):
                kind(url)
    with closing(PostgresImport(url)) as target:
        target.finish(source.state())
    with closing(PostgresReader(url)) as reader:
        assert everything(reader) == everything(source)
        assert findings(reader) == []


def test_records_come_in_order_and_a_wrong_one_changes_nothing(source: SqliteStore, schemas: Schemas) -> None:
    (first, second, *_) = records(source)
    with closing(PostgresImport(schemas.url())) as target:
        for wrong in (second, [*first, first[-1]]):
            with pytest.raises(InvalidRequest):
                target.add(wrong)
            assert target.head() == 0
        target.add(first)
        target.add([])
        target.add(second)
        assert target.head() == second[-1].last
        with pytest.raises(InvalidRequest, match="records end at"):
            target.finish(source.state())


def test_a_store_that_was_used_is_not_filled(schemas: Schemas) -> None:
    url = schemas.url()
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(1))
    with pytest.raises(PlaceRefused, match="holds a store already"):
        PostgresImport(url)
    with closing(PostgresReader(url)) as reader:
        assert reader.head() == 1


def test_one_that_was_not_used_is_and_only_by_one_at_a_time(source: SqliteStore, schemas: Schemas) -> None:
    url = schemas.url()
    PostgresStore(url).close()
    with closing(PostgresImport(url)) as target:
        with pytest.raises(StoreInUse):
            PostgresImport(url)
        fill(target, source)
    with closing(PostgresReader(url)) as reader:
        assert reader.head() == source.head()
