"""Real servers on port 0: what they print, what they serve, what they refuse, and how they end."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from unittest.mock import patch

import httpx
import pytest
import pytest_asyncio

import penstock.server
from penstock import testing
from penstock.engine import Engine
from penstock.errors import CannotListen, NotLoopback
from penstock.gates import HttpGate, http
from penstock.gates.contract import bound_socket, is_loopback, shown_address
from penstock.model import ANONYMOUS, Append, new_event
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.sqlite import SqliteStore
from penstock.tcp.server import LINES_PER_ADDRESS_MAX
from penstock.testing.harness import ThreadedEngine

PENSTOCK = [sys.executable, "-m", "penstock"]
PATIENCE_S = 60.0
"""How long something may take that surely comes, on a machine that has much else to do."""


def environment() -> dict[str, str]:
    """Ours, without anything that a server would take for a setting, but with free ports for all its gates.

    What a command prints is buffered as it is in a pipe, whatever the machine of the tests is set to.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PENSTOCK_", "PYTHONUNBUFFERED"))}
    return {**ours, "PENSTOCK_RES": "tcp://127.0.0.1:0", "PENSTOCK_MQ": "127.0.0.1:0", "PENSTOCK_REMITS": "127.0.0.1:0"}


ONE_WORKER = ("--workers", "1")
"""For servers whose reads are no matter of the test: each worker takes a third of a second to start."""


class Served:
    """A `penstock serve` process. Leaving it stops the process and reaps it."""

    def __init__(self, data: Path, *flags: str, command: list[str] | None = None) -> None:
        self.log = data.with_name(data.name + ".log")
        address = () if "--http" in flags else ("--http", "127.0.0.1:0")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*(command or PENSTOCK), "serve", "--data", str(data), *address, *flags],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()

    @property
    def address(self) -> str:
        gates = r"res=tcp://127\.0\.0\.1:\d+ mq=127\.0\.0\.1:\d+ remits=127\.0\.0\.1:\d+ http=(\S+)"
        found = re.fullmatch(rf"penstock ready {gates}\n", self.ready)
        assert found, f"no ready line: {self.ready!r}\n{self.said()}"
        return found[1]

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.address}{path}", timeout=PATIENCE_S)

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


def refused(*arguments: str) -> tuple[int, str]:
    """Run a server that must not start; its exit code and the one line it says."""
    result = subprocess.run(
        [*PENSTOCK, "serve", *arguments], capture_output=True, text=True, env=environment(), timeout=PATIENCE_S
    )
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("penstock: ")
    return result.returncode, result.stderr


def refused_here(*arguments: str) -> tuple[int, str]:
    """The same in this process."""
    # What it logs goes where the tests want it.
    with patch.object(penstock.server, "log_to_stderr"), patch.dict(os.environ, environment(), clear=True):
        from tests.cli.support import called

        code, out, err = called("serve", *arguments)
    assert (out, err.count("\n")) == ("", 1), err
    assert err.startswith("penstock: ")
    return code, err


def fill(data: Path, commits: int = 3) -> None:
    """Put commits of two events each into a store."""

    async def append() -> None:
        async with ThreadedEngine(store_url(data), Settings(workers=1)) as engine:
            for number in range(commits):
                events = [new_event("Placed", b"{}"), new_event("Paid", b"[]")]
                await engine.execute(ANONYMOUS, Append("shop", "order-1", events, 2 * number + 1))

    asyncio.run(append())


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while we look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text().split())
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("shared") / "data", *ONE_WORKER) as served:
        yield served


# ---------------------------------------------------------------- what it serves


def test_the_ready_line_names_the_real_port(server: Served) -> None:
    host, _, port = server.address.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


def test_health_says_which_store_is_served(server: Served) -> None:
    answer = server.get("/health")
    assert answer.status_code == 200
    about = answer.json()
    assert set(about) == {"status", "store_id", "timeline", "version"}
    assert (about["status"], about["timeline"]) == ("ok", 1)


