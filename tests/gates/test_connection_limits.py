"""How many connections one address may have at the MQ and the Remits gate, and whom the log names when they end."""

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from penstock import testing
from tests.gates.remits_client import LOG_LIST, PATIENCE_S, Remits, request
from tests.gates.serving import until

PER_ADDRESS: Final = 3
ELSEWHERE: Final = "127.0.0.2"
"""Another address of this machine."""

PING: Final = b"\x06"
REFUSED: Final = {"mq": bytes([5, 2, 0, 0, 11]), "remits": b"\x00\x00\x00\x0d\x03\x21\x6aServerBusy"}
"""The last bytes for a refused peer: MqFrames' reason 11, and Remits' error 33."""
FIRST: Final = {"mq": (PING, PING), "remits": (request(LOG_LIST), b"\x00\x00\x00\x07\x02\x00\x00\x00\x00\x01\x80")}
"""A request of each protocol, and its answer."""


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server(
        mq_connections_per_address_max=PER_ADDRESS,
        remits_connections_per_address_max=PER_ADDRESS,
        remits_frame_bytes_max=4096,
    ) as served:
        yield served


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def connected(server: testing.Server, gate: str, source: str = "127.0.0.1") -> socket.socket:
    address = server.remits if gate == "remits" else server.url.removeprefix("penstock://")
    host, port = address.split(":")
    return socket.create_connection((host, int(port)), PATIENCE_S, source_address=(source, 0))


def exchanged(connection: socket.socket, gate: str) -> bool:
    """Whether the peer is served."""
    sent, wanted = FIRST[gate]
    connection.sendall(sent)
    return connection.recv(len(wanted), socket.MSG_WAITALL) == wanted


def shown(connection: socket.socket) -> str:
    host, port = connection.getsockname()
    return f"{host}:{port}"


def rest(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("gate", ["mq", "remits"])
def test_one_connection_too_many_from_an_address_is_refused_told_so_and_named_in_the_log(
    server: testing.Server, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.ExitStack() as stack:
        mine = [stack.enter_context(connected(server, gate)) for _ in range(PER_ADDRESS)]
        assert all(exchanged(each, gate) for each in mine)
        with connected(server, gate) as refused:
            peer = shown(refused)
            assert rest(refused) == REFUSED[gate]
        limit = f"there were too many connections from its address (connections_per_address_max is {PER_ADDRESS})"
        until(lambda: f"{gate} refused {peer}: {limit}" in caplog.messages)
        assert exchanged(stack.enter_context(connected(server, gate, ELSEWHERE)), gate)
        assert all(exchanged(each, gate) for each in mine)
        mine[0].close()

        def is_let_in() -> bool:
            with connected(server, gate) as another, contextlib.suppress(ConnectionError):
                return exchanged(another, gate)
            return False

        until(is_let_in)


def is_logged(caplog: pytest.LogCaptureFixture, peer: str, why: str) -> Callable[[], bool]:
    def found() -> bool:
        return any(f" of {peer} was ended: {why}" in line for line in caplog.messages)

    return found


@pytest.mark.parametrize(
    ("gate", "sent", "why"),
    [
        ("mq", b"\x00", "protocol error: there is no frame type 0"),
        ("remits", b"\x00\x00\x00\x01", "a frame was too short"),
        ("remits", b"\x00\x01\x00\x00", "a frame was too long"),
    ],
)
def test_who_does_not_keep_to_the_protocol_is_named_in_the_log(
    server: testing.Server, gate: str, sent: bytes, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(server, gate, "127.0.0.3") as connection:
        peer = shown(connection)
        connection.sendall(sent)
        rest(connection)
    until(is_logged(caplog, peer, why))


@pytest.mark.parametrize("gate", ["mq", "remits"])
def test_who_is_silent_for_too_long_is_named_in_the_log(gate: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        testing.server(mq_idle_ms_max=200, remits_idle_ms_max=200) as served,
        connected(served, gate) as connection,
    ):
        peer = shown(connection)
        rest(connection)
        connection.close()
        until(is_logged(caplog, peer, "no byte came for too long (idle_ms_max is 200)"))


def test_a_program_that_opens_many_connections_raises_the_limit_by_a_setting() -> None:
    with (
        testing.server(remits_connections_per_address_max=300) as served,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(Remits(served.remits)) for _ in range(260)]
        assert all(client.log_list() == [] for client in clients)
