"""The command line: verify and stats on stores of all kinds, pipes that close, and never a traceback."""

import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from penstock import __version__
from penstock.cli.settings import one_store
from penstock.settings import resolve
from penstock.testing import server
from tests.cli.support import called, run, terminal_output, variables
from tests.test_server import PATIENCE_S, PENSTOCK, environment, fill


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("healthy") / "data"
    fill(data)
    return data


@pytest.fixture
def store(healthy: Path, tmp_path: Path) -> Path:
    """A store that a test may damage."""
    return shutil.copytree(healthy, tmp_path / "data")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


penstock = called


def change(data: Path, sql: str) -> None:
    connection = apsw.Connection(str(data / "penstock.db"))
    connection.execute(sql)
    connection.close()


def flip_a_byte(data: Path) -> None:
    changed = "CAST(substr(data, 1, 60) || x'7F' || substr(data, 62) AS BLOB)"
    change(data, f"UPDATE records SET data = {changed} WHERE position = 3")


def put_text_for_bytes(data: Path) -> None:
    change(data, "UPDATE records SET data = CAST(x'FFFE' AS TEXT) WHERE position = 3")


def lose_a_commit(data: Path) -> None:
    change(data, "DELETE FROM records WHERE position = 3")


def overwrite_a_page(data: Path) -> None:
    connection = apsw.Connection(str(data / "penstock.db"))
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'commits'").get
    connection.close()
    with (data / "penstock.db").open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\xa5" * 4096)


def overwrite_everything(data: Path) -> None:
    change(data, "PRAGMA wal_checkpoint(TRUNCATE)")
    path = data / "penstock.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))


def be_newer(data: Path) -> None:
    change(data, "PRAGMA user_version = 99")


def be_something_else(data: Path) -> None:
    for path in data.iterdir():
        path.unlink()
    (data / "penstock.db").write_bytes(b"no database at all " * 500)


# ---------------------------------------------------------------- verify


def test_verify_says_in_a_line_that_nothing_is_wrong(healthy: Path) -> None:
    assert penstock("verify", "--data", healthy) == (0, "6 events, nothing wrong\n", "")


def test_verify_takes_a_store_by_its_url(healthy: Path) -> None:
    assert penstock("verify", "--store", f"sqlite:///{healthy}")[0] == 0


def test_verify_reports_to_programs_in_json(healthy: Path) -> None:
    code, out, err = penstock("verify", "--data", healthy, "--json")
    assert (code, json.loads(out), err) == (0, {"events": 6, "ok": True, "findings": []}, "")


def test_verify_works_beside_a_server(store: Path) -> None:
    with server(store):
        assert penstock("verify", "--data", store)[:2] == (0, "6 events, nothing wrong\n")


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (flip_a_byte, "position 3: damaged: its checksum does not match\n"),
        (lose_a_commit, "position 3: missing: the next record begins at 5\n"),
        (overwrite_a_page, "file: "),
        (put_text_for_bytes, "file: cannot be read on: its file is damaged"),
    ],
)
def test_verify_names_what_is_wrong(store: Path, damage: Callable[[Path], None], finding: str) -> None:
    damage(store)
    code, out, err = penstock("verify", "--data", store)
    assert code == 1
    assert finding in out
    assert all(re.match(r"[^:]+: ", line) for line in out.splitlines()), out
    assert re.fullmatch(r"penstock: \d+ problems? in this store\n", err)


def test_verify_names_what_is_wrong_to_programs(store: Path) -> None:
    flip_a_byte(store)
    code, out, _ = penstock("verify", "--data", store, "--json")
    report = json.loads(out)
    assert (code, report["ok"]) == (1, False)
    assert {"where": "position 3", "what": "damaged: its checksum does not match"} in report["findings"]


