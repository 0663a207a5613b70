"""Silence, slowness and pings: who is still there stays, who is not is let go of with reason 6."""

import asyncio

import pytest

from penstock.mq import Ending, Message, MqClient, MqLimits, MqSession, Reason
from penstock.tcp import ReadHold
from tests.mq.support import HOST, PATIENCE_S, PING, Raw, disconnect, raw_server, serving, until

IDLE = Ending(Reason.TIME_OUT, False, "no byte came for too long")
SLOW = Ending(Reason.TIME_OUT, False, "a message took too long")
STALLED = Ending(Reason.TIME_OUT, False, "the peer took nothing of what waited for it for too long")
one_loop_is_enough = pytest.mark.asyncio(loop_factories=["uvloop"])


def much(session: MqSession, frames: Message) -> None:
    session.send([bytes(16_000)] * 1000)


async def trickle(raw: Raw, piece: bytes) -> bytes:
    """Send this now and then until the other side closes; all that it said."""
    said = bytearray()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            raw.try_to_send(piece)
            await asyncio.sleep(0.005)
            try:
                data = raw.socket.recv(1000)
            except BlockingIOError:
                continue
            if not data:
                return bytes(said)
            said += data


# --- pings ----------------------------------------------------------------------------------------------------


async def test_a_server_answers_every_ping_with_a_ping() -> None:
    async with serving() as served, await served.raw() as raw:
        await raw.send(PING)
        assert await raw.receive(1) == PING
        await raw.send(PING * 1000)
        assert await raw.receive(1000) == PING * 1000
        assert served.messages == []


async def test_pings_inside_a_message_are_answered_and_the_message_is_whole() -> None:
    async with serving() as served, await served.raw() as raw:
        for piece in (b"\x02\x01\x00a", PING, b"\x01", PING + PING):
            await raw.send(piece)
        assert await raw.receive(3) == PING * 3
        await raw.send(b"\x03\x01\x00b" + PING)
        assert await raw.receive(10) == b"\x02\x01\x00a\x01\x03\x01\x00b" + PING
        assert served.messages == [[b"a", b"", b"b"]]


async def test_a_client_does_not_answer_pings() -> None:
    async with raw_server() as (port, taken), await MqClient.connect(HOST, port) as client, await taken.get() as raw:
        await raw.send(PING + b"\x03\x01\x00a" + PING)
        assert await client.receive() == [b"a"]
        client.send([b"b"])
        client.close()
        assert await raw.rest() == b"\x03\x01\x00b" + disconnect(Reason.CLIENT_CLOSING)


async def test_a_silent_client_pings_again_and_again() -> None:
    limits = MqLimits(ping_ms=10)
    async with raw_server() as (port, taken), await MqClient.connect(HOST, port, limits=limits):
        assert await (await taken.get()).receive(5) == PING * 5


async def test_a_client_that_has_nothing_to_say_stays_connected_beyond_the_idle_limit() -> None:
    limits = MqLimits(idle_ms_max=1000, ping_ms=100)
    async with serving(idle_ms_max=1000) as served, await served.client(limits) as client:
        session = await served.session()
        await until(lambda: session.info().age > 1.6)
        assert session.bytes_received >= 5
        client.send([b"still here"])
        assert await client.receive() == [b"still here"]


@one_loop_is_enough
async def test_a_client_pings_as_often_as_it_was_told_to() -> None:
    async with serving(idle_ms_max=3000) as served, await served.client(MqLimits(ping_ms=900)) as client:
        session = await served.session()
        await until(lambda: session.ended or session.bytes_received == 2)
        assert session.ended is None
        assert session.info().age >= 1.7
        await until(lambda: client.bytes_received == 2)


@one_loop_is_enough
async def test_pings_alone_keep_a_connection_open_when_there_is_nothing_else() -> None:
    async with serving(idle_ms_max=1000) as served, await served.raw() as raw:
        session = await served.session()
        while session.info().age < 1.6:
            await raw.send(PING)
            await asyncio.sleep(0.05)
        assert session.ended is None


# --- silence --------------------------------------------------------------------------------------------------


async def test_a_silent_peer_is_let_go_of_and_told_why() -> None:
    async with serving(idle_ms_max=100) as served, await served.raw() as raw:
        assert await raw.rest() == disconnect(Reason.TIME_OUT)
        raw.shut()
        assert await served.ending() == IDLE
        assert served.server.endings == {IDLE.why: 1}


async def test_a_silent_client_is_told_why() -> None:
    async with serving(idle_ms_max=100) as served, await served.client() as client:
        assert await client.receive() is None
        assert (await client.closed())[:2] == (Reason.TIME_OUT, True)


@one_loop_is_enough
async def test_only_the_silent_one_is_let_go_of() -> None:
    async with serving(idle_ms_max=2000) as served, await served.client(MqLimits(ping_ms=20)) as client:
        assert await (await served.raw()).rest() == disconnect(Reason.TIME_OUT)
        client.send([b"still here"])
        assert await client.receive() == [b"still here"]


