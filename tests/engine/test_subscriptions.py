"""Durable subscriptions, rule by rule of docs/engine.md."""

import asyncio
import itertools

import pytest

from penstock.engine import Engine
from penstock.engine.jobs import TIES_BYTES_MAX, TIES_MAX, batch_length, split_length
from penstock.errors import InvalidRequest, SubscriptionNotFound
from penstock.model import (
    ANONYMOUS,
    ANY,
    Append,
    Done,
    FetchedBatch,
    FetchSubscription,
    ListPage,
    ListSubscriptions,
    NewEvent,
    ProgressSubscription,
    Registered,
    RegisterSubscriptions,
    Request,
    SetSubscription,
    SubscriptionReceipt,
    SubscriptionStart,
    Transact,
)
from penstock.settings import Settings
from tests.engine.caller import Caller, bodies, events
from tests.engine.test_reads import waiting


async def test_the_same_subscription_again_has_the_same_id_and_ignores_the_start(caller: Caller) -> None:
    await caller.append("s", events("a", "b", ticks=[10, 20]))
    number = await caller.register(start=20)
    assert await caller.register(start=0) == number
    assert await caller.fetched(number) == ["b"]


async def test_star_and_empty_are_the_same_filter(caller: Caller) -> None:
    assert await caller.register(filter="*") == await caller.register(filter="")
    assert await caller.register(filter="s*") != await caller.register(filter="")


async def test_it_starts_at_the_first_event_of_its_time_and_delivers_older_ones_that_follow(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 30, 5]))
    number = await caller.register(start=20)
    assert await caller.fetched(number) == ["b", "c"]


async def test_without_any_event_of_its_time_it_starts_at_the_present_end(caller: Caller) -> None:
    await caller.append("s", events("a", ticks=[10]))
    number = await caller.register(start=1000)
    await caller.append("s", events("b", ticks=[20]))
    assert await caller.fetched(number) == ["b"]


async def test_the_same_batch_comes_again_whatever_the_count_until_it_is_progressed(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 20, 30]))
    number = await caller.register()
    assert await caller.fetched(number, 2) == ["a", "b"]
    assert await caller.fetched(number, 1) == ["a", "b"]
    assert await caller.fetched(number, 9) == ["a", "b"]
    await caller.progress(number, 20)
    assert await caller.fetched(number, 9) == ["c"]


async def test_progress_with_another_time_does_nothing(caller: Caller) -> None:
    await caller.append("s", events("a", "b", ticks=[10, 20]))
    number = await caller.register()
    await caller.progress(number, 10)
    assert await caller.fetched(number, 1) == ["a"]
    await caller.progress(number, 20)
    assert await caller.fetched(number, 1) == ["a"]
    await caller.progress(number + 1000, 20)


async def test_a_repeated_progress_does_not_skip_the_next_batch(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", "d", ticks=[10, 20, 10, 30]))
    number = await caller.register()
    assert await caller.fetched(number, 1) == ["a"]
    await caller.progress(number, 10)
    await caller.progress(number, 10)
    assert await caller.fetched(number, 2) == ["b", "c", "d"]
    await caller.progress(number, 10)
    assert await caller.fetched(number, 2) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("ticks", "count", "previous", "expected"),
    [
        ([1, 2, 3], 2, None, 2),
        ([1, 2, 2, 2, 3], 2, None, 4),
        ([1, 1, 1], 1, None, 3),
        ([5, 7, 9], 2, 7, 3),
        ([5, 7, 7, 9, 9, 11], 2, 7, 5),
        ([5, 7], 2, 7, 1),
        ([5, 5, 7, 7], 3, 7, 2),
        ([7, 7], 1, 7, 2),
        ([7], 5, 7, 1),
        ([7, 8], 1, 7, 2),
    ],
)
def test_a_batch_is_cut_by_ties_and_by_the_time_before(
    ticks: list[int], count: int, previous: int | None, expected: int
) -> None:
    assert batch_length(ticks, count, previous, end=True) == expected


@pytest.mark.parametrize(
    ("ticks", "count", "previous", "expected"),
    [
        # Whether the last event is the last of its time is not known yet.
        ([1, 2, 3], 3, None, None),
        ([1, 2, 3], 9, None, None),
        ([1, 2, 3], 2, None, 2),
        ([1, 2, 2], 2, None, None),
        ([5, 7, 9], 2, 7, None),
        ([5, 7, 9, 10], 2, 7, 3),
    ],
)
def test_events_that_are_not_read_yet_may_decide_where_a_batch_ends(
    ticks: list[int], count: int, previous: int | None, expected: int | None
) -> None:
    assert batch_length(ticks, count, previous, end=False) == expected


