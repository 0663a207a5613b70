"""Events that are larger than a frame: Res01L both ways, plain Res01's refusal of them, and that nothing gets stuck."""

import random
import struct

import pytest

from tests.gates.mq_client import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    Connection,
    MqBinary,
    MqClient,
    MqLarge,
    frame,
    joined,
    message,
    parted,
    pieces,
)
from tests.gates.res_client import Answer
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, Refused, an_event
from tests.gates.serving import MEMORY_BYTES_MAX, Served, others_are_served, until

SERVER_FLAGS: tuple[str, ...] = ()
"""None, but a server of its own."""
NOTHING = (0, 0)
EVENT_BYTES_MAX = 8 << 20
"""What an event's type, headers and body may have together."""


def some_bytes(size: int) -> bytes:
    """Bytes that cannot be mistaken for others."""
    return random.Random(size).randbytes(size)


@pytest.fixture
def queue(context: str) -> str:
    return f"work-{context}"


# ---------------------------------------------------------------- through and back


@pytest.mark.parametrize("size", [16_381, 16_382, 17_000, 65_535, 65_536, 66_000, 1_000_000, EVENT_BYTES_MAX - 6])
def test_large_events_go_through_and_come_back(server: Served, context: str, size: int) -> None:
    body = some_bytes(size)
    with MqLarge(server.mq) as client, Extended(server.res) as other:
        client.append(context, "s", 1, an_event(body))
        assert client.read(context, "s")[0].body == body
        assert client.connection.longest == FRAME_BYTES_SENT_MAX
        client.sizes = (FRAME_BYTES_MAX,)
        other.append(context, "s", 2, an_event(body))
        assert client.get(context, "s", 2).body == body
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        assert {event.body for event in client.fetch(number, 1)} == {body}
        queued = client.subscribe(context, f"work-{context}", "ann", count=1)
        assert queued.bodies == [body]


def test_an_event_over_the_limit_is_refused_by_its_name(server: Served, context: str) -> None:
    with MqLarge(server.mq) as client:
        with pytest.raises(Refused, match="event_bytes_max") as refused:
            client.append(context, "s", 1, an_event(bytes(EVENT_BYTES_MAX + 1)))
        assert refused.value.code == 1
        assert client.read(context, "s") == []


def test_large_events_of_one_connection_do_not_mix(server: Served, context: str) -> None:
    with MqLarge(server.mq) as client:
        sizes = [100_000, 3, 70_000, 500_000, 16_382]
        for version, size in enumerate(sizes, 1):
            client.send("AC", *client.commit_fields(context, "s", version, [an_event(some_bytes(size))]))
        assert {client.receive().command for _ in sizes} == {b"CR"}
        asked = {client.send("GE", context.encode(), b"s", b"%d" % (n + 1)): size for n, size in enumerate(sizes)}
        for _ in sizes:
            answer = client.receive()
            assert answer.of("GR")[-1] == some_bytes(asked.pop(answer.request_id))


# ---------------------------------------------------------------- plain frames


def does_not_fit(answer: Answer) -> None:
    """It must be error 7 with the advice to use Res01L."""
    error = answer.error()
    assert error.code == 7
    assert "Res01L" in error.message


def test_an_answer_that_does_not_fit_plain_frames_is_error_7_and_names_res01l(server: Served, context: str) -> None:
    with Extended(server.res) as other, MqClient(server.mq) as client:
        other.append(context, "s", 1, an_event(bytes(17_000)), an_event(b"small"))
        for command, fields in (("QS", (b"1", b"")), ("GE", (b"1",))):
            does_not_fit(client.ask(command, context.encode(), b"s", *fields))
        does_not_fit(client.ask("RA", b"1", context.encode(), b"", b"0"))
        assert [event.body for event in client.read(context, "s", 2)] == [b"small"]
    with Extended(server.res) as other, MqBinary(server.mq) as binary:
        one = struct.pack("<q", 1)
        does_not_fit(binary.ask("QS", context.encode(), b"s", one, b""))


@pytest.mark.parametrize("field", ["headers", "body"])
def test_an_answer_fits_up_to_the_last_byte(server: Served, context: str, field: str) -> None:
    sizes = (FRAME_BYTES_SENT_MAX, FRAME_BYTES_SENT_MAX + 1)
    with Extended(server.res) as other, MqClient(server.mq) as client:
        for size in sizes:
            event = an_event(bytes(size)) if field == "body" else an_event(headers="h" * size)
            other.append(context, "s", -1, event)
        assert len(client.read(context, "s", 1, 1)) == 1
        does_not_fit(client.ask("GE", context.encode(), b"s", b"2"))


