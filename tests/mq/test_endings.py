"""How connections end: both sides say why, both report it, and nothing else notices."""

import asyncio
import logging

import pytest

from penstock.mq import Ending, Message, MqClient, MqServer, MqSession, Reason
from penstock.wire.mqframe import encode
from tests.mq.support import HOST, Raw, disconnect, echo, raw_server, serving, until

SOME_REASONS = [Reason.UNKNOWN, Reason.APPLICATION_ERROR, Reason.AUTHENTICATION_FAILURE, Reason.CONNECTION_REFUSED]
PEER_CLOSED = "the peer closed the connection"


# --- by this side or that -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", SOME_REASONS)
async def test_the_reason_of_a_client_is_reported_at_both_ends(reason: Reason) -> None:
    async with serving() as served, await served.client() as client:
        client.close(reason)
        assert await client.closed() == Ending(reason, False, reason.words)
        assert await served.ending() == Ending(reason, True, PEER_CLOSED)


@pytest.mark.parametrize("reason", SOME_REASONS)
async def test_the_reason_of_a_server_is_reported_at_both_ends(reason: Reason) -> None:
    async with serving() as served, await served.client() as client:
        (await served.session()).close(reason)
        assert await client.closed() == Ending(reason, True, PEER_CLOSED)
        assert await served.ending() == Ending(reason, False, reason.words)


async def test_without_a_reason_each_side_has_its_own() -> None:
    async with serving() as served:
        async with await served.client() as client:
            client.close()
            assert (await client.closed()).reason is Reason.CLIENT_CLOSING
        async with await served.client() as client:
            await until(lambda: len(served.connected) == 2)
            served.connected[1].close()
            assert (await client.closed()).reason is Reason.SERVER_CLOSING


async def test_an_open_connection_has_no_ending() -> None:
    async with serving() as served, await served.client() as client:
        assert client.ending is None
        assert (await served.session()).ending is None


async def test_an_ending_can_be_read_by_people() -> None:
    assert str(Ending(Reason.TIME_OUT, False, "no byte came for too long")) == "time out (no byte came for too long)"
    assert str(Ending(Reason.CLIENT_CLOSING, True, PEER_CLOSED)) == "client closing (said by the peer)"


async def test_the_disconnect_on_the_wire_is_the_last_that_is_sent() -> None:
    async with serving() as served, await served.raw() as raw:
        session = await served.session()
        session.send([b"a"])
        session.close(Reason.AUTHORIZATION_FAILURE)
        session.close(Reason.UNKNOWN)
        session.ping()
        assert await raw.rest() == b"\x03\x01\x00a" + disconnect(Reason.AUTHORIZATION_FAILURE)


async def test_who_is_told_why_does_not_say_why_too() -> None:
    async with serving() as served, await served.raw() as raw:
        await raw.send(b"\x03\x01\x00a" + disconnect(Reason.CLIENT_CLOSING))
        assert await raw.rest() == b"\x03\x01\x00a"
        raw.shut()
        assert await served.ending() == Ending(Reason.CLIENT_CLOSING, True, PEER_CLOSED)


@pytest.mark.parametrize("said", [b"\x05\x01\x00\x00", b"\x05\x02\x00\x00\xff", b"\x05\x03\x00\x00\x0c\x02"])
async def test_a_reason_that_is_missing_or_unknown_is_reported_as_unknown(said: bytes) -> None:
    async with serving() as served, await served.raw() as raw:
        await raw.send(said)
        assert await raw.rest() == b""
        raw.shut()
        assert await served.ending() == Ending(Reason.UNKNOWN, True, PEER_CLOSED)


async def test_what_was_sent_before_the_end_arrives() -> None:
    async with serving(lambda session, frames: None) as served:
        async with await served.client() as client:
            for number in range(5000):
                client.send([b"%d" % number, bytes(1000)])
        await served.ending()
        assert [int(frames[0]) for frames in served.messages] == list(range(5000))


async def test_both_may_close_at_once() -> None:
    async with serving() as served, await served.client() as client:
        session = await served.session()
        client.close(Reason.CLIENT_CLOSING)
        session.close(Reason.SERVER_CLOSING)
        assert (await client.closed()).reason is Reason.CLIENT_CLOSING
        assert await served.ending() == Ending(Reason.SERVER_CLOSING, False, "server closing")


