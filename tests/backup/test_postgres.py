"""Restoring into PostgreSQL: where to, what becomes of what is there, and what a role may do."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from penstock.errors import NotAStore, PlaceRefused, StorageFailure, StoreError, StoreInUse, StoreTooNew
from penstock.store.contract import HideStream
from penstock.store.postgres import PostgresReader, PostgresStore, replacement
from penstock.store.postgres.connection import Target
from penstock.store.postgres.replacement import PostgresHold, PostgresImport, PostgresReplacement, beside, own_tables
from tests.backup.support import backed_up, check_same, erase_all, furnish, restored, writing
from tests.postgres import Postgres, Schemas
from tests.store.kit import Clock, append, attempt, commit, do_one, everything, findings, some
from tests.test_server import PATIENCE_S


@pytest.fixture
def url(schemas: Schemas) -> str:
    return schemas.url()


@pytest.fixture
def place(url: str, tmp_path: Path) -> Path:
    """The backup of a store with two events, which has three by now."""
    with closing(PostgresStore(url)) as store:
        append(store, "s", some(2))
        backed_up(store, tmp_path / "place")
        append(store, "s", some(1))
    return tmp_path / "place"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that were closed just now may take long to end."""
    monkeypatch.setattr(replacement, "OTHERS_S_MAX", PATIENCE_S)


def head(url: str) -> int:
    with closing(PostgresReader(url)) as store:
        assert findings(store) == []
        return store.head()


def schema_of(url: str) -> str:
    return Target.of(url).schema


def has_schema(server: Postgres, name: str) -> bool:
    return bool(server.execute(f"SELECT nspname FROM pg_namespace WHERE nspname = '{name}'"))


# ---------------------------------------------------------------- where to


def test_a_backup_of_sqlite_comes_back_on_postgres_and_the_other_way(tmp_path: Path, url: str) -> None:
    clock = Clock()
    with writing(tmp_path / "data", clock) as store:
        furnish(store, clock)
        backed_up(store, tmp_path / "one")
        restored(tmp_path / "one", url)
        with closing(PostgresReader(url)) as there:
            check_same(store, there)
            backed_up(there, tmp_path / "two.tar")
            restored(tmp_path / "two.tar", tmp_path / "back")
            with writing(tmp_path / "back") as back:
                check_same(there, back)


def test_a_schema_that_is_not_there_is_made(place: Path, postgres_server: Postgres) -> None:
    url = postgres_server.url("made_by_a_restore")
    try:
        restored(place, url)
        assert head(url) == 2
        with closing(PostgresStore(url)) as store:
            assert append(store, "s", some(1), 3).position == 3
    finally:
        postgres_server.execute("DROP SCHEMA IF EXISTS made_by_a_restore CASCADE")


def test_a_store_is_replaced_only_if_that_is_asked_for(place: Path, url: str, postgres_server: Postgres) -> None:
    with pytest.raises(PlaceRefused, match="--replace"):
        restored(place, url)
    assert head(url) == 3
    assert restored(place, url, replace=True).timeline == 2
    assert head(url) == 2
    assert not has_schema(postgres_server, beside(url)[0])
    assert restored(place, url, replace=True).timeline == 3


def test_what_was_erased_in_the_store_that_is_replaced_stays_erased(place: Path, url: str) -> None:
    with closing(PostgresStore(url)) as store:
        do_one(store, HideStream("shop", "s"))
        erase_all(store)
    assert restored(place, url, replace=True).erasures == 1
    with closing(PostgresReader(url)) as store:
        assert everything(store) == []
        assert store.head() == 2


def test_tables_of_some_other_program_are_never_replaced(place: Path, postgres_server: Postgres) -> None:
    postgres_server.execute("CREATE SCHEMA theirs CREATE TABLE letters (text text)")
    try:
        with pytest.raises(NotAStore, match="other program"):
            restored(place, postgres_server.url("theirs"), replace=True)
        assert postgres_server.execute("SELECT count(*) FROM theirs.letters") == [(0,)]
    finally:
        postgres_server.execute("DROP SCHEMA theirs CASCADE")


