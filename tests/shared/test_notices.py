"""What a server does when it cannot hear the others: it goes on, says so once, and recovers by itself."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from penstock.engine import Engine
from penstock.engine.coordination import OWN_STORE, together
from penstock.errors import StorageFailure
from penstock.model import EventPage, ReadAll
from penstock.store.contract import EVERYTHING, Notice
from penstock.store.postgres import PostgresListener, PostgresStore
from tests.engine.caller import Caller, bodies, events
from tests.engine.logs import until
from tests.postgres import Postgres

WAIT_MS = 30_000
FAILURES = 3
END_LISTENERS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'penstock'"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "penstock.engine.coordination"]


async def waiting(caller: Caller) -> "asyncio.Task[EventPage]":
    """A long poll for what is to come."""
    before = caller.engine.metrics.waiting_polls
    poll = asyncio.create_task(caller.ask(EventPage, ReadAll(1, "shop", "s", wait_ms=WAIT_MS)))
    await until(lambda: caller.engine.metrics.waiting_polls == before + 1)
    return poll


@pytest.mark.parametrize("ended", [END_LISTENERS, END_ALL], ids=["listeners", "everyone"])
async def test_a_long_poll_is_woken_after_connections_were_lost(
    callers: tuple[Caller, Caller], postgres_server: Postgres, ended: str
) -> None:
    one, two = callers
    poll = await waiting(one)
    postgres_server.execute(ended)

    async def append() -> bool:
        try:
            await two.append("s", events("a"), expected=1)
        except StorageFailure:
            return False
        return True

    while not await append():  # noqa: ASYNC110 - of things that ring no bell
        await asyncio.sleep(0.01)
    assert bodies(await poll) == ["a"]


async def test_a_server_that_cannot_hear_others_serves_and_hears_them_later(
    an_engine: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener, failed = PostgresStore.listener, asyncio.Event()
    loop, failures = asyncio.get_running_loop(), 0

    def failing(store: PostgresStore) -> PostgresListener:
        nonlocal failures
        if failures < FAILURES:
            failures += 1
            raise StorageFailure("too many connections")
        loop.call_soon_threadsafe(failed.set)
        return listener(store)

    monkeypatch.setattr(PostgresStore, "listener", failing)
    with caplog.at_level(logging.WARNING):
        async with an_engine() as deaf:
            await Caller(deaf).append("other", events("a"))
            poll = await waiting(Caller(deaf))
            await failed.wait()
            async with an_engine() as other:
                await Caller(other).append("s", events("b"))
                assert bodies(await poll) == ["b"]
    assert failures == FAILURES
    first, second = warnings(caplog)
    assert first.startswith("notices of other servers do not arrive at present; trying again: ")
    assert second == "notices of other servers arrive again"


async def test_who_is_alone_does_everything_itself() -> None:
    assert not OWN_STORE.is_shared
    assert await OWN_STORE.may("seal")
    OWN_STORE.start(lambda notice: None)
    OWN_STORE.give_up("seal")
    await OWN_STORE.stop()


def test_several_notices_are_one_that_says_all_of_it() -> None:
    one = Notice(False, 7, (("shop", "a"),), False, (3,))
    two = Notice(False, 9, (("shop", "b"),), True, ())
    both = together([one, two])
    assert (both.head, both.has_changed_logs, both.queues) == (9, True, (3,))
    assert both.streams is not None
    assert set(both.streams) == {("shop", "a"), ("shop", "b")}
    everything = together([one, EVERYTHING])
    assert (everything.head, everything.streams, everything.queues) == (7, None, None)


async def test_only_one_server_holds_a_lease_until_it_gives_it_up(engines: tuple[Engine, Engine]) -> None:
    one, two = (engine._others for engine in engines)
    assert await one.may("task")
    assert await one.may("task")
    assert not await two.may("task")
    one.give_up("task")
    async with asyncio.timeout(30):
        while not await two.may("task"):  # noqa: ASYNC110 - it rings no bell
            await asyncio.sleep(0.05)
    assert not await one.may("task")
