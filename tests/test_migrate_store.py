"""`penstock migrate-store`: a whole store to another backend and back, goes on when interrupted, and is compared."""

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from penstock.backup import Copied, store_copy
from penstock.backup import copy_store as copied_to
from penstock.backup.writer import records_between
from penstock.errors import (
    InvalidRequest,
    NotAStore,
    PlaceRefused,
    StorageFailure,
    StoreError,
    StoreInUse,
    StoreTooNew,
    StoreUnfinished,
)
from penstock.store import Store, hold_store, open_import, open_reader, open_store, store_url
from penstock.store.contract import Erase, HideStream
from penstock.store.postgres import PostgresStore, replacement
from penstock.store.postgres.connection import Target
from penstock.store.postgres.replacement import PostgresImport
from penstock.store.record import Record
from penstock.store.sqlite import SqliteStore
from penstock.store.sqlite.replacement import SqliteImport
from penstock.store.tables.imports import StoreImport
from tests.backup.support import check_same, fill, furnish, no_stage, ones, seal_all, writing
from tests.cli.support import called as penstock
from tests.postgres import Postgres, Schemas
from tests.store.kit import Clock, append, attempt, commit, do_one, everything, findings, some
from tests.test_server import PATIENCE_S

Way = tuple[str, str]
"""Where from, and where to."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_DATA", "PENSTOCK_STORE", "PENSTOCK_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that were closed just now may take long to end."""
    monkeypatch.setattr(replacement, "OTHERS_S_MAX", PATIENCE_S)
    monkeypatch.setattr(replacement, "OWNING_S_MAX", PATIENCE_S)


@pytest.fixture(params=["to PostgreSQL", "from PostgreSQL"])
def way(request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas) -> Way:
    there = store_url(tmp_path / "data"), schemas.url()
    return there if request.param == "to PostgreSQL" else (there[1], there[0])


def copy_store(source: str, target: str) -> Copied:
    return copied_to(source, target, no_stage)


def opened(url: str, clock: Clock | None = None) -> closing[Store]:
    """A store with a clock of its own, open for writing."""
    if url.startswith("sqlite"):
        return closing(SqliteStore(url.removeprefix("sqlite:///"), clock=clock or Clock()))
    return closing(PostgresStore(url, clock=clock or Clock()))


def prepare(url: str, commits: int = 300) -> None:
    clock = Clock()
    with opened(url, clock) as store:
        furnish(store, clock, commits)
        while do_one(store, Erase(1000)):
            pass


def records(store: Store) -> list[bytes]:
    return [record.data for record in records_between(store, 1, store.head())]


# ---------------------------------------------------------------- the way there


def test_a_store_that_went_to_postgres_and_back_is_the_first(tmp_path: Path, schemas: Schemas) -> None:
    prepare(store_url(tmp_path / "data"), 6000)
    urls = store_url(tmp_path / "data"), schemas.url(), store_url(tmp_path / "back")
    reports = copy_store(urls[0], urls[1]), copy_store(urls[1], urls[2])
    assert reports[0] == reports[1]
    with closing(open_reader(urls[0])) as first, closing(open_reader(urls[2])) as back:
        assert back.state() == first.state()
        assert first.state().sealed > 1
        assert records(back) == records(first)
        check_same(first, back, timelines=0)
        assert (reports[0].identity, reports[0].events, reports[0].new_events) == (
            first.identity(),
            first.head(),
            first.head(),
        )
        assert reports[0].tables == {name: len(rows) for name, rows in first.state().tables.items()}
        assert all(reports[0].tables.values())


def test_an_empty_store_comes_over_as_well(way: Way) -> None:
    with opened(way[0]) as store:
        identity = store.identity()
    assert copy_store(*way).events == 0
    with opened(way[1]) as store:
        assert store.identity() == identity
        append(store, "s", some(1))
        assert findings(store) == []


def test_what_is_moved_goes_on_where_the_other_stood(way: Way) -> None:
    prepare(way[0])
    copy_store(*way)
    with opened(way[1]) as store:
        head = store.head()
        assert append(store, "new", some(2), 1).position == head + 1
        fill(store, 50, seed=9)
        seal_all(store)
        assert findings(store) == []


