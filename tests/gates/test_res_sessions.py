"""Connections of the ZeroMQ gate under control: counted, timed, listed, cut off, and named in the log."""

import contextlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
import zmq

from penstock import testing
from penstock.errors import CannotListen
from penstock.tcp import SessionInfo
from tests.gates import zmtp
from tests.gates.res_client import Client
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import an_event
from tests.gates.serving import until
from tests.wire.zmtp_checks import ANSWERS, HANDSHAKES, byte_by_byte

PER_ADDRESS: Final = 3
HANDSHAKE_MS: Final = 300


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server(res_connections_per_address_max=PER_ADDRESS, res_message_frames_max=20) as served:
        yield served


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def endpoint(server: testing.Server) -> str:
    return server.zmq_url.removeprefix("zmq+")


def sessions(server: testing.Server) -> list[SessionInfo]:
    return server._running.res.sessions()  # type: ignore[union-attr]


def until_logged(caplog: pytest.LogCaptureFixture, peer: str, why: str) -> None:
    until(lambda: any(f" of {peer} was ended: {why}" in line for line in caplog.messages))


# ---------------------------------------------------------------- counted and listed


def test_sessions_are_listed_with_what_they_did_and_can_be_cut_off(server: testing.Server) -> None:
    until(lambda: not sessions(server))
    with Extended(endpoint(server)) as client:
        for version in range(1, 11):
            client.append("listed", "s", version, an_event(bytes(100)))
        listed = httpx.get(f"{server.http}/sessions").json()["sessions"]
        (found,) = [each for each in listed if each["id"].startswith("res-")]
        assert (found["messages_received"], found["messages_sent"], found["unsent_bytes"]) == (10, 10, 0)
        assert found["bytes_received"] > 10 * 100
        assert found["peer"].startswith("127.0.0.1:")
        assert httpx.delete(f"{server.http}/sessions/{found['id']}").json() == {"kicked": found["id"]}
        until(lambda: found["id"] not in [each.id for each in sessions(server)])
        # The library reconnects.
        client.append("listed", "s", 11, an_event())
        assert [each.id for each in sessions(server)] != [found["id"]]


