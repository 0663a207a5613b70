"""`penstock read` and `penstock tail`: events of a stream, of a context, or of the whole history."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

from penstock.cli.connection import connected, error_line
from penstock.cli.options import (
    COUNT_MAX,
    AsJson,
    ContextArgument,
    Data,
    Filter,
    Limit,
    StreamArgument,
    Types,
    Url,
    moment,
    option,
)
from penstock.cli.output import Painted, fail, has_colours, print_line, print_lines, refuse, remark
from penstock.errors import CannotConnect, ConnectionLost, DeadlinePassed, PenstockError, Retry
from penstock.model import Event, StoreStats
from penstock.model.times import text_of_ticks, ticks_of_datetime
from penstock.terminal import print_error

if TYPE_CHECKING:
    from penstock.client import Client

BODY_LETTERS_MAX: Final = 10_000
"""How much of a body a line for people shows; JSON has all of it."""
TAIL_EVENTS: Final = 10
RETRY_S: Final = 0.5
WINDOW: Final = 1000
"""Positions before the end that `tail` searches first; each further step back is four times as wide."""
OUTAGES: Final = (CannotConnect, ConnectionLost, DeadlinePassed)
ONE_STREAM: Final = "--filter selects streams by name, but STREAM names one already: leave out one of them"


def print_events(events: Iterable[Event], *, as_json: bool, flush: bool = False) -> int:
    # It takes a moment to import, and help does not need it.
    from penstock.event_json import event_document  # noqa: PLC0415

    colours = not as_json and has_colours()
    count = 0
    for event in events:
        if as_json:
            print_lines([event_document(event)])
        else:
            print_line(
                Painted(str(event.position), "dim"),
                "  ",
                Painted(text_of_ticks(event.ticks), "dim"),
                f"  {event.context}/{event.stream} {event.sequence}  ",
                Painted(event.type, "cyan"),
                f"  {body_text(event.body)}",
                colours=colours,
            )
        if flush:
            sys.stdout.flush()
        count += 1
    return count


def body_text(body: bytes) -> str:
    size = f"«{len(body):,} bytes»"
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return size
    return text if len(text) <= BODY_LETTERS_MAX else f"{text[:BODY_LETTERS_MAX]}… {size}"


def read_command(
    context: ContextArgument = None,
    stream: StreamArgument = None,
    first: Annotated[
        int | None, option("--from", "begin at this sequence of the stream, or position of the history", "N", min=1)
    ] = None,
    last: Annotated[int | None, option("--to", "end with this sequence or position", "N", min=1)] = None,
    types: Types = None,
    filter_: Filter = "",
    since: Annotated[
        datetime | None, option("--since", "only events of this time or later, or so long ago", "TIME", parser=moment)
    ] = None,
    until: Annotated[datetime | None, option("--until", "only events before this time", "TIME", parser=moment)] = None,
    limit: Limit = None,
    backwards: Annotated[bool, option("--backwards", "the last first; of one stream only")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Read events: of a stream, of a context, or of the whole history.

    Times are those of the events, in UTC. With --json each line is one event, and `penstock append -` takes such lines.
    """
    if stream is None and backwards:
        refuse("--backwards works on one STREAM only: name it")
    if stream is not None and filter_:
        refuse(ONE_STREAM)
    # Times are filtered here, so more events may have to be read than are printed.
    most = limit if since is None and until is None else None
    with connected(url, data) as client:
        if stream is not None:
            assert context is not None
            start, end = (last, first) if backwards else (first, last)
            events = client.read_stream(context, stream, start, end, backward=backwards, types=types, limit=most)
        else:
            begin: int | None = first or 1
            if since is not None and context is not None:
                position = client.position_of(since, context=context, filter=filter_)
                begin = None if position is None else max(first or 1, position)
            history = client.read_all(begin or 1, context=context, filter=filter_, types=types, until=last, limit=most)
            events = iter(()) if begin is None else history
        earliest = 0 if since is None else ticks_of_datetime(since)
        latest = None if until is None else ticks_of_datetime(until)
        wanted = (event for event in events if earliest <= event.ticks and (latest is None or event.ticks < latest))
        count = print_events(islice(wanted, limit), as_json=as_json)
    if not count and not as_json:
        remark("no events")


def tail_command(
    context: ContextArgument = None,
    stream: StreamArgument = None,
    count: Annotated[
        int, option("-n --count", "show this many of the last events", "N", min=0, max=COUNT_MAX)
    ] = TAIL_EVENTS,
    follow: Annotated[bool, option("-f --follow", "show new events too, until Ctrl-C")] = False,
    types: Types = None,
    filter_: Filter = "",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the last events, and with -f new ones as they arrive.

    If the server goes away, -f waits until it is back, and goes on where it was.
    """
    if stream is not None and filter_:
        refuse(ONE_STREAM)
    if follow and data is not None:
        refuse("-f follows what others append through a server: name it with --url")
    tail = Tail(context, stream, filter_ if stream is None else stream, types)
    # With -f, an outage is reported at once, and the attempts to reconnect are made here.
    with connected(url, data, retries=not follow) as client:
        before = client.stats()
        print_events(tail.last(client, before.head, count), as_json=as_json)
        sys.stdout.flush()
        if follow:
            print_events(tail.follow(client, before), as_json=as_json, flush=True)


@dataclass(frozen=True, slots=True)
class Tail:
    context: str | None
    stream: str | None
    filter: str
    types: list[str] | None

    def last(self, client: "Client", head: int, count: int) -> Iterable[Event]:
        """The last events up to a position, searched backwards. Memory holds no more than `count`."""
        if self.stream is not None:
            assert self.context is not None
            newest_first = (
                event
                for event in client.read_stream(self.context, self.stream, backward=True, types=self.types)
                if event.position <= head
            )
            return reversed(list(islice(newest_first, count)))
        found: list[Event] = []
        end, width = head, min(max(WINDOW, count), max(WINDOW, head))
        while end > 0 and len(found) < count:
            start = max(1, end - width + 1)
            window = client.read_all(start, context=self.context, filter=self.filter, types=self.types, until=end)
            found = [*deque(window, maxlen=count - len(found)), *found]
            end, width = start - 1, 4 * width
        return found

    def follow(self, client: "Client", before: StoreStats) -> Iterator[Event]:
        """Events after a head, without end; outages of the server are waited out."""
        position, is_down = before.head + 1, False
        while True:
            try:
                if is_down:
                    now = client.stats()
                    if (before.store_id, before.timeline) != (now.store_id, now.timeline):
                        store = f"store {now.store_id}, timeline {now.timeline}"
                        fail(f"the server now has another history: {store}; run tail again to follow it")
                    print_error("the server is back")
                    is_down = False
                found = client.follow(position, context=self.context, filter=self.filter, types=self.types)
                for event in found:
                    position = event.position + 1
                    # A filter is a prefix, and names of other streams may begin with this one's.
                    if self.stream is None or event.stream == self.stream:
                        yield event
            except PenstockError as error:
                if not isinstance(error, OUTAGES) and error.retry is not Retry.SAFE:
                    raise
                if not is_down:
                    print_error(f"{_outage(error)}; waiting for the server")
                is_down = True
                time.sleep(RETRY_S)


def _outage(error: PenstockError) -> str:
    if isinstance(error, ConnectionLost):
        # Its own message is about writes in flight, and this only reads.
        return f"the connection to {error.url} was lost ({error.reason})"
    return error_line(error).partition(";")[0]
