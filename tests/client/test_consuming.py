"""Durable subscriptions and queues."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

import penstock
from penstock import Client
from penstock.client import Queue
from penstock.errors import (
    AllocationLost,
    DeadLetterNotFound,
    InvalidRequest,
    PenstockError,
    QueueFilterMismatch,
    QueueNotFound,
    SubscriptionNotFound,
)
from penstock.model import ProducerMark, Replayed, RetryPolicy, SettleQueue
from tests.client.driven import Driven
from tests.client.support import calls_of, fill, numbers, some


class Failed(Exception):
    """Raised in the middle of some work."""


# ---------------------------------------------------------------- subscriptions


def test_a_subscription_delivers_everything_once(client: Client, context: str) -> None:
    fill(client, context, "s", 25, each=3)
    fill(client, context, "t", 5)
    wanted = {"context": context, "filter": "s", "follow": False}
    assert numbers(client.subscription("ann", count=4, **wanted)) == list(range(1, 26))  # type: ignore[arg-type]
    assert numbers(client.subscription("ann", count=4, **wanted)) == []  # type: ignore[arg-type]
    fill(client, context, "s", 2)
    assert numbers(client.subscription("ann", count=4, **wanted)) == [1, 2]  # type: ignore[arg-type]
    assert len(list(client.subscription("bob", context=context, follow=False))) == 32


def test_it_progresses_when_the_body_has_gone_through_a_batch(client: Client, context: str) -> None:
    fill(client, context, "s", 10)
    subscription = client.subscription("ann", context=context, count=4, follow=False)
    batches = subscription.batches()
    assert numbers(next(batches)) == [1, 2, 3, 4]
    assert numbers(client.subscription("ann", context=context, count=9).fetch()) == [1, 2, 3, 4]
    assert numbers(next(batches)) == [5, 6, 7, 8]
    batches.close()  # type: ignore[attr-defined]
    assert numbers(subscription.fetch()) == [5, 6, 7, 8]


def test_leaving_the_loop_redelivers_the_batch(client: Client, context: str) -> None:
    fill(client, context, "s", 10)
    seen: list[int] = []
    for event in client.subscription("ann", context=context, count=4):
        seen.append(event.json())
        if event.json() == 6:
            break
    assert seen == [1, 2, 3, 4, 5, 6]
    rest = client.subscription("ann", context=context, count=4, follow=False)
    assert numbers(rest) == [5, 6, 7, 8, 9, 10]


def test_failing_in_the_loop_redelivers_the_batch(client: Client, context: str) -> None:
    fill(client, context, "s", 3)

    def work() -> None:
        for event in client.subscription("ann", context=context):
            if event.json() == 2:
                raise Failed

    with pytest.raises(Failed):
        work()
    assert numbers(client.subscription("ann", context=context, follow=False)) == [1, 2, 3]


def test_a_subscription_can_be_handled_by_hand(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    subscription = client.subscription("ann", context=context, count=3)
    first = subscription.fetch()
    assert subscription.fetch() == first
    subscription.progress(first)
    second = subscription.fetch()
    assert numbers(second) == [4, 5]
    subscription.progress(first)
    assert subscription.fetch() == second
    subscription.progress(second)
    empty = subscription.fetch()
    assert empty == []
    subscription.progress(empty)
    assert subscription.id() == client.subscription("ann", context=context).id()


def test_a_subscription_can_be_moved(client: Client, context: str) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    events = [penstock.event("T", number, time=start + timedelta(days=number)) for number in range(5)]
    client.append(context, "s", events)
    subscription = client.subscription("ann", context=context, start=start + timedelta(days=3), follow=False)
    assert numbers(subscription) == [3, 4]
    subscription.set(start + timedelta(days=1))
    assert numbers(subscription) == [1, 2, 3, 4]
    subscription.set(None)
    assert numbers(subscription) == [0, 1, 2, 3, 4]


def test_a_deleted_subscription_begins_anew(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    subscription = client.subscription("ann", context=context, follow=False)
    assert numbers(subscription) == [1, 2, 3]
    number, theirs = subscription.id(), other.subscription("ann", context=context)
    assert theirs.id() == number
    subscription.delete()
    assert number not in [info.id for info in client.subscriptions()]
    with pytest.raises(SubscriptionNotFound):
        theirs.fetch()
    with pytest.raises(SubscriptionNotFound):
        theirs.delete()
    assert numbers(subscription) == [1, 2, 3]
    assert subscription.id() > number


def test_two_clients_of_one_name_share_the_place(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 6)
    ours = client.subscription("ann", context=context, count=3)
    theirs = other.subscription("ann", context=context, count=3)
    batch = ours.fetch()
    assert theirs.fetch() == batch
    theirs.progress(batch)
    ours.progress(batch)
    assert numbers(ours.fetch()) == [4, 5, 6]


def test_a_subscription_waits_for_what_is_to_come(client: Client, other: Client, context: str) -> None:
    if isinstance(client, Driven) and other is client:
        pytest.skip("a loop that waits does nothing else")
    subscription = client.subscription("ann", context=context)
    assert subscription.fetch(wait=0.01) == []
    late = threading.Timer(0.2, lambda: fill(other, context, "s", 3))
    late.start()
    seen: list[int] = []
    for event in subscription:
        seen.append(event.json())
        if len(seen) == 3:
            break
    late.join()
    assert seen == [1, 2, 3]


def test_subscriptions_are_listed(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    subscription = client.subscription("ann", context=context, filter="s", follow=False)
    last = list(subscription)[-1]
    found = next(each for each in client.subscriptions() if each.id == subscription.id())
    assert (found.subscriber, found.context, found.filter) == ("ann", context, "s")
    assert (found.position, found.last_ticks) == (last.position + 1, last.ticks)
    assert (found.behind, found.behind_is_exact, found.behind_ms) == (0, True, 0)
    fill(client, context, "s", 2)
    fill(client, context, "other", 2)
    found = next(each for each in client.subscriptions() if each.id == subscription.id())
    assert (found.behind, found.behind_is_exact) == (2, True)


def test_a_subscription_needs_a_name_and_a_count(client: Client, context: str) -> None:
    with pytest.raises(InvalidRequest):
        client.subscription("", context=context).fetch()
    with pytest.raises(InvalidRequest):
        client.subscription("ann", context=context, count=0).fetch()


# ---------------------------------------------------------------- queues


def test_a_batch_is_acknowledged_when_the_body_succeeds(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 5)
    queue = client.queue(context, "work", count=3)
    with queue.next() as batch:
        assert numbers(batch) == [1, 2, 3]
        held = not batch.is_settled
    assert held
    assert batch.is_settled
    with other.queue(context, "work", count=3).next() as batch:
        assert numbers(batch) == [4, 5]
    with queue.next() as batch:
        assert batch == []
        assert batch.receipts == ()


def fail_with(queue: Queue) -> None:
    """Take a batch and fail."""
    with queue.next():
        raise Failed


def test_a_batch_is_released_when_the_body_fails(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 5)
    with pytest.raises(Failed):
        fail_with(client.queue(context, "work", count=3, ttl=600, retry=RetryPolicy(delay=0)))
    with other.queue(context, "work", count=3).next(wait=20) as batch:
        assert numbers(batch) == [1, 2, 3]
        assert [batch.attempt(one) for one in batch] == [2, 2, 2]


def test_who_fails_with_a_batch_counts_and_who_gives_it_back_does_not(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", subscriber="me")
    queue.declare()
    queue.dead_after(1)
    with pytest.raises(KeyboardInterrupt), queue.next():
        raise KeyboardInterrupt
    queue.release(queue.take(), counts=False)
    queue.take()
    queue.give_back()
    assert queue.dead_letters() == []
    with pytest.raises(Failed):
        fail_with(queue)
    dead = queue.dead_letters()
    assert [(one.stream, one.sequence, one.deliveries, one.subscriber) for one in dead] == [
        ("s", number, 1, "me") for number in (1, 2, 3)
    ]
    assert all(one.reason.startswith("Failed") for one in dead)
    assert queue.take() == []


def test_a_batch_that_cannot_be_released_does_not_hide_the_failure(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    queue = client.queue(context, "work")
    calls = calls_of(queue)
    exchange = calls.transport.exchange

    async def refusing(request: object, until: float) -> object:
        if isinstance(request, SettleQueue):
            raise QueueNotFound("work")
        return await exchange(request, until)

    calls.transport.exchange = refusing
    try:
        with pytest.raises(Failed) as caught:
            fail_with(queue)
    finally:
        del calls.transport.exchange
    assert "was not released" in caught.value.__notes__[0]


def test_a_range_is_handed_out_once_more(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    queue = client.queue(context, "work")
    batch = queue.take()
    queue.acknowledge(batch)
    first, last = batch[1].position, batch[2].position
    assert queue.replay(first, last) == Replayed(2, 0, 2)
    assert queue.replay(first, last) == Replayed(0, 2, 2)
    with queue.next() as again:
        assert numbers(again) == [2, 3]
    mark = ProducerMark(context, last)
    assert not queue.replay(first, last, mark=mark).repeated
    assert queue.replay(first, last, mark=mark).repeated
    with pytest.raises(InvalidRequest):
        queue.replay(first, last + 1_000_000)


def test_each_event_goes_to_one_consumer(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 30)
    queues = [client.queue(context, "work", count=4), other.queue(context, "work", count=4)]
    seen: list[int] = []
    turn = 0
    while True:
        with queues[turn % 2].next() as batch:
            if not batch:
                break
            seen += numbers(batch)
        turn += 1
    assert sorted(seen) == list(range(1, 31))


def test_an_expired_batch_goes_to_another(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    lost = client.queue(context, "work", ttl=0.05).take()
    with other.queue(context, "work").next(wait=20) as batch:
        assert batch == lost
        # Too late: it is theirs now.
        with pytest.raises(AllocationLost):
            client.queue(context, "work").acknowledge(lost)
    assert other.queue(context, "work").take() == []


def test_a_queue_begins_again_where_it_is_told(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    first = next(client.read_all(context=context)).position
    queue = client.queue(context, "work")
    assert numbers(queue.take()) == [1, 2, 3]
    queue.reset(position=first + 1)
    batch = queue.take()
    assert numbers(batch) == [2, 3]
    queue.acknowledge(batch)
    queue.reset(datetime.now(UTC) + timedelta(days=1))
    assert queue.take() == []
    queue.reset()
    assert numbers(queue.take()) == [1, 2, 3]
    with pytest.raises(InvalidRequest, match="position is 0"):
        queue.reset(position=0)


def test_dead_letters_are_listed_and_put_back(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", count=2)
    queue.declare()
    queue.dead_after(1)
    client.queue(context, "work", subscriber="slow", count=2, ttl=0.001).take()
    while not (dead := queue.dead_letters()):
        queue.take(wait=0.05)
    assert [(letter.sequence, letter.subscriber) for letter in dead] == [(1, "slow"), (2, "slow")]
    queue.put_back(dead[0].position)
    assert queue.dead_letters() == dead[1:]
    queue.put_back(dead[0].position)
    assert queue.put_back_all() == 1
    theirs = other.queue(context, "work", count=2)
    batch = theirs.take()
    assert numbers(batch) == [1, 2]
    queue.put_back(dead[0].position)
    theirs.acknowledge(batch)
    with pytest.raises(DeadLetterNotFound):
        queue.put_back(dead[0].position)


def test_a_queue_can_be_handled_by_hand(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 4)
    queue = client.queue(context, "work", count=2)
    first = queue.take()
    assert queue.take() == first
    queue.release(first)
    queue.release(first)
    queue.acknowledge(first)
    theirs = other.queue(context, "work", count=2)
    again = theirs.take()
    assert again == first
    theirs.acknowledge(again)
    theirs.acknowledge(again)
    assert numbers(theirs.take()) == [3, 4]


def test_a_consumer_may_have_a_name(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 4)
    batch = client.queue(context, "work", subscriber="ann").take()
    assert other.queue(context, "work", subscriber="ann").take() == batch
    assert other.queue(context, "work", subscriber="bob").take() == []


def test_a_queue_waits(client: Client, other: Client, context: str) -> None:
    if isinstance(client, Driven) and other is client:
        pytest.skip("a loop that waits does nothing else")
    queue = client.queue(context, "work")
    queue.declare()
    late = threading.Timer(0.2, lambda: other.append(context, "s", some(2)))
    late.start()
    with queue.next(wait=20) as batch:
        assert numbers(batch) == [1, 2]
    late.join()


def test_a_queue_begins_at_a_time(client: Client, context: str) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC)
    client.append(context, "s", [penstock.event("T", n, time=start + timedelta(days=n)) for n in range(5)])
    assert numbers(client.queue(context, "late", start=start + timedelta(days=3)).take()) == [3, 4]


def test_a_queue_has_one_filter(client: Client, context: str) -> None:
    client.queue(context, "work", filter="order-").declare()
    with pytest.raises(QueueFilterMismatch):
        client.queue(context, "work", filter="cart-").take()


def test_queues_are_listed(client: Client, context: str) -> None:
    fill(client, context, "s", 5)
    client.queue(context, "work", count=3).take()
    found = next(each for each in client.queues() if each.context == context)
    assert (found.name, found.filter, found.allocated, found.allocations) == ("work", "", 3, 1)
    assert (found.behind, found.behind_is_exact) == (2, True)
    assert 0 <= found.behind_ms < 3_600_000


@pytest.mark.parametrize("options", [{"count": 0}, {"ttl": 0}, {"ttl": 8 * 24 * 3600}, {"subscriber": "x" * 513}])
def test_a_queue_that_cannot_be_is_refused(client: Client, context: str, options: dict[str, object]) -> None:
    with pytest.raises(PenstockError):
        client.queue(context, "work", **options).take()  # type: ignore[arg-type]