# ---------------------------------------------------------------- interrupted


class Interrupted(BaseException):
    """As Ctrl-C would."""


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Way], None]:
    """Copy, and be interrupted after some parts."""

    def run(way: Way, parts: int = 3) -> None:
        kind: type[StoreImport] = SqliteImport if way[1].startswith("sqlite") else PostgresImport
        left = iter(range(parts))
        add = kind.add

        def adding(self: StoreImport, chunk: Sequence[Record]) -> None:
            if next(left, None) is None:
                raise Interrupted
            add(self, chunk)

        with monkeypatch.context() as patch:
            patch.setattr(store_copy, "CHUNK_RECORDS_MAX", 10)
            patch.setattr(kind, "add", adding)
            with pytest.raises(Interrupted):
                copy_store(*way)

    return run


def test_a_copy_that_was_interrupted_goes_on(way: Way, interrupted: Callable[[Way], None]) -> None:
    prepare(way[0])
    for _ in range(2):
        interrupted(way)
        with pytest.raises(StoreUnfinished):
            open_reader(way[1])
        with pytest.raises(StoreUnfinished):
            open_store(way[1], stream_cache_max=10, wal_bytes_max=1 << 20)
    report = copy_store(*way)
    assert 0 < report.new_events < report.events
    with closing(open_reader(way[0])) as store, closing(open_reader(way[1])) as copy:
        check_same(store, copy, timelines=0)


def test_what_was_written_and_sealed_since_is_copied_too(way: Way, interrupted: Callable[[Way], None]) -> None:
    with opened(way[0]) as store:
        ones(store, 5000)
    interrupted(way)
    with opened(way[0]) as store:
        ones(store, 100)
        seal_all(store)
        assert store.sealed() > 31
    copy_store(*way)
    with closing(open_reader(way[0])) as store, opened(way[1]) as copy:
        check_same(store, copy, timelines=0)
        assert copy.sealed() == 1
        seal_all(copy)
        assert copy.sealed() == store.sealed()
        assert findings(copy) == []


def test_a_copy_of_another_store_is_not_gone_on_with(
    way: Way, interrupted: Callable[[Way], None], tmp_path: Path
) -> None:
    prepare(way[0])
    interrupted(way)
    with writing(tmp_path / "other") as other:
        append(other, "s", some(1))
    with pytest.raises(PlaceRefused, match=r"a copy of store [\w-]+, timeline 1, into it is not finished; remove"):
        copy_store(store_url(tmp_path / "other"), way[1])
    assert copy_store(*way).new_events > 0


def test_a_copy_is_not_gone_on_with_when_events_were_erased_since(way: Way, interrupted: Callable[[Way], None]) -> None:
    prepare(way[0])
    interrupted(way)
    with opened(way[0]) as store:
        do_one(store, HideStream("bank", "order-1"))
    with pytest.raises(PlaceRefused, match="events were erased since this copy was begun"):
        copy_store(*way)


def test_what_a_restore_has_not_finished_is_not_gone_on_with(way: Way) -> None:
    prepare(way[0])
    with closing(open_reader(way[0])) as store, closing(open_import(way[1])) as filling:
        filling.add(list(records_between(store, 1, 5)))
    with pytest.raises(PlaceRefused, match="something else was being put there"):
        copy_store(*way)


# ---------------------------------------------------------------- compared


def test_a_copy_that_is_there_is_compared_again_and_nothing_is_written(way: Way) -> None:
    prepare(way[0])
    first = copy_store(*way)
    again = copy_store(*way)
    assert again == first._replace(new_events=0)


def test_a_copy_that_differs_in_a_row_is_told(tmp_path: Path, schemas: Schemas) -> None:
    prepare(store_url(tmp_path / "data"))
    url = schemas.url()
    copy_store(store_url(tmp_path / "data"), url)
    _change(url, "UPDATE subscriptions SET position = position + 1")
    with pytest.raises(StoreError, match="the copy is not what the source is; remove it: its subscriptions are others"):
        copy_store(store_url(tmp_path / "data"), url)


