"""What the engine promises of subscriptions, on PostgreSQL: the same tests, but for two.

A server takes a subscriber's word for it that another server has handed out a batch.
"""

from penstock.engine import Engine
from penstock.settings import Settings
from tests.engine.caller import Caller, events
from tests.engine.test_subscriptions import *  # noqa: F403


async def test_progress_with_another_time_does_nothing(caller: Caller) -> None:  # type: ignore[no-redef]
    await caller.append("s", events("a", "b", ticks=[10, 20]))
    number = await caller.register()
    await caller.progress(number, 15)
    assert await caller.fetched(number, 1) == ["a"]
    await caller.progress(number, 20)
    assert await caller.fetched(number, 1) == ["a"]
    await caller.progress(number + 1000, 20)


async def test_progress_survives_a_restart_and_a_pending_batch_comes_again(  # type: ignore[no-redef]
    caller: Caller, engine: Engine
) -> None:
    """A server that was started again is like any other: it passes a batch that it has not handed out itself."""
    await caller.append("s", events("a", "b", "c", "d", ticks=[10, 20, 30, 40]))
    number = await caller.register()
    await caller.fetched(number, 1)
    await caller.progress(number, 10)
    assert await caller.fetched(number, 1) == ["b"]
    await engine.stop()
    async with Engine(engine.url, Settings()) as again:
        later = Caller(again)
        await later.progress(number, 20)
        assert await later.fetched(number, 1) == ["c"]
    async with Engine(engine.url, Settings()) as again:
        assert await Caller(again).fetched(number, 5) == ["c", "d"]
