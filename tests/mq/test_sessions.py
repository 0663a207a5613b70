"""A server and its clients: connecting, messages both ways, and what is known of a session."""

import asyncio
import socket
import time

import pytest

from penstock.mq import EmptyMessage, FrameTooLong, Message, MqClient, MqLimits, MqServer, MqSession, Reason
from tests.mq.support import HOST, disconnect, echo, serving, until


async def test_a_message_goes_there_and_back() -> None:
    async with serving() as served, await served.client() as client:
        assert client.send([b"to", b"", b"the server"])
        assert await client.receive() == [b"to", b"", b"the server"]
        assert served.messages == [[b"to", b"", b"the server"]]


async def test_the_server_may_be_first_to_speak() -> None:
    async with MqServer(echo, on_connect=lambda session: session.send([b"hello"])) as server:
        await server.start(HOST, 0)
        async with await MqClient.connect(HOST, server.port) as client:
            assert await client.receive() == [b"hello"]


async def test_the_handlers_of_a_server_are_told_of_everything_in_order() -> None:
    told: list[tuple[str, MqSession]] = []
    server = MqServer(
        lambda session, frames: told.append((frames[0].decode(), session)),
        on_connect=lambda session: told.append(("connected", session)),
        on_close=lambda session, ending: told.append((ending.reason.words, session)),
    )
    async with server:
        await server.start(HOST, 0)
        async with await MqClient.connect(HOST, server.port) as client:
            client.send([b"one"])
            client.send([b"two"])
        await until(lambda: len(told) == 4)
    assert [what for what, _ in told] == ["connected", "one", "two", "client closing"]
    assert len({id(session) for _, session in told}) == 1


async def test_the_handlers_of_a_client_are_told_of_everything_in_order() -> None:
    told: list[str] = []
    async with serving() as served:
        client = await served.client(
            on_message=lambda session, frames: told.append(frames[0].decode()),
            on_close=lambda session, ending: told.append(ending.reason.words),
        )
        client.send([b"one"])
        client.send([b"two"])
        await until(lambda: len(told) == 2)
        (await served.session()).close()
        await client.closed()
    assert told == ["one", "two", "server closing"]


@pytest.mark.parametrize("count", [1, 255, 256, 20_000])
async def test_messages_keep_their_order_both_ways(count: int) -> None:
    async with serving() as served, await served.client() as client:
        for number in range(count):
            client.send([b"%d" % number, b"x"])
        for number in range(count):
            assert await client.receive() == [b"%d" % number, b"x"]


async def test_messages_of_several_clients_do_not_mix() -> None:
    async with serving() as served:
        clients = [await served.client() for _ in range(10)]
        for number in range(500):
            for name, client in enumerate(clients):
                client.send([b"%d" % name, b"%d" % number])
        for name, client in enumerate(clients):
            for number in range(500):
                assert await client.receive() == [b"%d" % name, b"%d" % number]
            client.close()
            await client.closed()


@pytest.mark.parametrize(
    "message",
    [[b""], [b"", b""], [b"a", b""], [b"", b"a"], [bytes(16_381)], [b"f"] * 2500, [bytes(16_000)] * 100],
    ids=["empty", "two empty", "empty last", "empty first", "longest", "many frames", "large"],
)
async def test_any_message_arrives_as_it_was_sent(message: Message) -> None:
    async with serving() as served, await served.client() as client:
        client.send(message)
        assert await client.receive() == message
        client.send([b"next"])
        assert await client.receive() == [b"next"]


async def test_messages_are_received_by_async_for_until_the_connection_ends() -> None:
    def three_and_enough(session: MqSession, frames: Message) -> None:
        for number in range(3):
            session.send([b"%d" % number])
        session.close()

    async with serving(three_and_enough) as served, await served.client() as client:
        client.send([b"go"])
        assert [frames async for frames in client] == [[b"0"], [b"1"], [b"2"]]
        assert await client.receive() is None