def test_metrics_are_those_of_the_engine_and_the_process(server: Served) -> None:
    answer = server.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    for name in ("penstock_commits_total", "penstock_store_up 1.0", "process_cpu_seconds_total", "python_info"):
        assert f"\n{name}" in answer.text


def test_the_index_says_what_this_is_and_where_to_look(server: Served) -> None:
    answer = server.get("/")
    assert answer.headers["content-type"].startswith("text/plain")
    assert all(path in answer.text for path in ("Penstock", "/health", "/metrics"))


def test_an_unknown_path_is_answered_with_what_there_is(server: Served) -> None:
    answer = server.get("/helth")
    assert answer.status_code == 404
    assert answer.json()["error"] == "there is no /helth here"
    health = {"/health", "/livez", "/readyz", "/metrics", "/sessions"}
    assert set(answer.json()["paths"]) == {"/", *health, "/v1/events", "/openapi.json", "/console"}


def test_other_methods_are_refused(server: Served) -> None:
    answer = httpx.delete(f"http://{server.address}/health", timeout=PATIENCE_S)
    assert answer.status_code == 405
    assert answer.json()["error"] == "/health answers GET and HEAD only"


def test_a_request_with_a_body_is_refused(server: Served) -> None:
    answer = httpx.request("GET", f"http://{server.address}/health", content=b"x" * 100, timeout=PATIENCE_S)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")


def test_a_head_that_never_ends_is_refused(server: Served) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nX-Long: " + b"x" * (http.HEAD_BYTES_MAX + 1024))
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


# ---------------------------------------------------------------- hostile clients


@contextlib.contextmanager
def connected(server: Served) -> Iterator[socket.socket]:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        yield connection


def test_hostile_clients_do_not_disturb_others(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER) as server, contextlib.ExitStack() as stack:
        openings = [
            b"",
            b"GET /health HTTP/1.1\r\nX-Slow: ",
            b"\x00\xff" * 50,
            b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 10,
        ]
        for number in range(2 * Settings().http_connections_max):
            connection = stack.enter_context(connected(server))
            with contextlib.suppress(OSError):
                connection.sendall(openings[number % len(openings)])
            if number % 64 == 0:
                assert server.get("/health").status_code == 200
        assert server.get("/health").status_code == 200
        assert server.stop() == 0
        # The log names some of those that were cut off, says how many more there were, and is not filled by them.
        named = re.findall(r" WARNING penstock\.gates\.http: http ended the connection of 127\.0\.0\.1:", server.said())
        assert LINES_PER_ADDRESS_MAX <= len(named) < Settings().http_connections_max
        assert re.search(r" http ended \d+ more connections, the last one from 127\.0\.0\.1;", server.said())
        assert "Traceback" not in server.said()


@pytest_asyncio.fixture
async def gate(tmp_path: Path) -> AsyncIterator[HttpGate]:
    async with ThreadedEngine(store_url(tmp_path / "data"), Settings(workers=1, http="127.0.0.1:0")) as engine:
        gate = HttpGate(engine)
        await gate.start()
        yield gate
        await gate.stop()


async def opened(gate: HttpGate) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = gate.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_cut_off(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    return True


@pytest.mark.asyncio
async def test_who_does_not_finish_a_request_in_time_is_cut_off(
    gate: HttpGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "REQUEST_S_MAX", 0.05)
    reader, writer = await opened(gate)
    writer.write(b"GET / HTTP/1.1\r\n")
    assert await is_cut_off(reader)
    writer.close()


@pytest.mark.asyncio
async def test_one_connection_too_many_costs_the_oldest_its_place(gate: HttpGate) -> None:
    gate._config.connections_max = 2
    (oldest, first), (_, second), (newest, third) = [await opened(gate) for _ in range(3)]
    assert await is_cut_off(oldest)
    third.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await newest.readline()).startswith(b"HTTP/1.1 200")
    for writer in (first, second, third):
        writer.close()


@pytest.mark.asyncio
async def test_health_is_503_with_a_reason_while_the_store_cannot_be_written(
    gate: HttpGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "trouble", "the disk is gone")
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://{gate.address}/health")
    assert answer.status_code == 503
    assert (answer.json()["status"], answer.json()["reason"]) == ("unavailable", "the disk is gone")


