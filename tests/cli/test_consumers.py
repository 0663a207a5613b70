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
    assert (code, out) == (1, "")
    assert "queue carts exists with the filter 'cart', not 'order'; use its filter, or" in err


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
    assert re.search(r"order-1 1 +1 +slow +20\d\d-\S+ +delivered 1 times and never acknowledged", done.out), done.out
    dead = [json.loads(line) for line in command("queue", "dead", orders, "mail", "--json", *at)[1].splitlines()]
    assert [(one["stream"], one["sequence"], one["subscriber"]) for one in dead] == [
        ("order-1", number, "slow") for number in (1, 2, 3)
    ]
    done = run("queue", "requeue", orders, "mail", dead[1]["position"], url=served.url)
    assert done == (0, "returned 1 dead letter to queue mail\n", "")
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [2]
    done = run("queue", "requeue", orders, "mail", "--all", url=served.url)
    assert done == (0, "returned 2 dead letters to queue mail\n", "")
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [1, 3]
    told = json.loads(command("queue", "requeue", orders, "mail", "--all", "--json", *at)[1])
    assert told == {"queue": "mail", "context": orders, "first": []}
    assert command("queue", "requeue", orders, "mail", "--all", *at)[1] == "returned 0 dead letters to queue mail\n"
    code, _, err = command("queue", "requeue", orders, "mail", 7, *at)
    assert (code, err) == (1, "penstock: queue mail has no dead letter at position 7; penstock queue dead shows them\n")


