"""The same over TLS, with a certificate that is for tests only."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Final

import pytest

from penstock.mq import Ending, MqClient, MqLimits, Reason
from penstock.tcp import CloseReason, ReadHold
from tests.mq.support import HOST, disconnect, memory_bytes, serving, until

CERTIFICATE: Final = Path(__file__).parent / "test_only_key_and_certificate.pem"
MIB: Final = 1 << 20
PAGE: Final = [bytes(16_000)] * 64


def of_server() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    return context


def of_client() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


async def test_messages_go_there_and_back_in_order() -> None:
    async with serving(tls=of_server()) as served, await served.client(tls=of_client()) as client:
        for number in range(2000):
            client.send([b"%d" % number, b"", bytes(100)])
        for number in range(2000):
            assert await client.receive() == [b"%d" % number, b"", bytes(100)]
        info = served.info()
        assert (info.messages_received, info.messages_sent) == (2000, 2000)
        assert info.bytes_received == info.bytes_sent == client.info().bytes_received


async def test_large_messages_go_there_and_back() -> None:
    message = [bytes(16_381)] * 300
    async with serving(tls=of_server()) as served, await served.client(tls=of_client()) as client:
        client.send(message)
        assert await client.receive() == message


@pytest.mark.parametrize("by_client", [True, False], ids=["client", "server"])
async def test_the_reason_is_reported_at_both_ends(by_client: bool) -> None:
    async with serving(tls=of_server()) as served, await served.client(tls=of_client()) as client:
        session = await served.session()
        for _ in range(100):
            client.send([b"before"])
        for _ in range(100):
            await client.receive()
        (client if by_client else session).close(Reason.AUTHORIZATION_FAILURE)
        assert (await client.closed())[:2] == (Reason.AUTHORIZATION_FAILURE, not by_client)
        assert (await served.ending())[:2] == (Reason.AUTHORIZATION_FAILURE, by_client)


async def test_a_server_that_stops_tells_everybody() -> None:
    async with serving(tls=of_server()) as served:
        clients = [await served.client(tls=of_client()) for _ in range(5)]
        await until(lambda: len(served.connected) == 5)
        await served.server.stop()
        for client in clients:
            assert (await client.closed())[:2] == (Reason.SERVER_SHUTDOWN, True)


async def test_one_connection_more_than_the_limit_is_refused() -> None:
    async with serving(tls=of_server(), connections_max=1) as served, await served.client(tls=of_client()) as client:
        await served.session()
        async with await served.client(tls=of_client()) as refused:
            assert (await refused.closed())[:2] == (Reason.CONNECTION_REFUSED, True)
        client.send([b"still here"])
        assert await client.receive() == [b"still here"]


async def test_a_silent_client_is_let_go_of_and_told_why() -> None:
    async with serving(tls=of_server(), idle_ms_max=300) as served, await served.client(tls=of_client()) as client:
        assert (await client.closed())[:2] == (Reason.TIME_OUT, True)
        assert (await served.ending())[:2] == (Reason.TIME_OUT, False)


async def test_a_client_that_does_not_read_is_cut_off_and_memory_stays_bounded() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_max": 8 * MIB, "linger_ms_max": 50}
    async with serving(tls=of_server(), **limits) as served, await served.client(tls=of_client()) as client:
        session = await served.session()
        client.hold(ReadHold.BUSY)
        before = highest = memory_bytes()
        while session.send(PAGE):
            highest = max(highest, memory_bytes())
            await asyncio.sleep(0)
        assert highest < before + 64 * MIB
        assert (await served.ending())[:2] == (Reason.APPLICATION_ERROR, False)
        client.release(ReadHold.BUSY)
        await client.closed()


async def test_a_client_that_does_not_read_is_noticed_though_more_is_sent_all_the_while() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_max": 2 * MIB, "unread_ms_max": 50, "linger_ms_max": 50}
    async with serving(tls=of_server(), **limits) as served, await served.client(tls=of_client()) as client:
        session = await served.session()
        client.hold(ReadHold.BUSY)
        while session.send([bytes(1000)] * 16):  # noqa: ASYNC110 - the sending is the point
            await asyncio.sleep(0.001)
        assert (await served.ending()).reason is Reason.APPLICATION_ERROR
        client.release(ReadHold.BUSY)
        await client.closed()


async def test_draining_waits_until_the_peer_has_read() -> None:
    small = MqLimits(inbox_messages_max=1)
    async with serving(tls=of_server()) as served, await served.client(small, tls=of_client()) as client:
        session = await served.session()
        while not session.holds & ReadHold.UNSENT:
            session.send(PAGE)
            await asyncio.sleep(0)
        sent, draining = session.messages_sent, asyncio.create_task(session.drain())
        for _ in range(sent):
            assert await client.receive() == PAGE
        await draining


async def test_a_peer_that_is_reset_ends_and_nobody_else_notices() -> None:
    async with serving(tls=of_server()) as served, await served.client(tls=of_client()) as bystander:
        client = await served.client(tls=of_client())
        await until(lambda: len(served.connected) == 2)
        client.cut("enough")
        assert (await served.ending()).reason is Reason.SOCKET_ERROR
        await client.gone()
        bystander.send([b"still here"])
        assert await bystander.receive() == [b"still here"]


async def test_a_certificate_that_is_not_trusted_is_refused_by_the_client() -> None:
    async with serving(tls=of_server()) as served:
        with pytest.raises(ssl.SSLCertVerificationError):
            await served.client(tls=ssl.create_default_context())
        assert served.connected == []


async def test_a_plain_client_of_a_tls_server_is_turned_away() -> None:
    async with serving(tls=of_server()) as served, await served.raw() as raw:
        await raw.send(b"\x03\x05\x00hello" * 100)
        await until(raw.has_ended)
        assert served.connected == []
        async with await served.client(tls=of_client()) as client:
            client.send([b"still here"])
            assert await client.receive() == [b"still here"]


async def test_a_tls_client_of_a_plain_server_is_a_protocol_error() -> None:
    async with serving() as served:
        with pytest.raises(OSError, match=r"."):
            await served.client(tls=of_client())
        assert await served.ending() == Ending(Reason.PROTOCOL_ERROR, False, CloseReason.NO_TLS)


async def test_a_plain_client_of_a_tls_server_gets_no_message() -> None:
    async with serving(tls=of_server()) as served:
        client = await MqClient.connect(HOST, served.server.port)
        client.send([b"hello"])
        assert await client.receive() is None
        await client.closed()
        assert served.messages == []


async def test_a_peer_that_never_shakes_hands_is_let_go_of() -> None:
    async with serving(tls=of_server(), idle_ms_max=200) as served, await served.raw() as raw:
        assert await raw.rest() == b""
        assert served.connected == []


async def test_garbage_inside_tls_is_a_protocol_error() -> None:
    async with serving(tls=of_server()) as served:
        said = await asyncio.to_thread(say_inside_tls, served.server.port, b"\xff")
        assert said == disconnect(Reason.PROTOCOL_ERROR)
        assert (await served.ending()).reason is Reason.PROTOCOL_ERROR


def say_inside_tls(port: int, data: bytes) -> bytes:
    """What a peer hears that says this, with Python's own TLS."""
    with (
        socket.create_connection((HOST, port)) as plain,
        of_client().wrap_socket(plain, server_hostname=HOST) as inside,
    ):
        inside.sendall(data)
        heard = bytearray()
        while piece := inside.recv(1000):
            heard += piece
        return bytes(heard)
