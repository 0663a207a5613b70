"""Bytes that are no MqFrames, or never end: closed with the right reason, counted, and nobody else notices."""

import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.tcp.session import NO_TLS_ANSWER
from tests.gates.mq_client import (
    CLIENT_CLOSING,
    COMMAND,
    CONNECTION_REFUSED,
    EMPTY,
    LAST,
    MORE,
    PING,
    PROTOCOL_ERROR,
    TIME_OUT,
    Connection,
    MqClient,
    disconnect,
    frame,
    message,
    pieces,
)
from tests.gates.res_client import PATIENCE_S
from tests.gates.res_frames import an_event
from tests.gates.serving import MEMORY_BYTES_MAX, Served, others_are_served, until
from tests.seeds import rng

IDLE_MS = 5000
MESSAGE_BYTES_MAX = 1 << 20
SERVER_FLAGS = ("--mq-idle-ms-max", str(IDLE_MS), "--mq-message-bytes-max", "1MiB")

STATISTICS = message([b"Res01", b"GS", b"id"])
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(193))


@pytest.fixture(autouse=True)
def another_is_served(server: Served, context: str) -> Iterator[None]:
    """Whatever a test sends, another session goes on appending and notices nothing."""
    with others_are_served(server, f"{context}-others", "mq"):
        yield
    assert server.memory_bytes() < 2 * MEMORY_BYTES_MAX


def nothing_but(reason: int, connection: Connection) -> bool:
    """Whether the server says this reason and closes, after answers at most to what came before."""
    while True:
        try:
            assert connection.message()[2] == b"SG"
        except ConnectionError as ended:
            return getattr(ended, "reason", None) == reason


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    "data",
    [
        bytes([0]),
        bytes([7]),
        bytes([255]),
        struct.pack("<BH", MORE, 0),
        struct.pack("<BH", LAST, 0),
        struct.pack("<BH", COMMAND, 0),
        struct.pack("<BHBB", COMMAND, 2, 1, 0),
        struct.pack("<BHB", COMMAND, 1, 255),
        struct.pack("<BH", COMMAND, 300) + b"\x07" + bytes(299),
        frame(b"Res01") + bytes([0]),
        frame(b"Res01") + bytes([PING, 9]),
        bytes([EMPTY]) * 10 + struct.pack("<BH", LAST, 0),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /sessions HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        frame(b"Res01") + TLS_HELLO,
        b"\xff" + bytes(8) + b"\x7f\x03",
        b"\r\n\r\n",
    ],
)
@pytest.mark.parametrize("before", [b"", STATISTICS * 3])
def test_a_mistake_is_a_protocol_error_and_counted_once(server: Served, data: bytes, before: bytes) -> None:
    closed = server.closed("protocol error")
    with Connection(server.mq) as connection:
        connection.send(before + data + STATISTICS)
        assert nothing_but(PROTOCOL_ERROR, connection)
    until(lambda: server.closed("protocol error") == closed + 1)


def test_a_client_that_begins_tls_is_told_in_the_words_of_tls(server: Served) -> None:
    closed = server.closed("protocol error")
    host, port = server.mq.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as raw:
        raw.sendall(TLS_HELLO)
        heard = b"".join(iter(lambda: raw.recv(100), b""))
    assert heard == NO_TLS_ANSWER + disconnect(PROTOCOL_ERROR)
    until(lambda: server.closed("protocol error") == closed + 1)


def test_a_mistake_is_noticed_byte_by_byte_too(server: Served) -> None:
    with Connection(server.mq) as connection:
        for byte in frame(b"Res01") + struct.pack("<BH", MORE, 0):
            connection.send(bytes([byte]))
        assert connection.reason() == PROTOCOL_ERROR


def test_random_bytes_end_their_own_connection_at_most(server: Served) -> None:
    dice = rng("bytes to the MQ gate")
    for _ in range(60):
        with Connection(server.mq) as connection:
            connection.send(bytes([dice.choice([0, 1, 2, 3, 4, 5, 6, 9])]) + dice.randbytes(dice.randrange(1, 3000)))
            connection.socket.shutdown(socket.SHUT_WR)
            try:
                while True:
                    connection.message()
            except ConnectionError:
                pass
    assert "Traceback" not in server.said()


def test_random_messages_are_all_answered(server: Served) -> None:
    dice = rng("frames to the MQ gate")
    parts = [b"", b"Res01", b"Res01L", b"RC0.1", b"GS", b"QS", b"AC", b"TX", b"1", b"x", b"\xff", bytes(16), bytes(300)]
    with Connection(server.mq) as connection:
        for _ in range(500):
            connection.send(message(dice.choices(parts, k=dice.randrange(1, 12))))
        answers = [connection.message() for _ in range(500)]
        assert all(len(answer) >= 2 for answer in answers)
        connection.send(STATISTICS)
        assert connection.message()[:3] == [b"Res01", b"id", b"SG"]


def test_a_message_without_an_empty_frame_is_answered_here(server: Served) -> None:
    """There is one connection to answer on, unlike behind a ROUTER."""
    with Connection(server.mq) as connection:
        for frames in ([b"x"], [b"x"] * 1000, [b"Res01"], [b"Res01", b"GS"]):
            connection.send(message(frames))
            answer = connection.message()
            assert (answer[0], answer[2]) == (frames[0], b"ER")


# ---------------------------------------------------------------- what never ends


