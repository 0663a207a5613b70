"""The shop for tests: events as `penstock demo` writes them, and what plain Python makes of the same events."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid5

import cbor2

from penstock.errors import NotJson
from penstock.model import Event, event
from penstock.model.times import datetime_of
from tests.pipelines.support import rows
from tests.spark.support import Written, fill, history

CUSTOMERS: Final = ("Ada", "Barbara", "Edsger", "Grace", "Kathleen", "Tony")
OPENING: Final = datetime(2024, 5, 1, 9, tzinfo=UTC)
PAUSE: Final = timedelta(minutes=30)
LATE: Final = timedelta(minutes=10)
WITHIN: Final = timedelta(minutes=10)
BAD: Final = (b"no json", b'{"customer": "Ada"}', b'{"customer": 5, "amount": "much"}', b"\xff", b"[]")
"""Bodies that are no order."""


class Session(NamedTuple):
    """What a customer did without a pause."""

    customer: str
    began: datetime
    ended: datetime
    events: int


class Shop:
    """Writes what happens in the shop into a store, day after day; the same every time."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._chance = random.Random(7)
        self._now = OPENING
        self._orders = 0
        self.url = fill(place, [])

    def sell(self, orders: int) -> None:
        """So many orders, with what comes before and after each."""
        fill(self._place, [commit for _ in range(orders) for commit in self._order()])

    def add(self, *bodies: bytes, type: str = "OrderPlaced", time: datetime | None = None) -> None:
        """Events with these bodies."""
        odd = [event(type, body, time=time or self._now) for body in bodies]
        fill(self._place, [("shop", "order-odd", odd)])

    def events(self) -> list[Event]:
        """All events."""
        return history(self._place)

    def _order(self) -> Iterable[Written]:
        chance = self._chance
        self._orders += 1
        customer, amount = chance.choice(CUSTOMERS), chance.randint(400, 4000) / 100
        self._now += timedelta(minutes=chance.choice((1, 3, 25)), microseconds=chance.randrange(1_000_000))
        for page in chance.sample(("/bread", "/cake", "/jam"), chance.randint(1, 3)):
            visit = cbor2.dumps({"page": page, "customer": customer})
            yield "remits", "visits", [event("cbor", visit, time=self._soon())]
        placed = {"customer": customer, "things": ["cake"], "amount": amount}
        happened = [event("OrderPlaced", placed, time=self._soon())]
        failed, failures = {"customer": customer, "reason": "card"}, chance.choice((0, 0, 0, 0, 1, 3))
        happened += [event("PaymentFailed", failed, time=self._soon()) for _ in range(failures)]
        happened.append(event("PaymentReceived", {"customer": customer, "amount": amount}, time=self._soon()))
        happened.append(event("OrderShipped", {"customer": customer, "by": "packer-1"}, time=self._soon()))
        yield "shop", f"order-{self._orders}", happened

    def _soon(self) -> datetime:
        """Times are not in order."""
        return self._now + timedelta(microseconds=self._chance.randrange(240_000_000))


def body(found: Event) -> dict[str, Any]:
    """What an event says, or nothing."""
    if found.type == "cbor":
        said = cbor2.loads(found.body)
    else:
        try:
            said = found.json()
        except (NotJson, UnicodeDecodeError):
            return {}
    fits = isinstance(said, dict) and isinstance(said.get("customer"), str)
    if fits and found.type in ("OrderPlaced", "PaymentReceived"):
        fits = isinstance(said.get("amount"), int | float)
    return said if fits else {}


def time_of(found: Event) -> datetime:
    """When it happened: not after it was recorded."""
    return min(found.timestamp, datetime_of(found.recorded))


def revenue(events: Iterable[Event]) -> dict[datetime, tuple[int, Decimal]]:
    """Payments and their sum in each hour."""
    found: dict[datetime, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
    for each in events:
        if each.type == "PaymentReceived" and body(each):
            hour = each.timestamp.replace(minute=0, second=0, microsecond=0)
            count, total = found[hour]
            found[hour] = (count + 1, total + Decimal(str(body(each)["amount"])))
    return dict(found)


def sessions(events: Sequence[Event]) -> list[Session]:
    """The sessions that are over, in order."""
    times: dict[str, list[datetime]] = defaultdict(list)
    for each in events:
        if each.type in ("cbor", "OrderPlaced", "PaymentReceived", "PaymentFailed") and body(each):
            times[body(each)["customer"]].append(time_of(each))
    known_until = max(max(each) for each in times.values()) - LATE
    found = [session for customer, each in times.items() for session in _cut(customer, sorted(each))]
    return sorted(session for session in found if session.ended + PAUSE <= known_until)


def _cut(customer: str, times: Sequence[datetime]) -> Iterable[Session]:
    first = 0
    for at in range(1, len(times) + 1):
        if at == len(times) or times[at] - times[at - 1] > PAUSE:
            yield Session(customer, times[first], times[at - 1], at - first)
            first = at


def suspected(events: Iterable[Event]) -> list[tuple[str, str, str]]:
    """Id, stream and customer of each suspicion: the third failure within ten minutes, and then from the start."""
    before: dict[str, list[datetime]] = defaultdict(list)
    found = []
    for each in events:
        if each.type == "PaymentFailed" and body(each):
            customer = body(each)["customer"]
            before[customer] = [*before[customer][-2:], each.timestamp]
            if len(before[customer]) > 2 and abs(each.timestamp - before[customer][0]) < WITHIN:
                found.append((str(uuid5(each.uuid, "FraudSuspected")), each.stream, customer))
                before[customer] = []
    return sorted(found)


def told(events: Iterable[Event]) -> list[tuple[str, str, str]]:
    """The suspicions that are in the history."""
    return sorted((str(each.uuid), each.stream, each.json()["customer"]) for each in events if each.context == "fraud")


def totals(events: Iterable[Event]) -> dict[str, tuple[int, Decimal, Decimal]]:
    """Orders, what was ordered and what was paid, by customer."""
    orders: Counter[str] = Counter()
    sums: dict[tuple[str, str], Decimal] = defaultdict(Decimal)
    for each in events:
        if each.type in ("OrderPlaced", "PaymentReceived") and (said := body(each)):
            orders[said["customer"]] += each.type == "OrderPlaced"
            sums[said["customer"], each.type] += Decimal(str(said["amount"]))
    return {each: (orders[each], sums[each, "OrderPlaced"], sums[each, "PaymentReceived"]) for each in orders}


def table(project: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table, their times with a zone."""
    return [{name: _in_utc(value) for name, value in row.items()} for row in rows(project, name)]


def _in_utc(value: Any) -> Any:
    """Spark's files have times without a zone."""
    if not isinstance(value, datetime):
        return value
    return datetime.fromisoformat(value.isoformat(timespec="microseconds")).replace(tzinfo=UTC)
