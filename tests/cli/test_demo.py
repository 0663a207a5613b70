"""`penstock demo`, started, watched and stopped as somebody would do it, with nothing left behind."""

import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pexpect  # type: ignore[import-untyped]
import pytest

from penstock import connect
from penstock.cli.demo import print_snapshot, snapshot_table
from penstock.cli.output import console
from penstock.demo import Snapshot
from penstock.store import open_reader, store_url
from penstock.testing import server
from tests.cli.support import called as penstock
from tests.cli.support import shell, variables
from tests.test_server import PATIENCE_S, PENSTOCK, children, is_alive, until

SECONDS = 1
"""How long a shop is open that nobody watches."""


def free_everywhere(folder: Path, **more: str) -> dict[str, str]:
    """An environment with free ports, and with a folder of the test's own for temporary data."""
    return {**variables(), "PENSTOCK_HTTP": "127.0.0.1:0", "TMPDIR": str(folder), **more}


class Shown(NamedTuple):
    """What a demo says when it opens."""

    url: str
    data: Path
    lines: list[str]

    @classmethod
    def of(cls, text: str) -> "Shown":
        url = re.search(r"a shop is open at (penstock://\S+), ", text)
        data = re.search(r"its store is in (\S+)", text)
        assert url
        assert data
        lines = re.findall(r"^  (\S.*)$", text.replace("\r", ""), re.MULTILINE)
        return cls(url[1], Path(data[1]), lines)

    @property
    def commands(self) -> list[list[str]]:
        """What it proposes to try, without the program, and ending by itself."""
        words = (shlex.split(line) for line in self.lines)
        names = ("tail", "read", "queue", "iterator", "sql")
        cut = [each[next(at for at, word in enumerate(each) if word in names) :] for each in words]
        return [[word for word in each if word != "-f"] for each in cut]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[pexpect.spawn]:
    """A demo on a terminal."""
    command, *arguments = [*PENSTOCK, "demo"]
    env = free_everywhere(tmp_path)
    child = pexpect.spawn(command, arguments, env=env, encoding="utf-8", timeout=PATIENCE_S, dimensions=(40, 200))
    try:
        yield child
    finally:
        child.close(force=True)


def test_the_shop_is_opened_watched_and_closed_with_nothing_left(terminal: pexpect.spawn, tmp_path: Path) -> None:
    terminal.expect("Ctrl-C closes the shop")
    seen = Shown.of(terminal.before)
    terminal.expect(r"orders.*shipped.*queue.*visits.*history")
    with connect(seen.url) as client:
        until(lambda: any(event.type == "OrderShipped" for event in client.read_all(context="shop")))
        assert [(info.name, info.filter) for info in client.queues()] == [("shipping", "order-")]
        until(lambda: len(client.iterator("visits-by-page").next(-1, 1)) == 1)
        order = [event.type for event in client.read_stream("shop", "order-1")]
    assert order[0] == "OrderPlaced"
    watch(seen)
    workers = children(terminal.pid)
    terminal.sendintr()
    terminal.expect("the shop is closed, and its store is removed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert (terminal.exitstatus, terminal.signalstatus) == (0, None)
    assert list(tmp_path.iterdir()) == []
    until(lambda: not any(map(is_alive, workers)))
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(seen.url.rpartition(":")[2])), 1)


def watch(seen: Shown) -> None:
    """Try in another terminal what the demo proposes, as it stands."""
    printed = {}
    for arguments in seen.commands:
        code, out, err = penstock(*arguments)
        assert (code, err) == (0, ""), (arguments, out, err)
        printed[arguments[0]] = out
    assert list(printed) == ["tail", "read", "queue", "iterator", "sql"]
    assert 3 <= len(printed["tail"].splitlines()) <= 10
    assert "OrderPlaced" in printed["read"]
    assert "shipping" in printed["queue"]
    assert re.search(r'"/\w+":\s*\d+', printed["iterator"])
    assert re.search(r"OrderPlaced\W+\d+", printed["sql"])


def demo(*arguments: object, folder: Path, **env: str) -> subprocess.Popen[str]:
    command = [*PENSTOCK, "demo", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=free_everywhere(folder, **env), **pipes)  # type: ignore[call-overload, no-any-return]


def test_in_a_pipe_it_prints_lines_and_a_store_of_ones_own_stays(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        out, err = demo("--data", data, "--seconds", SECONDS, folder=tmp_path, PENSTOCK_MQ=taken).communicate(
            timeout=PATIENCE_S
        )
    assert err == ""
    assert out.startswith(f"{taken} is in use, so mq has another port\n")
    assert Shown.of(out).url != f"penstock://{taken}"
    lines = re.findall(r"^ +\d+ s  \d+ orders? placed, \d+ paid, .* visits?, \d+ events?$", out, re.MULTILINE)
    assert len(lines) >= SECONDS
    assert "\x1b" not in out
    assert out.endswith(f"the shop is closed; its store is in {data}\n")
    assert penstock("verify", "--data", data)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    goes_on(data, tmp_path)


def goes_on(data: Path, folder: Path) -> None:
    """A shop that was closed is opened again with all that was in it."""
    before = events_by_context(data)
    process = demo("--data", data, folder=folder)
    assert process.stdout is not None
    for line in process.stdout:
        if re.match(r" +\d+ s  ", line):
            process.send_signal(signal.SIGTERM)
            break
    assert process.communicate(timeout=PATIENCE_S)[1] == ""
    assert process.returncode == 0
    after = events_by_context(data)
    assert set(before) <= set(after)
    assert all(after[name] >= before[name] for name in before)


def events_by_context(data: Path) -> dict[str, int]:
    with closing(open_reader(store_url(data))) as store:
        return {info.name: info.events for info in store.contexts("", 10)}


def test_when_nobody_reads_it_any_more_it_ends_and_leaves_nothing(tmp_path: Path) -> None:
    done = shell(f"export TMPDIR={tmp_path} PENSTOCK_HTTP=127.0.0.1:0; penstock demo | head -n 1")
    assert done.out.startswith("a shop is open at ")
    assert done.err == ""
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_somebody_serves_is_refused_in_a_line(tmp_path: Path) -> None:
    with server(tmp_path / "data"):
        code, out, err = penstock("demo", "--data", tmp_path / "data")
    assert (code, out) == (1, "")
    assert err.startswith(f"penstock: the store in {tmp_path / 'data'} is in use by process ")
    assert err.count("\n") == 1


def test_what_goes_on_fits_a_line_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = Snapshot(3, 2, 1, 0, {"packer-1": 1, "packer-2": 0}, 4, 20, {"/jam": 2, "/a\x1b": 3})
    print_snapshot(snapshot, 12.3)
    assert capsys.readouterr().out == (
        "   12 s  3 orders placed, 2 paid, 1 declined, 1 shipped (packer-1 1, packer-2 0), "
        "4 behind in the queue, 5 visits, 20 events\n"
    )
    console().print(snapshot_table(snapshot))
    assert "/a\\x1b 3   /jam 2" in capsys.readouterr().out
