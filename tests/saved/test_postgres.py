"""Dumps of stores on PostgreSQL, restored and opened by today's code."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from penstock.store import open_reader
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.schema import SCHEMA_VERSION
from tests.postgres import Postgres
from tests.saved.kit import SCHEMA, check_contents, check_goes_on, check_staged, contents, expected_of, having, unpacked
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import append_singly, close_block, seal_all
from tests.store.kit import everything, findings

STAGED = [name for name in having("postgres.json") if "staged" in expected_of(name, "postgres.json")]


@pytest.fixture(params=having("postgres.sql.xz"))
def name(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def url(name: str, postgres_server: Postgres) -> Iterator[str]:
    """The store of a version."""
    with psycopg.connect(postgres_server.url()) as connection:
        connection.execute(unpacked(name, "postgres.sql.xz"))
    yield postgres_server.url(SCHEMA)
    postgres_server.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


@pytest.fixture
def expected(name: str) -> dict[str, Any]:
    """What was in it."""
    return expected_of(name, "postgres.json")


def version(url: str) -> int:
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT version FROM penstock_version").fetchone()
    assert found is not None
    return int(found[0])


def test_every_schema_has_a_store_here() -> None:
    saved = {expected_of(name, "postgres.json")["schema"] for name in having("postgres.json")}
    assert saved == set(range(1, SCHEMA_VERSION + 1)), "run python -m tests.saved.make"


def test_a_saved_store_has_all_that_it_had_and_goes_on(url: str, expected: dict[str, Any]) -> None:
    with closing(PostgresStore(url)) as store:
        assert version(url) == SCHEMA_VERSION
        check_contents(store, expected)
        check_goes_on(store, expected)
    with closing(open_reader(url)) as reader:
        assert contents(reader)["events"][:-1] == expected["events"]
        assert findings(reader) == []


def test_a_saved_store_can_be_erased_and_sealed(url: str, expected: dict[str, Any]) -> None:
    with closing(PostgresStore(url)) as store:
        assert store.open_erasures() == expected["open_erasures"] > 0
        erase_all(store)
        append_singly(store, ["order-1", "order-9"], 500, body=b"new")
        close_block(store)
        before = everything(store)
        assert seal_all(store) > 0
        assert everything(store) == before
        assert findings(store) == []


@pytest.mark.parametrize("name", STAGED)
def test_what_was_staged_is_published_and_installed(url: str, expected: dict[str, Any]) -> None:
    with closing(PostgresStore(url)) as store:
        check_staged(store, expected)
        assert findings(store) == []
