"""Queues with competing consumers: SQ, AQ and RQ of the text dialect."""

import time

import pytest

from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, Refused, an_event, now, to_binary

pytestmark = pytest.mark.gates("res", "mq", "mq-large")
NOTHING = (0, 0)


@pytest.fixture
def queue(context: str) -> str:
    """A queue's name that no other context has."""
    return f"work-{context}"


def fill(client: Extended, context: str, count: int, stream: str = "s") -> None:
    """Append events with their numbers as bodies, each a second after the one before."""
    events = [an_event(str(n).encode(), at=moment(n)) for n in range(count)]
    client.append(context, stream, -1, *events)


def moment(second: int) -> int:
    return to_binary(638_505_792_000_000_000 + second * 10_000_000)


def expire(ttl_ms: int) -> None:
    """Let an allocation of this time to live, just answered, expire."""
    time.sleep(ttl_ms / 1000 + 0.01)


# ---------------------------------------------------------------- subscribing


def test_a_queue_gives_its_first_events_with_their_markers(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 5)
    queued = client.subscribe(context, queue, "ann", count=2)
    assert (queued.queue, queued.subscriber) == (queue, "ann")
    assert queued.bodies == [b"0", b"1"]
    assert queued.end == queued.start + 1
    assert [(event.context, event.stream, event.sequence) for event in queued.events] == [
        (context, "s", 1),
        (context, "s", 2),
    ]


def test_markers_are_positions_and_span_what_others_wrote(client: Extended, context: str, queue: str) -> None:
    written = [client.transact((context, stream, -1, [an_event()]))[0] for stream in ("a", "x", "b")]
    queued = client.subscribe(context, queue, "ann", prefix="a")
    assert queued.markers == (written[0].position, written[0].position)
    everything = client.subscribe(context, queue + "-all", "ann")
    assert everything.markers == (written[0].position, written[2].position)


def test_utc_now_may_stand_in_front_or_not(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 2)
    short = client.subscribe_fields(context, queue, "ann", count=1)
    long = client.subscribe_fields(context, queue, "ann", count=1, utc_now=now())
    assert (len(short), len(long)) == (7, 8)
    first, second = (client.queued(client.ask("SQ", *fields)) for fields in (short, long))
    assert first.markers == second.markers != NOTHING
    assert client.subscribe(context, queue, "bob", count=1, utc_now="1999-01-01T00:00:00Z").bodies == [b"1"]


def test_nothing_to_give_is_zero_zero_and_no_events(client: Extended, context: str, queue: str) -> None:
    queued = client.subscribe(context, queue, "ann")
    assert (queued.markers, queued.events) == (NOTHING, [])


def test_a_queue_starts_at_its_first_subscribers_time(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 5)
    assert client.subscribe(context, queue, "ann", start=moment(3), count=1).bodies == [b"3"]
    assert client.subscribe(context, queue, "bob", start=LONG_AGO).bodies == [b"4"]


def test_minus_one_declares_a_queue_and_allocates_nothing(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 2)
    assert client.subscribe(context, queue, "ann", start=moment(1), ttl_ms=-1).markers == NOTHING
    assert client.queue_row(context, queue).allocations == 0
    assert client.subscribe(context, queue, "ann").bodies == [b"1"]


def test_another_filter_is_error_11(client: Extended, context: str, queue: str) -> None:
    client.subscribe(context, queue, "ann", prefix="order")
    with pytest.raises(Refused, match="order") as refused:
        client.subscribe(context, queue, "ann", prefix="other")
    assert refused.value.code == 11
    client.subscribe(context + "x", queue, "ann", prefix="other")


def test_a_star_and_nothing_are_the_same_filter(client: Extended, context: str, queue: str) -> None:
    client.subscribe(context, queue, "ann", prefix="*")
    client.subscribe(context, queue, "ann", prefix="")


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_below_one_is_error_1(client: Extended, context: str, queue: str, count: int) -> None:
    allocate = client.subscribe_fields(context, queue, "ann", count=count)
    acknowledge = client.acknowledge_fields(queue, "ann", NOTHING, count=count)
    for error in (client.ask("SQ", *allocate).error(), client.ask("AQ", *acknowledge).error()):
        assert error.code == 1
        assert "count" in error.message.lower()


@pytest.mark.parametrize("ttl_ms", [0, -2])
def test_a_time_to_live_that_is_none_is_error_1(client: Extended, context: str, queue: str, ttl_ms: int) -> None:
    with pytest.raises(Refused, match=r"(?i)allocation ?time") as refused:
        client.subscribe(context, queue, "ann", ttl_ms=ttl_ms)
    assert refused.value.code == 1


# ---------------------------------------------------------------- who gets what


def test_consumers_share_a_queue_and_asking_again_gives_the_same(
    client: Extended, other: Extended, context: str, queue: str
) -> None:
    fill(client, context, 6)
    ann = client.subscribe(context, queue, "ann", count=2)
    bob = other.subscribe(context, queue, "bob", count=2)
    assert (ann.bodies, bob.bodies) == ([b"0", b"1"], [b"2", b"3"])
    again = client.subscribe(context, queue, "ann", count=100)
    assert (again.markers, again.events) == (ann.markers, ann.events)
    assert client.acknowledge(queue, "bob", NOTHING).markers == bob.markers


def test_acknowledging_gives_the_next_events(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 5)
    found = []
    queued = client.subscribe(context, queue, "ann", count=2)
    while queued.events:
        found.append(queued.bodies)
        queued = client.acknowledge(queue, "ann", queued.markers, count=2)
    assert found == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert queued.markers == NOTHING
    assert client.subscribe(context, queue, "bob").events == []


