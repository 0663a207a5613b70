"""Long polls, and what is set aside after too many deliveries."""

import time

import pytest

from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, Refused, an_event
from tests.gates.serving import Served, until

pytestmark = pytest.mark.gates("res", "mq", "mq-large")
NOTHING = (0, 0)
LONG_MS = 25_000
"""Longer than a test should take."""


@pytest.fixture
def queue(context: str) -> str:
    return f"work-{context}"


def until_waiting(server: Served, polls: int = 1) -> None:
    """Wait until so many polls wait in the server."""
    until(lambda: server.metric("penstock_waiting_polls") == polls)


# ---------------------------------------------------------------- long polls


def test_a_fetch_waits_for_events_that_concern_it(
    client: Extended, other: Extended, server: Served, context: str
) -> None:
    (number,) = client.register("ann", (context, "order", LONG_AGO))
    request = client.send_fetch_waiting(LONG_MS, (number, 10))
    until_waiting(server)
    other.append(context, "other", 1, an_event())
    other.append(context + "x", "order-1", 1, an_event())
    until_waiting(server)
    other.append(context, "order-1", 1, an_event(b"here"))
    assert [event.body for event in client.batch(client.answer_to(request), number)] == [b"here"]
    until_waiting(server, 0)


def test_a_fetch_that_finds_something_does_not_wait(client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(b"here"))
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    request = client.send_fetch_waiting(LONG_MS, (number, 10))
    assert [event.body for event in client.batch(client.answer_to(request), number)] == [b"here"]


def test_a_fetch_that_waited_in_vain_is_answered_empty(client: Extended, context: str) -> None:
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    started = time.monotonic()
    request = client.send_fetch_waiting(100, (number, 10))
    assert client.batch(client.answer_to(request), number) == []
    # The server's clock for this counts milliseconds, and may be ahead of ours by one.
    assert time.monotonic() - started > 0.098


def test_what_one_of_several_has_does_not_wait_for_those_that_follow(
    client: Extended, server: Served, context: str
) -> None:
    client.append(context, "full", 1, an_event(b"here"))
    full, empty = client.register("ann", (context, "full", LONG_AGO), (context, "empty", LONG_AGO))
    request = client.send_fetch_waiting(LONG_MS, (full, 10), (empty, 10))
    assert [event.body for event in client.batch(client.answer_to(request), full)] == [b"here"]
    until_waiting(server)
    client.send("AC", *client.commit_fields(context, "empty", 1, [an_event(b"late")]))
    answers = {answer.command: answer for answer in (client.receive(), client.receive())}
    assert [event.body for event in client.batch(answers[b"EF"], empty)] == [b"late"]


def test_a_wait_of_nothing_is_a_plain_fetch(client: Extended, context: str) -> None:
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    assert client.batch(client.answer_to(client.send_fetch_waiting(0, (number, 10))), number) == []


def test_who_waits_can_ask_other_things_meanwhile(client: Extended, server: Served, context: str) -> None:
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    request = client.send_fetch_waiting(LONG_MS, (number, 10))
    until_waiting(server)
    append = client.send("AC", *client.commit_fields(context, "s", 1, [an_event(b"mine")]))
    answers = {answer.request_id: answer for answer in (client.receive(), client.receive())}
    assert answers[append].command == b"CR"
    assert [event.body for event in client.batch(answers[request], number)] == [b"mine"]


def test_a_queue_waits_for_events(client: Extended, other: Extended, server: Served, context: str, queue: str) -> None:
    request = client.send_subscribe_waiting(LONG_MS, context, queue, "ann")
    until_waiting(server)
    other.append(context, "s", 1, an_event(b"here"))
    queued = client.queued(client.answer_to(request))
    assert queued.bodies == [b"here"]
    waiting = client.send_acknowledge_waiting(LONG_MS, context, queue, "ann", queued.markers)
    until_waiting(server)
    other.append(context, "s", 2, an_event(b"next"))
    assert client.queued(client.answer_to(waiting)).bodies == [b"next"]


def test_an_acknowledgement_that_waits_counts_at_once(
    client: Extended, other: Extended, server: Served, context: str, queue: str
) -> None:
    other.append(context, "s", 1, an_event(b"here"))
    held = client.subscribe(context, queue, "ann")
    request = client.send_acknowledge_waiting(LONG_MS, context, queue, "ann", held.markers)
    until_waiting(server)
    assert other.queue_row(context, queue).allocations == 0
    other.append(context, "s", 2, an_event(b"next"))
    assert client.queued(client.answer_to(request)).bodies == [b"next"]


def test_waiting_in_vain_for_a_queue_is_answered_empty(client: Extended, context: str, queue: str) -> None:
    assert client.subscribe_waiting(50, context, queue, "ann", utc_now=LONG_AGO).markers == NOTHING
    request = client.send_acknowledge_waiting(50, "", queue, "ann", NOTHING)
    assert client.queued(client.answer_to(request)).markers == NOTHING