def test_a_copy_that_differs_in_a_record_is_told(tmp_path: Path, schemas: Schemas) -> None:
    """Which is sound by itself, so that only the comparison can find it."""
    url = schemas.url()
    for name in ("data", "twin"):
        with writing(tmp_path / name) as store:
            for _ in range(3):
                append(store, "s", some(1))
    _become(tmp_path / "twin", tmp_path / "data")
    copy_store(store_url(tmp_path / "twin"), url)
    with pytest.raises(StoreError, match="its events 1 to 1 are others"):
        copy_store(store_url(tmp_path / "data"), url)


def test_a_copy_that_is_damaged_is_told(tmp_path: Path, schemas: Schemas) -> None:
    prepare(store_url(tmp_path / "data"))
    url = schemas.url()
    copy_store(store_url(tmp_path / "data"), url)
    _change(url, "UPDATE records SET data = set_byte(data, 60, (get_byte(data, 60) + 1) % 256) WHERE position = 3")
    with pytest.raises(StoreError, match="position 3: damaged"):
        copy_store(store_url(tmp_path / "data"), url)


def _become(twin: Path, data: Path) -> None:
    """Give a store the identity and the contexts of another."""
    with closing(apsw.Connection(str(twin / "penstock.db"))) as connection:
        connection.execute("ATTACH ? AS other", (str(data / "penstock.db"),))
        for table in ("meta", "timelines", "contexts"):
            connection.execute(f"DELETE FROM {table}")
            connection.execute(f"INSERT INTO {table} SELECT * FROM other.{table}")


def _change(url: str, text: str) -> None:
    with closing(PostgresStore(url)) as store:
        store.db.connection.execute(text.encode())


# ---------------------------------------------------------------- what is refused


