"""What happens in the shop: customers look around, order and pay; two packers share a queue and ship what was paid.

An order is a stream. A shipment is appended in one transaction with the acknowledgement of what it comes from, so that
nothing is shipped twice or not at all, whoever drops a box. Which pages are looked at goes into a log, and the server
counts them with an indexed iterator. All of it is slow enough to be watched, however long it goes on.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client import AsyncClient, QueueBatch
from penstock.errors import IteratorExists, VersionConflict
from penstock.model import NEW, Event, event

CONTEXT: Final = "shop"
QUEUE: Final = "shipping"
LOG: Final = "visits"
ITERATOR: Final = "visits-by-page"
COUNT_BY_PAGE: Final = "acc = acc or map()\nacc[msg.page] = (acc[msg.page] or 0) + 1\nreturn acc\n"

CUSTOMERS: Final = ("Ada", "Barbara", "Edsger", "Grace", "Kathleen", "Tony")
PACKERS: Final = ("packer-1", "packer-2")
PRICES: Final = {"bread": 4, "cake": 18, "coffee": 9, "jam": 6, "pie": 15}
ORDERS: Final = "order-"

AT_ONCE: Final = 3
"""Customers that are in the shop at the same time."""
PAUSE_S: Final = (0.3, 1.2)
"""The least and the most time between two things that a customer does."""
PACKING_S: Final = 0.2
"""What a packer needs for a box."""
BATCH_EVENTS: Final = 4
WAIT_S: Final = 5.0
"""How long a packer waits for work before it asks anew."""
DECLINED: Final = 0.15
DROPPED: Final = 0.04
"""How often a payment fails, and how often a packer drops what it holds."""
PAYMENTS_MAX: Final = 3


class BoxDropped(Exception):
    """A packer has dropped what it held. The queue gives it to the next one."""


@dataclass
class Tally:
    """What has happened since the shop was opened."""

    placed: int = 0
    paid: int = 0
    declined: int = 0
    dropped: int = 0
    shipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The shop at a moment: what has happened since it was opened, and what the server says."""

    placed: int
    paid: int
    declined: int
    dropped: int
    shipped: dict[str, int]
    behind: int
    events: int
    visits: dict[str, int]


class Shop:
    """A shop on a server that is somebody else's."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._tally = Tally()
        self._last = 0
        # Nobody's secrets depend on who buys what.
        self._chance = random.Random()  # noqa: S311

    async def open(self) -> None:
        """Make what the shop needs, unless it is there from the last time."""
        await self._client.log(LOG).create()
        # One that is there and counts in another way is from another version of this shop, and will do.
        with suppress(IteratorExists):
            await self._client.iterator(ITERATOR).create(LOG, "reduce", COUNT_BY_PAGE, indexed=True)
        await self._client.queue(CONTEXT, QUEUE, filter=ORDERS).declare()
        self._last = sum(info.streams for info in await self._client.contexts() if info.name == CONTEXT)

    async def run(self, closed: asyncio.Event) -> None:
        """Let it all happen until it is closed. Raises what went wrong."""
        working = [asyncio.create_task(self._customer(number)) for number in range(AT_ONCE)]
        working += [asyncio.create_task(self._packer(name)) for name in PACKERS]
        closing = asyncio.create_task(closed.wait())
        try:
            await asyncio.wait([closing, *working], return_when=asyncio.FIRST_COMPLETED)
        finally:
            failed = await ended([closing, *working])
        if failed is not None:
            raise failed

    async def now(self) -> Snapshot:
        """How things stand."""
        queues, stats = await self._client.queues(), await self._client.stats()
        behind = sum(info.behind for info in queues if (info.context, info.name) == (CONTEXT, QUEUE))
        counted = await self._client.iterator(ITERATOR).next(-1, 1)
        visits: dict[str, int] = counted[0] if counted else {}
        tally = self._tally
        return Snapshot(
            *(tally.placed, tally.paid, tally.declined, tally.dropped),
            *({name: tally.shipped[name] for name in PACKERS}, behind, stats.head, visits),
        )

    # -- customers

    async def _customer(self, number: int) -> None:
        """One after the other they come, look around, and order something or not."""
        while True:
            customer = CUSTOMERS[self._chance.randrange(number, len(CUSTOMERS), AT_ONCE)]
            things = self._chance.sample(sorted(PRICES), self._chance.randint(1, 3))
            for thing in things:
                await self._client.log(LOG).append([{"page": f"/{thing}", "customer": customer}])
                await self._pause()
            amount = sum(PRICES[thing] for thing in things)
            order = await self._place({"customer": customer, "things": things, "amount": amount})
            await self._pause()
            await self._pay(order)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(*PAUSE_S))

    async def _place(self, order: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Place an order under the next number that nobody has."""
        while True:
            self._last += 1
            stream = f"{ORDERS}{self._last}"
            try:
                await self._client.append(CONTEXT, stream, [event("OrderPlaced", order)], expected=NEW)
            except VersionConflict:
                continue
            self._tally.placed += 1
            return stream, order

    async def _pay(self, placed: tuple[str, dict[str, Any]]) -> None:
        """Pay it; a card that is declined is tried again, for a while."""
        stream, order = placed
        for _ in range(PAYMENTS_MAX):
            if self._chance.random() >= DECLINED:
                paid = event("PaymentReceived", {"customer": order["customer"], "amount": order["amount"]})
                await self._client.append(CONTEXT, stream, [paid])
                self._tally.paid += 1
                return
            failed = event("PaymentFailed", {"customer": order["customer"], "reason": "card declined"})
            await self._client.append(CONTEXT, stream, [failed])
            self._tally.declined += 1
            await self._pause()

    # -- packers

    async def _packer(self, name: str) -> None:
        """Take what the queue has, ship what was paid, and acknowledge it all."""
        queue = self._client.queue(CONTEXT, QUEUE, subscriber=name, filter=ORDERS, count=BATCH_EVENTS)
        while True:
            try:
                async with queue.next(WAIT_S) as batch:
                    if batch:
                        await self._ship(name, batch)
            except BoxDropped:
                self._tally.dropped += 1

    async def _ship(self, name: str, batch: QueueBatch) -> None:
        paid = [found for found in batch if found.type == "PaymentReceived"]
        await asyncio.sleep(PACKING_S * len(paid))
        if paid and self._chance.random() < DROPPED:
            raise BoxDropped
        async with self._client.transaction() as transaction:
            for found in paid:
                transaction.append(CONTEXT, found.stream, [shipped(found, name)])
            transaction.acknowledge(batch)
        self._tally.shipped[name] += len(paid)


def shipped(paid: Event, packer: str) -> Any:
    """What comes of a payment."""
    return event("OrderShipped", {"customer": paid.json()["customer"], "by": packer})


async def ended(tasks: Sequence["asyncio.Task[Any]"]) -> BaseException | None:
    """End tasks and wait for them; what one of them has failed with by itself."""
    for task in tasks:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    failures = (each for each in outcomes if isinstance(each, BaseException))
    return next((each for each in failures if not isinstance(each, asyncio.CancelledError)), None)
