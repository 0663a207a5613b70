"""Queues by key and their life, previews, and subscriptions to several contexts or to a selection."""

import asyncio
import json
from datetime import timedelta

import pytest

from penstock import model
from penstock.engine import Engine
from penstock.engine.queues import LETTERS_PAGE, ORDER_BYTES_MAX, REASON_BYTES_MAX, RUNS_MAX, TTL_MS_MAX
from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    LimitExceeded,
    NotAllowed,
    PenstockError,
    QueueExists,
    QueueMismatch,
    QueueNotFound,
    SubscriptionMismatch,
    SubscriptionNotFound,
)
from penstock.model import (
    ANONYMOUS,
    Buried,
    Delivery,
    Done,
    Extended,
    FetchedBatch,
    ListPage,
    Principal,
    PutBackCount,
    QueuePreview,
    Registered,
    Request,
    Rest,
    Retried,
    Run,
    Selection,
    SubscriptionStart,
)
from penstock.model.events import SELECTED_MAX
from penstock.model.times import datetime_of, now_ticks
from tests.engine.caller import Caller, R, bodies, principal
from tests.engine.caller import events as some_events
from tests.engine.test_reads import waiting

LONG_MS = 30_000
HOUR_MS = 3_600_000


async def declare(caller: Caller, ordered: str | None = "stream", queue: str = "q", **rules: object) -> None:
    request = model.SubscribeQueue("shop", queue, "me", "", 0, 1, -1, ordered=ordered, **rules)  # type: ignore[arg-type]
    await caller.ask(Delivery, request)


async def take(caller: Caller, who: str, count: int = 100, wait_ms: int = 0, queue: str = "q") -> Delivery:
    request = model.SubscribeQueue("shop", queue, who, "", 0, count, HOUR_MS, wait_ms, several=True)
    return await caller.ask(Delivery, request)


def settlement(given: Delivery, rest: Rest = Rest.DONE, **outcomes: object) -> model.SettleQueue:
    runs = tuple(Run(one.first, one.last) for one in given.runs)
    return model.SettleQueue(given.context, given.queue, given.subscriber, runs, rest, **outcomes)  # type: ignore[arg-type]


async def refused(caller: Caller, kind: type[PenstockError], request: Request) -> PenstockError:
    with pytest.raises(kind) as refusal:
        await caller.engine.execute(ANONYMOUS, request)
    return refusal.value


async def interleaved(caller: Caller) -> None:
    for body, stream in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c"), ("a3", "a")):
        await caller.append(stream, events(body))


def events(*texts: str, ticks: list[int] | None = None, kind: str | None = None) -> list[model.NewEvent]:
    made = some_events(*texts, ticks=ticks)
    return made if kind is None else [one._replace(type=kind) for one in made]


# --- order by key ---------------------------------------------------------------------------------------------


async def test_the_original_commands_get_consecutive_events_of_one_key(caller: Caller) -> None:
    await interleaved(caller)
    await declare(caller)
    one = await caller.subscribe("one", 4)
    assert (bodies(one), one.ordered) == (["a1", "a2"], "stream")
    two = await caller.subscribe("two", 4)
    assert bodies(two) == ["b1"]
    assert bodies(await caller.subscribe("one", 4)) == ["a1", "a2"]
    # What comes next may be of the key that was just acknowledged.
    one = await caller.acknowledge(one, 4)
    assert bodies(one) == ["c1"]
    one = await caller.acknowledge(one, 4)
    assert bodies(one) == ["a3"]
    assert bodies(await caller.acknowledge(one, 4)) == []
    await caller.append("b", events("b2"))
    assert bodies(await caller.subscribe("one", 4)) == []
    assert bodies(await caller.acknowledge(two, 4)) == ["b2"]


async def test_an_acknowledgement_wakes_who_waits_for_its_key(caller: Caller, engine: Engine) -> None:
    await caller.append("a", events("a1"))
    await declare(caller)
    one = await take(caller, "one")
    await caller.append("a", events("a2"))
    poll = asyncio.create_task(take(caller, "two", wait_ms=LONG_MS))
    await waiting(engine, 1)
    await caller.ask(Done, settlement(one))
    assert bodies(await poll) == ["a2"]


