"""`penstock contexts` and `penstock streams`: what there is to read."""

from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer

from penstock.cli.connecting import Data, Url, connected
from penstock.cli.options import Filter, Limit
from penstock.cli.output import AsJson, print_lines, print_table, size

__all__ = ["contexts_command", "streams_command"]


def contexts_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the contexts and how much is in them."""
    with connected(url, data) as client:
        found = client.contexts()
    if as_json:
        print_lines(map(asdict, found))
        return
    rows = ((info.name, info.events, info.commits, info.streams, size(info.bytes)) for info in found)
    print_table(("context", "#events", "#commits", "#streams", "#size"), rows, empty="no contexts")


def streams_command(
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="the context")],
    filter_: Filter = "",
    limit: Limit = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the streams of a context by name, and how many events each has."""
    with connected(url, data) as client:
        found = islice(client.streams(context, filter_), limit)
        if as_json:
            print_lines(map(asdict, found))
            return
        rows = ((info.name, info.events) for info in found)
        which = f" whose names begin with {filter_}" if filter_ not in ("", "*") else ""
        print_table(("stream", "#events"), rows, empty=f"no streams{which} in context {context}")