def test_a_schema_beside_it_that_a_restore_did_not_make_is_not_removed(
    place: Path, url: str, postgres_server: Postgres
) -> None:
    aside = beside(url)[0]
    postgres_server.execute(f"CREATE SCHEMA {aside} CREATE TABLE letters (text text)")
    try:
        with pytest.raises(PlaceRefused, match="a table letters of others"):
            restored(place, url, replace=True)
        assert postgres_server.execute(f"SELECT count(*) FROM {aside}.letters") == [(0,)]
    finally:
        postgres_server.execute(f"DROP SCHEMA {aside} CASCADE")


def test_what_else_is_in_the_schema_and_what_was_granted_on_it_stays(
    place: Path, url: str, postgres_server: Postgres
) -> None:
    name = schema_of(url)
    postgres_server.execute("CREATE ROLE reporter")
    postgres_server.execute(f"GRANT USAGE ON SCHEMA {name} TO reporter")
    postgres_server.execute(f"CREATE TABLE {name}.letters (text text)")
    try:
        restored(place, url, replace=True)
        assert postgres_server.execute(f"SELECT count(*) FROM {name}.letters") == [(0,)]
        assert postgres_server.execute(f"SELECT has_schema_privilege('reporter', '{name}', 'USAGE')") == [(True,)]
    finally:
        postgres_server.execute(f"DROP TABLE IF EXISTS {name}.letters")
        postgres_server.execute(f"REVOKE ALL ON SCHEMA {name} FROM reporter")
        postgres_server.execute("DROP ROLE reporter")