async def test_a_poll_waits_for_an_event_until_it_is_due(caller: Caller, engine: Engine) -> None:
    await declare(caller, None)
    due = model.event("T", b"later", due=datetime_of(now_ticks()) + timedelta(milliseconds=300))
    await caller.append("a", [due])
    given = await take(caller, "one", wait_ms=LONG_MS)
    assert bodies(given) == ["later"]
    assert json.loads(given.events[0].headers or "")[model.DUE] >= datetime_of(now_ticks()).isoformat()[:10]


async def test_an_allocation_of_a_key_is_acknowledged_in_a_transaction(caller: Caller) -> None:
    await interleaved(caller)
    await declare(caller)
    given = await take(caller, "one")
    receipts = tuple(model.QueueReceipt("shop", "q", "one", one.first, one.last) for one in given.runs)
    commit = model.Append("shop", "done", tuple(events("x")), model.ANY)
    for _ in range(2):
        # With a mark a repeat is answered, and acknowledges nothing.
        transact = model.Transact((commit,), receipts, mark=model.ProducerMark("p", 1))
        await caller.ask(model.Transacted, transact)
    assert await caller.stream("done") == ["x"]
    assert isinstance(await refused(caller, AllocationLost, model.Transact((commit,), receipts)), AllocationLost)
    assert bodies(await take(caller, "two")) == ["x"]


async def test_a_queue_that_exists_keeps_its_order_and_selection(caller: Caller) -> None:
    await declare(caller, "prefix:-", selection=Selection(("T",)).text, retry='{"delay":5}', dead_after=3)
    await declare(caller, None)
    await declare(caller, "prefix:-", selection='{"types": ["T", "T"]}')
    mismatch = await refused(caller, QueueMismatch, model.SubscribeQueue("shop", "q", "me", "", 0, 1, -1, ordered=""))
    assert (
        str(mismatch)
        == "queue q exists with another order: it has prefix:-, not none; leave that out, or use another name"
    )
    other = model.SubscribeQueue("shop", "q", "me", "", 0, 1, -1, selection=Selection(("U",)).text)
    await refused(caller, QueueMismatch, other)
    (info,) = (await caller.ask(ListPage, model.ListQueues())).items
    assert (info.ordered, info.selection, info.retry, info.dead_after) == (
        *("prefix:-", '{"types":["T"]}', '{"delay":5}', 3),
    )


# --- outcomes and dead letters --------------------------------------------------------------------------------


async def test_single_events_die_are_listed_and_put_back_by_old_and_new_commands(caller: Caller) -> None:
    await interleaved(caller)
    await declare(caller)
    given = await take(caller, "one")
    buries = tuple(Buried(event.position, f"no {event.position}") for event in given.events[:3])
    await caller.ask(Done, settlement(given, buries=buries))
    assert isinstance(await refused(caller, AllocationLost, settlement(given)), AllocationLost)
    old = (await caller.ask(ListPage, model.ListDeadLetters("shop", "q"))).items
    assert [(one.first, one.last, one.count, one.deliveries) for one in old] == [
        (1, 1, 1, 1),
        (2, 2, 1, 1),
        (3, 3, 1, 1),
    ]
    new = (await caller.ask(ListPage, model.ListLetters("shop", "q", 1))).items
    assert [(one.position, one.stream, one.sequence, one.reason) for one in new] == [
        (2, "b", 1, "no 2"),
        (3, "a", 2, "no 3"),
    ]
    for _ in range(2):
        await caller.ask(Done, model.PutBack("shop", "q", 2))
    assert (await caller.ask(PutBackCount, model.PutBackLetters("shop", "q", (1, 2), True))).events == 1
    assert (await caller.ask(PutBackCount, model.PutBackLetters("shop", "q", (3, 99)))).events == 1
    assert sorted(bodies(await take(caller, "two"))) == ["a2", "b1"]
    (info,) = (await caller.ask(ListPage, model.ListQueues())).items
    assert info.dead == 0


