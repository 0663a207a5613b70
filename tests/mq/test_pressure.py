"""Peers that do not read, and users that do not receive: nothing grows beyond its limit, and nothing is lost."""

import asyncio
from itertools import pairwise

import pytest

from penstock.mq import Ending, Message, MqLimits, MqSession, Reason
from penstock.tcp import ReadHold
from tests.mq.support import disconnect, echo, memory_bytes, serving, until
from tests.wire.mqframe_checks import wire

MIB = 1 << 20
UNREAD = Ending(Reason.APPLICATION_ERROR, False, "too much waited for a peer that does not read")
HOARDED = "all unfinished messages together had too many bytes, and this peer's had the most"
PAGE = [bytes(16_000)] * 64
PAGE_BYTES = 64 * 16_003


def page(session: MqSession, frames: Message) -> None:
    """Answer a few bytes with about a MiB."""
    session.send(PAGE)


async def fill(session: MqSession) -> None:
    """Send until the peer is no longer read from, or cut off."""
    while not session.holds & ReadHold.UNSENT and session.send(PAGE):  # noqa: ASYNC110 - the sending is the point
        await asyncio.sleep(0)


async def overfill(session: MqSession) -> None:
    """Send until the peer is cut off."""
    while session.send(PAGE):  # noqa: ASYNC110 - the sending is the point
        await asyncio.sleep(0)


# --- a peer that does not read --------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_is_not_read_from_and_nothing_is_lost() -> None:
    requests, request = 200, wire([bytes(16_000)] * 6)
    before = memory_bytes()
    async with serving(page) as served, await served.client() as bystander, await served.raw(65_536) as raw:
        await until(lambda: len(served.connected) == 2)
        session = served.connected[1]
        asking = asyncio.create_task(raw.send(request * requests))
        await until(lambda: session.holds & ReadHold.UNSENT)
        handled = session.messages_received
        assert 0 < handled < requests
        # What one read gave is still handled.
        assert session.unsent_bytes <= 6 * MIB
        assert memory_bytes() < before + 64 * MIB
        bystander.send([b"me"])
        assert await bystander.receive() == PAGE
        assert session.messages_received == handled
        assert not asking.done()
        assert len(await raw.receive(requests * PAGE_BYTES)) == requests * PAGE_BYTES
        await asking
        assert session.messages_received == requests
        await until(lambda: not session.holds)
        assert session.ended is None


async def test_a_peer_that_does_not_read_is_cut_off_at_the_limit_and_memory_stays_bounded() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_max": 8 * MIB, "linger_ms_max": 50}
    async with serving(**limits) as served, await served.client() as bystander, await served.raw(65_536):
        await until(lambda: len(served.connected) == 2)
        session = served.connected[1]
        before = highest = memory_bytes()
        sent = 0
        while session.send(PAGE):
            sent += PAGE_BYTES
            highest = max(highest, memory_bytes())
            assert session.unsent_bytes <= 8 * MIB + 2 * PAGE_BYTES
            await asyncio.sleep(0)
        assert sent > 8 * MIB
        assert highest < before + 32 * MIB
        assert await served.ending() == UNREAD
        assert served.server.endings == {UNREAD.why: 1}
        bystander.send([b"still here"])
        assert await bystander.receive() == [b"still here"]


async def test_a_peer_that_reads_after_all_hears_why_it_was_cut_off() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_max": 4 * MIB}
    async with serving(**limits) as served, await served.raw() as raw:
        session = await served.session()
        await overfill(session)
        assert (await raw.rest()).endswith(disconnect(Reason.APPLICATION_ERROR))
        raw.shut()
        assert await served.ending() == UNREAD


async def test_with_patience_a_peer_that_reads_is_not_cut_off_however_much_waits_for_it() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_max": 4 * MIB, "unread_ms_max": 5000}
    async with serving(**limits) as served, await served.raw(65_536) as raw:
        session = await served.session()
        for _ in range(40):
            session.send(PAGE)
        assert session.unsent_bytes > 8 * MIB
        assert len(await raw.receive(40 * PAGE_BYTES)) == 40 * PAGE_BYTES
        assert session.ended is None


async def test_a_peer_that_takes_everything_in_the_end_is_told_of_to_the_handler() -> None:
    async with serving() as served, await served.raw(65_536) as raw:
        session = await served.session()
        await fill(session)
        assert served.rooms == 0
        assert session.ended is None
        await raw.receive(session.messages_sent * PAGE_BYTES)
        await until(lambda: served.rooms == 1)
        assert not session.holds


async def test_draining_waits_until_the_peer_has_read() -> None:
    async with serving() as served, await served.raw(65_536) as raw:
        session = await served.session()
        await session.drain()
        await fill(session)
        draining = asyncio.create_task(session.drain())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not draining.done()
        await raw.receive(session.messages_sent * PAGE_BYTES)
        await draining


