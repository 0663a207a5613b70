"""Options and arguments that several commands share, and how their values are read."""

import logging
import re
import sys
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import refuse
from penstock.model.address import TOKEN_ENVIRONMENT
from penstock.model.times import TICKS_MAX, ticks_of_datetime
from penstock.settings import TABLE
from penstock.terminal import escape

if TYPE_CHECKING:
    from penstock.spark.sessions import Start

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
AGO: Final = re.compile(r"(\d{1,9})([smhd])")
TIMES: Final = "a time like 2026-11-15T06:00:00Z (UTC unless it has an offset), or how long ago: 30s, 10m, 2h, 7d"
LATER: Final = TIMES.replace("how long ago", "after how long")
URL_ENVIRONMENT: Final = "PENSTOCK_URL"
COUNT_MAX: Final = sys.maxsize


def option(flags: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    """An option for typer: its names, as in `-n --count`, and its line in the help."""
    return typer.Option(*flags.split(), help=help, metavar=metavar, **more)


def argument(metavar: str, help: str, **more: Any) -> Any:
    return typer.Argument(metavar=metavar, help=help, **more)


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


def moment(text: str, *, later: bool = False) -> datetime:
    """Read a time: ISO 8601, `now`, or how long ago; with `later`, after how long."""
    now = datetime.now(UTC)
    if text == "now":
        return now
    try:
        if ago := AGO.fullmatch(text):
            span = timedelta(**{UNITS[ago[2]]: int(ago[1])})
            return now + span if later else now - span
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is not a time; write {LATER if later else TIMES}") from None
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
    option(
        "--url",
        "a running server: penstock://HOST:PORT or zmq+tcp://HOST:PORT; or a store: sqlite:///DIR, postgresql://…",
        "URL",
        envvar=URL_ENVIRONMENT,
        show_default=f"penstock://{TABLE['mq'].default}",
    ),
]
Data = Annotated[
    Path | None,
    option("--data", "instead of a server: the directory of a store that no server has open", "DIR", parser=directory),
]
TokenFile = Annotated[
    str | None,
    option(
        "--token",
        f"a file with the token that shows the server who you are (@- is standard input); or set {TOKEN_ENVIRONMENT}",
        "@FILE",
    ),
]
StoreData = Annotated[str | None, option("--data", TABLE["data"].help, "DIR")]
StoreUrl = Annotated[str | None, option("--store", TABLE["store"].help, "URL")]
Config = Annotated[Path | None, option("--config", "TOML file with settings", "FILE")]

NewData = Annotated[Path | None, option("--data", "directory to restore into", "DIR", parser=directory)]
NewStore = Annotated[str | None, option("--store", "database to restore into: postgresql://…", "URL")]


def new_store_url(data: Path | None, store: str | None) -> str:
    """The URL of the store to restore into: only the command line can name it, no variable or file."""
    if (data is None) == (store is None):
        refuse("say where to restore to: either --data DIR or --store URL")
    from penstock.store import store_url  # noqa: PLC0415

    return store or store_url(data or Path())


ContextArgument = Annotated[str | None, argument("CONTEXT", "the context; without one, the whole history")]
StreamArgument = Annotated[str | None, argument("STREAM", "one stream of the context")]
Filter = Annotated[str, option("--filter", "only streams whose names begin with this", "PREFIX")]
Types = Annotated[list[str] | None, option("--type", "only events of this type; can be repeated", "TYPE")]
Limit = Annotated[int | None, option("--limit", "at most this many", "N", min=0, max=COUNT_MAX)]
OfContext = Annotated[str | None, option("--context", "only this context", "NAME")]
Yes = Annotated[bool, option("--yes", "do not ask")]
AsJson = Annotated[bool, option("--json", "print JSON, for programs")]

# --- commands that run on Spark -------------------------------------------------------------------------------

AGAIN: Final = "interrupted: run the same command again to continue"

Master = Annotated[str | None, option("--master", "Spark's master (default: this machine)", "M")]
Conf = Annotated[list[str] | None, option("--conf", "an option for Spark; can be repeated", "KEY=VALUE")]


def session(name: str, master: str | None, conf: list[str] | None) -> AbstractContextManager["Start"]:
    """A Spark session with this application name. Spark starts when there is something to do."""
    from penstock.spark.sessions import MASTER, late_session  # noqa: PLC0415

    hide_py4j_log()
    return late_session(name, MASTER, options_of(conf, master))


def hide_py4j_log() -> None:
    """Hide what Py4J logs about a JVM that an interrupt has ended: it raises the same as an error."""
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def options_of(conf: list[str] | None, master: str | None = None) -> dict[str, str]:
    """The options that `--conf` and `--master` give; they win over Spark's configuration files."""
    options: dict[str, str] = {}
    for text in conf or ():
        key, separator, value = text.partition("=")
        if not separator or not key:
            refuse(f"--conf is {text!r}: it must be KEY=VALUE")
        options[key] = value
    return options | ({"spark.master": master} if master is not None else {})
