"""`penstock queue` and `penstock subscription`: what consumers have read, and how to move or repair it."""

import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from penstock.cli.connection import connected
from penstock.cli.options import AsJson, Data, Url, argument, moment, need_name, option
from penstock.cli.output import counted, fail, print_result, print_rows, refuse, remark
from penstock.cli.read import print_events
from penstock.cli.stats import QUEUE_COLUMNS, lag_cells, queue_row
from penstock.errors import AllocationLost, PenstockError
from penstock.model import QueueInfo, SubscriptionInfo
from penstock.model.times import TICKS_MAX, datetime_of, text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client, Queue

BATCH_EVENTS: Final = 100
WAIT_S: Final = 20.0
"""How long one request of `consume --follow` waits for events."""
SUBSCRIPTION_COLUMNS: Final = (
    "#id",
    "subscription",
    "context",
    "filter",
    "#position",
    "#behind",
    "#oldest",
    "last event",
)

queue_app = typer.Typer(no_args_is_help=True)
subscription_app = typer.Typer(no_args_is_help=True)

OnlyContext = Annotated[str | None, argument("CONTEXT", "only those of this context")]
Context = Annotated[str, argument("CONTEXT", "the queue's context")]
Name = Annotated[str, argument("QUEUE", "the queue's name")]


