"""`penstock backup`: a backup of a store, beside whoever serves it. `penstock backups`: what is in a place for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.filesize import decimal
from rich.table import Table

from penstock.backup import Manifest, Place, Written, back_up, chain, check_all, open_place
from penstock.cli.output import complain, console, counted, print_document, print_line
from penstock.cli.stores import complaining, opened
from penstock.cli.verify import progress_bar

PathArgument = Annotated[
    Path, typer.Argument(help="a folder, or one file if its name ends in .tar", metavar="PATH", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


def backup_command(url: str, path: PathArgument, as_json: AsJson = False) -> None:
    """Back up a store to a folder, or to one file. The store may be in use meanwhile.

    The first backup writes everything, the next ones what is new since.
    """
    with opened(url) as store, open_place(path, write=True) as place, progress_bar() as bar:
        written = back_up(store, place, bar)
    if as_json:
        print_document(_report(written))
    else:
        print_line(_line(written))


def _report(written: Written) -> dict[str, Any]:
    new = {"new_events": written.new_events, "new_bytes": written.new_bytes}
    return {**_summary(written.manifest), **new}


def _line(written: Written) -> str:
    manifest = written.manifest
    events = f"{written.new_events:,} new of {counted(manifest.head, 'event')}"
    return f"backup {manifest.number}: {events}, {decimal(written.new_bytes)} written"


def _summary(manifest: Manifest) -> dict[str, Any]:
    return {
        "number": manifest.number,
        "created": manifest.created,
        "store_id": manifest.store,
        "timeline": manifest.timeline,
        "head": manifest.head,
        "bytes": manifest.bytes,
    }


def backups_command(
    path: PathArgument,
    verify: Annotated[bool, typer.Option("--verify", help="read all files and check them, byte by byte")] = False,
    as_json: AsJson = False,
) -> None:
    """List the backups in a folder or file."""
    with complaining(), open_place(path, write=False) as place:
        found = _checked(place) if verify else list(chain(place))
        if place.doubt:
            complain(f"{path}: {place.doubt}; the next backup mends that", 0)
    if as_json:
        print_document([_summary(manifest) for manifest in found])
    else:
        _show(found)


def _checked(place: Place) -> list[Manifest]:
    with progress_bar() as bar:
        return check_all(place, bar)


def _show(found: Sequence[Manifest]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("backup", "created", "timeline", "events", "size"):
        table.add_column(column, justify="left" if column == "created" else "right")
    for manifest in found:
        cells = (f"{manifest.timeline}", f"{manifest.head:,}", decimal(manifest.bytes))
        table.add_row(f"{manifest.number}", manifest.created, *cells)
    console().print(table)
