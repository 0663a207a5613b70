"""What a consumer says of single events, and queues that are ordered, selective, delayed and managed."""

from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import Client
from penstock.errors import (
    DeadLetterNotFound,
    InvalidRequest,
    QueueExists,
    QueueFilterMismatch,
    QueueMismatch,
    QueueNotFound,
    SubscriptionMismatch,
)
from penstock.model import QueueInfo, RetryPolicy
from tests.client.conftest import NETWORKS
from tests.client.support import fill, numbers, some

AT_ONCE = RetryPolicy(delay=0)
LATER_S = 600.0


def info_of(client: Client, context: str) -> QueueInfo:
    (found,) = (info for info in client.queues() if info.context == context)
    return found


# ---------------------------------------------------------------- outcomes of single events


@pytest.mark.over(*NETWORKS, both=True)
def test_each_event_of_a_batch_has_an_outcome_of_its_own(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    queue = client.queue(context, "work", subscriber="me")
    with queue.next() as batch:
        batch.retry(batch[0], delay=0, reason="try again")
        batch.bury(batch[1], "no JSON")
        batch.give_back(batch[2])
        batch.retry(batch[3], delay=LATER_S)
        assert [batch.comes_again(one) for one in batch] == [False, False, True, False, False]
    again = queue.take()
    assert [(one.json(), again.attempt(one)) for one in again] == [(1, 2), (3, 1)]
    queue.acknowledge(again)
    (dead,) = queue.dead_letters()
    assert (dead.stream, dead.sequence, dead.deliveries, dead.subscriber) == ("s", 2, 1, "me")
    assert (dead.reason, dead.position) == ("no JSON", batch[1].position)
    assert batch[1].recorded_at <= dead.died_at <= datetime.now(UTC)
    info = info_of(client, context)
    assert (info.delayed, info.dead, info.allocated) == (1, 1, 0)


def test_an_event_that_failed_as_often_as_allowed_is_a_dead_letter(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    queue = client.queue(context, "work", retry=AT_ONCE, dead_after=2)
    attempts = []
    for _ in range(2):
        with queue.next() as batch:
            attempts.append(batch.attempt(batch[0]))
            batch.retry(batch[0], reason=f"failure {len(attempts)}")
    assert attempts == [1, 2]
    assert queue.take() == []
    assert [(one.deliveries, one.reason) for one in queue.dead_letters()] == [(2, "failure 2")]


def test_what_was_given_back_was_not_tried(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", dead_after=1)
    for _ in range(3):
        with queue.next() as batch:
            for event in batch:
                batch.give_back(event)
    with queue.next() as batch:
        assert [batch.attempt(one) for one in batch] == [1, 1, 1]
    assert queue.dead_letters() == []


def test_a_released_batch_may_wait(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    queue = client.queue(context, "work")
    queue.release(queue.take(), delay=LATER_S)
    assert queue.take() == []
    assert info_of(client, context).delayed == 2


def test_a_reason_may_be_long_or_odd(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    queue = client.queue(context, "work", dead_after=1)
    with queue.next() as batch:
        batch.bury(batch[0], "é" * 5000)
        batch.retry(batch[1], reason="a\0b\udc80")
    assert [one.reason for one in queue.dead_letters()] == ["é" * 1000, "a b?"]


def test_an_outcome_is_only_for_an_event_that_is_held(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    queue = client.queue(context, "work", count=1)
    with queue.next() as first:
        pass
    with pytest.raises(InvalidRequest, match="was acknowledged or released already"):
        first.retry(first[0])
    with queue.next() as second:
        with pytest.raises(InvalidRequest, match="is not in this batch"):
            second.bury(first[0], "no")
        with pytest.raises(InvalidRequest, match="delay is -1 s"):
            second.retry(second[0], delay=-1)


def test_dead_letters_are_put_back_or_dropped(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    queue = client.queue(context, "work")
    with queue.next() as batch:
        for event in batch:
            batch.bury(event, "broken")
    first, second, *_ = (one.position for one in queue.dead_letters())
    queue.put_back(first)
    assert queue.drop_dead(second) == 1
    assert queue.drop_dead(second) == 0
    with pytest.raises(DeadLetterNotFound):
        queue.put_back(second)
    assert queue.put_back_all() == 3
    with queue.next() as batch:
        assert numbers(batch) == [1, 3, 4, 5]
        assert batch.attempt(batch[0]) == 1
        batch.bury(batch[0], "still broken")
    assert queue.drop_dead() == 1
    assert queue.dead_letters() == []


# ---------------------------------------------------------------- order


@pytest.mark.over(*NETWORKS, both=True)
def test_one_consumer_at_a_time_has_events_of_a_stream(client: Client, other: Client, context: str) -> None:
    for stream in ("a", "b"):
        fill(client, context, stream, 2)
    queue = client.queue(context, "work", ordered="stream", count=1)
    theirs = other.queue(context, "work")
    with queue.next() as mine:
        assert [(one.stream, one.json()) for one in mine] == [("a", 1)]
        with theirs.next() as batch:
            assert [(one.stream, one.json()) for one in batch] == [("b", 1), ("b", 2)]
            assert [batch.key_of(one) for one in batch] == ["b", "b"]
        assert theirs.take() == []
    with theirs.next() as batch:
        assert [(one.stream, one.json()) for one in batch] == [("a", 2)]


def test_a_failed_event_holds_back_its_key_only(client: Client, context: str) -> None:
    for number in (1, 2, 3):
        client.append(context, "a", some(1, number))
        client.append(context, "b", some(1, number))
    queue = client.queue(context, "work", ordered="stream", retry=AT_ONCE)
    with queue.next() as batch:
        assert [one.stream for one in batch] == ["a", "b"] * 3
        batch.retry(batch[2], reason="a is stuck")
        assert [batch.comes_again(one) for one in batch] == [False] * 4 + [True, False]
    for attempts in ([("a", 2, 2)], [("a", 3, 1)]):
        with queue.next() as batch:
            assert [(one.stream, one.json(), batch.attempt(one)) for one in batch] == attempts


def test_nothing_overtakes_a_dead_letter_that_the_consumer_did_not_handle(client: Client, context: str) -> None:
    fill(client, context, "a", 3)
    queue = client.queue(context, "work", ordered="stream", dead_after=1)
    with queue.next() as batch:
        batch.retry(batch[0], reason="poison")
    assert numbers(queue.take()) == [2, 3]


def test_a_key_may_be_the_beginning_of_a_name(client: Client, other: Client, context: str) -> None:
    for stream in ("ann/1", "bob/1", "ann/2"):
        fill(client, context, stream, 1)
    with client.queue(context, "work", ordered="prefix:/", count=1).next() as batch:
        assert [batch.key_of(one) for one in batch] == ["ann"]
        assert [one.stream for one in other.queue(context, "work").take()] == ["bob/1"]


def test_attempts_are_those_of_an_events_own_key(client: Client, context: str) -> None:
    for stream in ("a", "b", "a"):
        client.append(context, stream, some(1))
    queue = client.queue(context, "work", ordered="stream", retry=AT_ONCE)
    with queue.next() as batch:
        batch.retry(batch[0])
        batch.give_back(batch[1])
    with queue.next() as batch:
        assert [(one.stream, batch.attempt(one)) for one in batch] == [("a", 2), ("b", 1)]


# ---------------------------------------------------------------- selections


def test_a_queue_may_have_types_and_several_prefixes(client: Client, context: str) -> None:
    for stream in ("order-1", "cart-1", "other-1"):
        client.append(context, stream, [penstock.event("Paid", 1), penstock.event("Placed", 2)])
    queue = client.queue(context, "work", types=["Paid"], prefixes=["order-", "cart-"])
    assert [(one.stream, one.type) for one in queue.take()] == [("order-1", "Paid"), ("cart-1", "Paid")]
    info = info_of(client, context)
    assert (info.behind, info.allocated) == (0, 2)
    with pytest.raises(QueueMismatch, match="selection"):
        client.queue(context, "work", types=["Placed"], prefixes=["order-", "cart-"]).take()
    with pytest.raises(QueueMismatch, match="order"):
        client.queue(context, "work", types=["Paid"], prefixes=["order-", "cart-"], ordered="stream").take()


@pytest.mark.parametrize(
    "given",
    [
        {"types": "Paid"},
        {"prefixes": "order-"},
        {"types": []},
        {"prefixes": ["a"], "filter": "b"},
        {"ordered": "sideways"},
        {"ordered": "prefix:"},
        {"retry": RetryPolicy(delay=-1)},
        {"dead_after": 0},
    ],
)
def test_rules_that_cannot_be_are_refused(client: Client, context: str, given: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        client.queue(context, "work", **given).declare()  # type: ignore[arg-type]


# ---------------------------------------------------------------- times


def test_a_scheduled_event_is_history_at_once_and_handed_out_when_it_is_due(client: Client, context: str) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    late = datetime.now(UTC) + timedelta(days=1)
    client.append(context, "s", [penstock.event("T", 1, due=late), penstock.event("T", 2, due=soon), *some(1, 3)])
    assert numbers(client.read_stream(context, "s")) == [1, 2, 3]
    queue = client.queue(context, "work")
    with queue.next() as batch:
        assert numbers(batch) == [3]
    with queue.next(wait=20) as batch:
        assert datetime.now(UTC) >= soon
        assert numbers(batch) == [2]
    assert info_of(client, context).delayed == 1


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="due"):
        penstock.event("T", due=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidRequest, match="time"):
        penstock.event("T", time=datetime(2030, 1, 1))  # noqa: DTZ001


# ---------------------------------------------------------------- the life of a queue


def test_a_queue_is_paused_and_resumed(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", count=1)
    with queue.next():
        queue.pause()
        assert other.queue(context, "work").take() == []
    assert info_of(client, context).paused
    queue.resume()
    assert numbers(other.queue(context, "work").take()) == [2, 3]


def test_a_queue_is_renamed_and_deleted(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    queue = client.queue(context, "work")
    queue.declare()
    client.queue(context, "taken").declare()
    with pytest.raises(QueueExists, match="taken"):
        queue.rename("taken")
    client.queue(context, "taken").delete()
    with queue.next() as batch:
        queue.rename("orders")
        assert len(batch) == 2
    assert info_of(client, context).name == "orders"
    queue.delete()
    assert all(info.context != context for info in client.queues())
    with pytest.raises(QueueNotFound):
        queue.delete()


def test_a_queue_gets_another_filter_while_nothing_is_held(client: Client, context: str) -> None:
    fill(client, context, "order-1", 2)
    fill(client, context, "cart-1", 2)
    queue = client.queue(context, "work", filter="order-")
    with queue.next(), pytest.raises(InvalidRequest, match="let them acknowledge all, and pause"):
        queue.set_filter("cart-")
    fill(client, context, "order-2", 1)
    queue.set_filter(types=["Counted"], prefixes=["cart-", "order-2"])
    assert [one.stream for one in queue.take()] == ["cart-1", "cart-1", "order-2"]
    client.queue(context, "work", types=["Counted"], prefixes=["cart-", "order-2"]).declare()
    with pytest.raises(QueueFilterMismatch):
        client.queue(context, "work", filter="order-").declare()


def test_a_change_can_be_looked_at_first(client: Client, context: str) -> None:
    fill(client, context, "order-1", 3)
    fill(client, context, "cart-1", 2)
    queue = client.queue(context, "work", filter="order-")
    with queue.next() as batch:
        batch.bury(batch[0], "broken")
    first = batch[0].position
    found = queue.preview()
    assert (found.position, found.behind, found.behind_is_exact, found.dead) == (first + 3, 0, True, 1)
    assert (queue.preview(position=first).behind, queue.preview(position=first + 1).behind) == (3, 2)
    assert queue.preview(datetime.now(UTC) + timedelta(days=1)).behind == 0
    assert queue.preview(filter="").behind == 2
    assert queue.preview(position=first, types=["Counted"], prefixes=["order-", "cart-"]).behind == 5
    assert info_of(client, context).filter == "order-"


def test_a_subscription_may_be_to_all_contexts_and_select(client: Client, context: str) -> None:
    for place in (f"{context}-a", f"{context}-b"):
        for stream in (f"{context}-order", f"{context}-cart", f"{context}-other"):
            client.append(place, stream, [penstock.event("Paid", 1), penstock.event("Placed", 2)])
    wanted = {"prefixes": [f"{context}-order", f"{context}-cart"], "types": ["Paid"], "follow": False}
    found = list(client.subscription("ann", context=None, **wanted))  # type: ignore[arg-type]
    assert [(one.context[-1], one.stream.rpartition("-")[2], one.type) for one in found] == [
        (place, stream, "Paid") for place in "ab" for stream in ("order", "cart")
    ]
    subscription = client.subscription("ann", context=None, **wanted)  # type: ignore[arg-type]
    assert subscription.fetch() == []
    subscription.set(None)
    assert list(subscription) == found
    with pytest.raises(SubscriptionMismatch):
        client.subscription("ann", context=None, **{**wanted, "types": ["Placed"]}).fetch()  # type: ignore[arg-type]


def test_a_retry_policy_or_a_rule_for_dead_letters_makes_a_new_queue(client: Client, context: str) -> None:
    queue = client.queue(context, "work")
    queue.set_retry(RetryPolicy(delay=5, factor=3, cap=60, jitter=0))
    client.queue(context, "work").dead_after(4)
    info = info_of(client, context)
    assert (RetryPolicy.parsed(info.retry), info.dead_after) == (RetryPolicy(5, 3, 60, 0), 4)
    client.queue(context, "work").dead_after(None)
    assert info_of(client, context).dead_after is None
    with pytest.raises(InvalidRequest, match="factor"):
        queue.set_retry(RetryPolicy(factor=0.5))


def test_a_transaction_takes_no_batch_with_other_outcomes(client: Client, context: str) -> None:
    fill(client, context, "s", 2)
    with client.queue(context, "work").next() as batch:
        batch.retry(batch[0])
        with pytest.raises(InvalidRequest, match="events to retry"):
            client.transaction().acknowledge(batch)


def test_a_batch_of_several_keys_is_acknowledged_in_one_transaction(client: Client, context: str) -> None:
    for stream in ("a", "b"):
        fill(client, context, stream, 2)
    queue = client.queue(context, "work", ordered="stream")
    with queue.next() as batch, client.transaction() as transaction:
        assert len(batch.receipts) == 2
        transaction.append(context, "done", some(1))
        transaction.acknowledge(batch)
    assert [one.stream for one in queue.take()] == ["done"]