@pytest.mark.asyncio
async def test_a_gate_that_refuses_still_answers_those_who_are_in(gate: HttpGate) -> None:
    reader, writer = await opened(gate)
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    await reader.readuntil(b"for browsers\n")
    gate.refuse()
    with pytest.raises(OSError, match=r"refused|Connect call failed|reset"):
        await opened(gate)
    writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_is_known_in_all_its_forms(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "::ffff:10.0.0.1", "fe80::1"])
def test_what_others_can_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0"])
async def test_loopback_can_be_bound_by_number_and_by_name(address: str) -> None:
    if address.startswith("[") and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with await bound_socket("http", address, "where it may not") as bound:
        shown = shown_address(bound)
    assert re.fullmatch(r"(127\.0\.0\.1|\[::1\]):[1-9]\d*", shown)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.asyncio
async def test_listening_beyond_loopback_needs_to_be_allowed() -> None:
    with pytest.raises(NotLoopback, match=r"--http 0\.0\.0\.0:0 would listen beyond loopback where it may not; or use"):
        await bound_socket("http", "0.0.0.0:0", "where it may not")
    (await bound_socket("http", "0.0.0.0:0", None)).close()


@pytest.mark.asyncio
async def test_a_host_nobody_knows_cannot_be_listened_on() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on --http no\.such\.host\.invalid:0: "):
        await bound_socket("http", "no.such.host.invalid:0", "where it may not")


@pytest.mark.asyncio
async def test_an_address_without_a_port_cannot_be_listened_on() -> None:
    with pytest.raises(CannotListen, match="must be HOST:PORT"):
        await bound_socket("http", "localhost", "where it may not")


# ---------------------------------------------------------------- how it ends


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_promptly_and_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with Served(tmp_path / "data", *ONE_WORKER) as server, connected(server) as idle, connected(server) as slow:
        # Neither holds it up.
        idle.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert idle.recv(100)
        slow.sendall(b"GET / HT")
        workers = children(server.process.pid)
        started = time.monotonic()
        assert server.stop(number) == 0
        # Sooner than what was accepted would be given up.
        assert time.monotonic() - started < 9
        # The first line says that there are no principals.
        assert server.said().count("\n") == 3, server.said()
        assert f"{number.name}: finishing accepted requests" in server.said()
        assert workers
        assert not any(is_alive(pid) for pid in workers)


def hanging(what: str) -> list[str]:
    """A server whose gate takes its time to stop."""
    code = "import asyncio, sys; from penstock.gates import HttpGate; from penstock.cli import main\n"
    code += f"async def stop(self):\n    {what}\n    await asyncio.sleep(600)\n"
    return [sys.executable, "-c", code + "HttpGate.stop = stop\nmain()"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER, command=hanging("print('stopping', flush=True)")) as server:
        workers = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "stopping\n"
        assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
        assert server.said().endswith("penstock: SIGINT again: ended at once, with work unfinished\n")
        until(lambda: not any(is_alive(pid) for pid in workers))


def test_a_stop_that_takes_too_long_is_cut_short(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER, "--shutdown-ms-max", "0", command=hanging("pass")) as server:
        assert server.stop() == 1
        assert "penstock: could not finish within 2000 ms; ended with work unfinished" in server.said()