async def test_a_lease_is_extended_and_lost(caller: Caller) -> None:
    await caller.append("a", events("a1"))
    await declare(caller)
    given = await take(caller, "one")
    runs = (Run(1, 1),)
    extended = await caller.ask(Extended, model.ExtendQueue("shop", "q", "one", runs, 2 * HOUR_MS))
    assert extended.expires > given.runs[0].expires
    await refused(caller, AllocationLost, model.ExtendQueue("shop", "q", "two", runs, 1000))
    await caller.ask(Done, settlement(given, Rest.RETRY, delay_ms=0))
    await refused(caller, AllocationLost, model.ExtendQueue("shop", "q", "one", (Run(1, 2),), 1000))


async def test_what_a_consumer_says_has_limits(caller: Caller) -> None:
    await caller.append("a", events("a1"))
    await declare(caller)
    given = await take(caller, "one")
    long, many = "x" * (REASON_BYTES_MAX + 1), tuple(Run(n, n) for n in range(1, RUNS_MAX + 2))
    for request, kind in (
        (settlement(given, Rest.RETRY, reason=long), LimitExceeded),
        (settlement(given, buries=(Buried(1, long),)), LimitExceeded),
        (settlement(given, retries=(Retried(1, 0, "ä" * REASON_BYTES_MAX),)), LimitExceeded),
        (settlement(given, retries=(Retried(1, 0, ""),) * (RUNS_MAX + 1)), LimitExceeded),
        (settlement(given, retries=(Retried(1, TTL_MS_MAX + 1, ""),)), InvalidRequest),
        (settlement(given, Rest.RETRY, delay_ms=-1), InvalidRequest),
        (model.SettleQueue("shop", "q", "one", ()), InvalidRequest),
        (model.SettleQueue("shop", "q", "one", many), InvalidRequest),
        (model.ExtendQueue("shop", "q", "one", many, 1000), InvalidRequest),
        (model.ExtendQueue("shop", "q", "one", (Run(1, 1),), 0), InvalidRequest),
        (model.PutBackLetters("shop", "q", tuple(range(LETTERS_PAGE + 1))), LimitExceeded),
        (model.SetRetryPolicy("shop", "q", '{"delay":-1}'), InvalidRequest),
        (model.SetRetryPolicy("shop", "q", "soon"), InvalidRequest),
        (model.SetQueueFilter("shop", "q", "", '{"types":[]}'), InvalidRequest),
        (model.SetQueueFilter("shop", "q", "", '{"type":["T"]}'), InvalidRequest),
        (model.SetQueueFilter("shop", "q", "", json.dumps({"types": ["T"] * (SELECTED_MAX + 1)})), InvalidRequest),
        (model.SubscribeQueue("shop", "r", "me", "", 0, 1, 1000, ordered="key"), InvalidRequest),
        (model.SubscribeQueue("shop", "r", "me", "", 0, 1, 1000, ordered="prefix:"), InvalidRequest),
        (
            model.SubscribeQueue("shop", "r", "me", "", 0, 1, 1000, ordered="prefix:" + "-" * ORDER_BYTES_MAX),
            LimitExceeded,
        ),
        (model.SubscribeQueue("shop", "r", "me", "", 0, 1, 1000, dead_after=0), InvalidRequest),
        (model.SubscribeQueue("shop", "r", "me", "", 0, 1, 1000, selection="{"), InvalidRequest),
    ):
        await refused(caller, kind, request)
    await refused(caller, QueueNotFound, model.ListLetters("shop", "r"))
    assert bodies(await take(caller, "one")) == ["a1"]


# --- the life of a queue --------------------------------------------------------------------------------------


async def test_a_queue_is_paused_resumed_renamed_and_deleted(caller: Caller, engine: Engine) -> None:
    await interleaved(caller)
    await declare(caller)
    await caller.ask(Done, model.PauseQueue("shop", "q"))
    assert bodies(await take(caller, "one")) == bodies(await caller.subscribe("one", 9)) == []
    poll = asyncio.create_task(take(caller, "one", wait_ms=LONG_MS))
    await waiting(engine, 1)
    await caller.ask(Done, model.PauseQueue("shop", "q", False))
    given = await poll
    assert len(given.events) == 5
    await declare(caller, None, "other")
    await refused(caller, QueueExists, model.RenameQueue("shop", "q", "other"))
    await caller.ask(Done, model.RenameQueue("shop", "q", "new"))
    await refused(caller, QueueNotFound, settlement(given))
    assert bodies(await take(caller, "one", queue="new")) == bodies(given)
    await caller.ask(Done, model.DeleteQueue("shop", "new"))
    await refused(caller, QueueNotFound, model.DeleteQueue("shop", "new"))
    poll = asyncio.create_task(take(caller, "two", wait_ms=LONG_MS, queue="other"))
    assert len((await poll).events) == 5