def test_minus_one_acknowledges_and_allocates_nothing(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 2)
    first = client.subscribe(context, queue, "ann", count=1)
    assert client.acknowledge(queue, "ann", first.markers, ttl_ms=-1).markers == NOTHING
    assert client.queue_row(context, queue).allocations == 0
    assert client.subscribe(context, queue, "ann", count=1).bodies == [b"1"]


def test_zero_zero_acknowledges_nothing(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 2)
    client.subscribe(context, queue, "ann", ttl_ms=-1)
    first = client.acknowledge(queue, "ann", NOTHING, count=1)
    assert first.bodies == [b"0"]
    assert client.acknowledge(queue, "ann", NOTHING, count=1).markers == first.markers


def test_wrong_markers_acknowledge_nothing_and_answer_the_next_allocation(
    client: Extended, context: str, queue: str
) -> None:
    fill(client, context, 4)
    held = client.subscribe(context, queue, "ann", count=2)
    for markers in ((held.start, held.end + 1), (held.start + 1, held.end), (held.end, held.start), (999_999, 999_999)):
        assert client.acknowledge(queue, "ann", markers).markers == held.markers
    assert client.acknowledge(queue, "bob", held.markers, count=1).bodies == [b"2"]
    assert client.subscribe(context, queue, "ann").markers == held.markers


def test_a_repeated_acknowledgement_does_nothing(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 3)
    first = client.subscribe(context, queue, "ann", count=1)
    second = client.acknowledge(queue, "ann", first.markers, count=1)
    assert client.acknowledge(queue, "ann", first.markers, count=1).markers == second.markers


# ---------------------------------------------------------------- time to live


def test_an_expired_allocation_is_taken_over_whole(client: Extended, other: Extended, context: str, queue: str) -> None:
    fill(client, context, 5)
    lost = client.subscribe(context, queue, "ann", count=3, ttl_ms=1)
    expire(1)
    taken = other.subscribe(context, queue, "bob", count=1)
    assert (taken.markers, taken.events) == (lost.markers, lost.events)
    assert client.subscribe(context, queue, "ann").bodies == [b"3", b"4"]


def test_the_oldest_expired_allocation_goes_first(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 6)
    held = [client.subscribe(context, queue, name, count=2, ttl_ms=3000) for name in ("ann", "bob", "cem")]
    assert [queued.bodies[0] for queued in held] == [b"0", b"2", b"4"]
    expire(3000)
    assert [client.subscribe(context, queue, name).bodies[0] for name in ("dan", "eve", "fay")] == [b"0", b"2", b"4"]


def test_asking_again_does_not_extend_an_allocation(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 1)
    held = client.subscribe(context, queue, "ann", ttl_ms=2000)
    ends = time.monotonic() + 2
    while time.monotonic() < ends - 1.7:
        client.subscribe(context, queue, "ann", ttl_ms=60_000)
    expire(int(1000 * (ends - time.monotonic())))
    assert client.subscribe(context, queue, "bob").markers == held.markers


def test_a_late_acknowledgement_counts_while_nobody_took_over(
    client: Extended, other: Extended, context: str, queue: str
) -> None:
    fill(client, context, 2)
    held = client.subscribe(context, queue, "ann", count=1, ttl_ms=1)
    expire(1)
    assert client.acknowledge(queue, "ann", held.markers, ttl_ms=-1).markers == NOTHING
    assert other.subscribe(context, queue, "bob").bodies == [b"1"]


def test_a_late_acknowledgement_does_nothing_once_somebody_took_over(
    client: Extended, other: Extended, context: str, queue: str
) -> None:
    fill(client, context, 3)
    held = client.subscribe(context, queue, "ann", count=2, ttl_ms=1)
    expire(1)
    taken = other.subscribe(context, queue, "bob")
    assert taken.markers == held.markers
    assert client.acknowledge(queue, "ann", held.markers).bodies == [b"2"]
    assert other.subscribe(context, queue, "bob").markers == taken.markers
    assert other.acknowledge(queue, "bob", taken.markers).markers == NOTHING


# ---------------------------------------------------------------- resetting, and queues of the same name


def test_a_reset_drops_all_allocations_and_starts_at_a_time(client: Extended, context: str, queue: str) -> None:
    fill(client, context, 5)
    held = client.subscribe(context, queue, "ann", count=3)
    assert client.reset(queue, moment(1)) == queue
    assert client.queue_row(context, queue).allocations == 0
    assert client.acknowledge(queue, "ann", held.markers, count=2).bodies == [b"1", b"2"]
    client.reset(queue, moment(100))
    assert client.subscribe(context, queue, "ann").events == []
    client.reset(queue, "0001-01-01T00:00:00Z")
    assert len(client.subscribe(context, queue, "ann").events) == 5


def test_a_queue_that_is_not_there_is_error_7(client: Extended, queue: str) -> None:
    for ask in (lambda: client.acknowledge(queue, "ann", NOTHING), lambda: client.reset(queue, LONG_AGO)):
        with pytest.raises(Refused, match=queue) as refused:
            ask()
        assert refused.value.code == 7


def test_a_name_that_two_contexts_use_is_error_7_where_no_context_is_given(
    client: Extended, context: str, queue: str
) -> None:
    for place in (context, context + "x"):
        fill(client, place, 1)
        client.subscribe(place, queue, "ann", ttl_ms=-1)
    for ask in (lambda: client.acknowledge(queue, "ann", NOTHING), lambda: client.reset(queue, LONG_AGO)):
        with pytest.raises(Refused, match=rf"more than one context.*{queue}") as refused:
            ask()
        assert refused.value.code == 7
    waiting = client.send_acknowledge_waiting(0, context, queue, "ann", NOTHING)
    assert [event.context for event in client.queued(client.answer_to(waiting)).events] == [context]
