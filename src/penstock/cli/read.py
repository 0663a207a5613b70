"""`penstock read`: events of a stream, of a context, or of the whole history."""

import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock.cli.connecting import Data, Url, connected
from penstock.cli.events import event_document, event_line
from penstock.cli.options import Filter, Limit, Types, moment
from penstock.cli.output import AsJson, has_colours, print_line, print_lines, refuse, remark
from penstock.model import Event, ticks_of_datetime

if TYPE_CHECKING:
    from penstock.client import Client

__all__ = ["print_events", "read_command"]

Context = Annotated[
    str | None,
    typer.Argument(metavar="CONTEXT", help="the context; without one, the whole history", show_default=False),
]


def read_command(
    context: Context = None,
    stream: Annotated[str | None, typer.Argument(metavar="STREAM", help="one stream of it", show_default=False)] = None,
    first: Annotated[
        int | None,
        typer.Option(
            "--from", help="begin at this sequence of the stream, or position of the history", metavar="N", min=1
        ),
    ] = None,
    last: Annotated[
        int | None, typer.Option("--to", help="end with this sequence or position", metavar="N", min=1)
    ] = None,
    types: Types = None,
    filter_: Filter = "",
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", help="only events of this time or later, or so long ago", metavar="TIME", parser=moment
        ),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", help="only events before this time", metavar="TIME", parser=moment)
    ] = None,
    limit: Limit = None,
    backwards: Annotated[bool, typer.Option("--backwards", help="the last first; of one stream only")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Read events: of a stream, of a context, or of the whole history.

    Times are those of the events, in UTC. With --json each line is one event, and `penstock append -` takes such lines.
    """
    if stream is None and backwards:
        refuse("--backwards goes with one STREAM")
    if stream is not None and filter_:
        refuse("--filter chooses among streams; there is one STREAM already")
    wanted = Wanted(context, stream, first, last, filter_, types, since, until, backwards, limit)
    with connected(url, data) as client:
        count = print_events(islice(wanted.events(client), limit), as_json=as_json)
    if not count and not as_json:
        remark("no events")


class Wanted(NamedTuple):
    """Which events to read."""

    context: str | None
    stream: str | None
    first: int | None
    last: int | None
    filter: str
    types: list[str] | None
    since: datetime | None
    until: datetime | None
    backwards: bool
    limit: int | None

    def events(self, client: "Client") -> Iterator[Event]:
        """They, as a client reads them."""
        since = 0 if self.since is None else ticks_of_datetime(self.since)
        until = None if self.until is None else ticks_of_datetime(self.until)
        source = self._of_history(client) if self.stream is None else self._of_stream(client, self.stream)
        for event in source:
            if since <= event.ticks and (until is None or event.ticks < until):
                yield event

    def _of_stream(self, client: "Client", stream: str) -> Iterator[Event]:
        assert self.context is not None
        start, end = (self.last, self.first) if self.backwards else (self.first, self.last)
        # What is looked at here as well may have to read more than is printed.
        limit = self.limit if self.types is None and self.since is None and self.until is None else None
        found = client.read_stream(self.context, stream, start, end, backward=self.backwards, limit=limit)
        return (event for event in found if self.types is None or event.type in self.types)

    def _of_history(self, client: "Client") -> Iterator[Event]:
        start = self.first or 1
        if self.since is not None and self.context is not None:
            position = client.position_of(self.since, context=self.context, filter=self.filter)
            if position is None:
                return iter(())
            start = max(start, position)
        return client.read_all(start, context=self.context, filter=self.filter, types=self.types, until=self.last)


def print_events(events: Iterable[Event], *, as_json: bool, flush: bool = False) -> int:
    """Print events as they come; how many they were."""
    colours = not as_json and has_colours()
    count = 0
    for event in events:
        if as_json:
            print_lines([event_document(event)])
        else:
            print_line(*event_line(event), colours=colours)
        if flush:
            sys.stdout.flush()
        count += 1
    return count
