"""The commands on a store that is on PostgreSQL: beside a server, and without one."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

import penstock as client
from penstock.store.contract import ReadLimits
from penstock.store.postgres import PostgresReader, PostgresStore, replacement
from tests.cli.support import called as penstock
from tests.postgres import Postgres, Schemas
from tests.store.kit import append, findings, some
from tests.test_server import PATIENCE_S, PENSTOCK, environment


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that were closed just now may take long to end."""
    monkeypatch.setattr(replacement, "OTHERS_S_MAX", PATIENCE_S)


@pytest.fixture
def url(schemas: Schemas) -> str:
    """A store of six events."""
    with closing(PostgresStore(schemas.url())) as store:
        for _ in range(3):
            append(store, "order-1", some(2))
    return schemas.url()


@contextmanager
def served(url: str, log: Path) -> Iterator[str]:
    """A server; where clients reach it."""
    command = [*PENSTOCK, "serve", "--store", url, "--http", "127.0.0.1:0"]
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment()) as process,
    ):
        assert process.stdout is not None
        try:
            ready = re.search(r"mq=(\S+)", process.stdout.readline())
            assert ready, log.read_text()
            yield f"penstock://{ready[1]}"
        finally:
            process.terminate()
            assert process.wait(PATIENCE_S) == 0, log.read_text()


def test_verify_and_stats(url: str, postgres_server: Postgres) -> None:
    assert penstock("verify", "--store", url) == (0, "6 events, nothing wrong\n", "")
    code, out, _ = penstock("stats", "--store", url, "--json")
    assert (code, json.loads(out)["store"]["head"], json.loads(out)["contexts"][0]["events"]) == (0, 6, 6)
    assert "6 in 3 commits" in penstock("stats", "--store", url)[1]
    schema = re.search(r"search_path%3D(\w+)", url)
    assert schema
    change = "SET data = set_byte(data, 60, (get_byte(data, 60) + 1) % 256) WHERE position = 3"
    postgres_server.execute(f"UPDATE {schema[1]}.records {change}")
    code, out, _ = penstock("verify", "--store", url)
    assert (code, "position 3: damaged: its checksum does not match\n" in out) == (1, True)


def test_a_backup_and_a_restore(url: str, tmp_path: Path) -> None:
    assert penstock("backup", tmp_path / "place", "--store", url)[0] == 0
    code, out, err = penstock("restore", tmp_path / "place", "--store", url)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "--replace" in err
    code, out, err = penstock("restore", tmp_path / "place", "--store", url, "--replace", "--json")
    report = json.loads(out)
    assert (code, err, report["events"], report["timeline"]) == (0, "", 6, 2)
    assert report["store"].startswith("postgresql://")
    code, out, _ = penstock("restore", tmp_path / "place", "--data", tmp_path / "copy")
    assert (code, out) == (0, "restored backup 1: 6 events, now on timeline 2, 0 erasures replayed\n")


def test_where_to_restore_must_be_said_once(url: str, tmp_path: Path) -> None:
    assert penstock("backup", tmp_path / "place", "--store", url)[0] == 0
    for more in ((), ("--data", tmp_path / "copy", "--store", url)):
        code, out, err = penstock("restore", tmp_path / "place", *more)
        assert (code, out, err) == (2, "", "penstock: say where to restore to: either --data DIR or --store URL\n")


def test_everything_beside_a_server(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(url, tmp_path / "log") as address:
        with client.connect(address) as connected:
            connected.append("shop", "order-2", [client.event("OrderPlaced", {"by": "ann"})])
        assert penstock("append", "shop", "order-1", "Paid", '{"amount": 7}', "--url", url)[0] == 0
        code, out, err = penstock("read", "shop", "order-1", "--from", "7", "--json", "--url", address)
        assert (code, err, json.loads(out)["body"]) == (0, "", {"amount": 7})
        assert penstock("read", "shop", "order-1", "--from", "7", "--json", "--url", url).out == out
        assert penstock("verify", "--store", url)[:2] == (0, "8 events, nothing wrong\n")
        assert penstock("backup", tmp_path / "place", "--store", url)[0] == 0
        code, out, _ = penstock("erase", "--stream", "shop/order-2", "--yes", "--url", address)
        assert (code, out.startswith("erased 1 event;")) == (0, True)
        code, out, _ = penstock("erasures", "--url", address, "--json")
        assert [entry["finished"] is not None for entry in json.loads(out)] == [True]
        for command in (("restore", tmp_path / "place", "--store", url, "--replace"), ("migrate-store", url, tmp_path)):
            with monkeypatch.context() as patch:
                patch.setattr(replacement, "OTHERS_S_MAX", 1.0)
                code, out, err = penstock(*command)
            assert (code, out, err.count("\n")) == (1, "", 1)
            assert "is in use by sessions of the application penstock" in err
    assert penstock("restore", tmp_path / "place", "--store", url, "--replace")[0] == 0
    with closing(PostgresReader(url)) as store:
        assert (store.head(), store.stats().timeline, findings(store)) == (8, 2, [])
        assert store.read_stream("shop", "order-2", 1, None, ReadLimits()).events == []


WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
import penstock
from penstock.cli import main
for arguments in (
    ("stats", "--store", "postgresql://host/db"),
    ("serve", "--store", "postgresql://host/db", "--http", "127.0.0.1:0"),
    ("migrate-store", "postgresql://host/db", "nowhere"),
):
    sys.argv = ["penstock", *arguments]
    try:
        main()
    except SystemExit as ended:
        print(ended.code)
"""


def test_without_psycopg_a_url_of_postgres_is_told_in_a_line_and_all_else_works() -> None:
    command = [sys.executable, "-c", WITHOUT_PSYCOPG]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "1\n1\n1\n")
    said = done.stderr.splitlines()
    assert len(said) == 3, done.stderr
    assert all("needs psycopg, which is not installed: pip install 'psycopg[binary]'" in line for line in said)


def test_a_password_is_not_told_when_commands_cannot_connect() -> None:
    code, out, err = penstock("read", "shop", "--url", "postgresql://me:secret@127.0.0.1:1/db")
    assert (code, out, err.count("\n"), "secret" in err) == (1, "", 1, False)


@pytest.mark.parametrize(
    "command",
    [
        ["sql", "SELECT 1 FROM events", "--store"],
        ["stats", "--store"],
        ["verify", "--store"],
        ["read", "shop", "--url"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_that_only_reads_says_nothing_of_writing_when_it_cannot_connect(command: list[str]) -> None:
    code, out, err = penstock(*command, "postgresql://127.0.0.1:1/db")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "Connection refused" in err
    assert "writ" not in err
