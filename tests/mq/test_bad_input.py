"""What no peer should send: the right reason on the wire, counted, and no other session notices."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import pytest

from penstock.mq import Ending, MqClient, Reason
from tests.mq.support import HOST, Raw, Serving, disconnect, raw_server, serving, until
from tests.seeds import rng

GARBAGE: Final[dict[str, tuple[bytes, str]]] = {
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "there is no frame type 71"),
    "a ZeroMQ greeting": (b"\xff" + bytes(8) + b"\x7f", "there is no frame type 255"),
    "zeros": (bytes(100), "there is no frame type 0"),
    "a type above 6": (b"\x07", "there is no frame type 7"),
    "a More of length 0": (b"\x02\0\0", "a frame of type 2 has the length 0"),
    "a Last of length 0": (b"\x03\0\0", "a frame of type 3 has the length 0"),
    "a Command of length 0": (b"\x05\0\0", "a frame of type 5 has the length 0"),
    "a command that is none": (b"\x05\x02\0\x01\x02", "there is no command 1"),
    "a message of too many frames": (b"\x01" * 51, "a message has more than 50 frames"),
    "a message of too many bytes": (b"\x02\x90\x01" + bytes(400) + b"\x02\x90\x01" + bytes(400), "more than 800 bytes"),
    "a length over the limit": (b"\x03\xff\xff" + bytes(900), "a message has more than 800 bytes"),
}
LIMITS: Final = {"message_frames_max": 50, "message_bytes_max": 800}


@asynccontextmanager
async def with_a_bystander() -> AsyncIterator[tuple[Serving, Raw]]:
    """A server, a peer that will misbehave, and a client that must not notice."""
    async with serving(**LIMITS) as served, await served.client() as bystander, await served.raw() as raw:
        for number in range(3):
            bystander.send([b"before", b"%d" % number])
            assert await bystander.receive() == [b"before", b"%d" % number]
        yield served, raw
        bystander.send([b"after"])
        assert await bystander.receive() == [b"after"]
        raw.socket.close()
        await until(lambda: [info.id for info in served.server.sessions()] == ["mq-1"])


@pytest.mark.parametrize(("data", "what"), GARBAGE.values(), ids=GARBAGE)
async def test_garbage_from_the_first_byte_is_a_protocol_error(data: bytes, what: str) -> None:
    async with with_a_bystander() as (served, raw):
        await raw.send(data)
        assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)
        raw.shut()
        ending = await served.ending()
        assert (ending.reason, ending.by_peer) == (Reason.PROTOCOL_ERROR, False)
        assert what in ending.why
        assert served.server.endings == {ending.why: 1}


@pytest.mark.parametrize(("data", "what"), GARBAGE.values(), ids=GARBAGE)
async def test_garbage_after_messages_is_a_protocol_error_and_they_are_answered(data: bytes, what: str) -> None:
    async with with_a_bystander() as (served, raw):
        await raw.send(b"\x03\x01\x00a\x06\x04" + data + b"\x03\x01\x00b")
        assert await raw.rest() == b"\x03\x01\x00a\x04\x06" + disconnect(Reason.PROTOCOL_ERROR)
        raw.shut()
        assert what in (await served.ending()).why
        assert [b"b"] not in served.messages


@pytest.mark.parametrize("number", range(5))
async def test_random_bytes_end_in_a_protocol_error_or_in_nothing(number: int) -> None:
    data = rng(f"bytes to an MqServer {number}").randbytes(100_000)
    async with with_a_bystander() as (served, raw):
        await raw.send(data)
        assert (await raw.rest()).endswith(disconnect(Reason.PROTOCOL_ERROR))
        raw.shut()
        assert (await served.ending()).reason is Reason.PROTOCOL_ERROR


async def test_a_peer_that_goes_on_sending_garbage_still_hears_why() -> None:
    async with with_a_bystander() as (_, raw):
        for _ in range(100):
            await raw.send(b"\xff" * 10_000)
        assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)


async def flood(raw: Raw) -> NoReturn:
    while True:
        await raw.send(b"\xff" * 100_000)


async def test_a_peer_that_sends_without_end_is_cut_off_whatever_it_sends() -> None:
    async with serving(linger_ms_max=50) as served, await served.raw() as raw:
        with pytest.raises(ConnectionError):
            await flood(raw)
        assert (await served.ending()).reason is Reason.PROTOCOL_ERROR


async def test_garbage_in_single_bytes_is_a_protocol_error_too() -> None:
    async with with_a_bystander() as (served, raw):
        session = served.connected[-1]
        for number, byte in enumerate(b"\x02\x00\x00", 1):
            await raw.send(bytes([byte]))
            await until(lambda: session.bytes_received == number)  # noqa: B023 - it is waited for
        assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)


async def test_many_that_send_garbage_at_once_are_all_refused() -> None:
    async with serving() as served, await served.client() as bystander:
        peers = [await served.raw() for _ in range(50)]
        for raw in peers:
            await raw.send(b"GET / HTTP/1.1\r\n\r\n")
        bystander.send([b"still here"])
        assert await bystander.receive() == [b"still here"]
        for raw in peers:
            async with raw:
                assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)
        await until(lambda: served.server.endings == {"protocol error: there is no frame type 71": 50})


async def test_a_server_that_speaks_something_else_is_a_protocol_error_to_a_client() -> None:
    async with raw_server() as (port, taken), await MqClient.connect(HOST, port) as client, await taken.get() as raw:
        await raw.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)
        raw.shut()
        assert await client.receive() is None
        assert await client.closed() == Ending(
            Reason.PROTOCOL_ERROR, False, "protocol error: there is no frame type 72"
        )