async def test_a_client_lets_go_of_a_silent_server() -> None:
    limits = MqLimits(idle_ms_max=100, ping_ms=20)
    async with raw_server() as (port, taken), await MqClient.connect(HOST, port, limits=limits) as client:
        raw = await taken.get()
        said = await raw.rest()
        raw.shut()
        assert await client.closed() == IDLE
        assert said.endswith(PING + disconnect(Reason.TIME_OUT))


async def test_a_length_that_never_fills_is_silence() -> None:
    async with serving(idle_ms_max=100) as served, await served.raw() as raw:
        await raw.send(b"\x03\xff\xffand then nothing")
        session = await served.session()
        await until(lambda: session.pending_bytes == 19)
        assert await raw.rest() == disconnect(Reason.TIME_OUT)
        # Nothing is kept of it, though the connection lingers.
        assert session.pending_bytes == 0
        raw.shut()
        assert await served.ending() == IDLE


# --- slowness -------------------------------------------------------------------------------------------------


async def test_a_frame_that_trickles_in_is_given_up() -> None:
    async with serving(message_ms_max=150) as served, await served.raw() as raw:
        await raw.send(b"\x03\xff\xff")
        assert await trickle(raw, b"x") == disconnect(Reason.TIME_OUT)
        raw.shut()
        assert await served.ending() == SLOW


async def test_a_message_that_never_ends_is_given_up() -> None:
    async with serving(message_ms_max=150) as served, await served.raw() as raw:
        assert await trickle(raw, b"\x02\x01\x00a") == disconnect(Reason.TIME_OUT)
        raw.shut()
        assert await served.ending() == SLOW


async def test_pings_in_between_do_not_help_a_message_that_never_ends() -> None:
    async with serving(message_ms_max=150) as served, await served.raw() as raw:
        await raw.send(b"\x01")
        said = await trickle(raw, PING)
        assert said.lstrip(PING) == disconnect(Reason.TIME_OUT)
        raw.shut()
        assert await served.ending() == SLOW


@one_loop_is_enough
async def test_a_steady_stream_of_messages_is_not_slow_wherever_it_is_cut() -> None:
    message = b"\x03\x04\x00text"
    async with serving(lambda session, frames: None, message_ms_max=1000) as served, await served.raw() as raw:
        session = await served.session()
        await raw.send(message[:3])
        while session.info().age < 1.6:
            # Always the rest of a message and the beginning of the next.
            await raw.send(message[3:] + message[:3])
            await asyncio.sleep(0.05)
        assert session.ended is None
        assert session.pending_bytes == 3


@one_loop_is_enough
async def test_a_peer_is_not_blamed_for_the_time_in_which_it_was_not_read_from() -> None:
    async with serving(idle_ms_max=2000, message_ms_max=2000) as served, await served.raw() as raw:
        session = await served.session()
        await raw.send(b"\x02\x05\x00first")
        await until(lambda: session.pending_bytes)
        session.hold(ReadHold.BUSY)
        await until(lambda: session.info().age > 2.5)
        assert session.ended is None
        session.release(ReadHold.BUSY)
        session.check(asyncio.get_running_loop().time())
        assert session.ended is None
        await raw.send(b"\x03\x04\x00last")
        await until(lambda: served.messages == [[b"first", b"last"]])


async def test_a_peer_that_takes_nothing_is_let_go_of() -> None:
    async with serving(much, stall_ms_max=150, linger_ms_max=50) as served, await served.raw(4096) as raw:
        await raw.send(b"\x04")
        assert await served.ending() == STALLED
        assert served.server.sessions() == []


@one_loop_is_enough
async def test_a_peer_that_takes_a_little_now_and_then_is_not_stalled() -> None:
    async with serving(much, stall_ms_max=800) as served, await served.raw(4096) as raw:
        session = await served.session()
        await raw.send(b"\x04")
        taken = 0
        while session.info().age < 1.5 or taken < 1_000_000:
            taken += len(await raw.receive(50_000))
            await asyncio.sleep(0.01)
        assert session.ended is None
        assert len(await raw.receive(16_003_000 - taken)) == 16_003_000 - taken


# --- peers that are gone without a word -----------------------------------------------------------------------


async def test_both_ends_notice_that_nothing_comes_through_any_more() -> None:
    """What lies between them stops forwarding and closes nothing, as when a cable is cut."""

    async def forward(source: Raw, target: Raw) -> None:
        while data := await source.loop.sock_recv(source.socket, 1000):
            await target.send(data)

    limits = {"idle_ms_max": 2000, "linger_ms_max": 50}
    async with serving(**limits) as served, raw_server() as (port, taken), await served.raw() as inner:
        client = await MqClient.connect(HOST, port, limits=MqLimits(ping_ms=20, **limits))
        async with await taken.get() as outer:
            tasks = [asyncio.create_task(forward(*pair)) for pair in ((inner, outer), (outer, inner))]
            client.send([b"through"])
            assert await client.receive() == [b"through"]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert await client.closed() == IDLE
            assert await served.ending() == IDLE
            assert served.server.sessions() == []
