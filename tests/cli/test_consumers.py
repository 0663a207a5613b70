"""Queues and subscriptions, looked at, worked with and mended by hand."""

import json
import re
import signal
import subprocess

import pytest

import penstock
from penstock.cli.stats import lag_cells
from penstock.client.sync import Queue
from penstock.model import SubscriptionInfo
from penstock.testing import Server
from tests.cli.support import called as command
from tests.cli.support import run, shell, variables
from tests.test_server import PATIENCE_S, PENSTOCK


@pytest.fixture
def orders(client: penstock.Client, context: str) -> str:
    """A context with five events in two streams."""
    client.append(context, "order-1", [penstock.event("Placed", number) for number in (1, 2, 3)])
    client.append(context, "cart-1", [penstock.event("Filled", number) for number in (4, 5)])
    return context


def bodies(out: str) -> list[int]:
    return [json.loads(line)["body"] for line in out.splitlines()]


def state(client: penstock.Client, context: str) -> tuple[int, int, int]:
    """How far the one queue of a context is behind, how many events are out, how many batches were set aside."""
    (info,) = (info for info in client.queues() if info.context == context)
    return info.behind, info.allocated, info.dead


def test_a_queue_is_consumed_and_listed(served: Server, client: penstock.Client, orders: str) -> None:
    done = run("queue", "consume", orders, "mail", "--count", 2, "--json", url=served.url)
    assert (done.code, done.err, bodies(done.out)) == (0, "", [1, 2])
    assert state(client, orders) == (3, 0, 0)
    done = run("queue", "list", orders, url=served.url)
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"mail +{orders} +\* +\d+ +3 +\d+ s +0 +0 +0 +- ", done.out)
    found = json.loads(command("queue", "list", orders, "--json", "--url", served.url)[1])
    assert (found["name"], found["filter"], found["behind"]) == ("mail", "", 3)
    code, out, _ = command("queue", "consume", orders, "mail", "--url", served.url)
    assert (code, len(out.splitlines())) == (0, 3)
    assert command("queue", "consume", orders, "mail", "--url", served.url) == (0, "", "nothing to consume\n")


def test_a_queue_keeps_the_filter_that_it_was_made_with(served: Server, orders: str) -> None:
    at = ("--json", "--url", served.url)
    assert bodies(command("queue", "consume", orders, "carts", "--filter", "cart", "-n", 1, *at)[1]) == [4]
    assert bodies(command("queue", "consume", orders, "carts", *at)[1]) == [5]
    code, out, err = command("queue", "consume", orders, "carts", "--filter", "order", *at)
    assert (code, out, err) == (1, "", "penstock: queue carts exists with the filter 'cart', not 'order'\n")


def test_what_nobody_could_read_goes_to_the_next_consumer(
    served: Server, client: penstock.Client, context: str
) -> None:
    client.append(context, "s", [penstock.event("T", "x" * 3000) for _ in range(100)])
    client.queue(context, "mail").declare()
    client.queue(context, "mail").dead_after(1)
    done = shell(f"penstock queue consume {context} mail --json | head -1 > /dev/null", served.url)
    assert (done.code, done.err) == (1, "")
    # Nobody holds it, it is still to come, and it is no dead letter: that nobody read it is no fault of the events.
    assert state(client, context) == (100, 0, 0)
    assert len(run("queue", "consume", context, "mail", "--json", url=served.url).lines) == 100


def test_a_batch_that_comes_again_is_never_cut(served: Server, client: penstock.Client, orders: str) -> None:
    lost = client.queue(orders, "mail", count=4)
    lost.release(lost.take())
    at = ("--json", "--url", served.url)
    code, out, err = command("queue", "consume", orders, "mail", "-n", 3, *at)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "the next 4 events were delivered together before" in err
    assert state(client, orders) == (5, 0, 0)
    (info,) = (info for info in client.queues() if info.context == orders)
    assert info.deliveries_max == 1
    assert bodies(command("queue", "consume", orders, "mail", "-n", 4, *at)[1]) == [1, 2, 3, 4]
    assert bodies(command("queue", "consume", orders, "mail", *at)[1]) == [5]


