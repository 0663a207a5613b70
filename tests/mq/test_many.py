"""A thousand connections, and one more."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.mq import Ending, MqClient, Reason
from tests.mq.support import disconnect, serving, until

REFUSED = Ending(Reason.CONNECTION_REFUSED, False, "there were too many connections")


@contextmanager
def files(wanted: int) -> Iterator[None]:
    """So many open files are allowed for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_thousand_connections_work_and_the_next_one_is_refused_until_one_leaves() -> None:
    with files(4096):
        # A thousand is what there is by default, a quarter of them for one address.
        async with serving(idle_ms_max=600_000, connections_per_address_max=1000) as served:
            clients = [await served.client() for _ in range(1000)]
            await until(lambda: len(served.server.sessions()) == 1000)
            for _ in range(2):
                async with await served.raw() as raw:
                    assert await raw.rest() == disconnect(Reason.CONNECTION_REFUSED)
            await all_work(clients)
            leaving = clients.pop(500)
            leaving.close()
            await leaving.closed()
            await until(lambda: len(served.server.sessions()) == 999)
            clients.append(await served.client())
            await until(lambda: len(served.server.sessions()) == 1000)
            async with await served.client() as refused:
                assert (await refused.closed())[:2] == (Reason.CONNECTION_REFUSED, True)
            await all_work(clients)
            assert served.endings.count(REFUSED) == 3
            assert len(served.connected) == 1001
            await served.server.stop()
            for client in clients:
                assert (await client.closed()).reason is Reason.SERVER_SHUTDOWN


async def all_work(clients: list[MqClient]) -> None:
    """Each is answered what it sent."""
    for number, client in enumerate(clients):
        client.send([b"%d" % number])
    for number, client in enumerate(clients):
        assert await client.receive() == [b"%d" % number]


@pytest.mark.parametrize("maximum", [1, 3])
async def test_one_connection_more_than_the_limit_is_refused(maximum: int) -> None:
    async with serving(connections_max=maximum) as served:
        for _ in range(maximum):
            await served.raw()
        async with await served.raw() as raw:
            assert await raw.rest() == disconnect(Reason.CONNECTION_REFUSED)
        assert await served.ending() == REFUSED
        assert len(served.connected) == len(served.server.sessions()) == maximum


async def test_what_a_refused_peer_sends_is_not_read() -> None:
    async with serving(connections_max=1) as served, await served.client(), await served.raw() as raw:
        await raw.send(b"\x03\x05\x00hello\xff")
        assert await raw.rest() == disconnect(Reason.CONNECTION_REFUSED)
        assert served.messages == []


async def test_when_very_many_are_refused_at_once_the_rest_is_closed_without_a_word() -> None:
    async with serving(connections_max=1, linger_ms_max=20_000) as served, await served.client() as client:
        polite = [await served.raw() for _ in range(100)]
        for raw in polite:
            assert await raw.rest() == disconnect(Reason.CONNECTION_REFUSED)
        # They have not hung up, so that the server still waits for them.
        async with await served.raw() as raw:
            await until(raw.has_ended)
        client.send([b"still here"])
        assert await client.receive() == [b"still here"]
        for raw in polite:
            raw.socket.close()
        await until(lambda: len(served.endings) == 101)
        async with await served.raw() as raw:
            assert await raw.rest() == disconnect(Reason.CONNECTION_REFUSED)
