"""One history that two servers write: dense, in one order, and heard of by both."""

import asyncio
from collections.abc import Callable

import pytest

from penstock.engine import Engine
from penstock.errors import MarkSuperseded, VersionConflict
from penstock.model import EventPage, ProducerMark, ReadAll
from tests.engine.caller import Caller, bodies, events
from tests.engine.logs import until

Callers = tuple[Caller, Caller]
COMMITS = 60
WAIT_MS = 30_000


async def follow(caller: Caller, total: int) -> list[int]:
    """The positions of so many events, as a follower sees them that always waits for the next."""
    seen: list[int] = []
    position = 1
    while len(seen) < total:
        page = await caller.ask(EventPage, ReadAll(position, wait_ms=WAIT_MS))
        seen += [event.position for event in page.events]
        position = page.next
    return seen


async def write(caller: Caller, name: str) -> None:
    for number in range(COMMITS):
        await caller.append(f"{name}-{number % 3}", events(f"{name} {number}", f"{name} {number} too"))


async def test_followers_on_either_server_see_every_position_of_both_once_and_in_order(callers: Callers) -> None:
    one, two = callers
    total = 4 * COMMITS
    *_, first, second = await asyncio.gather(write(one, "a"), write(two, "b"), follow(one, total), follow(two, total))
    assert first == second == list(range(1, total + 1))
    assert await one.everything() == await two.everything()


async def test_both_servers_may_append_to_one_stream_and_one_of_them_is_told_of_a_conflict(callers: Callers) -> None:
    one, two = callers
    await one.append("s", events("1"), expected=1)
    again = events("2")
    appended = await two.append("s", again, expected=2)
    with pytest.raises(VersionConflict):
        await one.append("s", events("other"), expected=2)
    repeated = await one.append("s", again, expected=2)
    assert repeated.repeated
    assert repeated.commit == appended.commit
    assert await one.stream("s") == ["1", "2"]


async def test_a_long_poll_is_woken_by_a_commit_on_the_other_server(callers: Callers) -> None:
    one, two = callers
    waiting = asyncio.create_task(one.ask(EventPage, ReadAll(1, "shop", "orders/", wait_ms=WAIT_MS)))
    await until(lambda: one.engine.metrics.waiting_polls == 1)
    await two.append("customers/1", events("not this"))
    await two.append("orders/1", events("this"))
    assert bodies(await waiting) == ["this"]
    assert one.engine.metrics.waiting_polls == 0


async def test_a_long_poll_of_a_subscription_is_woken_by_the_other_server(callers: Callers) -> None:
    one, two = callers
    number = await one.register()
    waiting = asyncio.create_task(one.fetch(number, wait_ms=WAIT_MS))
    await until(lambda: one.engine.metrics.waiting_polls == 1)
    await two.append("s", events("a"))
    assert bodies(await waiting) == ["a"]


async def test_a_producers_mark_counts_on_both_servers(callers: Callers) -> None:
    one, two = callers
    sent = events("a")
    first = await one.append("s", sent, mark=ProducerMark("p", 7))
    again = await two.append("s", sent, mark=ProducerMark("p", 7))
    assert again.repeated
    assert again.commit == first.commit
    await two.append("s", events("b"), mark=ProducerMark("p", 8))
    with pytest.raises(MarkSuperseded):
        await one.append("s", sent, mark=ProducerMark("p", 7))
    assert await one.stream("s") == ["a", "b"]


async def test_two_servers_may_start_at_once_on_an_empty_database(an_engine: Callable[[], Engine]) -> None:
    one, two = an_engine(), an_engine()
    await asyncio.gather(one.start(), two.start())
    try:
        assert one.identity == two.identity
        await Caller(one).append("s", events("a"))
        assert await Caller(two).stream("s") == ["a"]
    finally:
        await asyncio.gather(one.stop(), two.stop())


async def test_a_server_that_starts_while_another_writes_misses_nothing(
    callers: Callers, an_engine: Callable[[], Engine]
) -> None:
    one, _ = callers
    writing = asyncio.create_task(write(one, "a"))
    async with an_engine() as late:
        seen = await follow(Caller(late), 2 * COMMITS)
    await writing
    assert seen == list(range(1, 2 * COMMITS + 1))


async def test_what_is_closed_is_sealed_by_one_of_the_servers_and_both_know_it(callers: Callers) -> None:
    one, two = callers
    blocks, commits = 2, 90
    for number in range(commits):
        await (one, two)[number % 2].append("s", events(*map(str, range(100))))
    servers = [caller.engine.metrics for caller in callers]
    await until(lambda: sum(metrics.seals for metrics in servers) > 0)
    await until(lambda: not any(metrics.seal_lag() for metrics in servers))
    assert sum(metrics.seals for metrics in servers) == blocks
    assert await one.stream("s", from_sequence=8190, to_sequence=8191) == ["89", "90"]
    assert await follow(two, 100 * commits) == list(range(1, 100 * commits + 1))
