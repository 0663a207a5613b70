"""`penstock erase` and `penstock erasures`: through a server and on a store of one's own, and never by mistake."""

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest
import typer

import penstock
from penstock.cli.maintenance import erase_command
from penstock.testing import Server, server
from tests.cli.support import called as run
from tests.test_server import PATIENCE_S, PENSTOCK, environment

SECRET = "top-secret"


def fill(url: str) -> None:
    with penstock.connect(url) as client:
        client.append("shop", "a/b", [penstock.event("Told", SECRET), penstock.event("Told", SECRET)])
        about = [penstock.event("Told", SECRET, {"subject": name}) for name in ("ann", "ben", "ann")]
        client.append("shop", "people", about)
        client.append("bank", "people", about)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "data"
    fill(f"sqlite:///{directory}")
    return directory


@pytest.fixture
def data(filled: Path, tmp_path: Path) -> Path:
    return shutil.copytree(filled, tmp_path / "data")


@pytest.fixture
def served(data: Path) -> Iterator[Server]:
    with server(data) as own:
        yield own


def read(data: Path) -> list[tuple[str, str, int]]:
    with penstock.connect(f"sqlite:///{data}") as client:
        return [(event.context, event.stream, event.sequence) for event in client.read_all()]


# --- what is erased -------------------------------------------------------------------------------------------


def test_a_stream_is_erased_and_nothing_of_it_is_left(data: Path) -> None:
    code, out, err = run("erase", "--stream", "shop/a/b", "--data", data, "--yes")
    assert (code, out, err) == (0, "erased 2 events; the erasure is finished\n", "")
    for context in ("shop", "bank"):
        assert run("erase", "--stream", f"{context}/people", "--data", data, "--yes")[0] == 0
    assert read(data) == []
    assert [path.name for path in data.iterdir() if SECRET.encode() in path.read_bytes()] == []
    assert run("verify", "--data", data)[:2] == (0, "8 events, nothing wrong\n")


def test_a_subject_is_erased_in_one_context_or_all(data: Path) -> None:
    erase = ("erase", "--subject", "ann", "--data", data, "--yes")
    assert run(*erase, "--context", "shop")[1].startswith("erased 2 events;")
    assert json.loads(run(*erase, "--json").out) == {"events": 2, "damaged": 0}
    assert run(*erase)[:2] == (0, "there was nothing to erase\n")
    assert read(data) == [("shop", "a/b", 1), ("shop", "a/b", 2), ("shop", "people", 2), ("bank", "people", 2)]


def test_a_server_erases_for_whoever_asks_it(served: Server) -> None:
    url = served.url
    assert run("erase", "--subject", "ann", "--url", url, "--yes")[1].startswith("erased 4 events;")
    assert run("erase", "--stream", "shop/a/b", "--url", served.zmq_url, "--yes")[1].startswith("erased 2 events;")
    with penstock.connect(url) as client:
        assert [(event.context, event.sequence) for event in client.read_all()] == [("shop", 2), ("bank", 2)]
    beside, through = (run("erasures", *where, "--json") for where in (("--data", served.data), ("--url", url)))
    assert beside == through
    first, second = json.loads(through[1])
    assert (first["context"], first["stream"], first["events"], first["damaged"]) == (None, None, 4, 0)
    assert (second["context"], second["stream"], second["events"]) == ("shop", "a/b", 2)
    assert first["requested"] <= first["finished"] <= second["finished"]


def test_what_a_damaged_record_still_holds_is_not_called_gone(data: Path) -> None:
    with closing(apsw.Connection(str(data / "penstock.db"))) as connection:
        connection.execute("UPDATE records SET data = CAST(zeroblob(40) || data AS BLOB) WHERE position = 1")
    code, out, err = run("erase", "--stream", "shop/a/b", "--data", data, "--yes")
    assert (code, out) == (1, "erased 2 events\n")
    assert "penstock: 1 damaged record could not be rewritten and may hold erased data" in err
    assert run("verify", "--data", data)[0] == 1


def test_the_ledger_is_shown_as_a_table(data: Path) -> None:
    assert run("erasures", "--data", data) == (0, "", "nothing was erased\n")
    run("erase", "--stream", "shop/a/b", "--data", data, "--yes")
    code, out, _ = run("erasures", "--data", data)
    assert code == 0
    assert "shop/a/b" in out
    assert "not yet" not in out


