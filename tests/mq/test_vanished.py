"""Half-open connections: a peer that is gone, or as good as gone, and has sent no FIN."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from typing import Final

import pytest

from penstock.mq import Ending, MqClient, MqLimits, MqServer, Reason
from tests.mq.support import HOST, PATIENCE_S, Raw, serving, until

IDLE: Final = Ending(Reason.TIME_OUT, False, "no byte came for too long")
TCP_REPAIR: Final = 19
CLIENT: Final = """
import asyncio, sys
from penstock.mq import MqClient, MqLimits

async def main():
    client = await MqClient.connect(sys.argv[1], int(sys.argv[2]), limits=MqLimits(ping_ms=50))
    await client.closed()

asyncio.run(main())
"""
SERVER: Final = """
import asyncio
from penstock.mq import MqServer

async def main():
    server = MqServer(lambda session, frames: session.send(frames))
    await server.start("127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
CLIENT_AT: Final = [sys.executable, "-c", CLIENT]
pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def pinging(server: MqServer) -> None:
    """Wait until a client has connected and pinged several times."""
    await until(lambda: [info for info in server.sessions() if info.bytes_received >= 3])


async def test_a_client_that_is_frozen_is_let_go_of_and_the_others_stay() -> None:
    limits = {"idle_ms_max": 1000, "linger_ms_max": 100}
    async with serving(**limits) as served, process(*CLIENT_AT, HOST, str(served.server.port)) as peer:
        await pinging(served.server)
        async with await served.client(MqLimits(ping_ms=50)) as bystander:
            peer.send_signal(signal.SIGSTOP)
            assert await served.ending() == IDLE
            bystander.send([b"still here"])
            assert await bystander.receive() == [b"still here"]
            assert len(served.server.sessions()) == 1


async def test_a_server_that_is_frozen_is_left() -> None:
    async with process(sys.executable, "-c", SERVER) as server:
        assert server.stdout is not None
        port = int(await asyncio.wait_for(server.stdout.readline(), PATIENCE_S))
        limits = MqLimits(idle_ms_max=1000, ping_ms=50, linger_ms_max=100)
        async with await MqClient.connect(HOST, port, limits=limits) as client:
            client.send([b"hello"])
            assert await client.receive() == [b"hello"]
            server.send_signal(signal.SIGSTOP)
            assert await client.closed() == IDLE
            assert await client.receive() is None


async def test_a_connection_whose_peer_forgot_it_ends() -> None:
    """Closed without a FIN, as when a machine loses its power and comes back."""
    async with serving(idle_ms_max=200) as served:
        raw = await served.raw()
        await raw.send(b"\x04")
        await raw.receive(1)
        forget(raw)
        assert await served.ending() == IDLE
        assert served.server.sessions() == []


async def test_a_connection_whose_peer_forgot_it_ends_at_once_when_something_is_sent() -> None:
    async with serving() as served:
        raw = await served.raw()
        session = await served.session()
        forget(raw)
        session.send([b"anybody there?"])
        ending = await served.ending()
        assert (ending.reason, ending.by_peer) == (Reason.SOCKET_ERROR, False)


def forget(raw: Raw) -> None:
    """Have the system forget a connection; what comes for it then is answered with a reset."""
    with raw.socket:
        try:
            raw.socket.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        except PermissionError:
            pytest.skip("only root may do that")


# --- a cable that can be cut ----------------------------------------------------------------------------------


@contextmanager
def cable() -> Iterator[tuple[str, list[str], Callable[[], None]]]:
    """A network of two: our address, what runs a command at the other end, and what cuts the cable."""
    # Names and addresses of our own: others may run the same test at the same time.
    name = f"penstock-{os.getpid()}"
    ours, theirs = f"ps{os.getpid()}a", f"ps{os.getpid()}b"
    network = ip_address("198.18.0.0") + 4 * (os.getpid() % (1 << 15))
    near, far = str(network + 1), str(network + 2)

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE_S)

    if shutil.which("ip") is None:
        pytest.skip("there is no ip command")
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("network namespaces are not allowed here")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        for where, device, address in (([], ours, near), (["-n", name], theirs, far)):
            ip(*where, "address", "add", f"{address}/30", "dev", device)
            ip(*where, "link", "set", device, "up")
        yield near, ["ip", "netns", "exec", name], lambda: ip("-n", name, "link", "set", theirs, "down")
    finally:
        # The system keeps the namespace while it still tries to send the FIN, and the cable with it.
        with suppress(subprocess.CalledProcessError):
            ip("link", "delete", ours)
        ip("netns", "delete", name)


async def test_a_client_that_is_killed_behind_a_cut_cable_is_let_go_of() -> None:
    endings: list[Ending] = []
    limits = MqLimits(idle_ms_max=1000, linger_ms_max=100)
    server = MqServer(lambda *_: None, on_close=lambda _, ending: endings.append(ending), limits=limits)
    with cable() as (address, there, cut):
        async with server:
            await server.start(address, 0)
            async with process(*there, *CLIENT_AT, address, str(server.port)) as peer:
                await pinging(server)
                cut()
                peer.kill()
                await peer.wait()
                await until(lambda: endings)
                assert endings == [IDLE]
                assert server.sessions() == []
