"""The MQ gate: how its messages look, how many may be under way, and what becomes of peers that read slowly or not."""

import re
import socket
import struct
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.gates.mq_client import (
    CLIENT_CLOSING,
    FRAME_BYTES_SENT_MAX,
    PING,
    SERVER_CLOSING,
    Connection,
    MqClient,
    MqLarge,
    disconnect,
    frame,
    joined,
    message,
    parted,
    pieces,
)
from tests.gates.res_client import PATIENCE_S, Answer, everything
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import MEMORY_BYTES_MAX, Served, others_are_served, until

LONG_MS = "25000"
"""A long poll longer than a test should take."""
ONE = struct.pack("<q", 1)


def fill(client: Extended, context: str, events: int, size: int) -> None:
    """Append events of this size, one by one."""
    for _ in range(events):
        client.append(context, "s", -1, an_event(bytes(size)))


def session_of(server: Served, client: MqClient) -> dict[str, Any]:
    """What the server knows of a client's connection."""
    host, port = client.connection.socket.getsockname()
    (found,) = [info for info in server.sessions() if info["peer"] == f"{host}:{port}"]
    return found


# ---------------------------------------------------------------- what messages look like


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("tag", [b"Res01", b"RC0.1", b"Res02"])
def test_the_answer_does_with_the_leading_empty_frame_as_the_message_did(
    server: Served, context: str, tag: bytes, empty: bool
) -> None:
    head = [b""] * empty
    version = ONE if tag == b"RC0.1" else b"1"
    with Connection(server.mq) as connection:
        connection.send(message([*head, tag, b"QS", b"i" * 16, context.encode(), b"s", version, b""]))
        answer = connection.message()
        assert answer[: len(head) + 2] == [*head, tag, b"i" * 16]
        connection.send(message([*head, tag, b"??", b"id"]))
        assert connection.message()[: len(head) + 3] == [*head, tag, b"id", b"ER"]


@pytest.mark.parametrize("empty", [True, False])
def test_the_answer_to_res01l_carries_its_tag_and_its_fields_in_one_string(
    server: Served, context: str, empty: bool
) -> None:
    head = [b""] * empty
    with Connection(server.mq) as connection:
        for asked, answered in (([b"QS", b"id", context.encode(), b"s", b"1", b""], b"QR"), ([b"??", b"id"], b"ER")):
            connection.send(message([*head, b"Res01L", joined(asked)]))
            frames = connection.message()
            assert frames[: len(head) + 1] == [*head, b"Res01L"]
            assert parted(b"".join(frames[len(head) + 1 :]))[:2] == [b"id", answered]
            # What an original client could not read.
            assert b"" not in frames[len(head) :]


@pytest.mark.parametrize("sizes", [(1,), (2, 3), (1000, 1), (16_381,), (65_535,)])
def test_res01l_may_be_cut_anywhere(server: Served, context: str, sizes: tuple[int, ...]) -> None:
    event = an_event(bytes(range(256)) * 10, headers="{}")
    with MqLarge(server.mq) as client, Extended(server.res) as other:
        client.sizes = sizes
        client.append(context, "s", 1, event)
        found = client.read(context, "s")
        assert [(stored.id, stored.body) for stored in found] == [(event.id, event.body)]
        assert found == other.read(context, "s")


def test_res01l_may_have_empty_frames_and_pings_in_it(server: Served) -> None:
    rest = list(pieces(joined([b"GS", b"id"]), [3]))
    with Connection(server.mq) as connection:
        between = frame(b"") + bytes([PING])
        data = frame(b"Res01L") + between + between.join(frame(piece) for piece in rest) + frame(b"", last=True)
        connection.send(data)
        answer = connection.message()
        assert parted(b"".join(answer[1:]))[:2] == [b"id", b"SG"]
        until_pings(connection, len(rest))


def until_pings(connection: Connection, count: int) -> None:
    """Wait for so many pings, which may come before an answer or behind it."""
    while connection.pings < count:
        connection.send(message([b"Res01", b"GS", b"behind"]))
        connection.message()
    assert connection.pings == count