def test_a_row_of_the_ledger_takes_one_line_of_a_narrow_terminal(data: Path) -> None:
    run("erase", "--stream", "shop/a/b", "--data", data, "--yes")
    _, out, _ = run("erasures", "--data", data)
    assert len([line for line in out.splitlines() if line.strip()]) == 3
    assert max(map(len, out.splitlines())) <= 80


def test_whoever_interrupts_it_is_told_what_that_means(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(penstock.Client, "wait_erased", interrupted)
    with pytest.raises(typer.Exit) as ended:
        erase_command("shop/a/b", data=data, yes=True)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err.startswith("penstock: interrupted: the events found so far are hidden")
    assert ("shop", "a/b", 1) not in read(data)


# --- nothing by mistake ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--data", "."), "say what to erase: either --stream CONTEXT/STREAM or --subject TEXT"),
        (("--stream", "a/b", "--subject", "c", "--data", "."), "say what to erase"),
        (("--stream", "a", "--data", "."), "--stream names a stream as CONTEXT/STREAM"),
        (("--stream", "a/b", "--context", "c", "--data", "."), "--context can be combined with --subject"),
        (("--stream", "a/b"), "say where: either --url penstock://HOST:PORT or --data DIR"),
        (("--stream", "a/b", "--url", "penstock://x", "--data", "."), "say where"),
        (("--stream", "a/b", "--data", "."), "an erasure cannot be undone: use --yes to erase without a question"),
    ],
)
def test_wrong_use_is_told_in_a_line(arguments: tuple[str, ...], complaint: str) -> None:
    code, out, err = run("erase", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("penstock: ")
    assert complaint in err
    assert err.count("\n") == 1


def test_a_store_that_is_served_is_left_to_its_server(served: Server) -> None:
    code, out, err = run("erase", "--stream", "shop/a/b", "--data", served.data, "--yes")
    assert (code, out) == (1, "")
    assert "is in use by" in err
    assert "--url penstock://HOST:PORT" in err


@pytest.mark.parametrize("command", [("erase", "--stream", "a/b", "--yes"), ("erasures",)])
def test_no_store_is_made_where_there_is_none(tmp_path: Path, command: tuple[str, ...]) -> None:
    code, _, err = run(*command, "--data", tmp_path / "none")
    assert (code, err.count("\n")) == (1, 1)
    assert not (tmp_path / "none").exists()


def test_a_server_that_is_not_there_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.connection.ANSWER_S_MAX", 0.2)
    for command in (("erase", "--stream", "a/b", "--yes"), ("erasures",)):
        code, out, err = run(*command, "--url", "penstock://127.0.0.1:1")
        assert (code, out, err.count("\n")) == (1, "", 1)


def test_a_logs_stream_is_refused(data: Path) -> None:
    code, _, err = run("erase", "--stream", "remits/log", "--data", data, "--yes")
    assert code == 1
    assert "delete the log" in err


# --- at a terminal --------------------------------------------------------------------------------------------


def at_a_terminal(answer: str, *arguments: str) -> tuple[int, str, str]:
    """Run a command at a terminal and answer its question; exit code, standard output, what the terminal showed."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PENSTOCK, *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=environment() | {"TERM": "xterm"},
    ) as process:
        os.close(theirs)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1000)
        os.write(ours, answer.encode() + b"\n")
        out, _ = process.communicate(timeout=PATIENCE_S)
    os.close(ours)
    return process.returncode, out, shown.decode()


def test_somebody_at_a_terminal_is_asked_with_the_number_of_events(data: Path) -> None:
    erase = ("erase", "--stream", "shop/a/b", "--data", str(data))
    code, out, shown = at_a_terminal("n", *erase)
    assert (code, out) == (1, "")
    assert "Erase the 2 events of stream a/b in context shop for good?" in shown
    assert len(read(data)) == 8
    code, out, _ = at_a_terminal("y", *erase)
    assert (code, out) == (0, "erased 2 events; the erasure is finished\n")
    assert len(read(data)) == 6


def test_a_subject_is_asked_for_too(data: Path) -> None:
    code, _, shown = at_a_terminal("y", "erase", "--subject", "ann", "--context", "bank", "--data", str(data))
    assert code == 0
    assert "Erase all events in context bank whose headers name the subject 'ann' for good?" in shown
    assert len(read(data)) == 6