async def test_draining_ends_with_the_connection() -> None:
    async with serving(linger_ms_max=50) as served, await served.raw(65_536):
        session = await served.session()
        await fill(session)
        draining = asyncio.create_task(session.drain())
        await asyncio.sleep(0)
        session.close()
        await draining
        await session.drain()


async def test_whoever_drains_can_send_any_amount_in_bounded_memory() -> None:
    pages = 200

    async def stream(session: MqSession) -> None:
        for _ in range(pages):
            session.send(PAGE)
            await session.drain()

    before = memory_bytes()
    async with serving() as served, await served.raw(65_536) as raw:
        streaming = asyncio.create_task(stream(await served.session()))
        taken = highest = 0
        while taken < pages * PAGE_BYTES:
            taken += len(await raw.receive(min(500_000, pages * PAGE_BYTES - taken)))
            highest = max(highest, memory_bytes())
        await streaming
        assert highest < before + 32 * MIB


async def test_a_peer_is_read_from_again_only_when_all_reasons_not_to_are_gone() -> None:
    async with serving() as served, await served.raw(65_536) as raw:
        session = await served.session()
        session.hold(ReadHold.BUSY)
        await fill(session)
        assert session.holds == ReadHold.UNSENT | ReadHold.BUSY
        await raw.send(b"\x04")
        await raw.receive(session.messages_sent * PAGE_BYTES)
        await until(lambda: session.holds == ReadHold.BUSY)
        assert served.messages == []
        session.release(ReadHold.UNSENT)
        session.release(ReadHold.BUSY)
        await until(lambda: served.messages == [[b""]])


# --- many of them ---------------------------------------------------------------------------------------------


async def test_when_too_much_waits_for_all_who_do_not_read_the_worst_of_them_is_cut_off() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_total_max": 24 * MIB, "linger_ms_max": 50}
    async with serving(**limits) as served, await served.client() as bystander:
        peers = [await served.raw(65_536) for _ in range(6)]
        await until(lambda: len(served.connected) == 7)
        _, worst, *others = served.connected
        for session in others:
            await fill(session)
        while not served.endings:
            worst.send(PAGE)
            await asyncio.sleep(0)
            assert sum(session.unsent_bytes for session in served.connected) <= 26 * MIB
        assert served.endings == [UNREAD]
        assert worst.ended == UNREAD.why
        assert [session.ended for session in others] == [None] * 5
        bystander.send([b"still here"])
        assert await bystander.receive() == [b"still here"]
        for session, raw in zip(others, peers[1:], strict=True):
            assert len(await raw.receive(session.messages_sent * PAGE_BYTES)) == session.messages_sent * PAGE_BYTES


async def test_one_is_cut_off_and_no_more_when_much_is_sent_at_once() -> None:
    limits = {"unsent_bytes_high": MIB, "unsent_bytes_total_max": 24 * MIB, "linger_ms_max": 50}
    async with serving(**limits) as served:
        for _ in range(4):
            await served.raw(65_536)
        await until(lambda: len(served.connected) == 4)
        worst, *others = served.connected
        for session in served.connected:
            await fill(session)
        # All in one turn of the loop.
        while worst.send(PAGE):
            pass
        for session in others:
            for _ in range(4):
                session.send(PAGE)
        assert [session.ended for session in others] == [None] * 3
        await until(lambda: served.endings)


async def test_those_who_read_do_not_count_among_those_who_do_not() -> None:
    limits = {"unsent_bytes_high": 4 * MIB, "unsent_bytes_total_max": 6 * MIB}
    async with serving(page, **limits) as served:
        clients = [await served.client() for _ in range(10)]
        for client in clients:
            client.send([b"page"])
        for client in clients:
            assert await client.receive() == PAGE
            client.close()
            await client.closed()
        assert served.server.endings == {"the peer closed the connection": 10}


async def test_when_unfinished_messages_have_too_many_bytes_the_largest_is_cut_off() -> None:
    async with serving(lambda session, frames: None, pending_bytes_total_max=MIB) as served:
        peers = [await served.raw() for _ in range(20)]
        await until(lambda: len(served.connected) == 20)
        for raw in peers:
            await raw.send((b"\x02\xff\x3f" + bytes(16_383)) * 2)
        await until(lambda: all(session.pending_bytes == 32_772 for session in served.connected))
        greedy = peers.pop()
        await greedy.send((b"\x02\xff\xff" + bytes(65_535)) * 8)
        assert (await served.ending()).why == HOARDED
        assert served.connected[-1].ended == HOARDED
        await until(greedy.has_ended)
        greedy.socket.close()
        # The others go on, and their messages become complete.
        for raw in peers:
            await raw.send(b"\x04")
        await until(lambda: len(served.messages) == 19)
        assert {len(message) for message in served.messages} == {3}
        assert len(served.server.sessions()) == 19