async def test_a_preview_counts_what_a_change_would_deliver(caller: Caller) -> None:
    await caller.append("a", events("a1", "a2", ticks=[10, 20]))
    await caller.append("b", events("b1", "b2", "b3", ticks=[30, 40, 50], kind="U"))
    await declare(caller)
    given = await take(caller, "one", 3)
    await caller.ask(Done, settlement(given, buries=(Buried(1, ""),), retries=(Retried(3, LONG_MS, ""),)))

    async def preview(**change: object) -> tuple[int, int, bool, int, int]:
        request = model.PreviewQueue("shop", "q", **change)  # type: ignore[arg-type]
        found = await caller.ask(QueuePreview, request)
        return found.position, found.behind, found.behind_is_exact, found.allocations, found.dead

    before = (await caller.ask(ListPage, model.ListQueues())).items
    assert await preview() == (4, 2, True, 1, 1)
    assert await preview(position=1) == (1, 5, True, 1, 1)
    assert await preview(ticks=20) == (2, 4, True, 1, 1)
    assert await preview(filter="a", position=1) == (1, 2, True, 1, 1)
    assert await preview(filter="a") == (4, 0, True, 1, 1)
    assert await preview(selection=Selection(("U",)).text, position=2) == (2, 3, True, 1, 1)
    assert await preview(selection=Selection(None, ("a", "x")).text, ticks=0) == (1, 2, True, 1, 1)
    await refused(caller, InvalidRequest, model.PreviewQueue("shop", "q", position=7))
    await refused(caller, InvalidRequest, model.PreviewQueue("shop", "q", selection="{"))
    await refused(caller, QueueNotFound, model.PreviewQueue("shop", "r"))
    after = (await caller.ask(ListPage, model.ListQueues())).items
    assert [(one.position, one.allocations, one.dead) for one in after] == [
        (one.position, one.allocations, one.dead) for one in before
    ]


async def test_an_ordered_queue_is_moved_to_a_time_or_a_position(caller: Caller) -> None:
    for number, stream in enumerate("abab"):
        await caller.append(stream, events(f"{stream}{number}", ticks=[10 * number + 10]))
    await declare(caller)
    given = await take(caller, "one")
    await caller.ask(Done, settlement(given, retries=(Retried(1, HOUR_MS, ""),), buries=(Buried(2, "no"),)))
    await caller.ask(Done, model.ResetQueue("shop", "q", 20))
    assert bodies(await take(caller, "one")) == ["b1", "a2", "b3"]
    await caller.ask(Done, model.ResetQueue("shop", "q", 0, 4))
    assert bodies(await take(caller, "one")) == ["b3"]
    await refused(caller, InvalidRequest, model.ResetQueue("shop", "q", 0, 6))
    assert (await caller.ask(ListPage, model.ListLetters("shop", "q"))).items == []


async def test_an_ordered_queue_delivers_a_range_again(caller: Caller) -> None:
    await interleaved(caller)
    await declare(caller)
    given = await take(caller, "one")
    await caller.ask(Done, settlement(given, buries=(Buried(1, "no"),), retries=(Retried(4, HOUR_MS, ""),)))
    mark = model.ProducerMark("again", 1)
    replayed = await caller.ask(model.Replayed, model.ReplayQueue("shop", "q", 1, 5, mark))
    assert (replayed.events, replayed.left_out) == (3, 2)
    assert (await caller.ask(model.Replayed, model.ReplayQueue("shop", "q", 1, 5, mark))).repeated
    first = await take(caller, "one")
    assert sorted(bodies(first)) == ["a2", "b1"]
    await caller.ask(Done, settlement(first))
    assert bodies(await take(caller, "one")) == ["a3"]


