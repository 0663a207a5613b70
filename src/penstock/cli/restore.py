"""`penstock restore`: a store from a backup."""

from typing import Annotated

import typer

from penstock.backup import Restored, open_place, restore
from penstock.cli.backup import AsJson, PathArgument
from penstock.cli.options import NewData, NewStore, new_store_url
from penstock.cli.output import complain, print_document, print_line
from penstock.cli.stores import complaining
from penstock.cli.verify import progress_bar
from penstock.store import shown_place


def restore_command(
    path: PathArgument,
    data: NewData = None,
    store: NewStore = None,
    number: Annotated[
        int | None, typer.Option("--number", help="restore this backup, not the newest", metavar="N", min=1)
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="put it in the place of the store that is there")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a store from a backup, to where nobody serves one.

    Everything is checked first. The store comes back on a new timeline, without what was erased since.
    """
    url = new_store_url(data, store)
    with complaining(), open_place(path, write=False) as place:
        restored = restore(place, url, progress_bar, number=number, replace=replace)
    if restored.is_ledger_lost:
        complain("the store that was there is damaged: what was erased in it since the last backup may be back", 0)
    if as_json:
        where = {"store": shown_place(store)} if store else {"data": str(data)}
        print_document({**restored._asdict(), **where})
    else:
        print_line(_line(restored))


def _line(restored: Restored) -> str:
    erasures = "1 erasure" if restored.erasures == 1 else f"{restored.erasures:,} erasures"
    return (
        f"restored backup {restored.number}: {restored.events:,} events, now on timeline {restored.timeline}, "
        f"{erasures} replayed"
    )