def test_a_killed_server_leaves_a_store_that_opens_again(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with Served(tmp_path / "data", *ONE_WORKER) as first:
        store = first.get("/health").json()["store_id"]
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    with contextlib.closing(SqliteStore(tmp_path / "data")) as second:
        assert (second.identity().id, second.head()) == (store, 6)


# ---------------------------------------------------------------- what it refuses


def test_a_second_server_on_the_same_data_is_refused(server: Served) -> None:
    data = server.log.with_name("data")
    code, line = refused("--data", str(data), "--http", "127.0.0.1:0")
    assert code == 1
    assert f"the store in {data} is in use by process {server.process.pid}" in line
    assert server.get("/health").status_code == 200


def test_a_port_in_use_is_refused(server: Served, tmp_path: Path) -> None:
    code, line = refused("--data", str(tmp_path / "data"), "--http", server.address)
    assert code == 1
    assert line == f"penstock: cannot listen on --http {server.address}: address already in use\n"
    # It leaves the store to whoever comes next.
    SqliteStore(tmp_path / "data").close()


TLS = "in plain text: encrypt it with --tls-cert FILE --tls-key FILE, or allow this with --allow-plaintext"
INIT = (
    "where any client may do everything: make a principal with penstock access init --data {data}, "
    "or allow this with --allow-anonymous"
)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [((), f"{TLS}; and {INIT}"), (("--allow-plaintext",), INIT), (("--allow-anonymous",), TLS)],
)
def test_listening_beyond_loopback_is_refused_with_what_to_do(
    flags: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    code, line = refused_here("--data", str(data), "--http", "0.0.0.0:0", *flags)
    assert code == 1
    why = f"--http 0.0.0.0:0 would listen beyond loopback {reason.format(data=data)}"
    assert line == f"penstock: {why}; or use an address such as 127.0.0.1\n"


def test_a_printed_command_works_with_any_name_of_a_directory(tmp_path: Path) -> None:
    data = tmp_path / "Ann's data & more"
    _, line = refused_here("--data", str(data), "--http", "0.0.0.0:0", "--allow-plaintext")
    printed = line.partition("make a principal with penstock ")[2].partition(", or allow")[0]
    assert shlex.split(printed) == ["access", "init", "--data", str(data)]


def test_the_zeromq_gate_names_its_own_encryption(tmp_path: Path) -> None:
    code, line = refused_here("--data", str(tmp_path / "data"), "--res", "tcp://0.0.0.0:0", "--http", "127.0.0.1:0")
    assert code == 1
    assert "beyond loopback in plain text: encrypt it with --curve-secret-key FILE" in line


@pytest.mark.parametrize("allowed", [{"allow_plaintext": True, "allow_anonymous": True}, {"insecure": True}])
def test_two_switches_let_a_gate_listen_beyond_loopback(
    allowed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with testing.server(http="0.0.0.0:0", **allowed) as served:
        assert served.http.startswith("http://0.0.0.0:")
    assert ("--insecure is deprecated" in caplog.text) == ("insecure" in allowed)


def test_principals_let_a_gate_listen_beyond_loopback(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'data'}") as client:
        client.access.put("admin", ["all"])
    with testing.server(tmp_path / "data", http="0.0.0.0:0", allow_plaintext=True) as served:
        assert served.http.startswith("http://0.0.0.0:")


def test_a_server_without_principals_says_so_first(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER) as server:
        first = server.said().splitlines()[0]
        assert first.endswith(
            "there are no principals, so every client may do everything; penstock access init makes the first"
        )


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, line = refused_here("--data", str(tmp_path / "file" / "data"))
    assert code == 1
    assert "Not a directory" in line


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "penstock.db"
    path.write_bytes(b"something else entirely" * 500)
    code, line = refused_here("--data", str(tmp_path))
    assert code == 1
    assert "is not a Penstock store" in line
    assert path.read_bytes() == b"something else entirely" * 500


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--data", "d", "--workers", "0"), "workers = '0' (from --workers): must be at least 1"),
        (("--data", "d", "--store", "sqlite:///d"), "only one of --data and --store can be given"),
        (("--store", "mysql://me:secret@host/db"), "'mysql://me:***@host/db'"),
        (("--data", "d", "--config", "missing.toml"), "cannot be read: No such file or directory"),
    ],
)
def test_wrong_use_is_told_in_a_line(flags: tuple[str, ...], reason: str) -> None:
    code, line = refused_here(*flags)
    assert code == 2
    assert reason in line


def test_wrong_use_has_exit_code_2() -> None:
    assert refused() == (2, "penstock: say where the store is: --data DIR or --store URL\n")