async def test_a_filter_changes_from_the_marker_on(caller: Caller) -> None:
    await interleaved(caller)
    await declare(caller)
    given = await take(caller, "one", 2)
    change = model.SetQueueFilter("shop", "q", "", Selection(None, ("c", "d")).text)
    await refused(caller, InvalidRequest, change)
    await caller.ask(Done, settlement(given))
    await caller.ask(Done, change)
    assert bodies(await take(caller, "one")) == ["c1"]


# --- subscriptions to several contexts, and to a selection ----------------------------------------------------


async def ask_as(engine: Engine, who: Principal, kind: type[R], request: Request) -> R:
    reply = await engine.execute(who, request)
    assert isinstance(reply, kind)
    return reply


async def registered(engine: Engine, who: Principal, name: str, *start: object) -> int:
    request = model.RegisterSubscriptions(name, (SubscriptionStart(*start),))  # type: ignore[arg-type]
    return (await ask_as(engine, who, Registered, request)).ids[0]


async def fetched(engine: Engine, who: Principal, number: int, count: int = 100) -> list[str]:
    return bodies(await ask_as(engine, who, FetchedBatch, model.FetchSubscription(number, count)))


async def test_a_subscription_without_context_has_events_of_all(caller: Caller, engine: Engine) -> None:
    await caller.append("a", events("1", ticks=[1]))
    await caller.append("a", events("2", ticks=[2]), context="bank")
    number = await registered(engine, ANONYMOUS, "me", None, "", 0)
    assert await registered(engine, ANONYMOUS, "me", None, "*", 99) == number
    assert await registered(engine, ANONYMOUS, "me", "shop", "", 0) != number
    assert await fetched(engine, ANONYMOUS, number) == ["1", "2"]
    await caller.progress(number, 2)
    poll = asyncio.create_task(caller.fetch(number, wait_ms=LONG_MS))
    await waiting(engine, 1)
    await caller.append("a", events("3", ticks=[3]), context="third")
    assert bodies(await poll) == ["3"]
    (info, other) = (await caller.ask(ListPage, model.ListSubscriptions())).items
    assert (info.context, info.subscriber, info.behind, other.context) == (None, "me", 1, "shop")
    await caller.ask(Done, model.SetSubscription("me", None, "", 2))
    assert await fetched(engine, ANONYMOUS, number) == ["2", "3"]


async def test_a_subscription_selects_types_and_several_prefixes(caller: Caller, engine: Engine) -> None:
    for context in ("shop", "bank"):
        await caller.append("a", events(f"{context} a", ticks=[1]), context=context)
        await caller.append("b", events(f"{context} b", ticks=[2], kind="U"), context=context)
        await caller.append("c", events(f"{context} c", ticks=[3], kind="U"), context=context)
    types, prefixes = Selection(("U",)).text, Selection(None, ("a", "c")).text
    one = await registered(engine, ANONYMOUS, "types", None, "", 0, types)
    two = await registered(engine, ANONYMOUS, "prefixes", "shop", "", 0, prefixes)
    both = Selection(("U",), ("a", "c")).text
    three = await registered(engine, ANONYMOUS, "both", None, "", 0, both)
    assert await fetched(engine, ANONYMOUS, one) == ["shop b", "shop c", "bank b", "bank c"]
    assert await fetched(engine, ANONYMOUS, two) == ["shop a", "shop c"]
    assert await fetched(engine, ANONYMOUS, three) == ["shop c", "bank c"]
    infos = (await caller.ask(ListPage, model.ListSubscriptions())).items
    assert [(one.behind, one.selection) for one in infos] == [(4, types), (2, prefixes), (2, both)]
    start = SubscriptionStart("shop", "", 0, types)
    await refused(caller, SubscriptionMismatch, model.RegisterSubscriptions("prefixes", (start,)))
    await refused(caller, InvalidRequest, model.RegisterSubscriptions("x", (SubscriptionStart("shop", "", 0, "{"),)))
    await refused(caller, SubscriptionNotFound, model.SetSubscription("prefixes", "shop", "", 0, types))
    await caller.ask(Done, model.SetSubscription("prefixes", "shop", "", 3, prefixes))
    assert await fetched(engine, ANONYMOUS, two) == ["shop c"]
    await caller.ask(Done, model.SetSubscription("prefixes", "shop", "", 0))
    assert await fetched(engine, ANONYMOUS, two) == ["shop a", "shop c"]


