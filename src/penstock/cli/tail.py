"""`penstock tail`: the last events of the history, and with `-f` what comes, as it comes."""

import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from penstock.cli.connecting import Data, Url, connected, explained
from penstock.cli.options import COUNT_MAX, Filter, Types
from penstock.cli.output import AsJson, complain, fail, refuse
from penstock.cli.read import Context, print_events
from penstock.errors import CannotConnect, ConnectionLost, DeadlinePassed, PenstockError, Retry
from penstock.model import Event, StoreStats

if TYPE_CHECKING:
    from penstock.client import Client

__all__ = ["tail_command"]

EVENTS: Final = 10
"""How many of the last events are shown unless somebody says how many."""
PAUSE_S: Final = 0.5
"""Between two attempts to reach a server that is gone."""
WINDOW: Final = 1000
"""Positions before the end that are searched first; each further step back is four times as wide."""
INTERRUPTIONS: Final = (CannotConnect, ConnectionLost, DeadlinePassed)


def tail_command(
    context: Context = None,
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="one stream of it", show_default=False)] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", help="show so many of the last events", metavar="N", min=0, max=COUNT_MAX)
    ] = EVENTS,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on with what comes, until Ctrl-C")] = False,
    types: Types = None,
    filter_: Filter = "",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show the last events, and with -f what comes, as it comes.

    If the server goes away, -f waits until it is back, and goes on where it was.
    """
    if stream is not None and filter_:
        refuse("--filter chooses among streams; there is one STREAM already")
    wanted = Wanted(context, stream, filter_ if stream is None else stream, types)
    if follow and data is not None:
        refuse("-f follows what others append, through a server: say --url")
    # Who follows is told at once when a server goes away; the attempts after that are made here.
    with connected(url, data, retries=not follow) as client:
        before = client.stats()
        print_events(wanted.last(client, before.head, count), as_json=as_json)
        sys.stdout.flush()
        if follow:
            print_events(wanted.coming(client, before), as_json=as_json, flush=True)


class Wanted(NamedTuple):
    """Which events to show."""

    context: str | None
    stream: str | None
    filter: str
    types: list[str] | None

    def last(self, client: "Client", head: int, count: int) -> Iterable[Event]:
        """The last events up to a position, searched from there back. No more of them are kept than are wanted."""
        if self.stream is not None:
            return reversed(list(islice(self._back(client, self.stream, head), count)))
        found: list[Event] = []
        end, width = head, min(max(WINDOW, count), max(WINDOW, head))
        while end > 0 and len(found) < count:
            start = max(1, end - width + 1)
            found = [*deque(self.between(client, start, end), maxlen=count - len(found)), *found]
            end, width = start - 1, 4 * width
        return found

    def _back(self, client: "Client", stream: str, head: int) -> Iterator[Event]:
        """Those of a stream, the last first."""
        assert self.context is not None
        for event in client.read_stream(self.context, stream, backward=True):
            if event.position <= head and (self.types is None or event.type in self.types):
                yield event

    def between(self, client: "Client", start: int, end: int | None) -> Iterator[Event]:
        """Those from one position to another, or from there on without end."""
        if end is None:
            source = client.follow(start, context=self.context, filter=self.filter, types=self.types)
        else:
            source = client.read_all(start, context=self.context, filter=self.filter, types=self.types, until=end)
        # A filter is how the names of streams begin, and others may begin with this one's.
        return (event for event in source if self.stream is None or event.stream == self.stream)

    def coming(self, client: "Client", before: StoreStats) -> Iterator[Event]:
        """Those that come after a head, for as long as somebody wants them, whether a server is there or not."""
        position, told = before.head + 1, False
        while True:
            try:
                if told:
                    same_history(before, client.stats())
                    told = bool(complain("the server is back", 0))
                for event in self.between(client, position, None):
                    position = event.position + 1
                    yield event
            except PenstockError as error:
                if not isinstance(error, INTERRUPTIONS) and error.retry is not Retry.SAFE:
                    raise
                if not told:
                    complain(f"{waiting(error)}; waiting for it", 0)
                told = True
                time.sleep(PAUSE_S)


def waiting(error: PenstockError) -> str:
    """Why nothing comes at present."""
    if isinstance(error, ConnectionLost):
        # It says what may have become of a write, and this only reads.
        return f"the connection to {error.url} was lost ({error.reason})"
    return explained(error).partition(";")[0]


def same_history(before: StoreStats, now: StoreStats) -> None:
    """Positions mean something in one store and timeline only."""
    if (before.store_id, before.timeline) != (now.store_id, now.timeline):
        fail(f"another history is served now: store {now.store_id}, timeline {now.timeline}; start again to follow it")