def test_who_finds_nothing_is_told_what_others_hold(served: Server, client: penstock.Client, orders: str) -> None:
    held = client.queue(orders, "mail", count=4)
    batch = held.take()
    code, out, err = command("queue", "consume", orders, "mail", "--json", "--url", served.url)
    assert (code, bodies(out), err) == (0, [5], "other consumers hold 4 events\n")
    assert state(client, orders) == (0, 4, 0)
    held.release(batch)
    assert state(client, orders) == (4, 0, 0)


def test_a_drained_queue_is_not_behind_whatever_others_append(
    served: Server, client: penstock.Client, orders: str
) -> None:
    command("queue", "consume", orders, "mail", "--url", served.url)
    client.append(f"{orders}-else", "s", [penstock.event("T", number) for number in range(20)])
    assert state(client, orders) == (0, 0, 0)


def test_a_queue_is_not_made_under_a_name_that_nobody_can_type(
    served: Server, client: penstock.Client, orders: str
) -> None:
    at = ("--json", "--url", served.url)
    code, out, err = command("queue", "consume", orders, "mail\x07", *at)
    assert (code, out) == (2, "")
    assert err == "penstock: the name of a queue has characters that cannot be printed: mail\\x07\n"
    # Programs can make one, and then it is consumed as others are.
    client.queue(orders, "mail\x07").declare()
    assert bodies(command("queue", "consume", orders, "mail\x07", *at)[1]) == [1, 2, 3, 4, 5]