async def test_what_came_before_the_end_can_still_be_received_after_it() -> None:
    async with serving() as served, await served.client() as client:
        client.send([b"last words"])
        await until(lambda: client.messages_received == 1)
        client.close()
        await client.closed()
        assert await client.receive() == [b"last words"]
        assert await client.receive() is None


async def test_whoever_waits_for_a_message_is_woken_by_the_end() -> None:
    async with serving() as served, await served.client() as client:
        waiting = [asyncio.create_task(client.receive()) for _ in range(2)]
        (await served.session()).close()
        assert await asyncio.gather(*waiting) == [None, None]


async def test_two_that_wait_for_messages_get_one_each() -> None:
    async with serving() as served, await served.client() as client:
        waiting = [asyncio.create_task(client.receive()) for _ in range(2)]
        await asyncio.sleep(0)
        client.send([b"1"])
        client.send([b"2"])
        assert await asyncio.gather(*waiting) == [[b"1"], [b"2"]]


async def test_waiting_for_a_message_can_be_given_up() -> None:
    async with serving() as served, await served.client() as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.receive(), 0.01)
        client.send([b"later"])
        assert await client.receive() == [b"later"]


# --- what cannot be sent --------------------------------------------------------------------------------------


async def test_a_message_that_cannot_be_sent_is_refused_and_the_next_one_goes() -> None:
    async with serving() as served, await served.client() as client:
        with pytest.raises(FrameTooLong, match="of 16382 bytes"):
            client.send([b"a", bytes(16_382)])
        with pytest.raises(EmptyMessage):
            client.send([])
        client.send([b"fits"])
        assert await client.receive() == [b"fits"]
        assert served.messages == [[b"fits"]]
        assert client.messages_sent == 1


async def test_long_frames_are_accepted_and_sent_only_to_who_has_sent_such() -> None:
    async with serving() as served, await served.raw() as raw:
        session = await served.session()
        assert session.frame_bytes_max == 16_381
        await raw.send(b"\x03\xfd\x3f" + bytes(16_381))
        assert await raw.receive(16_384) == b"\x03\xfd\x3f" + bytes(16_381)
        assert session.frame_bytes_max == 16_381
        with pytest.raises(FrameTooLong):
            session.send([bytes(16_382)])
        await raw.send(b"\x03\xff\xff" + bytes(65_535))
        assert await raw.receive(65_538) == b"\x03\xff\xff" + bytes(65_535)
        assert session.frame_bytes_max == 65_535
        with pytest.raises(FrameTooLong, match="longer than the 65535"):
            session.send([bytes(65_536)])


async def test_what_is_sent_after_the_end_is_said_to_be_lost() -> None:
    async with serving() as served, await served.client() as client:
        session = await served.session()
        client.close()
        assert not client.send([b"too late"])
        await client.closed()
        assert not client.send([b"too late"])
        assert (await served.ending()).reason is Reason.CLIENT_CLOSING
        assert not session.send([b"too late"])
        assert client.messages_sent == session.messages_sent == 0


# --- sessions -------------------------------------------------------------------------------------------------


async def test_sessions_are_listed_with_their_figures() -> None:
    async with serving() as served, await served.client() as first, await served.client() as second:
        await until(lambda: len(served.connected) == 2)
        for _ in range(3):
            first.send([b"four", b""])
        for _ in range(3):
            await first.receive()
        one, two = served.server.sessions()
        assert (one.id, two.id) == ("mq-1", "mq-2")
        ours = first._transport.get_extra_info("sockname")
        assert one.peer == f"{HOST}:{ours[1]}"
        assert (one.messages_received, one.messages_sent) == (3, 3)
        assert (one.bytes_received, one.bytes_sent, one.unsent_bytes) == (24, 24, 0)
        assert (two.messages_received, two.bytes_received, two.bytes_sent) == (0, 0, 0)
        assert 0 <= one.last_seen <= one.age
        assert 0 <= two.age <= one.age
        assert abs(time.time() - one.age - one.opened) < 60
        mirrored = first.info()
        assert (mirrored.bytes_received, mirrored.bytes_sent) == (24, 24)
        second.close()


