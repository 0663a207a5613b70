"""`penstock queue`: the queues that consumers share, looked at and worked with by hand."""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from penstock.cli.connecting import Data, Url, connected
from penstock.cli.options import moment, need_name
from penstock.cli.output import (
    AsJson,
    counted,
    fail,
    print_document,
    print_line,
    print_lines,
    print_table,
    refuse,
    remark,
)
from penstock.cli.read import print_events
from penstock.errors import PenstockError
from penstock.model import Allocation, QueueInfo
from penstock.model.times import TICKS_MAX, datetime_of, text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client, Queue
    from penstock.client.consuming import QueueBatch

__all__ = ["BEGINNING", "END", "place", "queue_app"]

BATCH_EVENTS: Final = 100
WAIT_S: Final = 20.0
"""How long one request of somebody who follows waits for events."""
LARGER: Final = "say a larger --count, or none"
BEGINNING: Final = "beginning"
END: Final = "end"
COLUMNS: Final = ("queue", "context", "filter", "#position", "#behind", "#allocated", "#tries", "#dead", "#dead after")

queue_app = typer.Typer(help="List, consume and mend queues.", no_args_is_help=True)

Context = Annotated[str, typer.Argument(metavar="CONTEXT", help="the queue's context")]
Name = Annotated[str, typer.Argument(metavar="QUEUE", help="the queue's name")]


# --- looking at them ------------------------------------------------------------------------------------------


