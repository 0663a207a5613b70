"""A small event-sourced shop: orders, two workers that share a queue, and a projection.

    python examples/shop.py                                       # starts a server
    python examples/shop.py --url penstock://127.0.0.1:8472       # uses yours

The shop places and pays orders with expected versions, so that no order is paid twice. Workers ship paid orders: the
shipment and the acknowledgement of the queue are one transaction, so that each order is shipped exactly once. A durable
subscription counts the revenue of each customer and continues from its last position. Every run uses a new context.
"""

import argparse
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from uuid import uuid4

import penstock
from penstock.client import QueueBatch
from penstock.errors import VersionConflict
from penstock.testing import server

CUSTOMERS = ("Ada", "Grace", "Linus")
ORDERS = 30


class Shop:
    """A shop is a context; each order and each shipment is a stream."""

    def __init__(self, client: penstock.Client, name: str) -> None:
        self.client = client
        self.name = name

    # -- orders: read the stream, decide, append with the expected version

    def place(self, number: int) -> None:
        """Place an order. Its stream must be new, so the same order cannot be placed twice."""
        order = {"customer": CUSTOMERS[number % len(CUSTOMERS)], "amount": 10 + number}
        self.client.append(self.name, f"order-{number}", [penstock.event("OrderPlaced", order)], expected=penstock.NEW)

    def pay(self, number: int) -> bool:
        """Pay an order unless it is paid already. Return whether this call has paid it."""
        while True:
            history = list(self.client.read_stream(self.name, f"order-{number}"))
            if any(event.type == "OrderPaid" for event in history):
                return False
            paid = penstock.event("OrderPaid", history[0].json())
            try:
                self.client.append(self.name, f"order-{number}", [paid], expected=len(history) + 1)
            except VersionConflict:
                continue  # The stream has changed since we read it: read it again and decide again.
            return True

    # -- shipping: workers share a queue

    def ship(self, worker: str, all_paid: threading.Event) -> int:
        """Ship paid orders until all are shipped. Return how many this worker has shipped."""
        queue = self.client.queue(self.name, "shipping", subscriber=worker, filter="order-", count=4)
        shipped = 0
        while True:
            was_all = all_paid.is_set()
            with queue.next(wait=0.2) as batch:
                if not batch and was_all:
                    return shipped
                if batch:
                    shipped += self._ship_batch(batch, worker)

    def _ship_batch(self, batch: QueueBatch, worker: str) -> int:
        """Append the shipments and acknowledge the batch in one transaction."""
        paid = [event for event in batch if event.type == "OrderPaid"]
        with self.client.transaction() as transaction:
            for event in paid:
                shipment = event.stream.replace("order-", "shipment-")
                shipped = penstock.event("OrderShipped", {"by": worker, **event.json()})
                transaction.append(self.name, shipment, [shipped], expected=penstock.NEW)
            transaction.acknowledge(batch)
        return len(paid)

    # -- revenue: a projection that continues from its last position

    def count_revenue(self) -> int:
        """Count the payments since the last call. Return the number of events read.

        The new totals and the subscription's position are one transaction: each event counts once, even after an
        interruption.
        """
        subscription = self.client.subscription("revenue", context=self.name, filter="order-", follow=False)
        counted = 0
        for batch in subscription.batches():
            totals = self.revenue()
            for event in batch:
                if event.type == "OrderPaid":
                    totals[event.json()["customer"]] += event.json()["amount"]
            with self.client.transaction() as transaction:
                transaction.append(self.name, "revenue", [penstock.event("RevenueCounted", totals)])
                transaction.progress(subscription, batch)
            counted += len(batch)
        return counted

    def revenue(self) -> Counter[str]:
        """The totals of the last count."""
        last = next(self.client.read_stream(self.name, "revenue", backward=True, limit=1), None)
        return Counter(last.json() if last is not None else {})


def main() -> None:
    """Open a shop, run it, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--url", help="penstock://…, zmq+tcp://… or sqlite:///…; without it, the script starts a server"
    )
    url = parser.parse_args().url
    with ExitStack() as stack:
        if url is None:
            url = stack.enter_context(server()).url
        client = stack.enter_context(penstock.connect(url))
        run(Shop(client, f"shop-{uuid4().hex[:8]}"))


def run(shop: Shop) -> None:
    """A day in the shop."""
    all_paid = threading.Event()
    shipped: Counter[str] = Counter()

    def work(worker: str) -> None:
        shipped[worker] = shop.ship(worker, all_paid)

    workers = [threading.Thread(target=work, args=(name,)) for name in ("worker-1", "worker-2")]
    for thread in workers:
        thread.start()
    try:
        sell(shop, range(ORDERS // 2))
        print(f"counted {shop.count_revenue()} events of orders")
        sell(shop, range(ORDERS // 2, ORDERS))
        print(f"counted {shop.count_revenue()} more")
    finally:
        all_paid.set()
        for thread in workers:
            thread.join()
    print(f"shipped {shipped.total()} orders: {shipped['worker-1']} by worker-1, {shipped['worker-2']} by worker-2")
    for customer, amount in sorted(shop.revenue().items()):
        print(f"{customer} has paid {amount}")


def sell(shop: Shop, numbers: range) -> None:
    """Place orders and pay each with two clicks at the same time, of which one succeeds."""
    paid: list[bool] = []
    with ThreadPoolExecutor(2) as clicks:
        for number in numbers:
            shop.place(number)
            paid += clicks.map(shop.pay, [number, number])
    print(f"sold {len(numbers)} orders: {len(paid)} clicks, {sum(paid)} payments")


if __name__ == "__main__":
    main()