@queue_app.command("list")
def list_queues(context: OnlyContext = None, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List queues: position, lag, events that consumers hold, and dead letters.

    `behind` is the lag: the queue's events from its position to the end of the history, and the events that will be
    delivered again because a consumer released them or let them expire. It is 0 when nothing is left. The count ends at
    10,000 events, or after some milliseconds: a `+` says that there may be more. `oldest` is how long ago the oldest of
    these events was recorded. `allocated` are the events that consumers hold now, `tries` is the largest number of
    consumers that had the same batch, and `dead` is the number of batches that were set aside.
    """
    with connected(url, data) as client:
        found = [info for info in client.queues() if context in (None, info.context)]
    columns = (*QUEUE_COLUMNS, "#dead after")
    print_rows(map(asdict, found), columns, map(queue_row, found), empty="no queues", as_json=as_json)


def _queue_info(client: "Client", context: str, name: str) -> QueueInfo | None:
    return next((info for info in client.queues() if (info.context, info.name) == (context, name)), None)


def _existing_queue(client: "Client", context: str, name: str) -> "Queue":
    if _queue_info(client, context, name) is None:
        fail(f"no queue {name} in context {context}; list them with: penstock queue list")
    return client.queue(context, name)


@queue_app.command("consume")
def consume_command(
    context: Context,
    name: Name,
    count: Annotated[int | None, option("-n --count", "end after this many events", "N", min=1)] = None,
    follow: Annotated[bool, option("-f --follow", "wait for new events, until Ctrl-C or --count")] = False,
    filter_: Annotated[
        str | None, option("--filter", "of a new queue: only streams whose names begin with this", "PREFIX")
    ] = None,
    subscriber: Annotated[
        str | None, option("--subscriber", "the name of this consumer (default: random)", "NAME")
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print events of a queue and acknowledge them, until there are no more.

    A queue that does not exist is created. Events are acknowledged when their whole batch (100, or what --count still
    wants) is printed. If it could not be printed, because the reader of the output is gone or the command was
    ended, the next consumer gets the batch, and it does not count as failed (see `penstock queue dead`).

    Events that a consumer released or let expire are delivered again in the batch they were in. If that batch is larger
    than what --count still wants, the command prints and acknowledges nothing of it and fails; the batch stays queued.
    """
    need_name(subscriber or "", "a consumer")
    with connected(url, data) as client:
        known = _queue_info(client, context, name)
        if known is None:
            need_name(context, "a context")
            need_name(name, "a queue")
        if filter_ is None:
            filter_ = "" if known is None else known.filter
        # One name for all batches: a consumer that asks again under its name gets what it holds.
        consumer = subscriber or f"penstock-{uuid4().hex}"
        taken = 0
        while count is None or taken < count:
            left = None if count is None else count - taken
            most = BATCH_EVENTS if left is None else min(BATCH_EVENTS, left)
            queue = client.queue(context, name, filter=filter_, subscriber=consumer, count=most)
            found = _consume_batch(queue, WAIT_S if follow else 0.0, left, as_json)
            taken += found
            if not found and not follow:
                break
        info = None if count is not None and taken >= count else _queue_info(client, context, name)
    if not taken and not as_json:
        remark("nothing to consume")
    if info is not None and info.allocated:
        remark(f"other consumers hold {counted(info.allocated, 'event')}")


def _consume_batch(queue: "Queue", wait_s: float, left: int | None, as_json: bool) -> int:
    try:
        batch = queue.take(wait_s)
    except (KeyboardInterrupt, SystemExit):
        # An answer may have been in flight, and other consumers would wait until its events expire.
        queue.give_back()
        raise
    try:
        if left is not None and len(batch) > left:
            fail(
                f"the next {len(batch)} events were delivered together before and are delivered together again: "
                "use a larger --count, or none"
            )
        print_events(batch, as_json=as_json)
        # What is still in a buffer is not printed yet.
        sys.stdout.flush()
    except BaseException:
        # Nothing is wrong with the events, so this try does not count.
        with suppress(PenstockError):
            queue.release(batch, counts=False)
        raise
    try:
        queue.acknowledge(batch)
    except (KeyboardInterrupt, SystemExit):
        # The events are printed, so they are acknowledged; the first attempt may have done it.
        with suppress(AllocationLost):
            queue.acknowledge(batch)
        raise
    return len(batch)


@queue_app.command("reset")
def reset_command(
    context: Context,
    name: Name,
    to: Annotated[
        str,
        option("--to", "a position; a time, or so long ago (10m); beginning; end: only new events", "POSITION|TIME"),
    ],
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a queue to a position or a time. Events that consumers hold are taken from them and delivered again."""
    position = int(to) if to.isdecimal() else None
    start = _start_time(to) if position is None else None
    with connected(url, data) as client:
        _existing_queue(client, context, name).reset(start, position=position)
        info = _queue_info(client, context, name)
    assert info is not None
    line = f"queue {name} continues at position {info.position}, {lag_cells(info)[0]} events behind"
    print_result(asdict(info), line, as_json=as_json)


def _start_time(text: str) -> datetime | None:
    """A time; None for the beginning, and for the end a time that is later than every event's."""
    if text == "beginning":
        return None
    return datetime_of(TICKS_MAX) if text == "end" else moment(text)


@queue_app.command("dead")
def dead_command(
    context: Context,
    name: Name,
    after: Annotated[
        str | None,
        option(
            "--after",
            "set the rule: a batch is set aside after this many consumers have failed with it; never: no batch is",
            "N|never",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters: batches set aside because too many consumers failed with them. Or set how many are too many.

    A consumer fails with a batch if it lets the batch expire, or releases it because its work failed. Ctrl-C releases a
    batch without a failure, as `penstock queue consume` does with events that it could not print.
    """
    if after is not None and after != "never" and (not after.isdecimal() or int(after) < 1):
        refuse(f"--after {after!r} is not a number of consumers: use 1 or more, or never")
    with connected(url, data) as client:
        queue = _existing_queue(client, context, name)
        if after is not None:
            queue.dead_after(None if after == "never" else int(after))
        found = queue.dead_letters()
    documents = [{**asdict(dead), "died": text_of_ticks(dead.died)} for dead in found]
    rows = (
        (dead.position, dead.stream, dead.deliveries, dead.subscriber, text_of_ticks(dead.died), dead.reason)
        for dead in found
    )
    columns = ("#position", "stream", "#tries", "last consumer", "died", "reason")
    print_rows(documents, columns, rows, empty="no dead letters", as_json=as_json)


@queue_app.command("requeue")
def requeue_command(
    context: Context,
    name: Name,
    first: Annotated[
        list[int] | None, argument("FIRST", "first positions, as `penstock queue dead` shows them")
    ] = None,
    everything: Annotated[bool, option("--all", "all dead letters")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to a queue: the next consumer gets them, and their tries are counted from 0 again."""
    if bool(first) == everything:
        refuse("say what to return: either FIRST positions or --all")
    with connected(url, data) as client:
        queue = _existing_queue(client, context, name)
        returned = first or [dead.position for dead in queue.dead_letters()]
        for number in returned:
            queue.put_back(number)
    document = {"queue": name, "context": context, "first": returned}
    print_result(document, f"returned {counted(len(returned), 'dead letter')} to queue {name}", as_json=as_json)


@subscription_app.command("list")
def list_subscriptions(
    context: OnlyContext = None, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """List durable subscriptions, their positions and lags.

    `behind` counts the subscription's events from its position to the end of the history. The count ends at 10,000
    events, or after some milliseconds: a `+` says that there may be more. `oldest` is how long ago the oldest of these
    events was recorded.
    """
    with connected(url, data) as client:
        found = [info for info in client.subscriptions() if context in (None, info.context)]
    documents = [_document(info) for info in found]
    rows = (
        [info.id, info.subscriber, info.context, info.filter or "*", info.position, *lag_cells(info), one["last_event"]]
        for info, one in zip(found, documents, strict=True)
    )
    print_rows(documents, SUBSCRIPTION_COLUMNS, rows, empty="no subscriptions", as_json=as_json)


def _document(info: SubscriptionInfo) -> dict[str, Any]:
    found = asdict(info)
    ticks = found.pop("last_ticks")
    return {**found, "last_event": None if ticks is None else text_of_ticks(ticks)}


@subscription_app.command("set")
def set_command(
    name: Annotated[str, argument("NAME", "the subscription's name")],
    context: Annotated[str, argument("CONTEXT", "its context")],
    to: Annotated[str, option("--to", "a time, or so long ago (10m); beginning; end: only new events", "TIME")],
    filter_: Annotated[str, option("--filter", "its filter, if it has one", "PREFIX")] = "",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a subscription to a time: it continues with the first event of that time or later."""
    start = _start_time(to)
    key = name, context, "" if filter_ == "*" else filter_
    with connected(url, data) as client:
        if all((info.subscriber, info.context, info.filter) != key for info in client.subscriptions()):
            listing = "list them with: penstock subscription list"
            fail(f"no subscription {name} to {filter_ or '*'} in context {context}; {listing}")
        client.subscription(name, context=context, filter=filter_).set(start)
        found = [info for info in client.subscriptions() if (info.subscriber, info.context, info.filter) == key]
        document = _document(found[0])
    print_result(document, f"subscription {name} continues at position {found[0].position}", as_json=as_json)