@pytest.mark.parametrize(
    ("ticks", "previous", "expected"),
    [
        ([1, 2, 3, 3], None, 2),
        ([1, 2, 3, 3], 2, 1),
        ([2, 3, 3], 2, 3),
        ([3, 3, 3], 3, 3),
        ([3] * (TIES_MAX + 9), None, TIES_MAX + 4),
    ],
)
def test_a_time_that_does_not_fit_has_the_next_batch_for_itself_and_is_split_only_there(
    ticks: list[int], previous: int | None, expected: int
) -> None:
    assert split_length(ticks, 4, previous) == expected


def large(body: str, size: int, ticks: int) -> list[NewEvent]:
    return events(body.ljust(size), ticks=[ticks])


async def drained(caller: Caller, number: int, count: int = 100, repeats: int = 1) -> list[list[str]]:
    """All batches; each progress is repeated so often, before and after the next fetch."""
    batches: list[list[str]] = []
    while (batch := await caller.fetch(number, count)).events:
        batches.append([body.strip() for body in bodies(batch)])
        for _ in range(1 + repeats):
            await caller.progress(number, batch.events[-1].ticks)
        await caller.fetch(number, count)
        for _ in range(repeats):
            await caller.progress(number, batch.events[-1].ticks)
    return batches


async def test_large_events_of_one_time_come_in_one_batch(caller: Caller) -> None:
    for body in "abcdefghi":
        await caller.append("s", large(body, 3_000_000, 10))
    number = await caller.register()
    assert await drained(caller, number) == [list("abcdefghi")]


@pytest.mark.parametrize("settings", [Settings(page_bytes_max=4096)])
async def test_no_repeated_progress_skips_events_wherever_bytes_cut_a_batch(caller: Caller) -> None:
    ticks = [1, 1, 1, 1, 2, 1, 1, 1, 3, 3, 2, 3, 3, 3, 3, 3, 3, 4, 4, 1, 4]
    for number, at in enumerate(ticks):
        await caller.append("s", large(str(number), 1500, at))
    subscription = await caller.register()
    batches = await drained(caller, subscription, repeats=2)
    assert [int(body) for batch in batches for body in batch] == list(range(len(ticks)))
    lasts = [ticks[int(batch[-1])] for batch in batches]
    assert len(batches) > 3
    assert all(one != other for one, other in itertools.pairwise(lasts))


async def test_a_time_that_fits_into_a_batch_is_not_split_because_of_what_is_before_it(caller: Caller) -> None:
    size = TIES_BYTES_MAX // 5
    for number, at in enumerate([1, *[2] * 7, 3]):
        await caller.append("s", large(str(number), size, at))
    number = await caller.register()
    assert await drained(caller, number) == [["0"], list("1234567"), ["8"]]


async def test_beyond_the_limit_of_ties_a_time_is_split_and_each_progress_passes_one_part(caller: Caller) -> None:
    for body in "abcdefghi":
        await caller.append("s", large(body, 8_000_000, 10))
    number = await caller.register()
    batches = await drained(caller, number, repeats=0)
    assert "".join(body for batch in batches for body in batch) == "abcdefghi"
    assert TIES_BYTES_MAX // 8_000_000 < len(batches[0]) < 9


async def test_ties_beyond_the_count_are_delivered_together(caller: Caller) -> None:
    await caller.append("s", events(*"abcdef", ticks=[10, 20, 20, 20, 20, 30]))
    number = await caller.register()
    assert await caller.fetched(number, 2) == ["a", "b", "c", "d", "e"]


async def test_only_matching_events_of_the_context_come(caller: Caller) -> None:
    await caller.append("order-1", events("a"))
    await caller.append("invoice", events("b"))
    await caller.append("order-1", events("c"), -1, "bank")
    number = await caller.register(filter="order-")
    assert await caller.fetched(number) == ["a"]


async def test_setting_moves_it_and_forgets_the_pending_batch(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 20, 30]))
    number = await caller.register()
    assert await caller.fetched(number, 1) == ["a"]
    await caller.ask(Done, SetSubscription("me", "shop", "*", 30))
    await caller.progress(number, 10)
    assert await caller.fetched(number, 5) == ["c"]
    await caller.ask(Done, SetSubscription("me", "shop", "", 0))
    assert await caller.fetched(number, 5) == ["a", "b", "c"]


