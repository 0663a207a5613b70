"""The client on event loops: tasks that are cancelled, loops that are not its own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock import AsyncClient, aconnect
from penstock.errors import ClientClosed, InvalidRequest
from tests.client.support import one, some
from tests.gates.serving import Served


@pytest.fixture(params=["penstock", "zmq+tcp", "sqlite"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}"
    served: Served = request.getfixturevalue("served")
    return f"penstock://{served.mq}" if request.param == "penstock" else f"zmq+{served.res}"


async def settled(before: set[Any]) -> None:
    """Wait until there are no more tasks than before."""
    for _ in range(1000):
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(asyncio.all_tasks() - before)


async def test_no_task_is_left_of_a_client(any_url: str, context: str) -> None:
    before = asyncio.all_tasks()
    async with aconnect(any_url) as client:
        await client.append_many((context, "s", some(1, number)) for number in range(100))
        async for _ in client.read_all(context=context):
            break
        async for event in client.follow(context=context):
            if event.json() == 99:
                break
    await settled(before)


async def test_following_can_be_cancelled(any_url: str, context: str) -> None:
    async with aconnect(any_url) as client:
        before = asyncio.all_tasks()
        await client.append(context, "s", some(3))
        seen: list[int] = []
        enough = asyncio.Event()

        async def work() -> None:
            async for event in client.follow(context=context):
                seen.append(event.json())
                if len(seen) == 3:
                    enough.set()

        task = asyncio.create_task(work())
        await enough.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await settled(before)
        assert (await client.append(context, "s", some(1))).sequence == 4


async def test_append_many_can_be_cancelled(any_url: str, context: str) -> None:
    async with aconnect(any_url) as client:
        task = asyncio.create_task(client.append_many((context, "s", some(1, n)) for n in range(100_000)))
        async for _ in client.follow(context=context):
            break
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await client.append(context, "t", some(1))
        written = [event.json() async for event in client.read_stream(context, "s")]
        assert written == list(range(len(written)))


async def test_a_client_may_be_awaited(any_url: str) -> None:
    client = await aconnect(any_url)
    assert (await client.stats()).head >= 0
    await client.close()
    await client.close()
    with pytest.raises(ClientClosed):
        await client.stats()


def test_a_client_belongs_to_one_event_loop(any_url: str) -> None:
    async def opened() -> AsyncClient:
        return await aconnect(any_url)

    async def use(client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match="event loop"):
            await client.stats()

    with asyncio.Runner() as runner:
        client = runner.run(opened())
        asyncio.run(use(client))
        runner.run(client.close())


def test_a_client_may_be_made_before_its_loop_runs(any_url: str) -> None:
    client = aconnect(any_url)

    async def use() -> None:
        async with client:
            assert (await client.stats()).head >= 0

    asyncio.run(use())


async def test_many_tasks_share_a_client(any_url: str, context: str) -> None:
    async with aconnect(any_url) as client:
        await asyncio.gather(*(client.append(context, f"s-{number % 7}", one()) for number in range(300)))
        assert sum([info.events async for info in client.streams(context)]) == 300
