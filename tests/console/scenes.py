"""Stores for tests and pictures of the console: a small shop, and data that would harm pages."""

import random
from datetime import UTC, datetime, timedelta
from typing import Final

import penstock
from penstock import Client
from tests.principals import issue, put

OPENED: Final = datetime(2026, 11, 19, 8, tzinfo=UTC)
"""When the shop sold its first cake."""
CUSTOMERS: Final = ("Ada", "Barbara", "Edsger", "Grace", "Kathleen", "Tony")
PRICES: Final = {"bread": 4, "cake": 18, "coffee": 9, "jam": 6, "pie": 15}
ORDERS: Final = 40
VISITS: Final = 90
COUNT_BY_PAGE: Final = "acc = acc or map()\nacc[msg.page] = (acc[msg.page] or 0) + 1\nreturn acc\n"
BIG: Final = 2**70

MARKUP: Final = "<b class=injected>b</b><script>alert(1)</script>\"'&</main>{{ 7*7 }}"
HIDDEN: Final = "\u202egnp.exe\u2066\u200b\x1b[31m\x07"
HOSTILE: Final = MARKUP + HIDDEN
LONG: Final = "long-" + "x" * 240
BODY_BYTES: Final = 1 << 20


def fill_shop(client: Client) -> None:
    """Orders with all that belongs to them: queues with dead letters, a subscription, a log, iterators, principals."""
    chance = random.Random(7)
    for number in range(1, ORDERS + 1):
        _sell(client, number, chance)
    client.append("stock", "oven-1", [penstock.event("TemperatureRead", {"celsius": 21 + step}) for step in range(5)])
    _consume(client)
    for name, count in (("returns", 3), ("visits", VISITS)):
        log = client.log(name)
        log.create()
        log.append(
            [{"page": f"/{chance.choice(sorted(PRICES))}", "customer": chance.choice(CUSTOMERS)} for _ in range(count)]
        )
    client.iterator("visits-by-page").create("visits", "reduce", COUNT_BY_PAGE, indexed=True)
    client.iterator("cake-visits").create("visits", "filter", 'return msg.page == "/cake"')
    client.erase_subject("tony", wait=True)
    for name, *grants in (("ann", "all"), ("bookkeeping", "read:shop"), ("packers", "read,append,consume:shop")):
        put(client, name, *grants)
        issue(client, name, label="laptop")


def _sell(client: Client, number: int, chance: random.Random) -> None:
    customer, began = chance.choice(CUSTOMERS), OPENED + timedelta(minutes=7 * number)
    things = chance.sample(sorted(PRICES), chance.randint(1, 3))
    amount = sum(PRICES[thing] for thing in things)
    order = {
        "order": f"order-{number}",
        "customer": {"name": customer, "since": 2019 + number % 5},
        "lines": [{"article": thing, "price": PRICES[thing]} for thing in things],
        "amount": amount,
        "gift": number % 4 == 0,
        "receipt": BIG + number,
    }
    events = [
        ("OrderPlaced", order),
        ("PaymentFailed", {"reason": "card declined"}) if number % 9 == 0 else ("PaymentReceived", {"amount": amount}),
        *([("OrderShipped", {"by": f"packer-{1 + number % 2}"})] if number % 3 else []),
    ]
    headers = {"subject": customer.lower(), "trace": f"4bf92f3577b34da6a3ce929d0e0e{number:04x}"}
    made = [
        penstock.event(type, body, headers, time=began + timedelta(seconds=40 * step))
        for step, (type, body) in enumerate(events)
    ]
    client.append("shop", f"order-{number}", made)


def _consume(client: Client) -> None:
    shipping = client.queue("shop", "shipping", subscriber="packer-1", filter="order-", count=12, ttl=3600)
    with shipping.next() as batch:
        for event in batch[:2]:
            batch.bury(event, "the label printer answered: no paper")
    with shipping.next():
        pass
    for packer in ("packer-1", "packer-2"):
        shipping.another(packer, count=5).take()
    mail = client.queue("shop", "mail", subscriber="mailer", types=["PaymentReceived"], ordered="stream")
    with mail.next():
        pass
    mail.pause()
    books = client.subscription("bookkeeping", context="shop", count=20, follow=False)
    books.progress(books.fetch())


def fill_hostile(client: Client) -> None:
    """Whatever clients may send: in names, types, headers and bodies."""
    for stream, type, body, headers in (
        (HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}),
        (HOSTILE, "json", {HOSTILE: [HOSTILE, {"big": BIG, HOSTILE: None}], "long": LONG * 40}, None),
        (LONG, LONG, LONG * 30, {LONG: LONG}),
        (MARKUP, "bytes", bytes(range(256)) * (BODY_BYTES // 256), None),
        (MARKUP, "text", "wörter " * (BODY_BYTES // 8), f"no JSON {HOSTILE}"),
        (HIDDEN, "deep", "[" * 5000, None),
    ):
        client.append(HOSTILE, stream, [penstock.event(type, body, headers)])
    client.append(LONG, LONG, [penstock.event("Other", LONG)])
    queue = client.queue(HOSTILE, HOSTILE, subscriber=HOSTILE, count=2, ttl=3600)
    with queue.next() as batch:
        for event in batch:
            batch.bury(event, HOSTILE)
    queue.take()
    subscription = client.subscription(HOSTILE, context=HOSTILE, count=1)
    subscription.progress(subscription.fetch())
    log = client.log("hostile")
    log.create()
    log.append([HOSTILE, {HOSTILE: LONG * 40}, [[BIG]]])
    client.iterator("hostile").create("hostile", "map", f"-- {MARKUP}\nreturn msg", indexed=True)


def issue_root(client: Client) -> str:
    """A token of an administrator; from now on the server asks everybody for one."""
    put(client, "root", "all")
    return issue(client, "root", label="test").token