def agree(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Let commands ask, and answer them."""
    monkeypatch.setattr("penstock.cli.output.can_ask", lambda: True)

    def agreed(question: str) -> bool:
        asked.append(question)
        return answer == "y"

    monkeypatch.setattr("penstock.cli.queues.agreed", agreed)


asked: list[str] = []


def test_a_queue_is_made_with_its_rules_and_shown(served: Server, client: penstock.Client, orders: str) -> None:
    rules = ("--prefix", "order-", "--prefix", "cart-", "--type", "Placed", "--ordered", "stream", "--dead-after", 3)
    retry = ("--retry-delay", 5, "--retry-factor", 3, "--retry-cap", 60, "--retry-jitter", 0)
    at = ("--url", served.url)
    assert command("queue", "create", orders, "mail", *rules, *retry, *at) == (
        *(0, f"created queue mail in context {orders}\n", ""),
    )
    (info,) = (info for info in client.queues() if info.context == orders)
    assert (info.ordered, info.dead_after, info.behind) == ("stream", 3, 3)
    shown = command("queue", "show", orders, "mail", *at)[1]
    for line in (
        "streams +cart-\n +order-",
        "types +Placed",
        "ordered +by stream",
        "retry +after 5 s, then 3 times as long, up to 60 s, jitter 0",
        "dead after +3 deliveries in vain",
        "behind +3 events, the oldest ",
    ):
        assert re.search(line, shown), shown
    assert json.loads(command("queue", "show", orders, "mail", "--json", *at)[1])["dead_after"] == 3
    assert "ordered by stream, types Placed, prefixes cart- order-" in run("queue", "list", orders, url=served.url).out
    code, _, err = command("queue", "create", orders, "mail", *at)
    assert (code, err) == (
        1,
        f"penstock: queue mail in context {orders} exists already; change it with: penstock queue set\n",
    )
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [1, 2, 3]


def test_a_queue_may_be_made_by_consuming_it(served: Server, client: penstock.Client, orders: str) -> None:
    rules = ("--prefix", "order-", "--type", "Placed", "--ordered", "prefix:-")
    assert bodies(command("queue", "consume", orders, "mail", *rules, "--json", "--url", served.url)[1]) == [1, 2, 3]
    (info,) = (info for info in client.queues() if info.context == orders)
    assert (info.ordered, info.selection) == ("prefix:-", '{"types":["Placed"],"prefixes":["order-"]}')


def test_a_paused_queue_hands_out_nothing(served: Server, client: penstock.Client, orders: str) -> None:
    held = client.queue(orders, "mail", count=2).take()
    at = ("--url", served.url)
    assert command("queue", "pause", orders, "mail", *at)[1] == "queue mail is paused; consumers hold 2 events\n"
    assert "paused" in run("queue", "list", orders, url=served.url).out
    code, out, err = command("queue", "consume", orders, "mail", *at)
    assert (code, out, err) == (0, "", "nothing to consume\nqueue mail is paused\nother consumers hold 2 events\n")
    client.queue(orders, "mail").acknowledge(held)
    assert command("queue", "resume", orders, "mail", *at)[1] == "queue mail is resumed, 3 events behind\n"
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [3, 4, 5]


def test_a_move_says_first_what_it_does(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.queue(orders, "mail", filter="order-")
    with queue.next() as batch:
        batch.bury(batch[0], "broken")
        batch.retry(batch[1], delay=600)
    first = batch[0].position
    at = ("--url", served.url)
    code, out, err = command("queue", "move", orders, "mail", "--to", "beginning", *at)
    assert (code, out) == (2, "")
    assert "use --yes to do it without a question" in err
    agree(monkeypatch, "n")
    code, out, err = command("queue", "move", orders, "mail", "--to", first, *at)
    assert (code, out, err) == (1, "", "penstock: nothing was moved\n")
    assert asked.pop() == (
        f"queue mail is at position {first + 3}; moved to {first} it will deliver 3 events again, "
        "drop 1 event waiting to be delivered, drop 1 event among the dead letters. Move it?"
    )
    assert [one.reason for one in queue.dead_letters()] == ["broken"]
    agree(monkeypatch, "y")
    code, out, err = command("queue", "move", orders, "mail", "--to", "1h", *at)
    assert (code, out, err) == (0, f"queue mail continues at position {first}, 3 events behind\n", "")
    client.append(orders, "order-2", [penstock.event("Placed", 6)])
    assert command("queue", "move", orders, "mail", "--to", "end", *at)[0] == 0
    assert "it will skip 4 events. Move it?" in asked.pop()
    assert state(client, orders) == (0, 0, 0)
    assert command("queue", "move", orders, "mail", "--to", "beginning", "--yes", *at)[0] == 0
    assert state(client, orders) == (4, 0, 0)


def test_a_preview_counts_up_to_a_limit(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.queues.PREVIEW_EVENTS_MAX", 2)
    client.queue(orders, "mail", prefixes=["order-", "nothing"]).declare()
    agree(monkeypatch, "n")
    command("queue", "move", orders, "mail", "--to", "end", "--url", served.url)
    assert "it will skip more than 2 events" in asked.pop()


def test_rules_of_a_queue_are_changed(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(orders, "mail", filter="order-", retry=penstock.RetryPolicy(delay=7)).declare()
    at = ("--url", served.url)
    given = ("--retry-factor", 5, "--dead-after", 4)
    assert command("queue", "set", orders, "mail", *given, *at)[1] == f"changed queue mail in context {orders}\n"
    info = json.loads(command("queue", "show", orders, "mail", "--json", *at)[1])
    assert (json.loads(info["retry"])["delay"], json.loads(info["retry"])["factor"], info["dead_after"]) == (7, 5, 4)
    agree(monkeypatch, "n")
    code, _, err = command("queue", "set", orders, "mail", "--type", "Filled", *at)
    assert (code, err) == (1, "penstock: nothing was changed\n")
    assert re.fullmatch(
        r"queue mail has 3 events to deliver from position \d+ on, and will have 2 events. Change it\?", asked.pop()
    )
    assert command("queue", "set", orders, "mail", "--filter", "cart-", "--dead-after", "never", "--yes", *at)[0] == 0
    assert bodies(command("queue", "consume", orders, "mail", "--json", *at)[1]) == [4, 5]
    assert json.loads(command("queue", "show", orders, "mail", "--json", *at)[1])["dead_after"] is None


def test_a_queue_is_renamed_and_deleted(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(orders, "mail", count=2).take()
    at = ("--url", served.url)
    agree(monkeypatch, "n")
    assert command("queue", "rename", orders, "mail", "post", *at)[0] == 1
    assert asked.pop().startswith("consumers of queue mail hold 2 events, and those that go on")
    assert command("queue", "rename", orders, "mail", "post", "--yes", *at)[1] == "queue mail is now post\n"
    code, _, err = command("queue", "delete", orders, "post", *at)
    assert (code, err) == (1, "penstock: nothing was deleted\n")
    assert asked.pop() == (
        "consumers of queue post hold 2 events; it is 3 events behind, and has 0 dead letters. Delete it?"
    )
    assert command("queue", "delete", orders, "post", "--yes", *at)[1] == f"deleted queue post in context {orders}\n"
    assert command("queue", "list", orders, *at) == (0, "", "no queues\n")


def test_dead_letters_are_dropped(
    served: Server, client: penstock.Client, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.queue(orders, "mail")
    with queue.next() as batch:
        for event in batch:
            batch.bury(event, f"reason {event.json()}")
    at = ("--url", served.url)
    agree(monkeypatch, "n")
    assert command("queue", "drop", orders, "mail", "--all", *at)[2] == "penstock: nothing was dropped\n"
    assert asked.pop() == "5 dead letters of queue mail will be forgotten. Drop them?"
    first = batch[0].position
    dropped = command("queue", "drop", orders, "mail", first, 10**6, "--yes", *at)[1]
    assert dropped == "dropped 1 dead letter of queue mail\n"
    found = run("queue", "dead", orders, "mail", "--json", url=served.url).lines
    assert [one["reason"] for one in found] == [f"reason {number}" for number in (2, 3, 4, 5)]
    told = json.loads(command("queue", "drop", orders, "mail", "--all", "--yes", "--json", *at)[1])
    assert told == {"queue": "mail", "context": orders, "dropped": 4}


def test_an_event_may_be_due_later(served: Server, client: penstock.Client, context: str) -> None:
    at = ("--url", served.url)
    assert command("append", context, "s", "Reminded", "1", "--due", "2h", "--headers", '{"user": 7}', *at)[0] == 0
    assert command("append", context, "s", "Reminded", "2", "--due", "2020-01-01T00:00:00Z", *at)[0] == 0
    first, second = client.read_stream(context, "s")
    assert first.header_map["user"] == 7
    assert second.header_map == {"penstock-due": "2020-01-01T00:00:00Z"}
    assert bodies(command("queue", "consume", context, "mail", "--json", *at)[1]) == [2]
    (info,) = (info for info in client.queues() if info.context == context)
    assert info.delayed == 1
    for wrong in (("--due", "soon"), ("--due", "1h", "--headers", "text", "--text")):
        code, out, err = command("append", context, "s", "Reminded", "3", *wrong, *at)
        assert (code, out, err.count("\n")) == (2 if "soon" in wrong else 1, "", 1), err


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


def test_a_subscription_to_all_contexts_is_listed_and_set(served: Server, client: penstock.Client, orders: str) -> None:
    prefixes = [f"{orders}-order-", f"{orders}-cart-"]
    client.append(orders, f"{orders}-cart-1", [penstock.event("Filled", 6)])
    subscription = client.subscription(orders, context=None, prefixes=prefixes, types=["Filled"], follow=False)
    assert [event.json() for event in subscription] == [6]
    table = run("subscription", "list", url=served.url).out
    assert re.search(rf"{orders} +\* +{orders}-cart- {orders}-order-, types Filled +[\d,]+ +0 ", table), table
    given = ("subscription", "set", orders, "*", "--filter", f"{orders}-", "--to", "beginning")
    assert run(*given, url=served.url).code == 0
    assert [event.json() for event in subscription] == [6]
    number, delete = subscription.id(), ("subscription", "delete", orders, "*", "--filter", f"{orders}-")
    done = run(*delete, url=served.url)
    assert (done.code, done.err) == (
        2,
        "penstock: a deleted subscription forgets its position: use --yes to do it without a question\n",
    )
    assert number in [info.id for info in client.subscriptions()]
    assert run(*delete, "--yes", url=served.url).out == f"deleted subscription {orders} in context *\n"
    assert number not in [info.id for info in client.subscriptions()]


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
        (("queue", "requeue", "shop", "nix"), 2, "either POSITIONs or --all"),
        (("queue", "lits"), 2, "no such command 'lits'; did you mean 'list'? (see penstock queue --help)"),
        (("subscription", "set", "nix", "shop", "--to", "end"), 1, "no subscription nix to * in context shop"),
    ],
)
def test_what_is_not_there_or_not_meant_is_told(
    served: Server, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    where = ("--url", served.url) if arguments[1] != "lits" else ()
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