def test_a_peer_that_sends_longer_frames_gets_longer_ones(server: Served, context: str) -> None:
    with Extended(server.res) as other, MqClient(server.mq) as client, MqClient(server.mq) as same:
        sizes = (FRAME_BYTES_SENT_MAX + 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1)
        other.append(context, "s", 1, *(an_event(bytes(size)) for size in sizes))
        does_not_fit(client.ask("GE", context.encode(), b"s", b"1"))
        client.append(context, "t", 1, an_event(bytes(FRAME_BYTES_SENT_MAX)))
        does_not_fit(client.ask("GE", context.encode(), b"s", b"1"))
        client.append(context, "t", 2, an_event(bytes(FRAME_BYTES_SENT_MAX + 1)))
        assert [len(event.body) for event in client.read(context, "s", 1, 2)] == [*sizes[:2]]
        assert client.connection.longest == FRAME_BYTES_MAX
        does_not_fit(client.ask("GE", context.encode(), b"s", b"3"))
        # What one connection has shown says nothing of another.
        does_not_fit(same.ask("GE", context.encode(), b"s", b"1"))


def test_a_request_id_of_any_size_comes_back(server: Served) -> None:
    with MqClient(server.mq) as client:
        for size in (FRAME_BYTES_SENT_MAX, FRAME_BYTES_SENT_MAX + 1, FRAME_BYTES_MAX):
            request = some_bytes(size)
            assert client.answer_to(client.send("GS", request_id=request)).command == b"SG"
            assert client.answer_to(client.send("??", request_id=request)).error().code == 3
    with MqLarge(server.mq) as large:
        assert large.answer_to(large.send("GS", request_id=some_bytes(1_000_000))).command == b"SG"


# ---------------------------------------------------------------- nothing gets stuck


def test_a_queue_gives_an_event_that_did_not_fit_to_whoever_can_take_it(
    server: Served, context: str, queue: str
) -> None:
    body = some_bytes(20_000)
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        large.append(context, "s", 1, an_event(body))
        for _ in range(3):
            does_not_fit(plain.ask("SQ", *plain.subscribe_fields(context, queue, "plain")))
        assert large.queue_row(context, queue).allocations == 0
        queued = large.subscribe(context, queue, "large")
        assert queued.bodies == [body]
        row = large.queue_row(context, queue)
        assert (row.allocations, row.allocated, row.deliveries_max) == (1, 1, 1)
        # Its own allocation is too long for plain frames too, and stays.
        does_not_fit(plain.ask("SQ", *plain.subscribe_fields(context, queue, "large")))
        assert large.acknowledge(queue, "large", queued.markers).markers == NOTHING


def test_a_queue_that_shares_an_event_too_large_for_one_goes_on_for_the_others(
    server: Served, context: str, queue: str
) -> None:
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        large.append(context, "s", 1, an_event(b"0"), an_event(some_bytes(20_000)), an_event(b"2"))
        first = plain.subscribe(context, queue, "plain", count=1)
        assert first.bodies == [b"0"]
        does_not_fit(plain.ask("AQ", *plain.acknowledge_fields(queue, "plain", first.markers, count=1)))
        # The advice taken: the same acknowledgement again.
        fields = large.acknowledge_fields(queue, "plain", first.markers, count=1)
        second = large.queued(large.ask("AQ", *fields))
        assert [len(body) for body in second.bodies] == [20_000]
        assert plain.subscribe(context, queue, "other").bodies == [b"2"]
        assert large.queue_row(context, queue).allocations == 2


def test_an_expired_allocation_that_does_not_fit_is_left_for_another(server: Served, context: str, queue: str) -> None:
    body = some_bytes(20_000)
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        large.append(context, "s", 1, an_event(body))
        lost = large.subscribe(context, queue, "lost", ttl_ms=1)
        # A long poll ends when the allocation has expired, and it is offered.
        does_not_fit(plain.answer_to(plain.send_subscribe_waiting(25_000, context, queue, "plain")))
        taken = large.subscribe_waiting(25_000, context, queue, "large")
        assert (taken.markers, taken.bodies) == (lost.markers, [body])
        assert large.queue_row(context, queue).deliveries_max == 2


def test_a_long_poll_is_refused_when_what_comes_does_not_fit(server: Served, context: str, queue: str) -> None:
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        (number,) = plain.register("ann", (context, "*", LONG_AGO))
        polls = {
            plain.send_fetch_waiting(25_000, (number, 1)),
            plain.send_subscribe_waiting(25_000, context, queue, "plain"),
        }
        until(lambda: server.metric("penstock_waiting_polls") == 2)
        large.append(context, "s", 1, an_event(some_bytes(20_000)))
        for answer in (plain.receive(), plain.receive()):
            polls.remove(answer.request_id)
            does_not_fit(answer)
        assert len(large.fetch(number)) == 1
        assert len(large.subscribe(context, queue, "large").events) == 1