async def test_a_client_that_is_left_says_that_it_closes() -> None:
    async with serving() as served:
        async with await served.client():
            await served.session()
        assert (await served.ending()).reason is Reason.CLIENT_CLOSING


async def test_a_peer_that_does_not_hang_up_is_left_after_a_moment() -> None:
    async with serving(linger_ms_max=50) as served, await served.raw() as raw:
        (await served.session()).close()
        assert (await served.ending()).reason is Reason.SERVER_CLOSING
        assert served.server.sessions() == []
        assert await raw.rest() == disconnect(Reason.SERVER_CLOSING)


async def test_what_comes_after_the_end_is_thrown_away() -> None:
    async with serving() as served, await served.raw() as raw:
        session = await served.session()
        session.close()
        await raw.send(b"\x04" * 1000 + b"\xff" * 1000)
        await until(lambda: session.bytes_received == 2000)
        assert await raw.rest() == disconnect(Reason.SERVER_CLOSING)
        raw.shut()
        assert await served.ending() == Ending(Reason.SERVER_CLOSING, False, "server closing")
        assert served.messages == []


# --- without a word -------------------------------------------------------------------------------------------


async def test_a_peer_that_closes_without_a_word_is_a_socket_error() -> None:
    async with serving() as served:
        async with await served.raw():
            await served.session()
        assert await served.ending() == Ending(Reason.SOCKET_ERROR, False, PEER_CLOSED)


async def test_a_server_that_closes_without_a_word_is_a_socket_error() -> None:
    async with raw_server() as (port, taken), await MqClient.connect(HOST, port) as client:
        (await taken.get()).socket.close()
        assert await client.closed() == Ending(Reason.SOCKET_ERROR, False, PEER_CLOSED)
        assert await client.receive() is None


async def test_a_peer_that_closes_its_own_direction_only_gets_its_answers() -> None:
    async with serving() as served, await served.raw() as raw:
        await raw.send(b"\x03\x01\x00a\x03\x01\x00b\x06")
        raw.shut()
        assert await raw.rest() == b"\x03\x01\x00a\x03\x01\x00b\x06"
        assert await served.ending() == Ending(Reason.SOCKET_ERROR, False, PEER_CLOSED)


async def test_a_peer_that_closes_its_own_direction_gets_large_answers_if_it_reads_them() -> None:
    many = [bytes(16_000)] * 500
    async with serving(lambda session, frames: session.send(many)) as served, await served.raw() as raw:
        await raw.send(b"\x04")
        raw.shut()
        assert len(await raw.rest()) == 500 * 16_003


async def test_a_peer_that_closes_its_own_direction_gets_what_is_due_to_it() -> None:
    owed: list[MqSession] = []
    async with MqServer(
        lambda session, frames: owed.append(session), has_due=lambda session: session in owed
    ) as server:
        await server.start(HOST, 0)
        async with await Raw.connect(server.port) as raw:
            await raw.send(b"\x04")
            raw.shut()
            await until(lambda: owed)
            # The peer has said all it had to say, but is still there.
            assert server.sessions()
            owed[0].send([b"late"])
            owed[0].close()
            assert await raw.rest() == b"\x03\x04\x00late" + disconnect(Reason.SERVER_CLOSING)
        await until(lambda: not server.sessions())


async def test_a_peer_that_closes_its_own_direction_and_reads_nothing_is_given_up() -> None:
    many = [bytes(16_000)] * 2000
    limits = {"linger_ms_max": 50, "stall_ms_max": 200, "unsent_bytes_high": 64 << 20}
    async with serving(lambda session, frames: session.send(many), **limits) as served, await served.raw() as raw:
        await raw.send(b"\x04")
        raw.shut()
        assert (await served.ending()).reason is Reason.TIME_OUT
        assert served.server.sessions() == []