def test_a_store_on_which_views_of_others_hang_is_refused_before_anything_is_built(
    place: Path, url: str, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_server.execute(f"CREATE VIEW public.counted AS SELECT count(*) FROM {schema_of(url)}.records")
    monkeypatch.setattr(PostgresReplacement, "filling", None)
    try:
        with pytest.raises(PlaceRefused, match="depend on its tables: view"):
            restored(place, url, replace=True)
    finally:
        postgres_server.execute("DROP VIEW public.counted")
    assert head(url) == 3


def test_a_store_of_a_newer_version_is_not_replaced(place: Path, url: str, postgres_server: Postgres) -> None:
    table = f"{schema_of(url)}.penstock_version"
    ((known,),) = postgres_server.execute(f"SELECT version FROM {table}")
    postgres_server.execute(f"UPDATE {table} SET version = 99")
    try:
        with pytest.raises(StoreTooNew):
            restored(place, url, replace=True)
    finally:
        postgres_server.execute(f"UPDATE {table} SET version = {known}")
    assert head(url) == 3


def test_a_damaged_store_is_replaced_and_that_its_ledger_is_lost_is_told(
    place: Path, url: str, postgres_server: Postgres
) -> None:
    postgres_server.execute(f"ALTER TABLE {schema_of(url)}.erasures DROP COLUMN ranges")
    assert restored(place, url, replace=True).is_ledger_lost
    assert head(url) == 2


# ---------------------------------------------------------------- what is open, and what is not finished


def test_a_store_that_is_served_is_refused(place: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacement, "OTHERS_S_MAX", 1.0)
    with closing(PostgresStore(url)) as store:
        with pytest.raises(StoreInUse, match=r"application penstock \(PostgreSQL processes \d+.*stop them first"):
            restored(place, url, replace=True)
        append(store, "s", some(1))
    assert head(url) == 4


def test_nobody_writes_or_makes_a_store_while_one_is_replaced(
    place: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.store.postgres.connection.LOCK_MS_MAX", 50)
    with ExitStack() as stack:
        stack.enter_context(PostgresReplacement(url, replace=True))
        late = stack.enter_context(closing(PostgresStore(f"{url}&application_name=late")))
        with pytest.raises(StorageFailure, match="another server has been writing for too long"):
            attempt(late, commit("s", some(1)))
    assert head(url) == 3


def test_a_failed_restore_leaves_the_old_store_as_it_was(
    place: Path, url: str, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StoreError("it is not sound")

    monkeypatch.setattr("penstock.backup.restore.check_new_store", fail)
    with pytest.raises(StoreError, match="not sound"):
        restored(place, url, replace=True)
    assert head(url) == 3
    assert not has_schema(postgres_server, beside(url)[0])


def test_what_a_restore_that_was_killed_has_left_is_removed_by_the_next(
    place: Path, url: str, postgres_server: Postgres
) -> None:
    aside, aside_url = beside(url)
    PostgresImport(aside_url).close()
    assert has_schema(postgres_server, aside)
    restored(place, url, replace=True)
    assert head(url) == 2
    assert not has_schema(postgres_server, aside)


def test_the_swap_is_not_made_when_the_lock_was_lost_meanwhile(
    place: Path, url: str, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = PostgresReplacement.built

    def cut(self: PostgresReplacement) -> object:
        pid = self._hold.db.connection.info.backend_pid
        postgres_server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
        return before(self)

    with monkeypatch.context() as patch:
        patch.setattr(PostgresReplacement, "built", cut)
        with pytest.raises(StorageFailure, match="was lost; run it again"):
            restored(place, url, replace=True)
    assert head(url) == 3
    restored(place, url, replace=True)
    assert head(url) == 2


def test_a_lock_that_is_held_for_long_is_not_taken_for_one_that_stands_still(url: str) -> None:
    with closing(PostgresStore(url)) as store, PostgresHold(Target.of(url), is_strict=False) as hold:
        first = _last_said(store, hold)
        while _last_said(store, hold) == first:
            hold._ending.wait(0.1)
        hold.check()


def _last_said(store: PostgresStore, hold: PostgresHold) -> object:
    pid = hold.db.connection.info.backend_pid
    query = "SELECT query_start FROM pg_stat_activity WHERE pid = %s"
    return store.db.connection.execute(query, [pid]).fetchone()


# ---------------------------------------------------------------- rights


@contextmanager
def role(server: Postgres, *statements: str) -> Iterator[str]:
    """A role with few rights, in its own database; the URL of its store."""
    server.execute("CREATE ROLE clerk LOGIN")
    server.execute("CREATE DATABASE office")
    try:
        with psycopg.connect(server.url(database="office"), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())
        yield server.url("penstock", database="office").replace("postgres@", "clerk@", 1)
    finally:
        server.execute("DROP DATABASE office WITH (FORCE)")
        server.execute("DROP ROLE clerk")


def test_a_role_that_may_only_use_its_schema_gets_a_store_restored_where_there_is_none(
    place: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    with role(postgres_server, "CREATE SCHEMA penstock", "GRANT USAGE, CREATE ON SCHEMA penstock TO clerk") as url:
        with monkeypatch.context() as patch:
            patch.setattr("penstock.backup.restore.check_new_store", _fail)
            with pytest.raises(StoreError, match="no use"):
                restored(place, url)
        with pytest.raises(NotAStore):
            head(url)
        PostgresImport(url).close()
        restored(place, url)
        assert head(url) == 2
        with closing(PostgresStore(url)) as store:
            append(store, "s", some(1))
        with pytest.raises(PlaceRefused, match="GRANT CREATE ON DATABASE"):
            restored(place, url, replace=True)
        assert head(url) == 3


def _fail(*_: object) -> None:
    raise StoreError("no use")


def test_a_role_that_may_create_schemas_replaces_a_store_in_one_that_it_does_not_own(
    place: Path, postgres_server: Postgres
) -> None:
    granted = ("CREATE SCHEMA penstock", "GRANT USAGE, CREATE ON SCHEMA penstock TO clerk")
    with role(postgres_server, *granted, "GRANT CREATE ON DATABASE office TO clerk") as url:
        with closing(PostgresStore(url)) as store:
            append(store, "s", some(1))
        restored(place, url, replace=True)
        assert head(url) == 2


def test_a_role_without_any_right_is_told_so(place: Path, postgres_server: Postgres) -> None:
    with role(postgres_server, "CREATE SCHEMA penstock") as url, pytest.raises(StorageFailure, match="lacks a right"):
        restored(place, url)
    with role(postgres_server) as url, pytest.raises(PlaceRefused, match="GRANT CREATE ON DATABASE"):
        restored(place, url)


def test_all_tables_of_a_store_are_known(place: Path, url: str, postgres_server: Postgres) -> None:
    tables = f"SELECT relname FROM pg_class WHERE relnamespace = '{schema_of(url)}'::regnamespace AND relkind = 'r'"
    assert {name for (name,) in postgres_server.execute(tables)} == own_tables()