def test_who_waits_gets_what_another_let_expire(client: Extended, other: Extended, context: str, queue: str) -> None:
    client.append(context, "s", 1, an_event())
    lost = client.subscribe(context, queue, "ann", ttl_ms=300)
    taken = other.subscribe_waiting(LONG_MS, context, queue, "bob")
    assert taken.markers == lost.markers
    assert taken.now >= lost.now + 250 * 10_000


def test_reading_everything_waits_at_the_end(client: Extended, other: Extended, server: Served, context: str) -> None:
    end = int(client.stats()["head"]) + 1
    request = client.send_read_all(end, context, wait_ms=LONG_MS)
    until_waiting(server)
    other.append(context, "s", 1, an_event())
    page = client.records(client.answer_to(request))
    assert (len(page.records), page.next) == (1, end + 1)


def test_many_may_wait_at_once(client: Extended, other: Extended, server: Served, context: str) -> None:
    ids = [client.register(f"reader-{n}", (context, "*", LONG_AGO))[0] for n in range(20)]
    sent = {client.send_fetch_waiting(LONG_MS, (number, 10)): number for number in ids}
    until_waiting(server, len(ids))
    other.append(context, "s", 1, an_event(b"all"))
    for _ in ids:
        answer = client.receive()
        assert [event.body for event in client.batch(answer, sent.pop(answer.request_id))] == [b"all"]


# ---------------------------------------------------------------- dead letters


def lose(client: Extended, context: str, queue: str, *subscribers: str) -> tuple[int, int]:
    """Let consumers take the same allocation one after the other, and lose it."""
    markers = set()
    for subscriber in subscribers:
        markers.add(client.subscribe(context, queue, subscriber, count=1, ttl_ms=1).markers)
        time.sleep(0.01)
    assert len(markers) == 1
    return markers.pop()


def test_what_was_lost_too_often_is_set_aside_listed_and_put_back(client: Extended, context: str, queue: str) -> None:
    client.append(context, "s", 1, an_event(b"poison"), an_event(b"fine"))
    client.subscribe(context, queue, "ann", ttl_ms=-1)
    assert client.set_dead_rule(queue, context, 2) == queue
    assert client.queue_row(context, queue).dead_after == 2
    start, end = lose(client, context, queue, "ann", "bob")
    assert client.subscribe(context, queue, "cem", count=1).bodies == [b"fine"]
    rows, is_end = client.list_dead(queue, context)
    assert is_end
    assert [(row.start, row.end, row.events, row.subscriber, row.deliveries) for row in rows] == [
        (start, end, 1, "bob", 2)
    ]
    assert client.queue_row(context, queue).dead == 1
    assert client.list_dead(queue, context, after=start) == ([], True)
    assert client.put_back(queue, context, start) == queue
    assert client.list_dead(queue, context) == ([], True)
    assert client.subscribe(context, queue, "dan").bodies == [b"poison"]


def test_without_a_rule_nothing_is_set_aside(client: Extended, context: str, queue: str) -> None:
    client.append(context, "s", 1, an_event(b"poison"))
    client.subscribe(context, queue, "ann", ttl_ms=-1)
    client.set_dead_rule(queue, context, 1)
    client.set_dead_rule(queue, context, None)
    assert client.queue_row(context, queue).dead_after is None
    lose(client, context, queue, "ann", "bob", "cem", "dan", "eve")
    assert client.list_dead(queue, context) == ([], True)
    assert client.queue_row(context, queue).deliveries_max == 5


def test_a_queues_name_is_enough_for_dead_letters_if_only_one_context_has_it(
    client: Extended, context: str, queue: str
) -> None:
    client.append(context, "s", 1, an_event())
    client.subscribe(context, queue, "ann", ttl_ms=-1)
    assert client.set_dead_rule(queue, "", 1) == queue
    start, _ = lose(client, context, queue, "ann")
    assert client.subscribe(context, queue, "bob").markers == NOTHING
    assert [row.start for row in client.list_dead(queue, "")[0]] == [start]
    client.put_back(queue, "", start)
    client.subscribe(context + "x", queue, "ann", ttl_ms=-1)
    with pytest.raises(Refused, match="more than one context") as refused:
        client.list_dead(queue, "")
    assert refused.value.code == 7


def test_what_was_not_set_aside_cannot_be_put_back(client: Extended, context: str, queue: str) -> None:
    client.subscribe(context, queue, "ann", ttl_ms=-1)
    with pytest.raises(Refused, match=rf"{queue}.*\b77\b") as refused:
        client.put_back(queue, context, 77)
    assert refused.value.code == 7
    with pytest.raises(Refused, match="error 1"):
        client.set_dead_rule(queue, context, 0)
    with pytest.raises(Refused, match="error 7"):
        client.set_dead_rule("no-such-queue", context, 1)