@pytest.mark.parametrize("part", [frame(bytes(60_000)), frame(b"x"), bytes([EMPTY])])
def test_a_message_that_never_ends_is_a_protocol_error(server: Served, part: bytes) -> None:
    with Connection(server.mq) as connection:
        # More than the bytes or the frames that a message may have.
        connection.send(part * (MESSAGE_BYTES_MAX // max(4, len(part)) + 1))
        assert connection.reason() == PROTOCOL_ERROR


def test_a_message_that_is_too_long_is_a_protocol_error_though_it_ends(server: Served) -> None:
    with Connection(server.mq) as connection:
        connection.send(message(list(pieces(bytes(MESSAGE_BYTES_MAX), [60_000]))))
        assert connection.reason() == PROTOCOL_ERROR


def test_a_message_up_to_the_limit_is_served(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        events = [an_event(bytes(60_000)) for _ in range(17)]
        client.append(context, "s", 1, *events)
        assert len(client.read(context, "s")) == 17


SILENCES = [
    b"",
    bytes([MORE]),
    struct.pack("<BH", MORE, 1000) + b"not a thousand",
    struct.pack("<BHB", COMMAND, 2, 0),
    frame(b"Res01"),
    STATISTICS + frame(b"Res01"),
    bytes([PING]),
    # A long poll alone does not keep a connection: who waits sends a ping now and then.
    message([b"Res01", b"RA", b"id", b"1000000000", b"", b"", b"25000"]),
]


def test_those_who_fall_silent_are_told_so_and_counted(server: Served) -> None:
    closed = server.closed("time out")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Connection(server.mq)) for _ in SILENCES]
        for connection, data in zip(silent, SILENCES, strict=True):
            connection.send(data)
        assert all(nothing_but(TIME_OUT, connection) for connection in silent)
    until(lambda: server.closed("time out") == closed + len(SILENCES))
    assert server.metric("penstock_waiting_polls") == 0


def test_those_who_send_a_message_bit_by_bit_are_cut_off_though_never_silent(server: Served) -> None:
    bits = (bytes([EMPTY]), frame(b"x"), bytes([PING]))
    with contextlib.ExitStack() as stack:
        slow = {stack.enter_context(Connection(server.mq)): bit for bit in bits}
        for connection in slow:
            connection.send(frame(b"Res01"))
        while slow:
            for connection, bit in list(slow.items()):
                connection.send(bit)
                with contextlib.suppress(TimeoutError):
                    assert connection.reason(IDLE_MS / 1000 / 50) == TIME_OUT
                    del slow[connection]


def test_pings_keep_a_connection_that_has_nothing_to_say(server: Served) -> None:
    with Connection(server.mq) as connection, Connection(server.mq) as silent:
        reason = None
        while reason is None:
            connection.send(bytes([PING]))
            with contextlib.suppress(TimeoutError):
                reason = silent.reason(IDLE_MS / 1000 / 10)
        assert reason == TIME_OUT
        connection.send(STATISTICS)
        assert connection.message()[2] == b"SG"
        assert connection.pings > 2


def test_half_a_message_is_never_served(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        whole = client.encoded("AC", *client.commit_fields(context, "s", 1, [an_event()]), request_id=b"half")
        for length in (1, len(whole) // 2, len(whole) - 1):
            with Connection(server.mq) as connection:
                connection.send(whole[:length])
        with Connection(server.mq) as connection:
            connection.send(frame(b"Res01") + frame(b"AC") + disconnect(CLIENT_CLOSING))
            assert connection.reason() is None
        assert client.read(context, "s") == []
        client.connection.send(whole)
        assert client.answer_to(b"half").command == b"CR"


def test_what_was_sent_before_a_goodbye_is_written(server: Served, context: str) -> None:
    with MqClient(server.mq) as client, MqClient(server.mq) as other:
        appends = b"".join(
            client.encoded("AC", *client.commit_fields(context, "s", number, [an_event()]), request_id=b"id")
            for number in range(1, 101)
        )
        client.connection.send(appends + disconnect(CLIENT_CLOSING))
        until(lambda: len(other.read(context, "s")) == 100)


# ---------------------------------------------------------------- too many


def test_one_connection_too_many_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    with Served(tmp_path / "data", "--mq-connections-max", "5") as server:
        clients = [MqClient(server.mq) for _ in range(5)]
        for client in clients:
            client.stats()
        for refused in range(1, 4):
            with Connection(server.mq) as connection:
                connection.send(STATISTICS)
                assert connection.reason() == CONNECTION_REFUSED
            until(lambda refused=refused: server.closed("connection refused") == refused)  # type: ignore[misc]
        for client in clients:
            client.stats()
        assert len(server.sessions()) == 5
        clients.pop().close()
        until(lambda: len(server.sessions()) == 4)
        with MqClient(server.mq) as another:
            another.append("shop", "s", 1, an_event())
        for client in clients:
            client.close()
        assert server.stop() == 0


def test_connections_that_come_and_go_leave_nothing_behind(server: Served, context: str) -> None:
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    until(lambda: len(server.sessions()) == 1)
    before = len(list(descriptors.iterdir()))
    for number in range(200):
        with MqClient(server.mq) as client:
            client.send("QS", context.encode(), b"s", b"1", b"")
            if number % 2:
                # Gone without a word: the system sends a reset.
                client.connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    until(lambda: len(server.sessions()) == 1)
    until(lambda: len(list(descriptors.iterdir())) <= before + 5)
