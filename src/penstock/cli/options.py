"""Options and arguments that several commands share, and how their values are read."""

import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.output import refuse
from penstock.model.times import TICKS_MAX, ticks_of_datetime
from penstock.settings import TABLE
from penstock.terminal import escape

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO: Final = re.compile(r"(\d{1,9})([smhd])")
TIMES: Final = "a time like 2026-11-15T06:00:00Z (UTC unless it has an offset), or how long ago: 30s, 10m, 2h, 7d"
URL_ENVIRONMENT: Final = "PENSTOCK_URL"
"""The environment variable that names the server, as `--url` does."""
COUNT_MAX: Final = sys.maxsize


def directory(text: str) -> Path:
    """Read a directory's name. An empty one is refused: most likely a shell variable is not set."""
    if not text:
        raise typer.BadParameter("must not be empty")
    try:
        text.encode()
    except UnicodeEncodeError:
        # SQLite cannot open such a file.
        raise typer.BadParameter(f"{text} is not valid Unicode") from None
    return Path(text)


def moment(text: str) -> datetime:
    """Read a time: ISO 8601, how long ago, or `now`."""
    now = datetime.now(UTC)
    if text == "now":
        return now
    try:
        if ago := AGO.fullmatch(text):
            return now - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a time; write {TIMES}") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    if not 0 <= ticks_of_datetime(found) <= TICKS_MAX:
        raise typer.BadParameter(f"{text!r} is not a time: in UTC it is outside the years 1 to 9999")
    return found


def need_name(name: str, what: str) -> str:
    """Refuse a new name with characters that a terminal hides: it is a mistake, and hard to type again."""
    if (found := escape(name)) != name:
        refuse(f"the name of {what} has characters that cannot be printed: {found}")
    return name


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="a running server: penstock://HOST:PORT or zmq+tcp://HOST:PORT; or a store: sqlite:///DIR, postgresql://…",
        metavar="URL",
        envvar=URL_ENVIRONMENT,
        show_default=f"penstock://{TABLE['mq'].default}",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="instead of a server: the directory of a store that no server has open",
        metavar="DIR",
        parser=directory,
    ),
]
StoreData = Annotated[str | None, typer.Option("--data", help=TABLE["data"].help, metavar="DIR", show_default=False)]
StoreUrl = Annotated[str | None, typer.Option("--store", help=TABLE["store"].help, metavar="URL", show_default=False)]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file with settings", metavar="FILE")]

NewData = Annotated[
    Path | None,
    typer.Option("--data", help="directory to restore into", metavar="DIR", show_default=False, parser=directory),
]
NewStore = Annotated[
    str | None,
    typer.Option("--store", help="database to restore into: postgresql://…", metavar="URL", show_default=False),
]


def new_store_url(data: Path | None, store: str | None) -> str:
    """The URL of the store to restore into: only the command line can name it, no variable or file."""
    if (data is None) == (store is None):
        refuse("say where to restore to: either --data DIR or --store URL")
    from penstock.store import store_url  # noqa: PLC0415

    return store or store_url(data or Path())


ContextArgument = Annotated[
    str | None,
    typer.Argument(metavar="CONTEXT", help="the context; without one, the whole history", show_default=False),
]
StreamArgument = Annotated[
    str | None, typer.Argument(metavar="STREAM", help="one stream of the context", show_default=False)
]
Filter = Annotated[
    str, typer.Option("--filter", help="only streams whose names begin with this", metavar="PREFIX", show_default=False)
]
Types = Annotated[
    list[str] | None, typer.Option("--type", help="only events of this type; can be repeated", metavar="TYPE")
]
Limit = Annotated[int | None, typer.Option("--limit", help="at most this many", metavar="N", min=0, max=COUNT_MAX)]
OfContext = Annotated[str | None, typer.Option("--context", help="only this context", metavar="NAME")]
