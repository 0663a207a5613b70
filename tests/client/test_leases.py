"""Leases: held while the work goes on, lost without silence, and given back whatever ends the work."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import penstock
from penstock import AsyncClient, Client
from penstock.client import QueueBatch, sync
from penstock.errors import AllocationLost, ClientClosed, InvalidRequest
from penstock.testing import Server
from tests.client.conftest import NETWORKS, WAYS, Connect
from tests.client.support import fill, numbers
from tests.client.test_closing import nothing_left
from tests.gates.serving import Served, until
from tests.test_server import PATIENCE_S

SHORT_S = 0.3
"""A lease that ends within a test unless something extends it."""


def outlived(batch: QueueBatch) -> None:
    """Return when a batch has been held for longer than its first lease."""
    expires = batch._expires
    until(lambda: batch._expires > expires + SHORT_S)


def lease_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-client-leases"]


# ---------------------------------------------------------------- extending


@pytest.mark.over(*WAYS)
def test_a_lease_lasts_as_long_as_the_body(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    with client.queue(context, "work", ttl=SHORT_S).next() as batch:
        outlived(batch)
        assert other.queue(context, "work").take() == []
    assert other.queue(context, "work").take() == []
    assert not batch.is_lost


def test_one_thread_extends_all_leases_of_a_client_and_ends_with_them(
    connect: Connect, served: Served, context: str
) -> None:
    client = connect(f"penstock://{served.mq}")
    fill(client, context, "s", 4)
    with contextlib.ExitStack() as stack:
        # The first lease is long: the thread must not sleep through the others.
        ttls = (600, SHORT_S, SHORT_S, SHORT_S)
        batches = [stack.enter_context(client.queue(context, "work", count=1, ttl=ttl).next()) for ttl in ttls]
        for batch in batches[1:]:
            outlived(batch)
        assert len(lease_threads()) == 1
    until(lambda: not lease_threads())
    with client.queue(context, "work").next() as batch:
        assert batch == []
        assert not lease_threads()


def test_a_lease_that_nobody_extends_is_lost_and_the_end_of_the_body_says_so(
    client: Client, other: Client, context: str
) -> None:
    fill(client, context, "s", 3)

    def work() -> None:
        with client.queue(context, "work", ttl=0.05).next(extend=False) as batch:
            theirs.append(other.queue(context, "work").take(wait=20))
            assert theirs == [batch]

    theirs: list[QueueBatch] = []
    with pytest.raises(AllocationLost):
        work()
    other.queue(context, "work").acknowledge(theirs[0])


@pytest.mark.over(*WAYS)
def test_a_body_can_learn_that_its_lease_is_lost(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)

    def work() -> None:
        with client.queue(context, "work", ttl=SHORT_S).next() as batch:
            other.queue(context, "work").reset()
            until(lambda: batch.is_lost)

    with pytest.raises(AllocationLost):
        work()
    assert numbers(other.queue(context, "work").take()) == [1, 2, 3]


@pytest.mark.over(*NETWORKS, both=True)
def test_a_lease_is_extended_by_hand(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", ttl=0.2, count=1)
    batch = queue.take()
    queue.extend(batch, 600)
    # The next one has expired before that one, and nobody else holds anything.
    lost = client.queue(context, "work", ttl=0.001, count=2).take()
    assert other.queue(context, "work").take(wait=20) == lost
    assert other.queue(context, "work").take() == []
    queue.acknowledge(batch)
    queue.extend(batch)
    with pytest.raises(AllocationLost):
        client.queue(context, "work").extend(lost)
    with pytest.raises(InvalidRequest):
        queue.extend(queue_of_one(client, context), 8 * 24 * 3600)


def queue_of_one(client: Client, context: str) -> QueueBatch:
    fill(client, context, "t", 1)
    return client.queue(context, "work", ttl=600).take(wait=5)


def test_a_lease_outlives_a_server_that_is_restarted(penstock_server: Server) -> None:
    client = penstock.connect(penstock_server.url)
    with client, penstock.connect(penstock_server.url) as other:
        fill(client, "shop", "s", 3)
        with client.queue("shop", "work", ttl=1).next() as batch:
            penstock_server.kill()
            penstock_server.restart()
            before = batch._expires
            until(lambda: batch._expires > before)
            assert other.queue("shop", "work").take() == []
        assert other.queue("shop", "work").take() == []


def test_a_server_that_hangs_does_not_delay_leases_of_another_one(
    tmp_path: Path, client: Client, other: Client, context: str
) -> None:
    fill(client, context, "s", 3)
    with Served(tmp_path / "data") as hanging, penstock.connect(f"penstock://{hanging.mq}") as stuck:
        fill(stuck, context, "s", 3)
        with stuck.queue(context, "work", ttl=SHORT_S).next() as theirs:
            hanging.process.send_signal(signal.SIGSTOP)
            try:
                with client.queue(context, "work", ttl=SHORT_S).next() as batch:
                    outlived(batch)
                    outlived(batch)
                    assert other.queue(context, "work").take() == []
            finally:
                hanging.process.send_signal(signal.SIGCONT)
            # Its lease may have expired meanwhile, but no other consumer has taken it.
            outlived(theirs)
        assert stuck.queue(context, "work").take() == []


# ---------------------------------------------------------------- what ends the work


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_body_gives_its_batch_back(client: Client, context: str, interrupt: type[BaseException]) -> None:
    fill(client, context, "s", 3)
    queue = client.queue(context, "work", dead_after=1)
    with pytest.raises(interrupt), queue.next():
        raise interrupt
    batch = queue.take()
    assert [batch.attempt(one) for one in batch] == [1, 1, 1]


@pytest.mark.over(*NETWORKS)
def test_ctrl_c_while_it_waits_leaves_nothing_held(client: Client, context: str) -> None:
    client.queue(context, "work", dead_after=1).declare()
    queue, main = client.queue(context, "work"), threading.main_thread().ident or 0

    def is_waiting() -> bool:
        frames = traceback.walk_stack(sys._current_frames()[main])
        return any(frame.f_code.co_filename == sync.__file__ for frame, _ in frames)

    def interrupt() -> None:
        until(is_waiting)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), queue.next(wait=20):
        pass
    thread.join()
    (info,) = (info for info in client.queues() if info.context == context)
    assert info.allocated == 0


@pytest.mark.over(*WAYS)
def test_a_client_that_is_closed_in_the_body_leaves_nothing(connect: Connect, url: str, context: str) -> None:
    def work() -> None:
        client = connect(url)
        fill(client, context, "s", 3)
        with client.queue(context, "work", ttl=SHORT_S).next() as batch:
            outlived(batch)
            client.close()

    with contextlib.suppress(ClientClosed):
        work()
    with nothing_left(), pytest.raises(ClientClosed):
        work()


def test_a_forked_child_ends_the_body_without_touching_the_lease(client: Client, other: Client, context: str) -> None:
    fill(client, context, "s", 3)
    with client.queue(context, "work", ttl=SHORT_S).next() as batch:
        outlived(batch)
        child = os.fork()
        if not child:
            break_out(client, context)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        outlived(batch)
        assert other.queue(context, "work").take() == []
    assert other.queue(context, "work").take() == []


def break_out(client: Client, context: str) -> None:
    """In a child: a body of its own is refused, and close does nothing."""
    code = 1
    try:
        with pytest.raises(ClientClosed), client.queue(context, "work").next():
            raise AssertionError
        client.close()
        code = 7
    finally:
        os._exit(code)


# ---------------------------------------------------------------- on an event loop


def on_loop(url: str, work: Callable[[AsyncClient], Awaitable[object]]) -> None:
    """Run something with a client; nothing of it may be left on the loop."""

    async def main() -> None:
        async with penstock.aconnect(url) as client:
            await work(client)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


async def outlived_on_loop(batch: QueueBatch) -> None:
    expires = batch._expires
    async with asyncio.timeout(PATIENCE_S):
        while batch._expires <= expires + SHORT_S:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_a_lease_lasts_as_long_as_the_body_on_a_loop(url: str, other: Client, context: str) -> None:
    fill(other, context, "s", 3)

    async def work(client: AsyncClient) -> None:
        async with client.queue(context, "work", ttl=SHORT_S).next() as batch:
            await outlived_on_loop(batch)
            assert await client.queue(context, "work").take() == []
        assert await client.queue(context, "work").take() == []

    on_loop(url, work)


def test_a_cancelled_body_gives_its_batch_back(url: str, other: Client, context: str) -> None:
    fill(other, context, "s", 3)

    async def work(client: AsyncClient) -> None:
        queue = client.queue(context, "work", dead_after=1)
        begun = asyncio.Event()

        async def hold() -> None:
            async with queue.next():
                begun.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        await begun.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        batch = await queue.take()
        assert [batch.attempt(one) for one in batch] == [1, 1, 1]

    on_loop(url, work)


def test_a_cancelled_wait_leaves_nothing_held(url: str, other: Client, context: str) -> None:
    async def work(client: AsyncClient) -> None:
        queue = client.queue(context, "work")

        async def hold() -> None:
            async with queue.next(wait=20):
                raise AssertionError

        task = asyncio.create_task(hold())
        while not await client.queues():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        (info,) = [info for info in await client.queues() if info.context == context]
        assert info.allocated == 0

    on_loop(url, work)


def test_a_client_that_is_closed_in_the_body_leaves_no_task(url: str, other: Client, context: str) -> None:
    fill(other, context, "s", 3)

    async def work(client: AsyncClient) -> None:
        async with client.queue(context, "work", ttl=SHORT_S).next() as batch:
            await outlived_on_loop(batch)
            await client.close()

    with pytest.raises(ClientClosed):
        on_loop(url, work)
    assert not lease_threads()
