"""docs/postgresql.md: its SQL gives just the rights that are needed, its session prints what it says."""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from penstock.errors import StorageFailure
from penstock.store.contract import AddLog, Erase, HideStream
from penstock.store.postgres import PostgresReader, PostgresStore, connection
from tests.cli.support import called as penstock
from tests.postgres import Postgres
from tests.store.kit import append, do_one, findings, some
from tests.test_server import fill

PAGE = (Path(__file__).parent.parent / "docs" / "postgresql.md").read_text(encoding="utf-8")
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^\$ (.*)\n((?:[^$`].*\n)+)", re.MULTILINE)
URL = "postgresql://penstock@db.example/penstock"


@pytest.fixture
def url(postgres_server: Postgres) -> Iterator[str]:
    """The database that the page makes; for its role."""
    made, also = SQL.findall(PAGE)
    database = "postgres"
    try:
        for line in (made + also).replace("\n    ", " ").splitlines():
            if found := re.fullmatch(r"\\connect (\w+)", line):
                database = found[1]
                continue
            with psycopg.connect(postgres_server.url(database=database), autocommit=True) as connection:
                connection.execute(line.encode())
        yield postgres_server.url(database="penstock").replace("postgres@", "penstock@", 1)
    finally:
        postgres_server.execute("DROP DATABASE IF EXISTS penstock WITH (FORCE)")
        for role in ("penstock", "reporting"):
            postgres_server.execute(f"DROP ROLE IF EXISTS {role}")


def test_a_server_needs_no_more_than_the_page_grants(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        append(store, "s", some(2))
        do_one(store, AddLog("log"))
        do_one(store, HideStream("shop", "s"))
        while do_one(store, Erase(100)):
            pass
        with closing(store.listener()) as listener:
            assert listener.lease("job", 1000)
        store.recover()
        assert findings(store) == []
    with closing(PostgresReader(url.replace("penstock@", "reporting@", 1))) as reader:
        assert findings(reader) == []
        assert reader.stats().head == 2
        assert reader.state().head == 2
    with pytest.raises(StorageFailure, match="lacks a right"):
        append_as(url.replace("penstock@", "reporting@", 1))


def append_as(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        append(store, "s", some(1))


def test_the_session_prints_what_the_page_says(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "shop-data")
    monkeypatch.chdir(tmp_path)
    steps = SESSION.findall(PAGE)
    assert len(steps) == 2
    for command, answer in steps:
        code, out, err = penstock(*command.replace(URL, url).split()[1:])
        assert (code, out.replace(url, URL), err) == (0, answer, "")


def test_the_page_names_every_setting_that_is_refused_and_why() -> None:
    rows = dict(re.findall(r"^\| `(\w+) = off` \| (.+) \|$", PAGE, re.MULTILINE))
    assert rows == connection._REFUSED
    assert f"PostgreSQL {connection.VERSION_MIN} or later" in PAGE
    assert connection.IDLE_MS_MAX == connection.LOCK_MS_MAX == 10_000
