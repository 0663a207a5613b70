"""Clients that break things on purpose: too large, too many, no ZeroMQ at all, never reading, vanishing."""

import contextlib
import os
import resource
import struct
import time
from functools import partial

import pytest
import zmq

from tests.gates import zmtp
from tests.gates.res_client import Client, everything
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import MEMORY_BYTES_MAX, Served, others_are_served, until
from tests.seeds import rng

SERVER_FLAGS: tuple[str, ...] = ()
"""None, but a server for these tests alone."""
MIB = 1 << 20


def is_named(server: Served, peer: str, why: str) -> bool:
    """Whether the log says of a peer why its connection was ended."""
    return any(f" of {peer} was ended: " in line and why in line for line in server.said().splitlines())


# ---------------------------------------------------------------- too large, too many


def test_a_frame_of_100_mb_is_error_1_and_costs_its_sender_the_connection(server: Served, context: str) -> None:
    before = server.memory_bytes()
    with others_are_served(server, context), Extended(server.res) as client:
        client.append(context, "s", 1, an_event())
        with client.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            request = client.send("AC", *client.commit_fields(context, "s", 2, [an_event(bytes(100_000_000))]))
            error = client.answer_to(request).error()
            assert error.code == 1
            assert "frame_bytes_max" in error.message
            assert monitor.poll(30_000), "the connection was not cut"
            client.socket.disable_monitor()
        # The library reconnects.
        assert len(client.read(context, "s")) == 1
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX


def test_the_length_of_a_frame_is_not_believed(server: Served, context: str) -> None:
    with others_are_served(server, context):
        for length in (17 << 20, 1 << 40, (1 << 63) - 1, (1 << 64) - 1):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3(connection)
                connection.sendall(struct.pack(">BQ", zmtp.LONG, length) + b"x" * 100)
                assert zmtp.is_closed(connection)


HEAD = [b"", b"Res01", b"AC", b"endless"]


