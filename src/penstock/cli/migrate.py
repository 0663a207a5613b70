"""`penstock migrate-store`: a whole store from one backend to another."""

from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.backup import Copied, copy_store
from penstock.cli.backup import AsJson
from penstock.cli.output import counted, print_document, print_line
from penstock.cli.stores import complaining
from penstock.cli.verify import progress_bar
from penstock.store import shown_place, store_url

_HELP = "sqlite:///DIR, postgresql://…, or a directory"


def migrate_command(
    source: Annotated[str, typer.Argument(help=f"the store: {_HELP}", metavar="SRC", show_default=False)],
    target: Annotated[str, typer.Argument(help=f"where there is none: {_HELP}", metavar="DST", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Move a whole store from SQLite to PostgreSQL, or back. Nobody may serve it meanwhile.

    It is the same store afterwards, on the same timeline; the source stays as it is, and must not be served any more.
    If this is interrupted, run it again: it goes on. What has come over is compared with the source.
    """
    source, target = _address(source), _address(target)
    with complaining():
        copied = copy_store(source, target, progress_bar)
    if as_json:
        print_document(_report(copied, source, target))
    else:
        print_line(_line(copied, source, target))


def _address(text: str) -> str:
    return text if "://" in text else store_url(Path(text))


def _report(copied: Copied, source: str, target: str) -> dict[str, Any]:
    places = {"source": shown_place(source), "target": shown_place(target)}
    counts = {"events": copied.events, "new_events": copied.new_events, "tables": copied.tables}
    return {**places, "store_id": copied.identity.id, "timeline": copied.identity.timeline, **counts}


def _line(copied: Copied, source: str, target: str) -> str:
    new = "" if copied.new_events == copied.events else f" ({copied.new_events:,} of them now)"
    rows = sum(copied.tables.values())
    return (
        f"moved {counted(copied.events, 'event')}{new} and {counted(rows, 'row')} of state, and compared them. Serve "
        f"{shown_place(target)} from now on, and {shown_place(source)} never again"
    )
