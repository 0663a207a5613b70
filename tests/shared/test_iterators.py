"""Logs and iterators of two servers: made on one, used on the other, built by one of them at a time."""

import asyncio

import pytest

from penstock.engine import Engine
from penstock.errors import FunctionFailed, IteratorNotFound, LogNotFound
from penstock.model import ANONYMOUS, Append, EraseStream, NextItems, new_event
from tests.engine.logs import FILTER, REDUCE, Remits, until
from tests.engine.test_builds import Build

Clients = tuple[Remits, Remits]
WHOLE = list(range(1, 41))


async def test_logs_and_iterators_that_were_made_on_one_server_are_there_on_the_other_at_once(clients: Clients) -> None:
    one, two = clients
    await one.create("log", *WHOLE)
    await two.add("log", 41)
    for name, indexed in (("plain", False), ("kept", True)):
        await one.iterator(name, FILTER, "return msg % 2 == 0", indexed=indexed)
        assert await two.next(name) == list(range(2, 41, 2))
        assert await one.next(name) == list(range(2, 41, 2))
    assert await two.iterators() == ["kept", "plain"]


async def test_an_iterator_over_another_servers_iterator_is_built(clients: Clients) -> None:
    one, two = clients
    await one.create("log", *WHOLE)
    await one.iterator("even", FILTER, "return msg % 2 == 0", indexed=True)
    await two.iterator("sum", REDUCE, "return (acc or 0) + msg", log="even", indexed=True)
    assert await one.next("sum", -1) == await two.next("sum", -1) == [420]
    await one.iterator("plain", FILTER, "return msg > 400", log="sum")
    assert await two.next("plain") == [420]


async def test_what_was_acknowledged_by_one_server_is_seen_by_the_next_request_on_the_other(clients: Clients) -> None:
    one, two = clients
    await one.create()
    await one.iterator("kept", indexed=True)
    for number in range(20):
        await (one, two)[number % 2].add("log", number)
        assert await (two, one)[number % 2].next("kept", -1) == [number]


async def test_both_servers_build_together_what_one_alone_would(clients: Clients) -> None:
    one, two = clients
    await one.create()
    await one.iterator("kept", REDUCE, "return (acc or 0) + 1", indexed=True)

    async def add(client: Remits) -> None:
        for number in range(30):
            await client.add("log", number)

    await asyncio.gather(add(one), add(two))
    assert await one.everything("kept") == await two.everything("kept") == list(range(1, 61))


async def test_only_one_of_two_servers_builds(engines: tuple[Engine, Engine], clients: Clients) -> None:
    one, two = clients
    await one.create("log", *WHOLE)
    await one.iterator("plain")
    # A lease may end before a process that runs Lua is there; so both have theirs first.
    assert await one.next("plain", -1) == await two.next("plain", -1) == WHOLE[-1:]
    before = [engine.metrics.lua_messages for engine in engines]
    await one.iterator("kept", indexed=True)
    assert await one.next("kept") == WHOLE
    assert await two.next("kept") == WHOLE
    # Whichever got the lease first builds; the other has only looked.
    ran = [engine.metrics.lua_messages - earlier for engine, earlier in zip(engines, before, strict=True)]
    assert sorted(ran) == [0, len(WHOLE)]


async def test_a_server_takes_over_what_a_stopped_one_has_built(url: str, engines: tuple[Engine, Engine]) -> None:
    async with Engine(url, engines[0].settings) as third:
        builder = Remits(third)
        await builder.create("log", *WHOLE)
        await builder.iterator("kept", indexed=True)
        assert await builder.next("kept") == WHOLE
    # What a server held when it stopped is free at once.
    left = Remits(engines[0])
    await left.add("log", 41)
    assert await left.next("kept", -1) == [41]


async def test_a_deleted_log_is_gone_on_the_other_server(clients: Clients) -> None:
    one, two = clients
    await one.create("log", *WHOLE)
    await one.iterator("plain")
    await one.iterator("kept", indexed=True)
    assert await two.next("plain") == await two.next("kept") == WHOLE
    await one.drop()
    for name in ("plain", "kept"):
        with pytest.raises(IteratorNotFound):
            await two.next(name)
    with pytest.raises(LogNotFound):
        await two.add("log", 1)
    assert await two.logs() == []
    await two.create("log", "new")
    await two.iterator("kept", indexed=True)
    assert await one.next("kept") == ["new"]


async def test_an_iterator_that_begins_anew_does_so_on_both_servers(clients: Clients) -> None:
    one, two = clients
    events = [new_event("t", b"[1]"), new_event("t", b"[2]")]
    await one.ask(Append("shop", "s", tuple(events), 1))
    await one.iterator("kept", log="shop/s", function="return msg.body[1]", indexed=True)
    await one.iterator("plain", log="shop/s", function="return msg.body[1]")
    assert await two.next("kept") == await two.next("plain") == [1, 2]
    await two.engine.execute(ANONYMOUS, EraseStream("shop", "s"))
    await two.ask(Append("shop", "s", (new_event("t", b"[3]"),), 3))
    for client in (one, two):
        assert await client.next("kept") == await client.next("plain") == [None, None, 3]


async def test_a_function_that_fails_says_so_on_both_servers(clients: Clients) -> None:
    one, two = clients
    await one.create("log", 1, 2, "three")
    await one.iterator("kept", REDUCE, "return (acc or 0) + msg", indexed=True)
    for client in (one, two, one):
        with pytest.raises(FunctionFailed) as failed:
            await client.next("kept", -1)
        assert failed.value.message == 2
        assert await client.next("kept") == [1, 3]


async def test_a_name_that_nobody_made_is_not_found_on_either_server(clients: Clients) -> None:
    for client in clients:
        with pytest.raises(IteratorNotFound):
            await client.ask(NextItems("nothing", 0, 1))


async def test_iterators_of_another_server_are_known_before_they_are_asked_for(
    engines: tuple[Engine, Engine], clients: Clients
) -> None:
    one, _ = clients
    await one.create("log", *WHOLE)
    await one.iterator("kept", indexed=True)
    known = engines[1]._iterators._known
    await until(lambda: "kept" in known)
    await one.drop()
    await until(lambda: not known)


async def test_an_index_that_was_installed_through_one_server_is_that_of_both(
    engines: tuple[Engine, Engine], clients: Clients
) -> None:
    one, two = clients
    await one.create("log", *range(1000))
    await one.iterator("sum", REDUCE, "for i = 1, 5000 do end; return (acc or 0) + msg", indexed=True)
    # Whichever of them builds it finds that somebody else has.
    for engine, first in zip((*engines, *engines), range(1000, 1400, 100), strict=True):
        await Build(engine, "sum").run()
        await two.add("log", *range(first, first + 100))
    expected = [sum(range(end + 1)) for end in range(1400)]
    assert await one.everything("sum") == await two.everything("sum") == expected
    await two.iterator("last", FILTER, "return msg == 0", log="sum", indexed=True)
    assert await one.next("last") == [0]
