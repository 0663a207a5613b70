"""Options that several commands share: which store or settings they work with, which events, and from when on."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.output import refuse, shown
from penstock.model.times import TICKS_MAX, ticks_of_datetime
from penstock.settings import TABLE

__all__ = [
    "COUNT_MAX",
    "Config",
    "Data",
    "Filter",
    "Limit",
    "NewData",
    "NewStore",
    "StoreUrl",
    "Types",
    "directory",
    "moment",
    "need_name",
    "new_store_url",
]

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO: Final = re.compile(r"(\d{1,9})([smhd])")
TIMES: Final = "a time like 2026-11-15T06:00:00Z (UTC unless it says otherwise), or how long ago: 30s, 10m, 2h, 7d"

Data = Annotated[str | None, typer.Option("--data", help=TABLE["data"].help, metavar="DIR", show_default=False)]
StoreUrl = Annotated[str | None, typer.Option("--store", help=TABLE["store"].help, metavar="URL", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings", metavar="FILE")]

Filter = Annotated[
    str, typer.Option("--filter", help="only streams whose names begin with this", metavar="PREFIX", show_default=False)
]
Types = Annotated[
    list[str] | None, typer.Option("--type", help="only events of this type; may be given often", metavar="TYPE")
]
COUNT_MAX: Final = sys.maxsize
"""As many as Python can count."""
Limit = Annotated[int | None, typer.Option("--limit", help="at most so many", metavar="N", min=0, max=COUNT_MAX)]


def directory(text: str) -> Path:
    """A directory that somebody names. An empty name would be the current one, and is a slip: a variable is not set."""
    if not text:
        raise typer.BadParameter("must not be empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        # SQLite opens no such file.
        raise typer.BadParameter(f"{text} is not valid Unicode") from None
    return Path(text)


def need_name(name: str, what: str) -> str:
    """A name for something new. One that is not shown as it is was a slip, and nobody could type it again."""
    if (found := shown(name)) != name:
        refuse(f"the name of {what} has characters that cannot be printed: {found}")
    return name


NewData = Annotated[
    Path | None,
    typer.Option("--data", help="directory to restore into", metavar="DIR", show_default=False, parser=directory),
]
NewStore = Annotated[
    str | None,
    typer.Option("--store", help="where else to restore to: postgresql://…", metavar="URL", show_default=False),
]


def new_store_url(data: Path | None, store: str | None) -> str:
    """Where to restore to. That is asked for in the command itself, never by a variable or a file."""
    if (data is None) == (store is None):
        refuse("say where to restore to: either --data DIR or --store URL")
    from penstock.store import store_url  # noqa: PLC0415

    return store or store_url(data or Path())


def moment(text: str) -> datetime:
    """A time as somebody writes it on a command line; the present if they say `now`."""
    now = datetime.now(UTC)
    if text == "now":
        return now
    try:
        if ago := AGO.fullmatch(text):
            return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time; write {TIMES}") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not 0 <= ticks_of_datetime(found) <= TICKS_MAX:
        raise typer.BadParameter(f"{text!r} is no time: in UTC it is not in the years 1 to 9999")
    return found
