"""A shop written with the `eventsourcing` library, on Penstock: orders, and a projection of customers' payments.

python examples/eventsourcing_shop.py
python examples/eventsourcing_shop.py --url penstock://127.0.0.1:8472

Without --url it uses a store in a temporary folder. With --url, run it twice: the totals continue.
"""

import argparse
import tempfile
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.application import AggregateNotFoundError, Application, ProcessingEvent
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError
from eventsourcing.projection import EventSourcedProjection, EventSourcedProjectionRunner
from eventsourcing.utils import get_topic

PATIENCE_S = 30.0
SALES = [("Ada", 40), ("Bob", 15), ("Ada", 2)]


class Order(Aggregate):
    """An order. Its events are a stream of the context `Shop`; the stream's name contains its id."""

    class Placed(Aggregate.Created):
        """A customer has placed the order."""

        customer: str
        amount: int

    class Paid(Aggregate.Event):
        """The customer has paid the order."""

        customer: str
        amount: int

    @event(Placed)
    def __init__(self, customer: str, amount: int) -> None:
        self.customer = customer
        self.amount = amount
        self.is_paid = False

    def pay(self) -> None:
        """Pay the order, once."""
        if not self.is_paid:
            self._pay(self.customer, self.amount)

    @event(Paid)
    def _pay(self, customer: str, amount: int) -> None:  # noqa: ARG002 - the library puts them into the event
        self.is_paid = True


class Shop(Application[UUID]):
    """The application that takes orders."""

    def place_order(self, customer: str, amount: int) -> UUID:
        """Place an order and return its id."""
        order = Order(customer, amount)
        self.save(order)
        return order.id

    def pay_order(self, order_id: UUID) -> int:
        """Pay an order and return the id of its notification."""
        order: Order = self.repository.get(order_id)
        order.pay()
        return self.save(order)[-1].notification.id


class Customer(Aggregate):
    """The sum of a customer's payments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.paid = 0

    @staticmethod
    def create_id(name: str) -> UUID:
        """A customer's id follows from the name."""
        return uuid5(NAMESPACE_URL, f"/customers/{name}")

    @event("HasPaid")
    def add(self, amount: int) -> None:
        """Add a payment."""
        self.paid += amount


class Customers(EventSourcedProjection[UUID]):
    """Follows the shop. It stores its events and its position in one transaction, so each payment counts once."""

    topics = (get_topic(Order.Paid),)

    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        """Handle a payment; `topics` selects only payments."""
        customer = self.customer(domain_event.customer)
        customer.add(domain_event.amount)
        processing_event.collect_events(customer)

    def customer(self, name: str) -> Customer:
        """Find a customer by name, or create one."""
        try:
            found: Customer = self.repository.get(Customer.create_id(name))
        except AggregateNotFoundError:
            return Customer(name)
        return found


def sell(shop: Shop) -> int:
    """Place and pay some orders. Return the id of the last notification."""
    last = 0
    for customer, amount in SALES:
        order_id = shop.place_order(customer, amount)
        last = shop.pay_order(order_id)
        print(f"{customer} ordered and paid {amount}")
    return last


def collide(shop: Shop) -> None:
    """Change one order twice from the same version: the second save fails."""
    order_id = shop.place_order("Eve", 7)
    one: Order = shop.repository.get(order_id)
    other: Order = shop.repository.get(order_id)
    one.pay()
    other.pay()
    shop.save(one)
    try:
        shop.save(other)
    except IntegrityError:
        print("Eve's order cannot be paid twice")


def run(url: str) -> None:
    """Sell, and wait until the projection has processed it."""
    env = {"PERSISTENCE_MODULE": "penstock.integrations.eventsourcing", "PENSTOCK_URL": url}
    with EventSourcedProjectionRunner(application_class=Shop, projection_class=Customers, env=env) as runner:
        collide(runner.app)
        runner.wait(sell(runner.app), timeout=PATIENCE_S)
        for name in ("Ada", "Bob", "Eve"):
            print(f"{name} has paid {runner.projection.customer(name).paid} in all")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="penstock://HOST:PORT, zmq+tcp://HOST:PORT or sqlite:///DIR")
    url = parser.parse_args().url
    if url:
        run(url)
        return
    with tempfile.TemporaryDirectory() as folder:
        run(f"sqlite:///{folder}/data")


if __name__ == "__main__":
    main()
