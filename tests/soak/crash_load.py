"""The server that the crash test kills: a real engine under load, which tells on a pipe what was acknowledged.

Every line is written right after the reply came, so what stands on the pipe was promised. Events follow from a label
that is in their bodies, so the parent can tell of any event it finds what it must look like.
"""

import asyncio
import json
import os
import random
import sys
from collections.abc import Coroutine
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final

import uvloop

from penstock.engine import Engine
from penstock.errors import PenstockError, VersionConflict
from penstock.model import (
    ANONYMOUS,
    ANY,
    AcknowledgeQueue,
    Append,
    Appended,
    Delivery,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    NewEvent,
    ProducerMark,
    ProgressSubscription,
    QueueReceipt,
    ReadStream,
    Registered,
    RegisterSubscriptions,
    Reply,
    Request,
    SubscribeQueue,
    SubscriptionStart,
    Transact,
    Transacted,
    now_ticks,
    stamp_of,
)
from penstock.settings import Settings

CONTEXT: Final = "crash"
WATCHED: Final = "one/"
"""The streams that the subscription and the queue look at."""
OUTPUTS: Final = "outputs"
QUEUE: Final = "work"
SUBSCRIBER: Final = "reader"
PRODUCERS: Final = ("p0", "p1")
PARTS: Final = 3
TTL_MS: Final = 7 * 24 * 3600 * 1000
LIFE_S_MAX: Final = 30.0
"""A child that nobody kills ends by itself."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the parent tells its child."""

    store: str
    """Its URL."""
    seed: str
    cycle: int
    pipe: int
    producers: dict[str, int]
    """The last number that was acknowledged, by producer."""
    again: dict[str, bool]
    """Whether a producer shall send that number once more; else it goes on with the next, which may be there."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def events_of(label: str, count: int) -> list[NewEvent]:
    """The events of a commit, all but their times."""
    stamp = stamp_of(now_ticks())
    return [NewEvent(id_of(label, n), stamp, "made", None, body_of(label, n, count)) for n in range(count)]


def id_of(label: str, index: int) -> bytes:
    return blake2b(f"{label} {index}".encode(), digest_size=16).digest()


def body_of(label: str, index: int, count: int) -> bytes:
    """The label, the place in the commit, and bytes that follow from both."""
    text = f"{label} {index} {count} ".encode()
    return text + blake2b(text, digest_size=16).digest() * (1 + len(text) % 4)


def transaction_of(producer: str, number: int) -> tuple[Append, ...]:
    """What a producer writes under a number."""
    rng = random.Random(f"{producer}/{number}")
    return tuple(
        Append(CONTEXT, f"t/{producer}/{part}", events_of(f"t/{producer}/{number}/{part}", rng.choice((1, 3, 10))), ANY)
        for part in range(PARTS)
    )


class Load:
    """The writers and readers of one life of the server."""

    def __init__(self, engine: Engine, orders: Orders) -> None:
        self._engine = engine
        self._orders = orders

    def rng(self, name: str) -> random.Random:
        return random.Random(f"{self._orders.seed}/{self._orders.cycle}/{name}")

    def tell(self, kind: str, **what: Any) -> None:
        line = json.dumps({"k": kind, **what}).encode() + b"\n"
        # What fits a pipe's buffer is written at once or not at all.
        assert len(line) <= 4096
        os.write(self._orders.pipe, line)

    async def ask(self, request: Request) -> Reply:
        return await self._engine.execute(ANONYMOUS, request)

    def tell_commit(self, label: str, stream: str, reply: Reply) -> Appended:
        assert isinstance(reply, Appended)
        self.tell("commit", label=label, stream=stream, **described(reply))
        return reply

    async def any_version(self, name: str, stream: str, counts: tuple[int, ...], pause_s: float) -> None:
        rng = self.rng(name)
        for n in range(1 << 60):
            label = f"{self._orders.cycle}/{name}/{n}"
            events = events_of(label, rng.choice(counts))
            self.tell_commit(label, stream, await self.ask(Append(CONTEXT, stream, events, ANY)))
            await asyncio.sleep(pause_s * rng.random())

    async def expected_version(self, name: str) -> None:
        """Commits at the version that is next; now and then one that must fail, and one that was made before."""
        rng, stream = self.rng(name), name
        page = await self.ask(ReadStream(CONTEXT, stream, 0, backward=True, limit=1))
        assert isinstance(page, EventPage)
        head = page.events[0].sequence if page.events else 0
        for n in range(1 << 60):
            label = f"{self._orders.cycle}/{name}/{n}"
            request = Append(CONTEXT, stream, events_of(label, rng.choice((1, 10))), head + 1)
            head += self.tell_commit(label, stream, await self.ask(request)).count
            if rng.random() < 0.2:
                self.tell_commit(label, stream, await self.ask(request))
            if rng.random() < 0.2:
                await self._conflict(f"{label}/conflict", stream, head)

    async def _conflict(self, label: str, stream: str, head: int) -> None:
        try:
            reply = await self.ask(Append(CONTEXT, stream, events_of(label, 1), head))
        except VersionConflict:
            return
        self.tell("error", what=f"a commit at version {head} was answered with {reply}")

    async def producer(self, name: str) -> None:
        """Transactions under numbers, without a gap; after a crash the one that was not acknowledged comes again."""
        number = self._orders.producers.get(name, 0)
        if number and self._orders.again.get(name):
            await self._transact(name, number)
        while True:
            number += 1
            await self._transact(name, number)
            await asyncio.sleep(0.002)

    async def _transact(self, name: str, number: int) -> None:
        reply = await self.ask(Transact(transaction_of(name, number), mark=ProducerMark(name, number)))
        assert isinstance(reply, Transacted)
        self.tell("transact", producer=name, number=number, commits=[described(commit) for commit in reply.commits])

    async def subscriber(self) -> None:
        rng = self.rng("subscriber")
        start = SubscriptionStart(CONTEXT, WATCHED, 0)
        registered = await self.ask(RegisterSubscriptions(SUBSCRIBER, (start,)))
        assert isinstance(registered, Registered)
        (number,) = registered.ids
        while True:
            batch = await self.ask(FetchSubscription(number, rng.choice((1, 10, 100)), wait_ms=1000))
            assert isinstance(batch, FetchedBatch)
            if batch.events:
                first, last = batch.events[0], batch.events[-1]
                await self.ask(ProgressSubscription(number, last.ticks))
                self.tell("progress", first=first.position, next=last.position + 1)

    async def consumer(self, name: str) -> None:
        """Acknowledges what it was given, which gives it the next."""
        rng = self.rng(name)
        delivery = await self.ask(SubscribeQueue(CONTEXT, QUEUE, name, WATCHED, 0, 5, TTL_MS, wait_ms=1000))
        while True:
            first, last = self._given(delivery)
            delivery = await self.ask(
                AcknowledgeQueue(CONTEXT, QUEUE, name, first, last, rng.choice((1, 5, 50)), TTL_MS, wait_ms=1000)
            )
            if first:
                self.tell("acked", first=first, last=last)

    async def exact_consumer(self, name: str) -> None:
        """Writes one commit for every batch, in one transaction with its acknowledgement."""
        while True:
            delivery = await self.ask(SubscribeQueue(CONTEXT, QUEUE, name, WATCHED, 0, 7, TTL_MS, wait_ms=1000))
            first, last = self._given(delivery)
            if not first:
                continue
            label = f"out/{first}/{last}"
            commit = Append(CONTEXT, OUTPUTS, events_of(label, 2), ANY)
            receipt = QueueReceipt(CONTEXT, QUEUE, name, first, last)
            reply = await self.ask(Transact((commit,), (receipt,), mark=ProducerMark(name, first)))
            assert isinstance(reply, Transacted)
            self.tell_commit(label, OUTPUTS, reply.commits[0])
            self.tell("acked", first=first, last=last)

    def _given(self, delivery: Reply) -> tuple[int, int]:
        assert isinstance(delivery, Delivery)
        if delivery.allocation is None:
            return 0, 0
        first, last = delivery.allocation.first, delivery.allocation.last
        self.tell("given", first=first, last=last, events=[event.position for event in delivery.events][:20])
        return first, last

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        singles = [self.any_version(f"one/{n}", f"one/{n}", (1,), 0.0) for n in range(4)]
        shared = [self.any_version(f"shared/{n}", "shared", (1, 10), 0.01) for n in range(2)]
        bulk = [self.any_version("bulk", "bulk", (200,), 0.03)]
        checked = [self.expected_version(f"checked/{n}") for n in range(2)]
        producers = [self.producer(name) for name in PRODUCERS]
        consumers = [self.consumer("a"), self.consumer("b"), self.exact_consumer("c"), self.subscriber()]
        return [*singles, *shared, *bulk, *checked, *producers, *consumers]


def described(reply: Appended) -> dict[str, Any]:
    return {
        "position": reply.position,
        "sequence": reply.sequence,
        "count": reply.count,
        "commit": reply.commit.hex(),
        "repeated": reply.repeated,
    }


async def live(orders: Orders) -> None:
    """Serve the load until somebody kills this process."""
    rng = random.Random(f"{orders.seed}/{orders.cycle}/settings")
    settings = Settings(
        workers=2, wal_bytes_max=rng.choice((256, 1024, 8192)) * 1024, stream_cache_max=rng.choice((2, 100_000))
    )
    async with Engine(orders.store, settings) as engine:
        load = Load(engine, orders)
        load.tell("ready")
        guarded = partial(_guarded, load)
        async with asyncio.timeout(LIFE_S_MAX):
            await asyncio.gather(*map(guarded, load.tasks()))


async def _guarded(load: Load, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (PenstockError, AssertionError) as error:
        load.tell("error", what=repr(error)[:2000])


if __name__ == "__main__":
    uvloop.run(live(Orders(**json.loads(sys.argv[1]))))