def test_a_ping_is_answered_whether_it_stands_in_a_message_or_not(server: Served) -> None:
    with Connection(server.mq) as connection:
        ping = bytes([PING])
        connection.send(ping + ping.join(frame(part) for part in (b"Res01", b"GS")) + ping + frame(b"id", last=True))
        assert connection.message()[:3] == [b"Res01", b"id", b"SG"]
        until_pings(connection, 3)


def test_messages_may_arrive_byte_by_byte_and_many_at_once(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        whole = b"".join(
            client.encoded("AC", *client.commit_fields(context, "s", number, [an_event()]), request_id=b"%d" % number)
            for number in (1, 2, 3)
        )
        for at in range(len(whole) - 20):
            client.connection.send(whole[at : at + 1])
        client.connection.send(whole[-20:])
        assert [client.receive().request_id for _ in range(3)] == [b"1", b"2", b"3"]
        assert len(client.read(context, "s")) == 3


def test_all_dialects_may_be_spoken_on_one_connection(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        client.append(context, "s", 1, an_event(b"here"))
        asked = [b"QS", b"id", context.encode(), b"s"]
        requests = [
            [b"Res01", *asked, b"1", b""],
            [b"", b"RC0.1", *asked, ONE, b""],
            [b"Res01L", joined([*asked, b"1", b""])],
        ]
        client.connection.send(b"".join(map(message, requests)))
        answers = [client.receive() for _ in requests]
        assert {(answer.protocol, answer.command, answer.details[-1]) for answer in answers} == {
            (tag, b"QR", b"here") for tag in (b"Res01", b"RC0.1", b"Res01L")
        }


def test_both_gates_serve_one_history(server: Served, context: str) -> None:
    with MqClient(server.mq) as client, Extended(server.res) as other:
        client.append(context, "s", 1, an_event(b"one"))
        other.append(context, "s", 2, an_event(b"two"))
        assert client.read(context, "s") == other.read(context, "s")
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        assert other.fetch(number) == client.fetch(number)


# ---------------------------------------------------------------- many under way


def test_thousands_of_appends_sent_ahead_are_answered_once_each_and_written(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        events = {b"%d" % number: an_event(b"%d" % number) for number in range(5000)}
        data = [
            client.encoded("AC", *client.commit_fields(context, "s", -1, [event]), request_id=number)
            for number, event in events.items()
        ]
        client.connection.send(b"".join(data))
        answers = [client.receive() for _ in events]
        assert {answer.request_id for answer in answers} == set(events)
        assert {answer.command for answer in answers} == {b"CR"}
        assert len({answer.details[0] for answer in answers}) == len(events)
        assert client.ask("GS").command == b"SG"
        # They are written in the order in which they were sent.
        assert [event.body for event in everything(client, context, "s")] == list(events)


def test_long_polls_hold_up_nothing_on_their_connection(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        ids = [client.register(f"reader-{n}", (context, "late", LONG_AGO))[0] for n in range(20)]
        polls = {client.send("FW", LONG_MS.encode(), b"1", str(number).encode(), b"1") for number in ids}
        polls.add(client.send("RA", b"1000000", context.encode(), b"", LONG_MS.encode()))
        until(lambda: server.metric("penstock_waiting_polls") == len(polls))
        for version in range(1, 101):
            client.append(context, "s", version, an_event())
        assert len(everything(client, context, "s")) == 100
        last = client.send("AC", *client.commit_fields(context, "late", 1, [an_event(b"here")]))
        answers = [client.receive() for _ in range(len(ids) + 1)]
        assert {answer.request_id for answer in answers} | polls == {last, *polls}
        assert sum(answer.command == b"EF" and answer.details[-1] == b"here" for answer in answers) == len(ids)
    until(lambda: server.metric("penstock_waiting_polls") == 0)


def test_what_waits_for_a_peer_that_is_gone_is_given_up_and_takes_nothing(server: Served, context: str) -> None:
    queue = f"work-{context}"
    with MqClient(server.mq) as client:
        with MqClient(server.mq) as gone:
            gone.send_subscribe_waiting(int(LONG_MS), context, queue, "gone")
            gone.send_read_all(10**9, wait_ms=int(LONG_MS))
            until(lambda: server.metric("penstock_waiting_polls") == 2)
        until(lambda: server.metric("penstock_waiting_polls") == 0)
        client.append(context, "s", 1, an_event(b"here"))
        assert client.queue_row(context, queue).allocations == 0
        assert client.subscribe(context, queue, "ann").bodies == [b"here"]


def test_who_says_goodbye_is_closed_and_counted_by_what_they_said(server: Served) -> None:
    before = server.metrics()
    with MqClient(server.mq) as client:
        client.stats()
        client.connection.send(disconnect(CLIENT_CLOSING))
        assert client.connection.reason() is None
    with MqClient(server.mq) as client:
        client.stats()
    names = [f'penstock_gate_closed_total{{gate="mq",reason="{name}"}}' for name in ("client closing", "socket error")]
    until(lambda: all(server.metric(name) == before[name] + 1 for name in names))


def test_sessions_and_messages_are_counted(server: Served) -> None:
    names = ["penstock_gate_sessions", "penstock_gate_received_total", "penstock_gate_sent_total"]
    samples = [f'{name}{{gate="mq"}}' for name in names]
    until(lambda: server.metric(samples[0]) == 0)
    before = server.metrics()
    with MqClient(server.mq) as first, MqClient(server.mq) as second:
        for client in (first, first, second):
            client.stats()
        after = server.metrics()
        assert [after[sample] - before[sample] for sample in samples] == [2, 3, 3]
    until(lambda: server.metric(samples[0]) == 0)


# ---------------------------------------------------------------- slow, and not at all


def test_pages_for_a_slow_reader_all_arrive_and_cost_bounded_memory(server: Served, context: str) -> None:
    """Four hundred megabytes are asked for at once, and read bit by bit."""
    with MqLarge(server.mq, receive_bytes=1 << 16) as client, others_are_served(server, context, "mq"):
        fill(client, context, 8, 1_000_000)
        before = server.memory_bytes()
        sent = [client.send("QS", context.encode(), b"s", b"1", b"") for _ in range(50)]
        until(lambda: session_of(server, client)["unsent_bytes"] > 1 << 20)
        assert session_of(server, client)["messages_sent"] < 8 + len(sent) // 2
        answers: list[Answer] = []
        while len(answers) < len(sent):
            answers.append(client.receive())
            if len(answers) % 5 == 1:
                assert server.memory_bytes() < before + MEMORY_BYTES_MAX // 2
                assert session_of(server, client)["unsent_bytes"] < 64 << 20
        assert sorted(answer.request_id for answer in answers) == sorted(sent)
        # Where reading takes long, a page has fewer events than it could have.
        assert {answer.command for answer in answers} == {b"QR"}
        assert {len(answer.details) for answer in answers} <= {1 + 8 * count for count in range(1, 9)}


def test_a_slow_reader_of_many_batches_gets_them_all(server: Served, context: str) -> None:
    """One message asks for more than may wait for a peer that does not read; and so do many long polls."""
    with MqLarge(server.mq, receive_bytes=1 << 16) as client:
        fill(client, context, 8, 1_000_000)
        before = server.memory_bytes()
        ids = [client.register(f"reader-{n}", (context, "", LONG_AGO))[0] for n in range(20)]
        client.send_fetch(*((number, 8) for number in ids))
        polls = [client.send("RA", b"1", context.encode(), b"", b"1000") for _ in range(20)]
        for _ in range(len(ids) + len(polls)):
            assert client.receive().command in (b"EF", b"RD")
        assert server.memory_bytes() < before + MEMORY_BYTES_MAX


def is_waiting(server: Served, polls: int) -> bool:
    return server.metric("penstock_waiting_polls") == polls


def test_more_long_polls_than_requests_may_be_under_way_hold_up_nothing(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        for polls in (400, 800, 1200):
            # Each looks at the history before it waits and once more: at once, no more than may wait for a worker.
            for _ in range(400):
                client.send("RA", b"1000000000", context.encode(), b"", LONG_MS.encode())
            until(partial(is_waiting, server, polls))
        client.append(context, "s", 1, an_event())
    until(lambda: server.metric("penstock_waiting_polls") == 0)


def test_who_sends_nothing_more_still_gets_the_answers(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        sent = [client.send("AC", *client.commit_fields(context, "s", -1, [an_event()])) for _ in range(500)]
        client.connection.is_pinging = False
        client.connection.socket.shutdown(socket.SHUT_WR)
        assert {client.receive().request_id for _ in sent} == set(sent)
        client.connection.reason()
        assert client.connection.socket.recv(1) == b""


@pytest.mark.parametrize("behind", [0, 3])
def test_who_sends_nothing_more_gets_all_answers_of_several_subscriptions(
    server: Served, context: str, behind: int
) -> None:
    with MqClient(server.mq) as client:
        client.append(context, "s", 1, an_event())
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        # The fetch takes a worker's time; a count of 0 is refused before that.
        fetch = client.send_fetch((number, 1), (number, 0), (number, 0), (number, 0))
        reads = [client.send("QS", context.encode(), b"s", b"1", b"") for _ in range(behind)]
        client.connection.is_pinging = False
        client.connection.socket.shutdown(socket.SHUT_WR)
        answers = [client.receive() for _ in range(4 + behind)]
        assert [answer.command for answer in answers if answer.request_id == fetch] == [b"EF", b"ER", b"ER", b"ER"]
        assert sorted(answer.request_id for answer in answers if answer.command == b"QR") == sorted(reads)
        # A server that had answered everything before it saw our end has nothing more to say.
        assert client.connection.reason() in (SERVER_CLOSING, None)
        assert client.connection.socket.recv(1) == b""


def test_pages_that_were_accepted_are_answered_when_the_server_stops(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, MqClient(server.mq) as client:
        client.append("shop", "s", 1, an_event(bytes(4000)))
        sent = [client.send("QS", b"shop", b"s", b"1", b"") for _ in range(1000)]
        until(lambda: session_of(server, client)["messages_received"] == 1 + len(sent))
        server.process.terminate()
        assert {client.receive().request_id for _ in sent} == set(sent)
        assert server.process.wait(PATIENCE_S) == 0


def test_appends_behind_pages_that_nobody_reads_are_written_once_they_are_read(server: Served, context: str) -> None:
    with MqLarge(server.mq, receive_bytes=1 << 16) as client:
        fill(client, context, 8, 1_000_000)
        reads = {client.send("QS", context.encode(), b"s", b"1", b"") for _ in range(10)}
        until(lambda: session_of(server, client)["unsent_bytes"] > 1 << 20)
        append = client.send("AC", *client.commit_fields(context, "t", 1, [an_event()]))
        answers = {answer.request_id: answer.command for answer in (client.receive() for _ in range(11))}
        assert answers == {**dict.fromkeys(reads, b"QR"), append: b"CR"}


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that has little patience with those who do not read."""
    data: Path = tmp_path_factory.mktemp("strict") / "data"
    with Served(data, "--mq-idle-ms-max", "5000", "--mq-unsent-bytes-max", "20MiB") as served:
        yield served


@pytest.mark.parametrize(("size", "reason"), [(2_000_000, "time out"), (8_000_000, "application error")])
def test_who_never_reads_is_paused_then_cut_off_and_costs_bounded_memory(
    strict: Served, context: str, size: int, reason: str
) -> None:
    """Four pages of 2 MB are within the limit, and stall; four of 8 MB are not."""
    with MqLarge(strict.mq) as client:
        # One event, so that a page has all of it however long reading takes.
        fill(client, context, 1, size)
        client.connection.send(disconnect(CLIENT_CLOSING))
    before, closed = strict.memory_bytes(), strict.closed(reason)
    with others_are_served(strict, context, "mq"), MqLarge(strict.mq, receive_bytes=1 << 16) as greedy:
        request = greedy.encoded("QS", context.encode(), b"s", b"1", b"", request_id=b"id")
        greedy.connection.send(request * 500)
        until(lambda: strict.closed(reason) == closed + 1)
        assert strict.memory_bytes() < before + MEMORY_BYTES_MAX // 2
        assert len(strict.sessions()) == 1
    assert re.search(r"Traceback|ERROR", strict.said()) is None
    # The log names the peer, and says nothing else.
    warnings = [line for line in strict.said().splitlines() if "WARNING" in line]
    assert warnings
    assert all(" was ended: " in line for line in warnings)


def test_a_peer_of_the_original_gets_no_frame_longer_than_it_can_take(server: Served, context: str) -> None:
    with MqLarge(server.mq) as client:
        fill(client, context, 3, 100_000)
        assert len(client.read(context, "s")) == 3
        assert client.connection.longest == FRAME_BYTES_SENT_MAX
