"""`penstock queue`: the queues that consumers share, looked at and worked with by hand."""

import sys
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connecting import Data, Url, connected
from penstock.cli.options import moment
from penstock.cli.output import AsJson, counted, fail, iso, print_line, print_lines, print_table, refuse, shown
from penstock.cli.read import print_events
from penstock.model import Allocation, QueueInfo
from penstock.model.ticks import TICKS_MAX, datetime_of

if TYPE_CHECKING:
    from penstock.client import Client, Queue

__all__ = ["BEGINNING", "END", "place", "queue_app"]

BATCH_EVENTS: Final = 100
WAIT_S: Final = 20.0
"""How long one request of somebody who follows waits for events."""
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
    """List queues: where they are, how far behind, what is out, and what was set aside."""
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

    A queue that is not there is made. Events are acknowledged once they are printed: what could not be printed, because
    nobody reads it any more or the command was ended, goes to the next consumer.
    """
    with connected(url, data) as client:
        if filter_ is None:
            known = (info.filter for info in client.queues() if (info.context, info.name) == (context, name))
            filter_ = next(known, "")
        consumer = Consumer(client, context, name, filter_, subscriber, WAIT_S if follow else 0.0)
        taken = consumer.consume(count, follow=follow, as_json=as_json)
    if not taken and not as_json:
        sys.stderr.write("nothing to consume\n")


class Consumer:
    """One consumer of a queue."""

    def __init__(
        self, client: "Client", context: str, name: str, filter_: str, subscriber: str | None, wait: float
    ) -> None:
        self._client = client
        self._queue: dict[str, Any] = {"context": context, "name": name, "filter": filter_, "subscriber": subscriber}
        self._wait = wait

    def consume(self, count: int | None, *, follow: bool, as_json: bool) -> int:
        """Print and acknowledge so many events, or all there are; how many they were."""
        taken = 0
        while count is None or taken < count:
            with self._next(BATCH_EVENTS if count is None else min(BATCH_EVENTS, count - taken)) as batch:
                print_events(batch, as_json=as_json)
                # What stands in a buffer is not printed yet.
                sys.stdout.flush()
            taken += len(batch)
            if not batch and not follow:
                break
        return taken

    def _next(self, count: int) -> Any:
        queue: Queue = self._client.queue(**self._queue, count=count)
        return queue.next(self._wait)


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
) -> None:
    """Begin again at a position or a time. What consumers hold is taken from them, and comes again from there on."""
    position = int(to) if to.isdecimal() else None
    start = place(to) if position is None else None
    with connected(url, data) as client:
        existing(client, context, name).reset(start, position=position)
        (info,) = (info for info in client.queues() if (info.context, info.name) == (context, name))
    print_line(f"queue {shown(name)} goes on at position {info.position}, {info.behind:,} behind the end")


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
            help="from now on, set aside what so many consumers in turn have let expire; never: nothing",
            metavar="N|never",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List what was set aside because too many consumers have let it expire, or say after how many that is."""
    rule = None if after is None or after == "never" else holders(after)
    with connected(url, data) as client:
        queue = existing(client, context, name)
        if after is not None:
            queue.dead_after(rule)
        found = queue.dead_letters()
    if as_json:
        print_lines(map(dead_document, found))
        return
    rows = ((dead.first, dead.last, dead.count, dead.deliveries, dead.subscriber, iso(dead.expires)) for dead in found)
    columns = ("#first", "#last", "#events", "#tries", "last consumer", "expired")
    print_table(columns, rows, empty="nothing was set aside")


def holders(text: str) -> int:
    """After how many consumers something is set aside."""
    if not text.isdecimal() or int(text) < 1:
        refuse(f"--after {text!r} is no number of consumers: say 1 or more, or never")
    return int(text)


def dead_document(dead: Allocation) -> dict[str, object]:
    """Something that was set aside, for programs."""
    return {**asdict(dead), "expires": iso(dead.expires)}


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
) -> None:
    """Put what was set aside back into a queue: the next consumer gets it, and its tries are counted anew."""
    if bool(first) == everything:
        refuse("say what to put back: either FIRST positions or --all")
    with connected(url, data) as client:
        queue = existing(client, context, name)
        wanted = first or [dead.first for dead in queue.dead_letters()]
        for number in wanted:
            queue.put_back(number)
    print_line(f"put {counted(len(wanted), 'allocation')} back into queue {shown(name)}")
