"""`penstock restore`: a store from a backup."""

import json
from pathlib import Path
from typing import Annotated

import typer

from penstock.backup import Restored, open_place, restore
from penstock.cli.backup import AsJson, PathArgument
from penstock.cli.options import directory
from penstock.cli.stores import complaining
from penstock.cli.verify import progress_bar
from penstock.server import complain
from penstock.store import shown_place, store_url


def restore_command(
    path: PathArgument,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="directory to restore into", metavar="DIR", show_default=False, parser=directory),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="where else to restore to: postgresql://…", metavar="URL", show_default=False),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--number", help="restore this backup, not the newest", metavar="N", min=1)
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="put it in the place of the store that is there")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a store from a backup, to where nobody serves one.

    Everything is checked first. The store comes back on a new timeline, without what was erased since.
    """
    # What replaces a store is asked for in the command itself, never by a variable or a file.
    if (data is None) == (store is None):
        raise typer.Exit(complain("say where to restore to: either --data DIR or --store URL", 2))
    url = store or store_url(data or Path())
    with complaining(), open_place(path, write=False) as place:
        restored = restore(place, url, progress_bar, number=number, replace=replace)
    if restored.is_ledger_lost:
        complain("the store that was there is damaged: what was erased in it since the last backup may be back", 0)
    if as_json:
        where = {"store": shown_place(store)} if store else {"data": str(data)}
        typer.echo(json.dumps({**restored._asdict(), **where}, indent=2))
    else:
        typer.echo(_line(restored))


def _line(restored: Restored) -> str:
    erasures = "1 erasure" if restored.erasures == 1 else f"{restored.erasures:,} erasures"
    return (
        f"restored backup {restored.number}: {restored.events:,} events, now on timeline {restored.timeline}, "
        f"{erasures} replayed"
    )
