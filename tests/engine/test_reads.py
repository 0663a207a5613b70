"""Reads through worker processes, and reads that wait."""

import asyncio

import pytest

from penstock.engine import Engine
from penstock.errors import EventNotFound, InvalidRequest, ReaderBusy
from penstock.gates.api.media import as_lines
from penstock.model import (
    ANONYMOUS,
    EventPage,
    GetStats,
    ListContexts,
    ListPage,
    ListStreams,
    ReadAll,
    ReadEvent,
    ReadRecords,
    ReadStream,
    RecordPage,
    StoreStats,
    new_event,
)
from penstock.settings import Settings
from penstock.store.record import HEADER, Record
from tests.engine.caller import Caller, bodies, events


@pytest.fixture
def settings() -> Settings:
    return Settings(waiters_max=3, page_events_max=100)


async def test_a_missing_event_is_said_to_be_missing(caller: Caller) -> None:
    await caller.append("s", events("a"))
    for stream, sequence in (("s", 2), ("nowhere", 1)):
        with pytest.raises(EventNotFound):
            await caller.ask(EventPage, ReadEvent("shop", stream, sequence))


async def test_a_stream_is_read_page_by_page_both_ways(caller: Caller) -> None:
    for n in range(25):
        await caller.append("s", events(*(f"{n}.{k}" for k in range(10))))
    forward, following, end = [], 1, False
    while not end:
        page = await caller.ask(EventPage, ReadStream("shop", "s", following))
        assert len(page.events) <= 100
        forward += bodies(page)
        following, end = page.next, page.end
    backward, following, end = [], 0, False
    while not end:
        page = await caller.ask(EventPage, ReadStream("shop", "s", following, backward=True))
        backward += bodies(page)
        following, end = page.next, page.end
    assert forward == [f"{n}.{k}" for n in range(25) for k in range(10)]
    assert backward == forward[::-1]


async def test_events_that_are_delivered_are_counted(engine: Engine, caller: Caller) -> None:
    await caller.append("s", events("a", "b", "c"))
    await caller.ask(EventPage, ReadStream("shop", "s", 1, limit=2))
    await engine.execute(ANONYMOUS, ReadAll(1), as_lines)
    await caller.ask(ListPage, ListContexts())
    assert engine.metrics.delivered == 5


async def test_a_rare_type_is_found_in_few_pages_however_few_events_are_wanted(caller: Caller) -> None:
    for n in range(300):
        await caller.append("s", [new_event("Rare" if n in (250, 299) else "Common", b"%d" % n)])
    page = await caller.ask(EventPage, ReadAll(types=("Rare",), limit=1))
    assert (bodies(page), page.next, page.end) == (["250"], 300, False)
    page = await caller.ask(EventPage, ReadAll(page.next, types=("Rare",), limit=1))
    assert (bodies(page), page.end) == (["299"], True)
    page = await caller.ask(EventPage, ReadStream("shop", "s", limit=1, types=("Rare",)))
    assert (bodies(page), page.next, page.end) == (["250"], 252, False)
    page = await caller.ask(EventPage, ReadStream("shop", "s", page.next, types=("Rare", "Never")))
    assert (bodies(page), page.next, page.end) == (["299"], 301, True)


async def test_everything_is_filtered_by_context_prefix_and_type(caller: Caller) -> None:
    for context in ("shop", "bank"):
        for stream in ("order-1", "order-2", "invoice"):
            await caller.append(stream, [new_event("A", f"{context}/{stream}".encode()), new_event("B")], -1, context)
    found = await caller.everything(context="bank", filter="order-", types=["A"])
    assert found == ["bank/order-1", "bank/order-2"]
    assert len(await caller.everything(types=["B"])) == 6
    assert len(await caller.everything(filter="*")) == 12