async def test_a_peer_that_closes_its_own_direction_gets_all_that_waits_for_it_however_late_it_reads() -> None:
    many = [bytes(16_000)] * 2000
    limits = {"linger_ms_max": 50, "unsent_bytes_high": 64 << 20}
    async with serving(lambda session, frames: session.send(many), **limits) as served, await served.raw() as raw:
        await raw.send(b"\x04")
        raw.shut()
        session = await served.session()
        seen = session.info().last_seen
        # It has lingered for longer than a connection that is ended may.
        await until(lambda: session.info().last_seen > seen + 0.2)
        data = await raw.rest()
        assert data.endswith(disconnect(Reason.SERVER_CLOSING))
        assert len(data) == len(encode(many)) + len(disconnect(Reason.SERVER_CLOSING))


async def test_a_connection_that_is_reset_ends_and_nobody_else_notices() -> None:
    async with serving() as served, await served.client() as bystander:
        raw = await served.raw()
        await until(lambda: len(served.connected) == 2)
        raw.reset()
        assert (await served.ending()).reason is Reason.SOCKET_ERROR
        bystander.send([b"still here"])
        assert await bystander.receive() == [b"still here"]


async def test_a_connection_that_is_reset_while_much_is_sent_on_it_ends() -> None:
    async with serving(lambda session, frames: None) as served:
        for _ in range(20):
            raw = await served.raw()
            count = len(served.endings)
            await until(served.server.sessions)
            session = served.connected[-1]
            for _ in range(100):
                session.send([bytes(16_000)] * 10)
            await raw.receive(1000)
            raw.reset()
            while len(served.endings) == count:
                session.send([bytes(1000)])
                await asyncio.sleep(0)
            assert served.endings[-1].reason is Reason.SOCKET_ERROR


@pytest.mark.parametrize("word", ["close", "ping", "info", "stop"])
async def test_a_session_whose_peer_has_just_reset_it_can_be_used_as_any_other(word: str) -> None:
    async with serving() as served:
        raw = await served.raw()
        session = await served.session()
        raw.reset()
        # The loop has not looked at the socket since.
        if word == "stop":
            await served.server.stop()
        else:
            getattr(session, word)()
        await served.ending()


async def test_a_connection_can_be_cut_without_a_word() -> None:
    async with serving() as served, await served.raw() as raw:
        session = await served.session()
        session.send([b"never seen, perhaps"])
        session.cut("enough")
        assert not session.send([b"a"])
        session.close()
        await session.gone()
        assert served.endings == [Ending(Reason.UNKNOWN, False, "enough")]
        await until(raw.has_ended)


# --- handlers -------------------------------------------------------------------------------------------------


def failing(session: MqSession, frames: Message) -> None:
    if frames == [b"fail"]:
        raise RuntimeError("as it was told")
    session.send(frames)


async def test_a_handler_that_fails_ends_its_own_session_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(failing) as served, await served.client() as bad, await served.client() as good:
        bad.send([b"before"])
        bad.send([b"fail"])
        bad.send([b"after"])
        assert [frames async for frames in bad] == [[b"before"]]
        assert (await bad.closed()).reason is Reason.APPLICATION_ERROR
        assert await served.ending() == Ending(Reason.APPLICATION_ERROR, False, "application error")
        good.send([b"still here"])
        assert await good.receive() == [b"still here"]
    assert [record.message for record in caplog.records] == ["a handler failed; its session mq-1 ends"]
    assert "as it was told" in caplog.text


async def test_a_handler_that_fails_when_somebody_connects_ends_that_session(caplog: pytest.LogCaptureFixture) -> None:
    def fail(session: MqSession) -> None:
        raise RuntimeError("nobody is welcome")

    async with MqServer(echo, on_connect=fail) as server:
        await server.start(HOST, 0)
        async with await MqClient.connect(HOST, server.port) as client:
            assert (await client.closed()).reason is Reason.APPLICATION_ERROR
    assert "nobody is welcome" in caplog.text


async def test_a_handler_that_fails_at_the_end_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail(session: MqSession, ending: Ending) -> None:
        raise RuntimeError("no goodbyes")

    async with MqServer(echo, on_close=fail) as server:
        await server.start(HOST, 0)
        async with await MqClient.connect(HOST, server.port, on_close=fail):
            await until(server.sessions)
        await until(lambda: not server.sessions())
        async with await MqClient.connect(HOST, server.port) as client:
            client.send([b"next"])
            assert await client.receive() == [b"next"]
    assert caplog.text.count("RuntimeError: no goodbyes") == 3