@queue_app.command("list")
def list_command(
    context: Annotated[
        str | None, typer.Argument(metavar="CONTEXT", help="only those of this context", show_default=False)
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List queues: where they are, how far behind, what is out, and what was set aside.

    `behind` is what is still to be handed out: the positions from the queue's next event to the end of the history,
    whoever's events are there, and the events that come again because somebody gave them back or let them expire. It is
    0 when nothing is left. `allocated` are the events that consumers hold now, `tries` is the most consumers that have
    had one batch, and `dead` is how many batches were set aside.
    """
    with connected(url, data) as client:
        found = [info for info in client.queues() if context in (None, info.context)]
    if as_json:
        print_lines(map(asdict, found))
    else:
        print_table(COLUMNS, map(queue_row, found), empty="no queues")


def queue_row(info: QueueInfo) -> list[object]:
    """A queue for people."""
    counts = (info.position, info.behind, info.allocated, info.deliveries_max, info.dead, info.dead_after)
    return [info.name, info.context, info.filter or "*", *counts]


def existing(client: "Client", context: str, name: str) -> "Queue":
    """A queue that is there; ends the command otherwise, as one that is new would have nothing to mend."""
    if not any((info.context, info.name) == (context, name) for info in client.queues()):
        fail(f"no queue {name} in context {context}; see penstock queue list")
    return client.queue(context, name)


# --- consuming ------------------------------------------------------------------------------------------------


@queue_app.command("consume")
def consume_command(
    context: Context,
    name: Name,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", help="end after so many events", metavar="N", min=1, show_default=False),
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="wait for what comes, until Ctrl-C or --count")
    ] = False,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", help="of a new queue: only streams whose names begin with this", metavar="PREFIX"),
    ] = None,
    subscriber: Annotated[
        str | None,
        typer.Option("--subscriber", help="the name of this consumer; otherwise a random one", metavar="NAME"),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print events of a queue and acknowledge them, until there are no more.

    A queue that is not there is made. Events are acknowledged once their whole batch (100, or what --count still wants)
    is printed. If it could not be, because nobody reads it any more or the command was ended, the batch goes to the
    next consumer, and does not count as failed (see `penstock queue dead`).

    What somebody gave back or let expire comes again in the batch it was in. If that is larger than what --count still
    wants, nothing of it is printed or acknowledged: it stays in the queue, and the command fails.
    """
    need_name(subscriber or "", "a consumer")
    with connected(url, data) as client:
        known = next((info for info in client.queues() if (info.context, info.name) == (context, name)), None)
        if known is None:
            need_name(context, "a context")
            need_name(name, "a queue")
        if filter_ is None:
            filter_ = "" if known is None else known.filter
        consumer = Consumer(client, context, name, filter_, subscriber, WAIT_S if follow else 0.0)
        taken = consumer.consume(count, follow=follow, as_json=as_json)
        held = 0 if count is not None and taken >= count else consumer.held_by_others()
    if not taken and not as_json:
        remark("nothing to consume")
    if held:
        remark(f"{counted(held, 'event')} {'is' if held == 1 else 'are'} held by others")


class Consumer:
    """One consumer of a queue."""

    def __init__(
        self, client: "Client", context: str, name: str, filter_: str, subscriber: str | None, wait: float
    ) -> None:
        self._client = client
        # One name for all of its batches: who asks again under it gets what it holds.
        subscriber = subscriber or f"penstock-{uuid4().hex}"
        self._queue: dict[str, Any] = {"context": context, "name": name, "filter": filter_, "subscriber": subscriber}
        self._wait = wait

    def consume(self, count: int | None, *, follow: bool, as_json: bool) -> int:
        """Print and acknowledge so many events, or all there are; how many they were."""
        taken = 0
        while count is None or taken < count:
            found = self._batch(None if count is None else count - taken, as_json=as_json)
            taken += found
            if not found and not follow:
                break
        return taken

    def _batch(self, wanted: int | None, *, as_json: bool) -> int:
        """Print and acknowledge a batch of at most so many events; how many they were."""
        most = BATCH_EVENTS if wanted is None else min(BATCH_EVENTS, wanted)
        queue = self._client.queue(**self._queue, count=most)
        batch = self._take(queue)
        try:
            if wanted is not None and len(batch) > wanted:
                fail(f"the next {len(batch)} events were handed out together before, and come again whole: {LARGER}")
            print_events(batch, as_json=as_json)
            # What stands in a buffer is not printed yet.
            sys.stdout.flush()
        except BaseException:
            # It is no fault of the events that nobody could read them.
            with suppress(PenstockError):
                queue.release(batch, counts=False)
            raise
        _surely(queue.acknowledge, batch)
        return len(batch)

    def _take(self, queue: "Queue") -> "QueueBatch":
        try:
            return queue.take(self._wait)
        except (KeyboardInterrupt, SystemExit):
            # Perhaps the answer was on its way, and others would wait for what is in it until it expires.
            queue.give_back()
            raise

    def held_by_others(self) -> int:
        """How many events of the queue other consumers hold."""
        key = self._queue["context"], self._queue["name"]
        return sum(info.allocated for info in self._client.queues() if (info.context, info.name) == key)


def _surely(acknowledge: Callable[["QueueBatch"], None], batch: "QueueBatch") -> None:
    """What was printed is acknowledged, also when Ctrl-C or SIGTERM come in between; done twice, it is the same."""
    try:
        acknowledge(batch)
    except (KeyboardInterrupt, SystemExit):
        acknowledge(batch)
        raise


# --- mending --------------------------------------------------------------------------------------------------


@queue_app.command("reset")
def reset_command(
    context: Context,
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="a position; a time, or so long ago (10m); beginning; end: only what comes",
            metavar="POSITION|TIME",
        ),
    ],
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Begin again at a position or a time. What consumers hold is taken from them, and comes again from there on."""
    position = int(to) if to.isdecimal() else None
    start = place(to) if position is None else None
    with connected(url, data) as client:
        existing(client, context, name).reset(start, position=position)
        (info,) = (info for info in client.queues() if (info.context, info.name) == (context, name))
    if as_json:
        print_document(asdict(info))
    else:
        print_line(f"queue {name} goes on at position {info.position}, {info.behind:,} behind the end")


def place(text: str) -> datetime | None:
    """Where to go on: a time, None for the beginning, and for the end a time that no event has."""
    if text == BEGINNING:
        return None
    return datetime_of(TICKS_MAX) if text == END else moment(text)


@queue_app.command("dead")
def dead_command(
    context: Context,
    name: Name,
    after: Annotated[
        str | None,
        typer.Option(
            "--after",
            help="from now on, set aside what so many consumers in turn have let expire or released; never: nothing",
            metavar="N|never",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List what was set aside because too many consumers have failed with it, or say after how many that is.

    A consumer has failed with a batch if it let it expire, or released it because its work on it failed. Who is ended
    by Ctrl-C gives its batch back, as `penstock queue consume` does with what nobody reads: that does not count.
    """
    rule = None if after is None or after == "never" else holders(after)
    with connected(url, data) as client:
        queue = existing(client, context, name)
        if after is not None:
            queue.dead_after(rule)
        found = queue.dead_letters()
    if as_json:
        print_lines(map(dead_document, found))
        return
    rows = (
        (dead.first, dead.last, dead.count, dead.deliveries, dead.subscriber, text_of_ticks(dead.expires))
        for dead in found
    )
    columns = ("#first", "#last", "#events", "#tries", "last consumer", "expired")
    print_table(columns, rows, empty="nothing was set aside")


def holders(text: str) -> int:
    """After how many consumers something is set aside."""
    if not text.isdecimal() or int(text) < 1:
        refuse(f"--after {text!r} is no number of consumers: say 1 or more, or never")
    return int(text)


def dead_document(dead: Allocation) -> dict[str, object]:
    """Something that was set aside, for programs."""
    return {**asdict(dead), "expires": text_of_ticks(dead.expires)}


@queue_app.command("requeue")
def requeue_command(
    context: Context,
    name: Name,
    first: Annotated[
        list[int] | None,
        typer.Argument(
            metavar="FIRST", help="first positions, as `penstock queue dead` shows them", show_default=False
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="all that was set aside")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Put what was set aside back into a queue: the next consumer gets it, and its tries are counted anew."""
    if bool(first) == everything:
        refuse("say what to put back: either FIRST positions or --all")
    with connected(url, data) as client:
        queue = existing(client, context, name)
        wanted = first or [dead.first for dead in queue.dead_letters()]
        for number in wanted:
            queue.put_back(number)
    if as_json:
        print_document({"queue": name, "context": context, "first": wanted})
    else:
        print_line(f"put {counted(len(wanted), 'allocation')} back into queue {name}")