def test_what_an_interrupted_take_brings_is_given_back(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(orders, "mail").declare()
    client.queue(orders, "mail").dead_after(1)
    take = Queue.take

    def interrupted(queue: Queue, wait: float = 0.0) -> object:
        # The server has handed it out, and Ctrl-C comes before the answer.
        take(queue, wait)
        raise KeyboardInterrupt

    monkeypatch.setattr(Queue, "take", interrupted)
    assert run("queue", "consume", orders, "mail", url=served.url).code == 130
    assert state(client, orders) == (5, 0, 0)


def test_ctrl_c_leaves_nothing_in_nobodys_hands(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "s", [penstock.event("T", number) for number in range(3000)])
    process = subprocess.Popen(
        [*PENSTOCK, "queue", "consume", context, "mail", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables(served.url),
        bufsize=0,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=PATIENCE_S)
    assert err == b""
    assert process.returncode in (0, 130)
    assert state(client, context)[1:] == (0, 0)
    left = command("queue", "consume", context, "mail", "--json", "--url", served.url)[1]
    assert set(bodies((first + rest).decode())) | set(bodies(left)) == set(range(3000))


def test_a_queue_goes_on_where_it_is_told(served: Server, client: penstock.Client, orders: str) -> None:
    client.queue(orders, "mail").declare()
    first = next(client.read_all(context=orders)).position
    at = ("--url", served.url)
    for place, left in (
        ("end", []),
        ("beginning", [1, 2, 3, 4, 5]),
        (first + 3, [4, 5]),
        ("1h", [1, 2, 3, 4, 5]),
        ("now", []),
    ):
        code, out, err = command("queue", "reset", orders, "mail", "--to", place, *at)
        assert (code, err) == (0, "")
        assert out.startswith("queue mail continues at position ")
        assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == left
    told = json.loads(command("queue", "reset", orders, "mail", "--to", "beginning", "--json", *at)[1])
    assert (told["name"], told["context"]) == ("mail", orders)
    done = run("queue", "reset", orders, "mail", "--to", 10**9, url=served.url)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert "position is 1000000000; it must be from 1 to" in done.err


def test_what_was_set_aside_is_put_back(served: Server, client: penstock.Client, orders: str) -> None:
    at = ("--url", served.url)
    client.queue(orders, "mail").declare()
    assert command("queue", "dead", orders, "mail", "--after", 1, *at) == (0, "", "no dead letters\n")
    client.queue(orders, "mail", subscriber="slow", count=3, ttl=0.001).take()
    rest = client.queue(orders, "mail", count=10)
    while state(client, orders)[2] == 0:
        rest.acknowledge(rest.take(wait=0.05))
    while batch := rest.take():
        rest.acknowledge(batch)
    done = run("queue", "dead", orders, "mail", url=served.url)
    assert re.search(r" 3 +1 +slow +20\d\d-", done.out)
    dead = json.loads(command("queue", "dead", orders, "mail", "--json", *at)[1])
    assert (dead["count"], dead["subscriber"]) == (3, "slow")
    done = run("queue", "requeue", orders, "mail", dead["first"], url=served.url)
    assert done == (0, "returned 1 dead letter to queue mail\n", "")
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [1, 2, 3]
    told = json.loads(command("queue", "requeue", orders, "mail", "--all", "--json", *at)[1])
    assert told == {"queue": "mail", "context": orders, "first": []}
    assert command("queue", "requeue", orders, "mail", "--all", *at)[1] == "returned 0 dead letters to queue mail\n"
    code, _, err = command("queue", "requeue", orders, "mail", 7, *at)
    assert (code, err) == (1, "penstock: queue mail has no dead letter that begins at 7\n")


def test_subscriptions_are_listed_and_set(served: Server, client: penstock.Client, orders: str) -> None:
    subscription = client.subscription("revenue", context=orders, filter="order-", follow=False)
    assert [event.json() for event in subscription] == [1, 2, 3]
    (found,) = run("subscription", "list", orders, "--json", url=served.url).lines
    assert (found["subscriber"], found["filter"]) == ("revenue", "order-")
    assert re.match(r"20\d\d-\d\d-\d\dT", found["last_event"])
    assert (found["behind"], found["behind_is_exact"], found["behind_ms"]) == (0, True, 0)
    table = command("subscription", "list", "--url", served.url)[1]
    assert re.search(rf"revenue +{orders} +order- +[\d,]+ +0 +- ", table), table
    given = ("subscription", "set", "revenue", orders, "--filter", "order-", "--to")
    done = run(*given, "beginning", url=served.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("subscription revenue continues at position ")
    assert [event.json() for event in subscription] == [1, 2, 3]
    assert command(*given, "beginning", "--url", served.url)[0] == 0
    assert command(*given, "end", "--url", served.url)[0] == 0
    assert list(subscription) == []
    told = json.loads(command(*given, "beginning", "--json", "--url", served.url)[1])
    assert (told["subscriber"], told["context"], told["filter"]) == ("revenue", orders, "order-")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (
            ("queue", "reset", "shop", "nix", "--to", "end"),
            1,
            "no queue nix in context shop; list them with: penstock queue list",
        ),
        (("queue", "dead", "shop", "nix"), 1, "no queue nix in context shop"),
        (("queue", "dead", "shop", "nix", "--after", "0"), 2, "--after '0' is not a number of consumers"),
        (("queue", "reset", "shop", "nix", "--to", "soon"), 2, "'soon' is not a time"),
        (("queue", "reset", "shop", "nix"), 2, "missing option '--to'"),
        (("queue", "requeue", "shop", "nix"), 2, "either FIRST positions or --all"),
        (("queue", "lst"), 2, "no such command 'lst'; did you mean 'list'? (see penstock queue --help)"),
        (("subscription", "set", "nix", "shop", "--to", "end"), 1, "no subscription nix to * in context shop"),
    ],
)
def test_what_is_not_there_or_not_meant_is_told(
    served: Server, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    where = ("--url", served.url) if arguments[1] != "lst" else ()
    found, out, err = command(*arguments, *where)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert reason in err


@pytest.mark.parametrize(
    ("behind", "is_exact", "ms", "cells"),
    [
        (0, True, 0, ("0", "-")),
        (0, False, 0, ("0+", "-")),
        (1200, True, 1, ("1,200", "1 s")),
        (10_000, False, 119_000, ("10,000+", "119 s")),
        (1, True, 121_000, ("1", "3 min")),
        (1, True, 3 * 3_600_000, ("1", "3 h")),
        (1, True, 49 * 3_600_000, ("1", "2 d")),
    ],
)
def test_a_lag_is_told_in_two_cells(behind: int, is_exact: bool, ms: int, cells: tuple[str, str]) -> None:
    assert lag_cells(SubscriptionInfo(1, "me", "shop", "", 1, None, behind, is_exact, ms)) == cells
