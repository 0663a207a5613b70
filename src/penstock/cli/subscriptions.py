"""`penstock subscription`: what durable subscriptions have read, and how to move them."""

from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connection import connected
from penstock.cli.options import AsJson, Data, Url, Yes, argument, moment, option
from penstock.cli.output import agreed, fail, need_yes, print_result, print_rows
from penstock.cli.stats import lag_cells
from penstock.model import Selection, SubscriptionInfo
from penstock.model.times import TICKS_MAX, datetime_of, text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client, Subscription

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

subscription_app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, argument("NAME", "the subscription's name")]
OfContext = Annotated[str, argument("CONTEXT", "its context; * if it is to all contexts")]
Filter = Annotated[str, option("--filter", "its filter, if it has one", "PREFIX")]
OnlyContext = Annotated[str | None, argument("CONTEXT", "only those of this context")]


def start_time(text: str) -> datetime | None:
    """A time; None for the beginning, and for the end a time that is later than every event's."""
    if text == "beginning":
        return None
    return datetime_of(TICKS_MAX) if text == "end" else moment(text)


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
        (info.id, info.subscriber, info.context or "*", shown, info.position, *lag_cells(info), one["last_event"])
        for info, shown, one in zip(found, map(_shown_filter, found), documents, strict=True)
    )
    print_rows(documents, SUBSCRIPTION_COLUMNS, rows, empty="no subscriptions", as_json=as_json)


def _shown_filter(info: SubscriptionInfo) -> str:
    selection = Selection.parsed(info.selection)
    types = (f"types {' '.join(selection.types)}",) if selection.types else ()
    return ", ".join((" ".join(selection.prefixes or (info.filter or "*",)), *types))


def _document(info: SubscriptionInfo) -> dict[str, Any]:
    found = asdict(info)
    ticks = found.pop("last_ticks")
    return {**found, "last_event": None if ticks is None else text_of_ticks(ticks)}


@subscription_app.command("set")
def set_command(
    name: Name,
    context: OfContext,
    to: Annotated[str, option("--to", "a time, or so long ago (10m); beginning; end: only new events", "TIME")],
    filter_: Filter = "",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a subscription to a time: it continues with the first event of that time or later."""
    start = start_time(to)
    with connected(url, data) as client:
        number, subscription = _existing(client, name, context, filter_)
        subscription.set(start)
        (found,) = (info for info in client.subscriptions() if info.id == number)
    print_result(_document(found), f"subscription {name} continues at position {found.position}", as_json=as_json)


@subscription_app.command("delete")
def delete_command(
    name: Name,
    context: OfContext,
    filter_: Filter = "",
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Delete a subscription with its position. The events stay in the history.

    Stop its reader first: one that goes on creates the subscription again.
    """
    need_yes(yes, "a deleted subscription forgets its position")
    with connected(url, data) as client:
        number, subscription = _existing(client, name, context, filter_)
        (info,) = (info for info in client.subscriptions() if info.id == number)
        lost = f"it is at position {info.position}, {lag_cells(info)[0]} events behind"
        if not yes and not agreed(f"Subscription {name} to {_shown_filter(info)}: {lost}. Delete it?"):
            fail("nothing was deleted")
        subscription.delete()
    print_result(_document(info), f"deleted subscription {name} in context {context}", as_json=as_json)


def _existing(client: "Client", name: str, context: str, filter: str) -> tuple[int, "Subscription"]:
    """A subscription that there is, and its number; using one that is not there would create it."""
    key = name, None if context == "*" else context, "" if filter == "*" else filter
    known = [info for info in client.subscriptions() if (info.subscriber, info.context, info.filter) == key]
    if not known:
        listing = "list them with: penstock subscription list"
        fail(f"no subscription {name} to {filter or '*'} in context {context}; {listing}")
    types, prefixes = Selection.parsed(known[0].selection)
    place: dict[str, Any] = {"filter": "" if prefixes else key[2], "context": key[1]}
    return known[0].id, client.subscription(name, **place, types=types, prefixes=prefixes)
