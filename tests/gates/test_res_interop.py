"""Implementations of ZeroMQ that talk to the gate: libzmq with its kinds of peers, zeromq.js, azmq, older libzmqs."""

import contextlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from penstock import testing
from tests.gates.res_client import PATIENCE_S, Rc01
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import an_event
from tests.gates.serving import Served, until

MS: Final = int(PATIENCE_S * 1000)
MECHANISM_MISMATCH: Final = zmq.Event.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
HERE: Final = Path(__file__).parent / "interop"


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server() as served:
        yield served


@pytest.fixture
def endpoint(server: testing.Server) -> str:
    return server.zmq_url.removeprefix("zmq+")


@contextlib.contextmanager
def connected(endpoint: str, kind: int, **options: int | bytes) -> Iterator[zmq.Socket[bytes]]:
    """A socket of libzmq with these options."""
    with zmq.Context() as context, context.socket(kind) as socket:
        for name, value in {"LINGER": 0, "RCVTIMEO": MS, **options}.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.connect(endpoint)
        yield socket


def asked(socket: zmq.Socket[bytes], number: int, *envelope: bytes) -> None:
    """One request and its answer behind an envelope."""
    request_id = b"id-%d" % number
    socket.send_multipart([*envelope, b"Res01", b"GS", request_id])
    answer = socket.recv_multipart()
    assert answer[: len(envelope) + 3] == [*envelope, b"Res01", request_id, b"SG"]


# ---------------------------------------------------------------- libzmq


def test_a_req_is_served(endpoint: str) -> None:
    with connected(endpoint, zmq.REQ) as socket:
        for number in range(5):
            asked(socket, number)


def test_a_req_that_correlates_and_asks_again_gets_the_answer_to_its_last_request(endpoint: str) -> None:
    with connected(endpoint, zmq.REQ, REQ_CORRELATE=1, REQ_RELAXED=1) as socket:
        socket.send_multipart([b"Res01", b"GS", b"forgotten"])
        for number in range(5):
            asked(socket, number)


def test_a_dealer_may_have_many_requests_in_flight(endpoint: str) -> None:
    with connected(endpoint, zmq.DEALER) as socket:
        for number in range(500):
            socket.send_multipart([b"", b"Res01", b"GS", b"%d" % number])
        found = {socket.recv_multipart()[2] for _ in range(500)}
        assert found == {b"%d" % number for number in range(500)}


def test_all_routing_frames_come_back_in_their_order(endpoint: str) -> None:
    with connected(endpoint, zmq.DEALER) as socket:
        for routing in ([], [b"a"], [b"first", b"\0second", bytes(300)]):
            asked(socket, 1, *routing, b"")


def test_a_router_is_served(endpoint: str) -> None:
    """It names its peer itself, as a ROUTER must that speaks first."""
    with connected(endpoint, zmq.ROUTER, CONNECT_ROUTING_ID=b"penstock") as socket:
        asked(socket, 1, b"penstock", b"client", b"")


def test_two_clients_may_have_the_same_identity(endpoint: str) -> None:
    with (
        connected(endpoint, zmq.DEALER, ROUTING_ID=b"same") as one,
        connected(endpoint, zmq.DEALER, ROUTING_ID=b"same") as other,
    ):
        for number in range(5):
            asked(one, number, b"")
            asked(other, number, b"")


def test_frames_of_every_length_come_back(endpoint: str) -> None:
    with connected(endpoint, zmq.DEALER) as socket:
        for size in (1, 254, 255, 256, 257, 65_535, 65_536, 1_000_000):
            socket.send_multipart([b"r" * size, b"", b"Res01", b"GS", b"i" * size])
            routing, empty, _, request_id, *_ = socket.recv_multipart()
            assert (routing, empty, request_id) == (b"r" * size, b"", b"i" * size)


def test_the_binary_dialect_and_the_text_dialect_are_served(endpoint: str) -> None:
    with Rc01(endpoint) as binary, Extended(endpoint) as text:
        binary.append("shop", "s", 1, an_event(b"binary"))
        assert [event.body for event in text.read("shop", "s")] == [b"binary"]


def received_bytes(server: testing.Server) -> list[tuple[str, int]]:
    gate = server._running.res  # type: ignore[union-attr]
    return [(info.id, info.bytes_received) for info in gate.sessions()]


def test_heartbeats_are_answered_and_keep_the_connection(server: testing.Server, endpoint: str) -> None:
    until(lambda: not received_bytes(server))
    with (
        connected(endpoint, zmq.DEALER, HEARTBEAT_IVL=20, HEARTBEAT_TIMEOUT=2000, HEARTBEAT_TTL=2000) as socket,
        socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor,
    ):
        asked(socket, 1, b"")
        ((session, before),) = received_bytes(server)
        # A PING has 9 bytes, and its context.
        until(lambda: received_bytes(server)[0][1] > before + 9 * 30)
        asked(socket, 2, b"")
        assert received_bytes(server)[0][0] == session
        assert not monitor.poll(0)
        socket.disable_monitor()


