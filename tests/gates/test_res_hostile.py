"""Clients that break things on purpose: too large, too many, no ZeroMQ at all, never reading, vanishing."""

import contextlib
import os
import struct

import pytest
import zmq

from tests.gates import zmtp
from tests.gates.res_client import everything
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import MEMORY_BYTES_MAX, Served, others_are_served, until
from tests.seeds import rng

SERVER_FLAGS: tuple[str, ...] = ()
"""None, but a server of its own."""

# ---------------------------------------------------------------- too large, too many


def test_a_frame_of_100_mb_costs_its_sender_the_connection(server: Served, context: str) -> None:
    before = server.memory_bytes()
    with others_are_served(server, context), Extended(server.res) as client:
        client.append(context, "s", 1, an_event())
        with client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            client.send("AC", *client.commit_fields(context, "s", 2, [an_event(bytes(100_000_000))]))
            assert monitor.poll(30_000), "the connection was not cut"
            client.socket.disable_monitor()
        # The library connects again by itself; the message is gone.
        assert len(client.read(context, "s")) == 1
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX


def test_the_length_of_a_frame_is_not_believed(server: Served, context: str) -> None:
    with others_are_served(server, context):
        for length in (17 << 20, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3_0(connection)
                connection.sendall(struct.pack(">BQ", zmtp.LONG, length) + b"x" * 100)
                assert zmtp.is_closed(connection)


def test_a_message_of_a_million_frames_is_refused(server: Served, context: str) -> None:
    before = server.memory_bytes()
    with others_are_served(server, context), zmtp.connected(server.res) as connection:
        zmtp.greet_as_3_0(connection)
        head = [b"", b"Res01", b"AC", b"million", context.encode(), b"s", b"1", b"200000"]
        million = zmtp.frame(b"x", zmtp.MORE) * 999_999 + zmtp.frame(b"x")
        connection.sendall(b"".join(zmtp.frame(body, zmtp.MORE) for body in head) + million)
        _, tag, request_id, command, code, text = zmtp.read_message(connection)
        assert (tag, request_id, command, code) == (b"Res01", b"million", b"ER", b"1")
        assert b"message_frames_max" in text
        dropped = server.dropped("unanswerable")
        connection.sendall(million)
        until(lambda: server.dropped("unanswerable") == dropped + 1)
        connection.sendall(zmtp.message([b"", b"Res01", b"GS", b"after"]))
        assert zmtp.read_message(connection)[1:4] == [b"Res01", b"after", b"SG"]
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX


# ---------------------------------------------------------------- other protocols


def test_garbage_on_the_port_disturbs_nobody(server: Served, context: str) -> None:
    dice = rng("bytes to the Res01 gate")
    openings = [
        *(dice.randbytes(dice.randrange(1, 5000)) for _ in range(20)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + dice.randbytes(512),
        b"\xff" + bytes(8) + b"\x7f",
        b"\xff" + bytes(8) + b"\x7f" + b"\x03\0" + b"CURVE".ljust(20, b"\0") + bytes(32),
        b"\xff" * 1000,
        bytes(1000),
        b"",
    ]
    with others_are_served(server, context), contextlib.ExitStack() as stack:
        for opening in openings:
            connection = stack.enter_context(zmtp.connected(server.res))
            with contextlib.suppress(ConnectionError):
                connection.sendall(opening)
        with Extended(server.res) as client:
            client.append(context, "s", 1, an_event())


def test_garbage_after_a_greeting_disturbs_nobody(server: Served, context: str) -> None:
    dice = rng("bytes behind a greeting")
    with others_are_served(server, context):
        for _ in range(30):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3_0(connection)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(dice.randbytes(dice.randrange(1, 3000)))


def test_half_a_message_is_never_served(server: Served, context: str) -> None:
    with Extended(server.res) as client:
        fields = client.commit_fields(context, "s", 1, [an_event()])
        whole = zmtp.message([b"", b"Res01", b"AC", b"half", *fields])
        for length in (1, len(whole) // 2, len(whole) - 1):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3_0(connection)
                connection.sendall(whole[:length])
        with zmtp.connected(server.res) as connection:
            zmtp.greet_as_3_0(connection)
            for at in range(len(whole)):
                connection.sendall(whole[at : at + 1])
            assert zmtp.read_message(connection)[:4] == [b"", b"Res01", b"half", b"CR"]
        assert len(client.read(context, "s")) == 1


def test_a_client_that_speaks_zmtp_2_is_served(server: Served, context: str) -> None:
    event = an_event(b"from afar")
    with zmtp.connected(server.res) as connection, Extended(server.res) as client:
        zmtp.greet_as_2_0(connection)
        head = [b"", b"RC0.1", b"AC", b"r" * 16, context.encode(), b"s", b"\1" + bytes(7), b"\1\0\0\0"]
        connection.sendall(zmtp.message([*head, event.id.bytes_le, struct.pack("<q", LONG_AGO), b"T", b"", event.body]))
        empty, tag, request_id, command, commit = zmtp.read_message(connection)
        assert (empty, tag, request_id, command) == (b"", b"RC0.1", b"r" * 16, b"CR")
        assert len(commit) == 16
        assert client.read(context, "s")[0].id == event.id


# ---------------------------------------------------------------- slow and gone


@pytest.mark.parametrize(("requests", "events", "size"), [(5000, 100, 1000), (60, 8, 1_000_000)])
def test_who_never_reads_costs_bounded_memory(
    server: Served, context: str, requests: int, events: int, size: int
) -> None:
    """Half a gigabyte is asked for, in small answers or in large ones."""
    with Extended(server.res) as client:
        for _ in range(events):
            client.append(context, "s", -1, an_event(bytes(size)))
        before, dropped = server.memory_bytes(), server.dropped("unread")
        with others_are_served(server, context), Extended(server.res, unread_max=1) as greedy:
            for _ in range(requests):
                greedy.send("QS", context.encode(), b"s", b"1", b"")
            until(lambda: server.dropped("unread") > dropped)
            # Only the others' one request is left.
            until(lambda: under_way(server) <= 1)
            assert server.memory_bytes() < before + MEMORY_BYTES_MAX
        assert len(everything(client, context, "s")) == events


def under_way(server: Served) -> float:
    """Messages that were received and neither answered nor dropped."""
    metrics = server.metrics()
    dropped = [
        f'penstock_gate_dropped_total{{gate="res",reason="{name}"}}' for name in ("unread", "gone", "unanswerable")
    ]
    answered = ['penstock_gate_sent_total{gate="res"}', *dropped]
    return metrics['penstock_gate_received_total{gate="res"}'] - sum(metrics[name] for name in answered)


def test_answers_for_the_gone_are_dropped_and_counted(server: Served, context: str) -> None:
    with Extended(server.res) as client:
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        before = server.dropped("gone")
        with Extended(server.res) as vanishing:
            vanishing.send_fetch_waiting(2000, (number, 1))
            until(lambda: server.metric("penstock_waiting_polls") == 1)
        until(lambda: server.dropped("gone") == before + 1)
        client.append(context, "s", 1, an_event())
        assert len(client.fetch(number)) == 1


def test_clients_that_come_and_go_leave_nothing_behind(server: Served, context: str) -> None:
    descriptors = f"/proc/{server.process.pid}/fd"
    with Extended(server.res) as client:
        client.append(context, "s", 1, an_event())
        before = len(os.listdir(descriptors))  # noqa: PTH208
        for _ in range(200):
            with Extended(server.res) as passing:
                passing.send("QS", context.encode(), b"s", b"1", b"")
        with Extended(server.res) as last:
            assert len(last.read(context, "s")) == 1
        until(lambda: len(os.listdir(descriptors)) <= before + 5)  # noqa: PTH208


@pytest.mark.parametrize("endpoint", ["res", "res_legacy"])
def test_a_client_that_says_nothing_is_no_trouble(server: Served, context: str, endpoint: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(zmtp.connected(getattr(server, endpoint)))
        with Extended(server.res) as client:
            client.append(context, "s", 1, an_event())