async def test_a_ping_is_a_byte_and_a_sign_of_life_but_no_message() -> None:
    async with serving() as served, await served.raw() as raw:
        session = await served.session()
        await until(lambda: session.info().last_seen > 0.01)
        before = session.info()
        await raw.send(b"\x06")
        await raw.receive(1)
        after = session.info()
        assert (after.bytes_received, after.bytes_sent, after.messages_received) == (1, 1, 0)
        assert after.last_seen < before.last_seen + (after.age - before.age)


async def test_a_session_is_known_by_its_id_until_it_is_gone() -> None:
    async with serving() as served, await served.client() as client:
        session = await served.session()
        assert session.id == "mq-1"
        assert served.server.session("mq-1") is session
        assert served.server.session("mq-2") is None
        client.close()
        await until(lambda: served.server.sessions() == [])
        assert served.server.session("mq-1") is None
        assert served.server.endings.total() == 1


async def test_an_id_is_not_used_again() -> None:
    async with serving() as served:
        for number in range(1, 4):
            async with await served.client():
                await until(served.server.sessions)
                assert served.info().id == f"mq-{number}"
            await until(lambda: not served.server.sessions())


async def test_a_session_that_misbehaves_is_kicked_and_the_others_stay() -> None:
    async with serving() as served, await served.client() as bad, await served.client() as good:
        await until(lambda: len(served.connected) == 2)
        assert served.server.kick("mq-1")
        assert not served.server.kick("mq-3")
        ending = await bad.closed()
        assert (ending.reason, ending.by_peer) == (Reason.SERVER_CLOSING, True)
        assert (await served.ending()).why == "an operator cut it off"
        good.send([b"still here"])
        assert await good.receive() == [b"still here"]
        assert [info.id for info in served.server.sessions()] == ["mq-2"]


async def test_a_session_carries_what_its_handler_wants() -> None:
    def count(session: MqSession, frames: Message) -> None:
        session.data = (session.data or 0) + 1
        session.send([b"%d" % session.data])

    async with serving(count) as served, await served.client() as first, await served.client() as second:
        for client, number in ((first, 1), (first, 2), (second, 1)):
            client.send([b"next"])
            assert await client.receive() == [b"%d" % number]


# --- where it listens -----------------------------------------------------------------------------------------


async def test_connecting_to_nobody_is_an_os_error() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(OSError, match=r"."):
        await MqClient.connect(HOST, port)


async def test_listening_where_somebody_else_does_is_an_os_error() -> None:
    async with serving() as served:
        with pytest.raises(OSError, match="in use"):
            await MqServer(echo).start(HOST, served.server.port)


async def test_a_server_says_where_it_listens() -> None:
    async with serving() as served:
        assert served.server.address == f"{HOST}:{served.server.port}"
        assert served.server.port > 0


async def test_a_server_listens_on_ipv6_too() -> None:
    async with MqServer(echo) as server:
        await server.start("::1", 0)
        assert server.address == f"[::1]:{server.port}"
        async with await MqClient.connect("::1", server.port) as client:
            client.send([b"six"])
            assert await client.receive() == [b"six"]
            assert client.peer == server.address


async def test_a_server_that_refuses_takes_nobody_new_and_keeps_who_is_there() -> None:
    async with serving() as served, await served.client() as client:
        await served.session()
        served.server.refuse()
        with pytest.raises(OSError, match=r"."):
            await served.client()
        client.send([b"still here"])
        assert await client.receive() == [b"still here"]


async def test_a_server_has_its_limits_from_its_maker() -> None:
    async with serving(message_bytes_max=100) as served, await served.raw() as raw:
        await raw.send(b"\x03\x61\x00" + bytes(97))
        assert await raw.receive(100) == b"\x03\x61\x00" + bytes(97)
        await raw.send(b"\x03\x62\x00" + bytes(98))
        assert await raw.rest() == disconnect(Reason.PROTOCOL_ERROR)
    assert MqLimits().connections_max == 1000
    assert MqLimits().idle_ms_max == 60_000
