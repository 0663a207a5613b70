"""The shop of `penstock demo`: customers look around, order and pay; two packers share a queue and ship what was paid.

An order is a stream. A packer appends a shipment and acknowledges its event in one transaction, so that every paid
order is shipped exactly once, also when a packer drops a box. Visits of pages go into a log, and the server counts them
with an indexed iterator. Everything is slow enough to watch.
"""

import asyncio
import errno
import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.client import AsyncClient, QueueBatch
from penstock.doctor.ports import GATES, ZMQ, bind_error
from penstock.errors import IteratorExists, VersionConflict
from penstock.model import NEW, event
from penstock.settings import Settings, host_and_port

CONTEXT: Final = "shop"
QUEUE: Final = "shipping"
LOG: Final = "visits"
ITERATOR: Final = "visits-by-page"
COUNT_BY_PAGE: Final = "acc = acc or map()\nacc[msg.page] = (acc[msg.page] or 0) + 1\nreturn acc\n"

CUSTOMERS: Final = ("Ada", "Barbara", "Edsger", "Grace", "Kathleen", "Tony")
PACKERS: Final = ("packer-1", "packer-2")
PRICES: Final = {"bread": 4, "cake": 18, "coffee": 9, "jam": 6, "pie": 15}
ORDERS: Final = "order-"

CUSTOMERS_AT_ONCE: Final = 3
PAUSE_S: Final = (0.3, 1.2)
"""The shortest and the longest time between two actions of a customer."""
PACKING_S: Final = 0.2
BATCH_EVENTS: Final = 4
WAIT_S: Final = 5.0
"""How long one request of a packer waits for events."""
DECLINED: Final = 0.15
DROPPED: Final = 0.04
PAYMENTS_MAX: Final = 3


def gate_addresses(settings: Settings) -> tuple[dict[str, str], dict[str, str]]:
    """Addresses for the gates of a server: those of the settings, or free ports; and those that are in use."""
    chosen: dict[str, str] = {}
    taken: dict[str, str] = {}
    for gate in GATES:
        usual = getattr(settings, gate)
        free = f"{ZMQ}127.0.0.1:0" if gate == "res" else "127.0.0.1:0"
        if (
            usual
            and not usual.startswith("ipc://")
            and bind_error(*host_and_port(usual.removeprefix(ZMQ))) == errno.EADDRINUSE
        ):
            taken[gate] = usual
        chosen[gate] = usual if usual and gate not in taken else free
    return chosen, taken


class BoxDropped(Exception):
    """A packer dropped its batch. The queue gives it to the next packer."""


@dataclass
class Snapshot:
    """Counts since the shop opened, and the state of the server."""

    placed: int = 0
    paid: int = 0
    declined: int = 0
    dropped: int = 0
    shipped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PACKERS, 0))
    behind: int = 0
    events: int = 0
    visits: dict[str, int] = field(default_factory=dict)


class Shop:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._counts = Snapshot()
        self._last = 0
        self._chance = random.Random()  # noqa: S311 - no secret depends on it

    async def open(self) -> None:
        """Create the log, the iterator and the queue, unless they exist."""
        await self._client.log(LOG).create()
        # Another version of this shop may have created an iterator with another function; it will do.
        with suppress(IteratorExists):
            await self._client.iterator(ITERATOR).create(LOG, "reduce", COUNT_BY_PAGE, indexed=True)
        await self._client.queue(CONTEXT, QUEUE, filter=ORDERS).declare()
        self._last = sum(info.streams for info in await self._client.contexts() if info.name == CONTEXT)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CUSTOMERS_AT_ONCE):
                group.create_task(self._customer(number))
            for name in PACKERS:
                group.create_task(self._packer(name))

    async def snapshot(self) -> Snapshot:
        counts, queues = self._counts, await self._client.queues()
        counts.behind = sum(info.behind for info in queues if (info.context, info.name) == (CONTEXT, QUEUE))
        counts.events = (await self._client.stats()).head
        for visits in await self._client.iterator(ITERATOR).next(-1, 1):
            counts.visits = visits
        return counts

    async def _customer(self, number: int) -> None:
        while True:
            customer = CUSTOMERS[self._chance.randrange(number, len(CUSTOMERS), CUSTOMERS_AT_ONCE)]
            things = self._chance.sample(sorted(PRICES), self._chance.randint(1, 3))
            for thing in things:
                await self._client.log(LOG).append([{"page": f"/{thing}", "customer": customer}])
                await self._pause()
            amount = sum(PRICES[thing] for thing in things)
            order = await self._place({"customer": customer, "things": things, "amount": amount})
            await self._pause()
            await self._pay(order, customer, amount)

    async def _pause(self) -> None:
        await asyncio.sleep(self._chance.uniform(*PAUSE_S))

    async def _place(self, order: dict[str, Any]) -> str:
        """Append an order to a new stream; returns its name."""
        while True:
            self._last += 1
            stream = f"{ORDERS}{self._last}"
            with suppress(VersionConflict):
                await self._client.append(CONTEXT, stream, [event("OrderPlaced", order)], expected=NEW)
                self._counts.placed += 1
                return stream

    async def _pay(self, stream: str, customer: str, amount: int) -> None:
        for _ in range(PAYMENTS_MAX):
            if self._chance.random() >= DECLINED:
                paid = event("PaymentReceived", {"customer": customer, "amount": amount})
                await self._client.append(CONTEXT, stream, [paid])
                self._counts.paid += 1
                return
            failed = event("PaymentFailed", {"customer": customer, "reason": "card declined"})
            await self._client.append(CONTEXT, stream, [failed])
            self._counts.declined += 1
            await self._pause()

    async def _packer(self, name: str) -> None:
        queue = self._client.queue(CONTEXT, QUEUE, subscriber=name, filter=ORDERS, count=BATCH_EVENTS)
        while True:
            try:
                async with queue.next(WAIT_S) as batch:
                    if batch:
                        await self._ship(name, batch)
            except BoxDropped:
                self._counts.dropped += 1

    async def _ship(self, name: str, batch: QueueBatch) -> None:
        paid = [found for found in batch if found.type == "PaymentReceived"]
        await asyncio.sleep(PACKING_S * len(paid))
        if paid and self._chance.random() < DROPPED:
            raise BoxDropped
        async with self._client.transaction() as transaction:
            for found in paid:
                shipped = event("OrderShipped", {"customer": found.json()["customer"], "by": name})
                transaction.append(CONTEXT, found.stream, [shipped])
            transaction.acknowledge(batch)
        self._counts.shipped[name] += len(paid)