async def test_records_are_handed_over_as_they_are_stored(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.append("t", events("c"))
    page = await caller.ask(RecordPage, ReadRecords())
    decoded = [Record(data, HEADER.unpack_from(data)[5]) for data in page.records]
    assert [event.body for record in decoded for event in record.events()] == [b"a", b"b", b"c"]
    assert (page.next, page.end) == (4, True)


async def test_contexts_and_streams_are_listed_in_pages(caller: Caller) -> None:
    for stream in ("a", "b", "c"):
        await caller.append(stream, events("1", "2"), -1, "shop")
    await caller.append("z", events("1"), -1, "bank")
    contexts = await caller.ask(ListPage, ListContexts())
    assert [(c.name, c.events, c.commits, c.streams) for c in contexts.items] == [
        ("bank", 1, 1, 1),
        ("shop", 6, 3, 3),
    ]
    first = await caller.ask(ListPage, ListStreams("shop", limit=2))
    rest = await caller.ask(ListPage, ListStreams("shop", after="b", limit=2))
    assert ([s.name for s in first.items], first.end) == (["a", "b"], False)
    assert ([(s.name, s.events) for s in rest.items], rest.end) == ([("c", 2)], True)


async def test_a_limit_below_one_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidRequest, match="limit"):
        await caller.ask(EventPage, ReadAll(limit=0))


async def test_stats_count_everything(caller: Caller) -> None:
    await caller.append("s", events("a", "b"))
    await caller.register()
    await caller.subscribe("me")
    stats = await caller.ask(StoreStats, GetStats())
    assert (stats.head, stats.commits, stats.contexts, stats.streams) == (2, 1, 1, 1)
    assert (stats.subscriptions, stats.queues) == (1, 1)


# --- waiting --------------------------------------------------------------------------------------------------


async def waiting(engine: Engine, count: int) -> None:
    """Until so many long polls wait."""
    async with asyncio.timeout(30):
        while engine.metrics.waiting_polls < count:  # noqa: ASYNC110 - a plain count, not an event
            await asyncio.sleep(0.001)


async def test_a_read_that_waits_is_woken_by_a_commit(engine: Engine, caller: Caller) -> None:
    poll = asyncio.ensure_future(caller.ask(EventPage, ReadAll(1, wait_ms=30_000)))
    await waiting(engine, 1)
    await caller.append("s", events("a"))
    assert bodies(await poll) == ["a"]
    assert engine.metrics.waiting_polls == 0


async def test_a_commit_of_another_filter_leaves_it_waiting(engine: Engine, caller: Caller) -> None:
    request = ReadAll(1, "shop", "order-", ["Paid"], wait_ms=30_000)
    poll = asyncio.ensure_future(caller.ask(EventPage, request))
    await waiting(engine, 1)
    await caller.append("order-1", events("a"), -1, "bank")
    await caller.append("invoice", events("b"))
    await caller.append("order-1", events("c"))
    assert not poll.done()
    await caller.append("order-1", [new_event("Paid", b"d")])
    assert bodies(await poll) == ["d"]


async def test_a_read_waits_no_longer_than_it_said(caller: Caller) -> None:
    page = await caller.ask(EventPage, ReadAll(1, wait_ms=30))
    assert (page.events, page.end) == ([], True)


async def test_a_read_finds_what_is_there_without_waiting(caller: Caller) -> None:
    await caller.append("s", events("a"))
    assert bodies(await caller.ask(EventPage, ReadAll(1, wait_ms=3_600_000))) == ["a"]


async def test_more_waiting_reads_than_allowed_are_told_so(engine: Engine, caller: Caller) -> None:
    polls = [asyncio.ensure_future(caller.ask(EventPage, ReadAll(1, wait_ms=30_000))) for _ in range(3)]
    await waiting(engine, 3)
    with pytest.raises(ReaderBusy):
        await caller.ask(EventPage, ReadAll(1, wait_ms=30_000))
    await caller.append("s", events("a"))
    assert [bodies(page) for page in await asyncio.gather(*polls)] == [["a"]] * 3


async def test_many_commits_race_with_many_waiting_readers_and_none_is_missed(caller: Caller) -> None:
    async def follow() -> list[str]:
        seen: list[str] = []
        position = 1
        while len(seen) < 200:
            page = await caller.ask(EventPage, ReadAll(position, wait_ms=30_000))
            seen += bodies(page)
            position = page.next
        return seen

    followers = [asyncio.ensure_future(follow()) for _ in range(3)]
    for n in range(200):
        await caller.append("s", events(str(n)))
    assert await asyncio.gather(*followers) == [[str(n) for n in range(200)]] * 3


async def test_stopping_answers_those_who_wait(engine: Engine, caller: Caller) -> None:
    poll = asyncio.ensure_future(caller.ask(EventPage, ReadAll(1, wait_ms=30_000)))
    await waiting(engine, 1)
    await engine.stop()
    assert (await poll).events == []