async def test_a_handler_of_a_client_that_fails_ends_it_and_tells_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served, await served.client(on_message=failing) as client:
        client.send([b"fail"])
        assert await client.closed() == Ending(Reason.APPLICATION_ERROR, False, "application error")
        assert await served.ending() == Ending(Reason.APPLICATION_ERROR, True, PEER_CLOSED)
    assert "as it was told" in caplog.text


def closing(session: MqSession, frames: Message) -> None:
    if frames == [b"enough"]:
        session.close(Reason.AUTHENTICATION_FAILURE)
    else:
        session.send(frames)


@pytest.mark.parametrize(
    "behind",
    [b"", b"\x04" * 5, b"\x06", disconnect(Reason.CLIENT_CLOSING), b"\xff"],
    ids=["nothing", "messages", "a ping", "a disconnect", "a mistake"],
)
async def test_a_handler_may_close_in_the_middle_of_what_came(behind: bytes) -> None:
    async with serving(closing) as served, await served.raw() as raw:
        await raw.send(b"\x03\x01\x00a" + b"\x03\x06\x00enough" + behind)
        assert await raw.rest() == b"\x03\x01\x00a" + disconnect(Reason.AUTHENTICATION_FAILURE)
        raw.shut()
        assert await served.ending() == Ending(Reason.AUTHENTICATION_FAILURE, False, "authentication failure")
        assert served.messages == [[b"a"], [b"enough"]]


async def test_a_handler_may_refuse_whoever_connects() -> None:
    async with MqServer(echo, on_connect=lambda session: session.close(Reason.AUTHORIZATION_FAILURE)) as server:
        await server.start(HOST, 0)
        async with await MqClient.connect(HOST, server.port) as client:
            client.send([b"please"])
            assert await client.receive() is None
            assert (await client.closed()).reason is Reason.AUTHORIZATION_FAILURE


# --- the end of a server --------------------------------------------------------------------------------------


async def test_a_server_that_stops_tells_everybody_and_leaves_nothing_behind() -> None:
    before = asyncio.all_tasks()
    async with serving() as served:
        clients = [await served.client() for _ in range(20)]
        await until(lambda: len(served.connected) == 20)
        await served.server.stop()
        assert served.server.sessions() == []
        assert served.endings == [Ending(Reason.SERVER_SHUTDOWN, False, "the server was shut down")] * 20
        assert served.server.endings == {"the server was shut down": 20}
        for client in clients:
            assert await client.closed() == Ending(Reason.SERVER_SHUTDOWN, True, PEER_CLOSED)
        with pytest.raises(OSError, match=r"."):
            await served.client()
        assert asyncio.all_tasks() == before


async def test_a_server_that_stops_waits_only_a_moment_for_peers_that_stay() -> None:
    async with serving(linger_ms_max=50) as served, await served.raw() as raw, await served.raw() as other:
        await until(lambda: len(served.connected) == 2)
        await served.server.stop()
        for peer in (raw, other):
            assert await peer.rest() == disconnect(Reason.SERVER_SHUTDOWN)


async def test_a_server_that_stops_sends_what_is_left_to_send() -> None:
    async with serving() as served, await served.client() as client:
        session = await served.session()
        for number in range(3000):
            session.send([b"%d" % number, bytes(1000)])
        stopping = asyncio.create_task(served.server.stop())
        assert [int(frames[0]) async for frames in client] == list(range(3000))
        await stopping
        assert (await client.closed()).reason is Reason.SERVER_SHUTDOWN


async def test_stopping_twice_or_before_the_start_is_nothing() -> None:
    await MqServer(echo).stop()
    async with serving() as served, await served.client():
        await served.session()
        await asyncio.gather(served.server.stop(), served.server.stop())
        await served.server.stop()


async def test_a_server_is_stopped_even_when_its_user_fails() -> None:
    clients: list[MqClient] = []

    async def serve_and_fail() -> None:
        async with serving() as served:
            clients.append(await served.client())
            await served.session()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await serve_and_fail()
    assert (await clients[0].closed()).reason is Reason.SERVER_SHUTDOWN


async def test_nothing_is_logged_when_all_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served, await served.client() as client:
        client.send([b"a"])
        await client.receive()
    assert caplog.records == []