def test_a_store_that_is_served_is_not_copied(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(way[0]) as store, monkeypatch.context() as patch:
        append(store, "s", some(1))
        patch.setattr(replacement, "OTHERS_S_MAX", 1.0)
        with pytest.raises(StoreInUse):
            copy_store(*way)
    assert copy_store(*way).events == 1


def test_a_place_with_another_store_is_refused_and_keeps_it(way: Way) -> None:
    for url in way:
        prepare(url, 10)
    with pytest.raises(PlaceRefused, match="holds a store already"):
        copy_store(*way)
    with closing(open_reader(way[0])) as store, closing(open_reader(way[1])) as other:
        assert store.identity() != other.identity()
        assert findings(other) == []


def test_a_store_that_went_on_after_its_copy_is_not_copied_over_it(way: Way) -> None:
    prepare(way[0], 10)
    copy_store(*way)
    with opened(way[0]) as store:
        append(store, "s", some(1))
    with pytest.raises(PlaceRefused, match="holds a store already"):
        copy_store(*way)


def test_a_store_is_not_copied_onto_itself(way: Way) -> None:
    prepare(way[0], 10)
    with pytest.raises(PlaceRefused, match="copied from"):
        copy_store(way[0], way[0])


def test_the_same_place_by_another_address_is_refused_too(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    url = schemas.url()
    prepare(url, 10)
    monkeypatch.setattr(replacement, "OWNING_S_MAX", 1.0)
    with pytest.raises(StoreInUse):
        copy_store(url, f"{url}&application_name=another")


def test_a_source_that_is_no_store_is_told_and_nothing_is_made(tmp_path: Path, schemas: Schemas) -> None:
    for source in (store_url(tmp_path / "nowhere"), schemas.server.url("nowhere")):
        with pytest.raises(NotAStore):
            copy_store(source, store_url(tmp_path / "copy"))
    with pytest.raises(InvalidRequest, match="not known here"):
        copy_store("mysql://host/db", store_url(tmp_path / "copy"))
    assert list(tmp_path.iterdir()) == []


def test_a_newer_store_is_neither_read_nor_written(tmp_path: Path, schemas: Schemas) -> None:
    newer, older = store_url(tmp_path / "newer"), schemas.url()
    prepare(newer, 10)
    with closing(apsw.Connection(str(tmp_path / "newer" / "penstock.db"))) as connection:
        connection.pragma("user_version", 99)
    prepare(older, 10)
    for way in ((newer, older), (older, newer)):
        with pytest.raises(StoreTooNew):
            copy_store(*way)


# ---------------------------------------------------------------- nobody writes meanwhile


@pytest.fixture
def held(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> str:
    url = schemas.url()
    prepare(url, 10)
    monkeypatch.setattr("penstock.store.postgres.connection.LOCK_MS_MAX", 50)
    return url


def test_a_server_that_starts_meanwhile_writes_nothing(held: str) -> None:
    with opened(held) as store:
        with hold_store(held, is_strict=False) as hold:
            with pytest.raises(StorageFailure, match="another server has been writing for too long"):
                attempt(store, commit("s", some(1)))
            hold.check()
        store.recover()
        append(store, "s", some(1))


def test_a_lock_that_was_lost_is_told(held: str, postgres_server: Postgres, tmp_path: Path) -> None:
    def cut(done: int, total: int) -> None:
        query = f"SELECT pg_terminate_backend(pid, 5000) FROM pg_locks WHERE {_OWNED}"
        postgres_server.execute(query.format(**Target.of(held).lock))

    class Cutting:
        def __enter__(self) -> Callable[[int, int], None]:
            return cut

        def __exit__(self, *_: object) -> None:
            pass

    with pytest.raises(StorageFailure, match="was lost; run it again"):
        copied_to(held, store_url(tmp_path / "copy"), lambda what: Cutting())
    assert copy_store(held, store_url(tmp_path / "copy")).new_events == 0


_OWNED = "locktype = 'advisory' AND classid = {lock_class} AND objid = ({lock_key}::bigint & 4294967295)::oid"


# ---------------------------------------------------------------- the command


def test_the_command_moves_a_store_and_says_what_to_do_now(tmp_path: Path, schemas: Schemas) -> None:
    prepare(store_url(tmp_path / "data"), 10)
    url = schemas.url().replace("postgres@", "postgres:secret@", 1)
    code, out, err = penstock("migrate-store", tmp_path / "data", url)
    assert (code, err) == (0, "")
    assert out.startswith("moved ")
    assert f"and do not serve {tmp_path / 'data'} again\n" in out
    assert "secret" not in out
    code, out, err = penstock("migrate-store", url, store_url(tmp_path / "back"), "--json")
    report = json.loads(out)
    assert (code, err, report["target"]) == (0, "", str(tmp_path / "back"))
    with closing(open_reader(report["target"] and store_url(tmp_path / "back"))) as store:
        assert (report["store_id"], report["timeline"]) == store.identity()
        assert report["events"] == report["new_events"] == store.head()
        assert report["tables"]["logs"] == 2
        assert len(everything(store)) > 0
    code, out, err = penstock("migrate-store", url, tmp_path / "back")
    assert (code, err) == (0, "")
    assert "(0 of them now)" in out


def test_what_cannot_be_is_told_in_a_line(tmp_path: Path, schemas: Schemas) -> None:
    prepare(store_url(tmp_path / "data"), 10)
    nobody = "postgresql://me:secret@127.0.0.1:1/db"
    for source, target, reason in (
        (tmp_path / "nowhere", tmp_path / "copy", "is not a Penstock store"),
        (tmp_path / "data", tmp_path / "data", "copied from"),
        (tmp_path / "data", nobody, "the store cannot be used"),
        (nobody, tmp_path / "copy", "the store cannot be used"),
        (tmp_path / "data", "mysql://host/db", "not known here"),
    ):
        code, out, err = penstock("migrate-store", source, target)
        assert (code, out, err.count("\n")) == (1, "", 1), reason
        assert reason in err
        assert "secret" not in err
    assert penstock("migrate-store", tmp_path / "data")[0] == 2
    assert not (tmp_path / "copy").exists()