async def test_one_is_cut_off_and_no_more_when_many_grow_at_once() -> None:
    async with serving(lambda session, frames: None, pending_bytes_total_max=MIB) as served:
        peers = [await served.raw() for _ in range(16)]
        await until(lambda: len(served.connected) == 16)
        frame = b"\x02\xff\x3f" + bytes(16_383)
        for raw in peers:
            await raw.send(frame * 3)
        await until(lambda: sum(session.pending_bytes for session in served.connected) == 16 * 3 * len(frame))
        await peers[0].send(frame * 4)
        await until(lambda: served.connected[0].pending_bytes == 7 * len(frame))
        # All in one turn of the loop: together they are over the limit, without the first one they are not.
        for raw in peers[1:]:
            assert raw.try_to_send(frame) == len(frame)
        await until(lambda: served.endings)
        await until(lambda: sum(session.bytes_received for session in served.connected[1:]) == 15 * 4 * len(frame))
        assert [session.ended for session in served.connected[1:]] == [None] * 15


async def test_what_a_session_that_is_gone_held_is_not_counted_any_more() -> None:
    async with serving(lambda session, frames: None, pending_bytes_total_max=MIB) as served:
        for number in range(1, 6):
            async with await served.raw() as raw:
                await raw.send((b"\x02\xff\xff" + bytes(65_535)) * 14)
                await until(lambda: [info.bytes_received for info in served.server.sessions()] == [14 * 65_538])
            await until(lambda: len(served.endings) == number)  # noqa: B023 - it is waited for
        assert served.server.endings == {"the peer closed the connection": 5}


# --- a client whose user does not receive ---------------------------------------------------------------------


async def test_a_client_whose_user_does_not_receive_stops_reading_and_nothing_is_lost() -> None:
    count, size = 30_000, 1000

    async def stream(session: MqSession) -> None:
        for number in range(count):
            session.send([b"%d" % number, bytes(size)])
            if number % 100 == 0:
                await session.drain()
        session.close()

    async with serving() as served, await served.client(MqLimits(inbox_messages_max=100)) as client:
        session = await served.session()
        streaming = asyncio.create_task(stream(session))
        await until(lambda: session.holds & ReadHold.UNSENT)
        assert client.holds == ReadHold.BUSY
        # What one read gave is still taken.
        assert 100 <= client.messages_received < 1000
        assert [int(frames[0]) async for frames in client] == list(range(count))
        await streaming
        assert (await client.closed())[:2] == (Reason.SERVER_CLOSING, True)


@pytest.mark.parametrize("inbox", [1, 2, 3])
async def test_a_small_inbox_is_enough(inbox: int) -> None:
    async with serving() as served, await served.client(MqLimits(inbox_messages_max=inbox)) as client:
        for number in range(100):
            client.send([b"%d" % number])
            await client.drain()
            assert await client.receive() == [b"%d" % number]
        for number in range(100):
            client.send([b"%d" % number, bytes(16_000)])
        for number in range(100):
            assert (await client.receive() or [])[0] == b"%d" % number


async def test_a_client_that_does_not_receive_can_still_send_and_close() -> None:
    async with serving(lambda session, frames: None) as served:
        async with await served.client(MqLimits(inbox_messages_max=10)) as client:
            session = await served.session()
            for _ in range(100):
                session.send([bytes(10_000)])
            await until(lambda: client.holds)
            client.send([b"goodbye"])
        assert (await served.ending())[:2] == (Reason.CLIENT_CLOSING, True)
        assert served.messages == [[b"goodbye"]]


async def test_a_client_is_pushed_back_by_a_server_that_does_not_read() -> None:
    async with serving(lambda session, frames: None) as served, await served.client() as client:
        session = await served.session()
        session.hold(ReadHold.BUSY)
        await fill(client)
        draining = asyncio.create_task(client.drain())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not draining.done()
        assert served.messages == []
        session.release(ReadHold.BUSY)
        await draining
        await until(lambda: session.messages_received == client.messages_sent)


@pytest.mark.parametrize("pieces", [1, 255, 256, 1000])
async def test_what_is_sent_in_one_turn_is_sent_in_few_writes_and_in_order(pieces: int) -> None:
    async with serving(echo) as served, await served.raw() as raw:
        session = await served.session()
        for number in range(pieces):
            session.send([b"%04d" % number])
        data = await raw.receive(pieces * 7)
        numbers = [int(data[at + 3 : at + 7]) for at in range(0, len(data), 7)]
        assert all(second == first + 1 for first, second in pairwise(numbers))
        assert len(numbers) == pieces