def test_verify_shows_its_progress_to_a_terminal_only(healthy: Path) -> None:
    ours, theirs = pty.openpty()
    result = subprocess.run(
        [*PENSTOCK, "verify", "--data", str(healthy)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment() | {"TERM": "xterm"},
        timeout=PATIENCE_S,
    )
    os.close(theirs)
    shown = os.read(ours, 65536)
    os.close(ours)
    assert result.stdout == b"6 events, nothing wrong\n"
    assert b"events" in shown


# ---------------------------------------------------------------- stats


def test_stats_shows_tables_to_people(healthy: Path) -> None:
    code, out, err = penstock("stats", "--data", healthy)
    assert (code, err) == (0, "")
    assert "6 in 3 commits" in out
    assert re.search(r"shop +6 +3 +1", out)


def test_stats_gives_everything_to_programs(healthy: Path) -> None:
    code, out, _ = penstock("stats", "--data", healthy, "--json")
    found = json.loads(out)
    assert code == 0
    assert (found["store"]["head"], found["store"]["commits"], found["queues"]) == (6, 3, [])
    (context,) = found["contexts"]
    assert (context["name"], context["events"], context["streams"]) == ("shop", 6, 1)


def test_stats_shows_the_queues(store: Path) -> None:
    change(store, "INSERT INTO queues (name, context, filter, position) VALUES ('mail', 'shop', '', 3)")
    assert re.search(r"mail +shop +\* +3 +4 +\d+ \w+ +0", penstock("stats", "--data", store)[1])
    (queue,) = json.loads(penstock("stats", "--data", store, "--json")[1])["queues"]
    assert (queue["name"], queue["position"], queue["behind"]) == ("mail", 3, 4)


def test_stats_shows_people_the_first_rows_and_programs_all(store: Path) -> None:
    change(
        store,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1200) "
        "INSERT INTO contexts (name, events, commits, streams, bytes, top, block) "
        "SELECT 'c' || i, 0, 0, 0, 0, -1, -1 FROM n",
    )
    assert "50 of 1,201; --json shows all" in penstock("stats", "--data", store)[1]
    assert len(json.loads(penstock("stats", "--data", store, "--json")[1])["contexts"]) == 1201


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize("command", ["verify", "stats"])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (be_newer, "has schema version 99"),
        (overwrite_everything, "the store cannot be used: CorruptError"),
        (be_something_else, "is not a Penstock store: its file is no SQLite database"),
    ],
)
def test_a_store_that_cannot_be_read_is_told_in_a_line(
    store: Path, command: str, damage: Callable[[Path], None], reason: str
) -> None:
    damage(store)
    code, out, err = penstock(command, "--data", store)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert reason in err


@pytest.mark.parametrize("command", ["verify", "stats"])
def test_a_directory_that_is_not_there_is_told_and_not_made(tmp_path: Path, command: str) -> None:
    missing = tmp_path / "missing"
    expected = f"penstock: {missing} is not a Penstock store: it has no penstock.db\n"
    assert penstock(command, "--data", missing) == (1, "", expected)
    assert not missing.exists()


def test_a_store_must_be_named() -> None:
    assert penstock("verify") == (2, "", "penstock: say where the store is: --data DIR or --store URL\n")


def test_stats_without_a_store_asks_the_server_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_MQ", "127.0.0.1:1")
    code, out, err = penstock("stats")
    assert (code, out) == (1, "")
    assert err.startswith("penstock: no server answers at penstock://127.0.0.1:1: connection refused")


def test_a_password_is_not_repeated() -> None:
    for url, expected in (("postgresql://me:secret@127.0.0.1:1/db", 1), ("mysql://me:secret@host/db", 2)):
        code, _, err = penstock("stats", "--store", url)
        assert (code, err.count("\n"), "secret" in err) == (expected, 1, False)


def test_a_flag_beats_the_environment_that_beats_the_file(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('store = "sqlite:///file"')
    environ = {"PENSTOCK_DATA": "variable"}
    assert one_store(resolve({}, environ, config)).store is None
    assert one_store(resolve({"store": "sqlite:///flag"}, environ, None)).data is None
    both = one_store(resolve({"store": "sqlite:///flag", "data": "flag"}, {}, None))
    assert None not in (both.data, both.store)


def test_a_mistyped_command_is_answered_with_a_suggestion() -> None:
    code, _, err = penstock("verfy")
    assert code == 2
    assert "verify" in err


def test_the_version_is_told() -> None:
    assert penstock("--version") == (0, f"penstock {__version__}\n", "")


def test_without_a_command_the_help_is_shown() -> None:
    _, out, err = penstock()
    assert all(name in out + err for name in ("serve", "verify", "stats", "settings"))


# ---------------------------------------------------------------- pipes and colours


@pytest.fixture
def unread() -> Iterator[int]:
    """The end of a pipe whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


@pytest.mark.parametrize(
    "arguments",
    [["stats"], ["stats", "--json"], ["verify"], ["settings"], ["settings", "--json"], ["--help"]],
    ids=" ".join,
)
def test_a_pipe_that_closes_early_ends_it_quietly(healthy: Path, arguments: list[str], unread: int) -> None:
    where = ["--data", healthy] if arguments[0] in ("stats", "verify") else []
    assert penstock(*arguments, *where, stdout=unread) == (1, "", "")


@pytest.mark.parametrize("name", ["stats", "verify"])
def test_a_pipe_that_closes_early_ends_a_process_quietly(healthy: Path, name: str, unread: int) -> None:
    command = [*PENSTOCK, name, "--data", str(healthy)]
    result = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, env=environment(), timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (1, b"")


def test_no_color_is_respected(healthy: Path) -> None:
    with terminal_output() as (number, shown):
        assert run("stats", "--data", healthy, env=variables(NO_COLOR="1"), stdout=number) == (0, "", "")
        text = shown()
    assert "shop" in text
    assert not re.search(r"\x1b\[[0-9;]*[34]\d", text)