def test_a_subscription_gives_what_did_not_fit_to_res01l_and_less_to_plain_frames(server: Served, context: str) -> None:
    body = some_bytes(20_000)
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        for number, content in enumerate((b"0", b"1", body, b"3")):
            large.append(context, "s", -1, an_event(content, at=f"2024-05-06T12:00:0{number}Z"))
        (number,) = plain.register("ann", (context, "*", LONG_AGO))
        does_not_fit(plain.answer_to(plain.send_fetch((number, 10))))
        # No batch was made of the one that did not fit: a smaller one fits.
        batch = plain.fetch(number, 2)
        assert [event.body for event in batch] == [b"0", b"1"]
        plain.progress((number, batch[-1].time))
        does_not_fit(plain.answer_to(plain.send_fetch((number, 1))))
        batch = large.fetch(number, 1)
        assert [event.body for event in batch] == [body]
        # The batch is pending now, and comes again to whoever can take it.
        does_not_fit(plain.answer_to(plain.send_fetch((number, 10))))
        plain.progress((number, batch[-1].time))
        assert [event.body for event in plain.fetch(number)] == [b"3"]


def test_of_several_subscriptions_only_the_one_that_does_not_fit_is_refused(server: Served, context: str) -> None:
    with MqClient(server.mq) as plain, MqLarge(server.mq) as large:
        large.append(context, "big", 1, an_event(some_bytes(20_000)))
        large.append(context, "small", 1, an_event(b"small"))
        big, small = plain.register("ann", (context, "big", LONG_AGO), (context, "small", LONG_AGO))
        request = plain.send_fetch((big, 1), (small, 1))
        does_not_fit(plain.answer_to(request))
        assert [event.body for event in plain.batch(plain.answer_to(request), small)] == [b"small"]


# ---------------------------------------------------------------- malformed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0\0\0",
        struct.pack("<I", 0),
        struct.pack("<I", 1),
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 0xFFFFFFFF) + bytes(10_000),
        struct.pack("<I", 0x40000000) + bytes(10_000),
        struct.pack("<III", 2, 2, 2) + b"GSi",
        struct.pack("<III", 2, 2, 2) + b"GSid!",
        struct.pack("<II", 1, 0xFFFFFFFF) + b"GS",
        struct.pack("<IIIII", 4, 0xFFFFFFFF, 0xFFFFFFFF, 2, 2) + b"GSid",
        struct.pack("<II", 1, 2) + b"GS",
        joined([b"GS"]),
    ],
)
def test_malformed_res01l_is_error_1_and_the_connection_lives(server: Served, content: bytes) -> None:
    with Connection(server.mq) as connection:
        connection.send(message([b"Res01L", *pieces(content, [1000])] if content else [b"Res01L"]))
        answer = connection.message()
        assert answer[0] == b"Res01L"
        request, command, code, text = parted(b"".join(answer[1:]))
        assert (request, command, code) == (b"", b"ER", b"1")
        assert len(text) < 300
        connection.send(message([b"Res01L", joined([b"GS", b"id"])]))
        assert parted(b"".join(connection.message()[1:]))[:2] == [b"id", b"SG"]


def test_the_lengths_of_fields_are_not_believed_and_their_number_is_limited(server: Served, context: str) -> None:
    """Sixteen million empty fields are sent at little cost; to take them apart must not cost much either."""
    before = server.memory_bytes()
    fields = (63 << 20) // 4
    contents = [
        struct.pack("<I", 0xFFFFFFFF) + bytes(63 << 20),
        struct.pack("<I", fields) + bytes(4 * fields),
        struct.pack("<I", 250_001) + bytes(4 * 250_001),
    ]
    with others_are_served(server, context, "mq"), Connection(server.mq) as connection:
        for content in contents:
            connection.send(frame(b"Res01L") + message(list(pieces(content, [FRAME_BYTES_MAX]))))
            assert parted(b"".join(connection.message()[1:]))[1:3] == [b"ER", b"1"]
            assert server.memory_bytes() < before + MEMORY_BYTES_MAX
        connection.send(message([b"Res01", b"GS", b"id"]))
        assert connection.message()[:3] == [b"Res01", b"id", b"SG"]
    assert server.memory_peak_bytes() < before + 2 * MEMORY_BYTES_MAX