def test_one_connection_too_many_from_an_address_is_refused_and_named_in_the_log(
    server: testing.Server, caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: not sessions(server))
    with contextlib.ExitStack() as stack:
        for _ in range(PER_ADDRESS):
            zmtp.greet_as_3(stack.enter_context(zmtp.connected(endpoint(server))))
        with zmtp.connected(endpoint(server)) as refused:
            peer = zmtp.peer_of(refused)
            assert zmtp.rest(refused) == b""
        limit = f"there were too many connections from its address (connections_per_address_max is {PER_ADDRESS})"
        until(lambda: f"res refused {peer}: {limit}" in caplog.messages)
        zmtp.greet_as_3(stack.enter_context(zmtp.connected(endpoint(server), "127.0.0.2")))
    until(lambda: not sessions(server))
    metrics = httpx.get(f"{server.http}/metrics").text
    assert 'penstock_gate_sessions{gate="res"} 0.0' in metrics
    assert (
        'penstock_gate_closed_total{gate="res",reason="there were too many connections from its address"} 1.0'
        in metrics
    )


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"GET / HTTP/1.1\r\n", "protocol error: the peer does not speak ZMTP 2.0 or newer"),
        (
            zmtp.greeting_3(mechanism=b"PLAIN"),
            "protocol error: the peer asks for the security mechanism PLAIN; this server has NULL",
        ),
        (
            zmtp.greeting_3() + zmtp.ready() + zmtp.frame(b"", zmtp.MORE) * 30,
            "a message was over res_message_frames_max, which is 20",
        ),
    ],
)
def test_who_breaks_a_rule_is_named_in_the_log(
    server: testing.Server, sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with zmtp.connected(endpoint(server), "127.0.0.3") as connection:
        connection.sendall(sent)
        zmtp.rest(connection)
        until_logged(caplog, zmtp.peer_of(connection), why)


def test_a_message_over_a_limit_is_error_1(server: testing.Server) -> None:
    with Client(endpoint(server)) as client:
        error = client.ask("AC", *[b"x"] * 30).error()
        assert error.code == 1
        assert (
            error.message == "21 is more than message_frames_max allows (20)" or "message_frames_max" in error.message
        )


def test_a_message_without_an_empty_frame_is_dropped_and_counted(server: testing.Server) -> None:
    with Client(endpoint(server)) as client:
        client.send_frames([b"no", b"envelope"])
        client.append("dropped", "s", 1, an_event())
    assert 'penstock_gate_dropped_total{gate="res",reason="unanswerable"}' in httpx.get(f"{server.http}/metrics").text


# ---------------------------------------------------------------- timed


@pytest.fixture(scope="module")
def impatient() -> Iterator[testing.Server]:
    with testing.server(res_handshake_ms_max=HANDSHAKE_MS, res_idle_ms_max=1500) as served:
        yield served


@pytest.mark.parametrize("sent", [b"", b"\xff", zmtp.SIGNATURE, zmtp.greeting_3()[:30], zmtp.greeting_3()])
def test_a_handshake_that_is_not_finished_in_time_ends(
    impatient: testing.Server, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with zmtp.connected(endpoint(impatient)) as connection:
        connection.sendall(sent)
        zmtp.rest(connection)
        until_logged(caplog, zmtp.peer_of(connection), "the handshake took more than res_handshake_ms_max, 300 ms")


@pytest.mark.parametrize("version", HANDSHAKES)
def test_a_handshake_may_come_byte_by_byte(impatient: testing.Server, version: str) -> None:
    with zmtp.connected(endpoint(impatient)) as connection:
        for byte in byte_by_byte(HANDSHAKES[version] + zmtp.message([b"", b"Res01", b"GS", b"slow"])):
            connection.sendall(byte)
        said = b"".join(ANSWERS[version])
        assert zmtp.read_exactly(connection, len(said)) == said
        assert zmtp.read_message(connection)[:4] == [b"", b"Res01", b"slow", b"SG"]


@pytest.mark.parametrize("minor", [0, 1])
def test_a_peer_that_is_silent_for_too_long_ends_and_gets_a_ping_before_if_it_may_know_one(
    impatient: testing.Server, minor: int, caplog: pytest.LogCaptureFixture
) -> None:
    with zmtp.connected(endpoint(impatient)) as connection:
        zmtp.greet_as_3(connection, minor)
        assert zmtp.rest(connection) == (zmtp.ping() if minor else b"")
        until_logged(caplog, zmtp.peer_of(connection), "no byte came for too long (idle_ms_max is 1500)")


def test_the_ttl_of_a_ping_is_kept(server: testing.Server, caplog: pytest.LogCaptureFixture) -> None:
    with zmtp.connected(endpoint(server), "127.0.0.4") as connection:
        zmtp.greet_as_3(connection, 1)
        connection.sendall(zmtp.ping(2, b"context"))
        assert zmtp.rest(connection) == zmtp.command(b"PONG", b"context")
        until_logged(caplog, zmtp.peer_of(connection), "no byte came within the time that the peer's PING named")


def test_who_sends_nothing_more_still_gets_the_answers_that_are_due(server: testing.Server) -> None:
    with zmtp.connected(endpoint(server)) as connection:
        zmtp.greet_as_3(connection)
        for number in range(100):
            connection.sendall(zmtp.message([b"", b"Res01", b"GS", b"%d" % number]))
        connection.shutdown(1)
        found = {zmtp.read_message(connection)[2] for _ in range(100)}
        assert found == {b"%d" % number for number in range(100)}
        assert zmtp.is_closed(connection)


# ---------------------------------------------------------------- on a local socket


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: that of a socket in it has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as name:
        yield Path(name)


def test_a_local_socket_is_for_its_owner_alone_and_its_peers_are_known(place: Path) -> None:
    path = place / "res"
    with testing.server(res=f"ipc://{path}") as served:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert served.zmq_url == f"zmq+ipc://{path}"
        with Client(f"ipc://{path}") as client:
            client.append("local", "s", 1, an_event())
            (found,) = sessions(served)
            assert found.peer == f"process {os.getpid()} of user {os.getuid()}"
    assert not path.exists()


def test_a_local_socket_that_a_dead_server_left_is_replaced_and_no_other(place: Path) -> None:
    path = place / "res"
    with testing.server(res=f"ipc://{path}") as served:
        with pytest.raises(CannotListen, match="address already in use"):
            testing.server(res=f"ipc://{path}")
        served.kill()
    path.unlink(missing_ok=True)
    path.write_text("not a socket")
    with pytest.raises(CannotListen, match="address already in use"):
        testing.server(res=f"ipc://{path}")
    assert path.read_text() == "not a socket"
    path.unlink()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as left:
        left.bind(f"ipc://{path}")
        os.link(path, place / "kept")
    (place / "kept").rename(path)
    with testing.server(res=f"ipc://{path}"), Client(f"ipc://{path}") as client:
        client.append("local", "s", 1, an_event())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("ipc://@abstract", "an abstract socket is open to every user; name a file"),
        ("ipc:///no/such/directory/res", "no such file or directory"),
        (f"ipc:///tmp/{'x' * 200}", "path too long"),
    ],
)
def test_a_local_address_that_cannot_be_used_is_told(address: str, why: str) -> None:
    with pytest.raises(CannotListen) as failed:
        testing.server(res=address)
    assert (failed.value.gate, failed.value.address) == ("res", address)
    assert why in failed.value.reason