async def test_what_is_not_there_is_said_to_be_missing(caller: Caller) -> None:
    with pytest.raises(SubscriptionNotFound):
        await caller.fetch(77)
    with pytest.raises(SubscriptionNotFound, match="of nobody"):
        await caller.ask(Done, SetSubscription("nobody", "shop", "", 0))


async def test_bad_input_is_named(caller: Caller) -> None:
    number = await caller.register()
    with pytest.raises(InvalidRequest, match="count"):
        await caller.ask(FetchedBatch, FetchSubscription(number, 0))
    for subscriber, context, filter in (("", "shop", ""), ("me", "", ""), ("me", "shop", "x" * 513)):
        with pytest.raises(InvalidRequest):
            await caller.register(subscriber, filter, context=context)


async def test_several_are_registered_in_order_and_listed(caller: Caller) -> None:
    starts = tuple(SubscriptionStart("shop", filter, 0) for filter in ("a", "b", "a"))
    ids = (await caller.ask(Registered, RegisterSubscriptions("me", starts))).ids
    assert ids[0] == ids[2] != ids[1]
    page = await caller.ask(ListPage, ListSubscriptions())
    assert [(s.id, s.filter) for s in page.items] == sorted([(ids[0], "a"), (ids[1], "b")])


async def test_concurrent_fetches_get_the_same_batch(caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c"))
    number = await caller.register()
    batches = await asyncio.gather(*(caller.fetched(number, count) for count in (1, 2, 3, 1)))
    assert all(batch == batches[0] for batch in batches)


async def test_a_fetch_that_waits_is_woken(engine: Engine, caller: Caller) -> None:
    number = await caller.register(filter="order-")
    poll = asyncio.ensure_future(caller.fetch(number, wait_ms=30_000))
    await waiting(engine, 1)
    await caller.append("invoice", events("x"))
    await caller.append("order-1", events("a"))
    assert bodies(await poll) == ["a"]


async def test_progress_survives_a_restart_and_a_pending_batch_comes_again(caller: Caller, engine: Engine) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 20, 30]))
    number = await caller.register()
    await caller.fetched(number, 1)
    await caller.progress(number, 10)
    assert await caller.fetched(number, 1) == ["b"]
    await engine.stop()
    async with Engine(engine.url, Settings()) as again:
        later = Caller(again)
        await later.progress(number, 20)
        assert await later.fetched(number, 5) == ["b", "c"]


async def test_a_sparse_filter_never_scans_history_twice(caller: Caller) -> None:
    for _ in range(3):
        await caller.append("noise", events(*("n" for _ in range(5000))))
    number = await caller.register(filter="signal", start=0)
    await caller.ask(Done, SetSubscription("me", "shop", "signal", 0))
    assert await caller.fetched(number) == []
    page = await caller.ask(ListPage, ListSubscriptions())
    assert page.items[0].position == 15_001
    await caller.append("signal", events("s"))
    assert await caller.fetched(number) == ["s"]


TEN_RECEIPT = SubscriptionReceipt(1, 10)


@pytest.mark.parametrize(
    ("request_", "next_"),
    [
        (Transact((Append("shop", "out", tuple(events("effect")), ANY),), (), (TEN_RECEIPT,)), "b"),
        (Transact((), (), (TEN_RECEIPT,)), "b"),
        (ProgressSubscription(1, 10), "b"),
        (SetSubscription("me", "shop", "s", 30), "c"),
    ],
)
async def test_a_move_whose_caller_left_while_it_was_written_is_known(
    caller: Caller, request_: Request, next_: str
) -> None:
    await caller.append("s", events("a", "b", "c", ticks=[10, 20, 30]))
    assert await caller.register(filter="s") == 1
    assert await caller.fetched(1, 1) == ["a"]
    writer, loop = caller.engine._writer, asyncio.get_running_loop()
    submit, left = writer.submit, asyncio.Event()

    def leave() -> None:
        assert give_up()
        left.set()

    def submit_and_leave(*arguments: object) -> None:
        writer.submit = submit  # type: ignore[method-assign]
        submit(*arguments)  # type: ignore[arg-type]
        loop.call_soon(leave)

    writer.submit = submit_and_leave  # type: ignore[method-assign,assignment]
    replies: list[object] = []
    give_up = caller.engine.submit(ANONYMOUS, request_, replies.append)
    await left.wait()
    assert await caller.fetched(1, 1) == [next_]
    assert replies == []