def test_a_silent_client_of_zmtp_3_1_is_pinged_and_stays() -> None:
    with testing.server(res_idle_ms_max=400) as served:
        endpoint = served.zmq_url.removeprefix("zmq+")
        with connected(endpoint, zmq.DEALER) as socket:
            asked(socket, 1, b"")
            ((session, before),) = received_bytes(served)
            until(lambda: received_bytes(served)[0][1] >= before + 5 * len(b"\x04\x05\x04PONG"))
            asked(socket, 2, b"")
            assert received_bytes(served)[0][0] == session


def test_a_client_that_wants_security_is_told_that_there_is_none(endpoint: str) -> None:
    """Both sides say their mechanism in the greeting; libzmq gives up when they differ."""
    public, secret = zmq.curve_keypair()
    plain = {"PLAIN_USERNAME": b"ann", "PLAIN_PASSWORD": b"secret"}
    curve = {"CURVE_SERVERKEY": public, "CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret}
    for options in (plain, curve):
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            for name, value in options.items():
                socket.setsockopt(getattr(zmq, name), value)
            with socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL) as monitor:
                socket.connect(endpoint)
                assert monitor.poll(MS)
                assert recv_monitor_message(monitor)["value"] == MECHANISM_MISMATCH
                socket.disable_monitor()


def test_a_subscriber_is_refused(endpoint: str, caplog: pytest.LogCaptureFixture) -> None:
    with connected(endpoint, zmq.SUB):
        until(lambda: "the peer is no REQ, DEALER or ROUTER" in caplog.text)


# ---------------------------------------------------------------- others, from the registries


def fetched(*command: str) -> None:
    """Run a command that needs a registry; skip the test if the registry does not answer."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"{command[0].rpartition('/')[2]} could not fetch a package: {result.stderr.strip()[-200:]}")


def run(*command: str | Path, **environment: str) -> str:
    """Run a client; what it prints. It must not fail."""
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=2 * PATIENCE_S, env={**os.environ, **environment}, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.long
def test_zeromq_js_is_served(endpoint: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js is not installed")
    fetched("npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "zeromq@6")
    said = run("node", HERE / "zeromq_client.js", tmp_path / "node_modules" / "zeromq", endpoint)
    assert said == "DEALER ok\nREQ ok\n"


@pytest.mark.long
def test_azmq_is_served(endpoint: str, tmp_path: Path) -> None:
    fetched(sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), "azmq==1.0.6")
    for module in (tmp_path / "azmq").rglob("*.py"):
        text = module.read_text(encoding="utf-8")
        text = text.replace("is connection,\n", "is connection\n").replace(
            "with await self._read_lock", "async with self._read_lock"
        )
        module.write_text(text, encoding="utf-8")
    assert run(sys.executable, HERE / "azmq_client.py", tmp_path, endpoint) == "azmq ok\n"


OLDER: Final = {
    "15.4.0": ("35", "4.1.5"),
    "17.1.2": ("36", "4.2.5"),
    "19.0.2": ("36", "4.3.2"),
    "22.3.0": ("36", "4.3.4"),
}
"""Versions of pyzmq whose wheels have another libzmq: for which Python, and which libzmq."""


@pytest.mark.long
@pytest.mark.parametrize("version", OLDER)
def test_an_older_libzmq_is_served(endpoint: str, tmp_path: Path, version: str) -> None:
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        pytest.skip("these wheels are for Linux on x86-64")
    python, libzmq = OLDER[version]
    platforms = ("--platform=manylinux1_x86_64", "--platform=manylinux2010_x86_64")
    wanted = (
        *platforms,
        f"--python-version={python}",
        "--implementation=cp",
        f"--abi=cp{python}m",
        f"pyzmq=={version}",
    )
    fetched(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", f"-d{tmp_path}", *wanted)
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path)
    (library,) = tmp_path.rglob("libzmq-*.so*")
    said = run(sys.executable, HERE / "libzmq_client.py", library, endpoint, LD_LIBRARY_PATH=str(library.parent))
    assert said == f"libzmq {libzmq} ok\n"


def test_the_server_does_not_need_libzmq(shared_server: Served, context: str) -> None:
    """Neither its modules nor a server at work load pyzmq or a library."""
    program = "import sys, penstock.server; sys.exit('zmq' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with Extended(shared_server.res) as client:
        client.append(context, "s", 1, an_event())
    loaded = Path(f"/proc/{shared_server.process.pid}/maps").read_text(encoding="utf-8")
    assert "libzmq" not in loaded
    assert "zmq/backend" not in loaded
