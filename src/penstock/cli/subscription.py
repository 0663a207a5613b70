"""`penstock subscription`: durable subscriptions, and how far they are."""

from dataclasses import asdict
from typing import Annotated, Final

import typer

from penstock.cli.connecting import Data, Url, connected
from penstock.cli.output import AsJson, fail, print_document, print_line, print_lines, print_table
from penstock.cli.queue import place
from penstock.model import SubscriptionInfo
from penstock.model.times import text_of_ticks

__all__ = ["subscription_app"]

COLUMNS: Final = ("#id", "subscription", "context", "filter", "#position", "#behind", "last event")

subscription_app = typer.Typer(help="List and move durable subscriptions.", no_args_is_help=True)


@subscription_app.command("list")
def list_command(
    context: Annotated[
        str | None, typer.Argument(metavar="CONTEXT", help="only those of this context", show_default=False)
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List durable subscriptions and how far each has come.

    `behind` counts the positions from there to the end of the history, whoever's events are there: not all of them need
    be the subscription's.
    """
    with connected(url, data) as client:
        head = client.stats().head
        found = [info for info in client.subscriptions() if context in (None, info.context)]
    if as_json:
        print_lines(document(info, head) for info in found)
    else:
        print_table(COLUMNS, (row(info, head) for info in found), empty="no subscriptions")


def row(info: SubscriptionInfo, head: int) -> list[object]:
    """A subscription for people."""
    last = None if info.last_ticks is None else text_of_ticks(info.last_ticks)
    behind = head + 1 - info.position
    return [info.id, info.subscriber, info.context, info.filter or "*", info.position, behind, last]


def document(info: SubscriptionInfo, head: int) -> dict[str, object]:
    """A subscription for programs."""
    found = asdict(info)
    ticks = found.pop("last_ticks")
    return {**found, "behind": head + 1 - info.position, "last_event": None if ticks is None else text_of_ticks(ticks)}


@subscription_app.command("set")
def set_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="the subscription's name")],
    context: Annotated[str, typer.Argument(metavar="CONTEXT", help="its context")],
    to: Annotated[
        str, typer.Option("--to", help="a time, or so long ago (10m); beginning; end: only what comes", metavar="TIME")
    ],
    filter_: Annotated[str, typer.Option("--filter", help="its filter, if it has one", metavar="PREFIX")] = "",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a subscription to a time: it goes on with the first event of that time or later."""
    start = place(to)
    with connected(url, data) as client:
        if wanted(client.subscriptions(), name, context, filter_) is None:
            fail(f"no subscription {name} to {filter_ or '*'} in context {context}; see penstock subscription list")
        client.subscription(name, context=context, filter=filter_).set(start)
        info = wanted(client.subscriptions(), name, context, filter_)
        head = client.stats().head
        assert info is not None
    if as_json:
        print_document(document(info, head))
    else:
        print_line(f"subscription {name} goes on at position {info.position}")


def wanted(found: list[SubscriptionInfo], name: str, context: str, filter_: str) -> SubscriptionInfo | None:
    """The subscription that somebody means."""
    key = name, context, "" if filter_ == "*" else filter_
    return next((info for info in found if (info.subscriber, info.context, info.filter) == key), None)