async def test_who_sees_a_part_has_its_own_subscription_to_all_contexts(caller: Caller, engine: Engine) -> None:
    for context, stream in (("shop", "a"), ("bank", "b"), ("secret", "c"), ("shop", "d")):
        await caller.append(stream, events(f"{context} {stream}"), context=context)
    ann, bob, all_ = (
        principal("ann", "read,consume:shop", "read,consume:bank"),
        principal("bob", "read,consume:shop/a*"),
        ANONYMOUS,
    )
    everyone = principal("root", "all")
    numbers = [await registered(engine, who, "me", None, "", 0) for who in (ann, bob, everyone)]
    assert len(set(numbers)) == 3
    assert await registered(engine, ann, "me", None, "", 0) == numbers[0]
    assert await fetched(engine, ann, numbers[0]) == ["shop a", "bank b", "shop d"]
    assert await fetched(engine, bob, numbers[1]) == ["shop a"]
    assert await fetched(engine, everyone, numbers[2]) == ["shop a", "bank b", "secret c", "shop d"]
    for who, number in ((ann, numbers[1]), (bob, numbers[0]), (bob, numbers[2])):
        with pytest.raises(SubscriptionNotFound):
            await fetched(engine, who, number)
    # Less than it had when it fetched the batch.
    assert await fetched(engine, principal("ann", "read,consume:shop"), numbers[0]) == ["shop a", "shop d"]
    listed = [(await ask_as(engine, who, ListPage, model.ListSubscriptions())).items for who in (ann, bob, all_)]
    assert [[(one.subscriber, one.behind) for one in items] for items in listed] == [
        [("me", 3)],
        [("me", 1)],
        [("~ann/me", 4), ("~bob/me", 4), ("me", 4)],
    ]
    await ask_as(engine, bob, Done, model.SetSubscription("me", None, "", model.TICKS_MAX))
    assert await fetched(engine, bob, numbers[1]) == []
    assert await fetched(engine, ann, numbers[0]) != []
    nobody = principal("eve", "read:shop")
    with pytest.raises(NotAllowed):
        await registered(engine, nobody, "me", None, "", 0)


async def test_who_sees_some_prefixes_consumes_these(caller: Caller, engine: Engine) -> None:
    for stream in ("a-1", "b-1", "c-1"):
        await caller.append(stream, events(stream))
    ann = principal("ann", "read,consume:shop/a-*", "read,consume:shop/b-*")
    own, more = Selection(None, ("a-", "b-")).text, Selection(None, ("a-", "c-")).text
    number = await registered(engine, ann, "me", "shop", "", 0, own)
    assert await fetched(engine, ann, number) == ["a-1", "b-1"]
    request = model.SubscribeQueue("shop", "q", "me", "", 0, 9, HOUR_MS, selection=own, several=True)
    assert bodies(await ask_as(engine, ann, Delivery, request)) == ["a-1", "b-1"]
    assert len((await ask_as(engine, ann, ListPage, model.ListQueues())).items) == 1
    for selection in ("", more):
        with pytest.raises(NotAllowed):
            await registered(engine, ann, "other", "shop", "", 0, selection)
        with pytest.raises(NotAllowed):
            await engine.execute(ann, model.SetQueueFilter("shop", "q", "", selection))
        with pytest.raises(NotAllowed):
            await engine.execute(ann, model.PreviewQueue("shop", "q", "", selection))
    bob = principal("bob", "read,consume:shop/a-*")
    with pytest.raises(SubscriptionNotFound):
        await fetched(engine, bob, number)
    with pytest.raises(QueueNotFound):
        await engine.execute(bob, model.PreviewQueue("shop", "q"))
    with pytest.raises(NotAllowed):
        await engine.execute(bob, model.SetSubscription("me", "shop", "", 0, own))