@pytest.mark.parametrize(
    ("frame", "limit"),
    [
        pytest.param(zmtp.frame(bytes(MIB), zmtp.MORE), "message_bytes_max", id="of a megabyte"),
        pytest.param(zmtp.frame(b"xy", zmtp.MORE), "message_frames_max", id="of two bytes"),
    ],
)
def test_frames_without_an_end_are_error_1_and_the_log_names_their_sender(
    server: Served, context: str, frame: bytes, limit: str
) -> None:
    before = server.memory_bytes()
    with others_are_served(server, context), zmtp.connected(server.res) as connection:
        peer = zmtp.peer_of(connection)
        zmtp.greet_as_3(connection)
        connection.sendall(b"".join(zmtp.frame(body, zmtp.MORE) for body in HEAD))
        chunk = frame * max(1, MIB // len(frame))
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                connection.sendall(chunk)
        _, tag, request_id, command, code, text = zmtp.read_message(connection)
        assert (tag, request_id, command, code) == (b"Res01", b"endless", b"ER", b"1")
        assert limit.encode() in text
        assert zmtp.is_closed(connection)
        until(lambda: is_named(server, peer, f"res_{limit}"))
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX
    until(lambda: server.sessions() == [])


def test_half_a_message_from_many_peers_takes_bounded_memory(server: Served, context: str) -> None:
    """Each stays below its own limit; together they are too much."""
    before = server.memory_bytes()
    half = zmtp.frame(b"xy", zmtp.MORE) * 100_000
    with others_are_served(server, context), contextlib.ExitStack() as stack:
        for _ in range(100):
            connection = stack.enter_context(zmtp.connected(server.res))
            zmtp.greet_as_3(connection)
            connection.sendall(half)
        until(lambda: "all unfinished messages together had too many bytes" in server.said())
        # The limit of 256 MiB counts what frames take in memory.
        assert server.memory_bytes() < before + 2 * MEMORY_BYTES_MAX


# ---------------------------------------------------------------- other protocols


def test_garbage_on_the_port_disturbs_nobody_and_is_named_in_the_log(server: Served, context: str) -> None:
    dice = rng("bytes to the Res01 gate")
    openings = [
        *(b"\x00" + dice.randbytes(dice.randrange(1, 5000)) for _ in range(5)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + dice.randbytes(512),
        zmtp.greeting_3(mechanism=b"CURVE"),
        b"\xff" * 1000,
        bytes(1000),
    ]
    unfinished = [b"", b"\xff", zmtp.SIGNATURE, zmtp.greeting_3()[:40]]
    with others_are_served(server, context), contextlib.ExitStack() as stack:
        for opening in unfinished:
            stack.enter_context(zmtp.connected(server.res)).sendall(opening)
        for number, opening in enumerate(openings):
            with zmtp.connected(server.res, f"127.0.1.{number + 1}") as connection:
                peer = zmtp.peer_of(connection)
                connection.sendall(opening)
                zmtp.rest(connection)
            until(partial(is_named, server, peer, "protocol error: "))
        with Extended(server.res) as client:
            client.append(context, "s", 1, an_event())


def test_garbage_after_a_greeting_disturbs_nobody(server: Served, context: str) -> None:
    dice = rng("bytes behind a greeting")
    with others_are_served(server, context):
        for _ in range(30):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3(connection)
                with contextlib.suppress(ConnectionError):
                    connection.sendall(dice.randbytes(dice.randrange(1, 3000)))


def test_half_a_message_is_never_served(server: Served, context: str) -> None:
    with Extended(server.res) as client:
        fields = client.commit_fields(context, "s", 1, [an_event()])
        whole = zmtp.message([b"", b"Res01", b"AC", b"half", *fields])
        for length in (1, len(whole) // 2, len(whole) - 1):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3(connection)
                connection.sendall(whole[:length])
        with zmtp.connected(server.res) as connection:
            zmtp.greet_as_3(connection)
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


@pytest.mark.parametrize(
    ("requests", "events", "size"),
    [(500, 100, 1000), (60, 8, 1_000_000), pytest.param(5000, 100, 1000, marks=pytest.mark.long)],
)
def test_who_never_reads_costs_bounded_memory_and_gets_everything_later(
    server: Served, context: str, requests: int, events: int, size: int
) -> None:
    """The client asks for much more than the server may take, in small answers or in large ones."""
    with Extended(server.res) as client:
        for _ in range(events):
            client.append(context, "s", -1, an_event(bytes(size)))
        before = server.memory_bytes()
        with others_are_served(server, context), Extended(server.res, unread_max=1) as greedy:
            sent = [greedy.send("QS", context.encode(), b"s", b"1", b"") for _ in range(requests)]
            until(lambda: any(info["unsent_bytes"] > 0 for info in server.sessions()))
            for _ in range(20):
                assert server.memory_bytes() < before + MEMORY_BYTES_MAX
            assert {greedy.receive().request_id for _ in sent} == set(sent)
        assert len(everything(client, context, "s")) == events


def test_who_is_gone_waits_for_nothing_any_more(server: Served, context: str) -> None:
    with Extended(server.res) as client:
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        with Extended(server.res) as vanishing:
            vanishing.send_fetch_waiting(20_000, (number, 1))
            until(lambda: server.metric("penstock_waiting_polls") == 1)
        until(lambda: server.metric("penstock_waiting_polls") == 0)
        client.append(context, "s", 1, an_event())
        assert len(client.fetch(number)) == 1


def test_clients_that_come_and_go_leave_nothing_behind(server: Served, context: str) -> None:
    with Extended(server.res) as client:
        client.append(context, "s", 1, an_event())
        before = open_files(server)
        for _ in range(200):
            with Extended(server.res) as passing:
                passing.send("QS", context.encode(), b"s", b"1", b"")
        with Extended(server.res) as last:
            assert len(last.read(context, "s")) == 1
        until(lambda: open_files(server) <= before + 5)


def open_files(server: Served) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))  # noqa: PTH208


@pytest.mark.parametrize("endpoint", ["res", "res_legacy"])
def test_a_client_that_says_nothing_is_no_trouble(server: Served, context: str, endpoint: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(zmtp.connected(getattr(server, endpoint)))
        with Extended(server.res) as client:
            client.append(context, "s", 1, an_event())


# ---------------------------------------------------------------- very many


@pytest.mark.long
def test_10000_idle_connections_leave_the_others_alone(server: Served, context: str) -> None:
    """From 40 addresses: the gate keeps 250 of each up to 1,000, and refuses the rest."""
    before = server.memory_bytes()
    with others_are_served(server, context, "mq"), contextlib.ExitStack() as stack:
        for number in range(10_000):
            connection = stack.enter_context(zmtp.connected(server.res, f"127.0.2.{number % 40 + 1}"))
            with contextlib.suppress(ConnectionError):
                connection.sendall(zmtp.greeting_3() + zmtp.ready())
        until(lambda: server.metric('penstock_gate_sessions{gate="res"}') == 1000)
        assert server.memory_bytes() < before + 64 * MIB
        assert "res refused 127.0.2." in server.said()
        assert server.health()["status"] == "ok"
    until(lambda: server.sessions() == [])


@pytest.mark.long
def test_1000_connections_a_second_that_come_and_go_take_no_memory(server: Served, context: str) -> None:
    opened, before, files = 0, server.memory_bytes(), open_files(server)
    began = time.monotonic()
    with others_are_served(server, context, "mq"):
        while opened < 10_000:
            with zmtp.connected(server.res) as connection:
                if opened % 2:
                    connection.sendall(zmtp.greeting_3() + zmtp.ready())
            opened += 1
            ahead_s = opened / 1000 - (time.monotonic() - began)
            if ahead_s > 0:
                time.sleep(ahead_s)
    until(lambda: open_files(server) <= files + 5)
    assert server.memory_bytes() < before + 32 * MIB


def test_a_process_with_few_files_keeps_some_for_its_other_gates(server: Served, context: str) -> None:
    """As many connections as come: health, metrics and the store still find files to open."""
    pid, limits = server.process.pid, resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, limits[1]))
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(220):
                stack.enter_context(zmtp.connected(server.res))
            until(lambda: server.closed("the process has too few open files left", "res") > 0)
            assert server.health()["status"] == "ok"
            until(lambda: open_files(server) <= 200 - 60)
        until(lambda: server.sessions() == [])
        with Client(server.res) as client:
            client.append(context, "s", 1, an_event())
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
