"""Requests and answers of the Remits gate, as they are counted; in the place of an engine, the test replies."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import pytest
import pytest_asyncio

from penstock.engine import Engine
from penstock.engine.access import Access
from penstock.engine.engine import Budget
from penstock.engine.metrics import Metrics
from penstock.gates.remits import RemitsGate
from penstock.model import AddMessages, Done, ItemPage, Reply, Request
from penstock.model.replies import Encoded
from penstock.settings import Settings
from penstock.wire.remits.frames import Frame, Parser
from tests.engine.logs import until
from tests.gates.remits_client import ITERATOR_NEXT, MESSAGE_ADD, request

BUSY = 33
PAGE = ItemPage([], Encoded(1, b"\0\0\x27\x0c" + bytes(9996)))
"""An answer of some ten thousand bytes."""


class Replies:
    """Requests wait until the test replies to them."""

    def __init__(self, budget: int) -> None:
        self.settings = Settings()
        self.url = "sqlite:///unused"
        self.access = Access(self.settings)
        self.metrics = Metrics()
        self.budget = Budget(budget, Counter())
        self.waiting: list[Callable[[Reply], None]] = []

    def submit(
        self, _principal: object, asked: Request, answer: Callable[[Reply], None], _present: object
    ) -> Callable[[], bool]:
        self.waiting.append(answer)
        return lambda: not isinstance(asked, AddMessages)


class Peer:
    """A connection to the gate."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._parser = Parser(1 << 20)

    async def frames(self, count: int) -> list[Frame]:
        found: list[Frame] = []
        while len(found) < count:
            found += self._parser.receive(await self._reader.read(1 << 16))
        return found


@pytest_asyncio.fixture
async def replies(request: pytest.FixtureRequest) -> Replies:
    return Replies(getattr(request, "param", 40_000))


@pytest_asyncio.fixture
async def peer(replies: Replies) -> AsyncIterator[Peer]:
    gate = RemitsGate(cast("Engine", replies), "127.0.0.1:0")
    await gate.start()
    host, _, port = gate.address.rpartition(":")
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    yield peer
    peer.writer.close()
    await gate.stop()


def next_items() -> bytes:
    return request(ITERATOR_NEXT, iterator_name="i", message_id=0, count=1)


async def test_answers_that_wait_for_an_earlier_one_count(replies: Replies, peer: Peer) -> None:
    peer.writer.write(next_items() * 3)
    await until(lambda: len(replies.waiting) == 3)
    before = replies.budget.taken
    assert 0 < before < 1000
    replies.waiting[1](PAGE)
    replies.waiting[2](PAGE)
    assert replies.budget.taken > before + 20_000
    replies.waiting[0](PAGE)
    assert replies.budget.taken == 0
    assert [frame.kind for frame in await peer.frames(3)] == [2, 2, 2]


async def test_an_answer_that_has_no_room_to_wait_is_busy(replies: Replies, peer: Peer) -> None:
    peer.writer.write(next_items() * 3)
    await until(lambda: len(replies.waiting) == 3)
    assert replies.budget.take(25_000)
    for number in (2, 1, 0):
        replies.waiting[number](PAGE)
    assert replies.budget.taken == 25_000
    assert [(frame.kind, frame.code) for frame in await peer.frames(3)] == [(2, 0), (3, BUSY), (2, 0)]


async def test_a_request_that_finds_no_room_is_busy_in_its_turn(replies: Replies, peer: Peer) -> None:
    peer.writer.write(next_items())
    await until(lambda: len(replies.waiting) == 1)
    assert replies.budget.take(25_000)
    peer.writer.write(request(MESSAGE_ADD, log_name="l", message=bytes(20_000)) + next_items())
    await until(lambda: replies.budget._refused["requests_busy"] == 1)
    # It is alone in its group, so that what comes behind it has not begun.
    assert len(replies.waiting) == 1
    replies.waiting[0](PAGE)
    await until(lambda: len(replies.waiting) == 2)
    replies.waiting[1](PAGE)
    assert [(frame.kind, frame.code) for frame in await peer.frames(3)] == [(2, 0), (3, BUSY), (2, 0)]
    assert replies.budget.taken == 25_000


@pytest.mark.parametrize("replies", [1_000_000], indirect=True)
@pytest.mark.parametrize("answered", [False, True])
async def test_of_a_client_that_is_gone_only_what_is_written_counts_until_it_is(
    replies: Replies, peer: Peer, answered: bool
) -> None:
    adding = request(MESSAGE_ADD, log_name="l", message=bytes(5000))
    peer.writer.write(adding * 2 + next_items())
    await until(lambda: len(replies.waiting) == 2)
    if answered:
        replies.waiting[1](Done())
    # A connection that is reset, not only closed in one direction.
    peer.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.writer.transport.abort()
    sessions: Any = replies.metrics.gate_sessions
    await until(lambda: sessions["remits"] == 0)
    assert (replies.budget.taken > 10_000) is not answered
    assert replies.budget.taken > 5000
    for waiting in replies.waiting[: 1 if answered else 2]:
        waiting(Done())
    assert replies.budget.taken == 0
