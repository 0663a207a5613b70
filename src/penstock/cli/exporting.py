"""`penstock export`: events of a history into a file."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.bars import rate_bar
from penstock.cli.connecting import Data, Url, address_of, telling
from penstock.cli.importing import FormatOption
from penstock.cli.options import TIMES, Filter, Types, moment
from penstock.cli.output import INTERRUPTED, AsJson, complain, counted, json_text, print_line, refuse, remark
from penstock.interchange.formats import STANDARD, FileRefused, Format, format_of
from penstock.model import check_context, check_stream, check_type, ticks_of_datetime

if TYPE_CHECKING:
    from penstock.interchange.exporter import Exported, Selection

__all__ = ["check_names", "export_command"]


def export_command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="the file to write; - is standard output")],
    format: FormatOption = None,
    context: Annotated[str | None, typer.Option("--context", help="only this context", metavar="NAME")] = None,
    filter: Filter = "",
    types: Types = None,
    first: Annotated[int, typer.Option("--from", help="from this position on", metavar="POSITION", min=1)] = 1,
    last: Annotated[
        int | None, typer.Option("--to", help="up to this position, which is the last", metavar="POSITION", min=0)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help=f"only events of this time or later: {TIMES}", metavar="TIME")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="only events of before this time", metavar="TIME")
    ] = None,
    anew: Annotated[bool, typer.Option("--anew", help="do not go on with what was not finished")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Export events to a file: JSON lines, CSV, Parquet or CloudEvents.

    The file is there when it is whole. Until then it is PATH.partial, and whatever ends an export, the same command
    goes on with it.
    """
    # It takes a moment to import, and help needs none of it.
    from penstock.interchange.exporter import POSITION_MAX, Selection  # noqa: PLC0415

    path = STANDARD if path == "/dev/stdout" else path
    named = tuple(types) if types else None
    check_names(context, filter, named or ())
    times = (None if text is None else ticks_of_datetime(moment(text)) for text in (since, until))
    selection = Selection(context, filter, named, first, POSITION_MAX if last is None else last, *times)
    kind = _kind(path, format)
    with telling():
        address = address_of(url, data)
        _conclude(path, _exported(address, path, kind, selection, (since, until), anew), as_json)


def _kind(path: str, format: Format | None) -> Format:
    try:
        kind = format_of(path, format)
    except FileRefused as error:
        refuse(str(error))
    if kind is Format.PARQUET and path == STANDARD and sys.stdout.isatty():
        refuse("Parquet is not for terminals: name a file, or send it into a file or a pipe")
    return kind


def check_names(context: str | None, filter: str, types: tuple[str, ...]) -> None:
    """End the command if an option has a name that nothing can have."""
    asked: list[tuple[str, str, Callable[[str], str | None]]] = [("--type", name, check_type) for name in types]
    if context is not None:
        asked.append(("--context", context, check_context))
    if filter:
        asked.append(("--filter", filter, check_stream))
    for option, value, check in asked:
        if reason := check(value):
            refuse(f"{option} {reason}")


def _exported(
    address: str, path: str, kind: Format, wanted: "Selection", said: tuple[str | None, str | None], anew: bool
) -> "Exported":
    from penstock.interchange.exporter import export_events  # noqa: PLC0415

    try:
        # A bar would run into what is printed on the same terminal.
        is_seen = path == STANDARD and sys.stdout.isatty()
        with rate_bar(f"exporting {Path(path).name}", hidden=is_seen) as bar:
            return export_events(
                address, path, kind, wanted, lambda done, total, _: bar(done, total), written_times=said, restart=anew
            )
    except KeyboardInterrupt:
        rest = ": run the same command again, and it goes on" if _is_kept(path) else ""
        raise typer.Exit(complain(f"interrupted{rest}", INTERRUPTED)) from None


def _is_kept(path: str) -> bool:
    return path != STANDARD and Path(path + ".partial.json").exists()


def _conclude(path: str, exported: "Exported", as_json: bool) -> None:
    """Say what came of it; where the events went to standard output, on standard error."""
    if as_json:
        counts = {"events": exported.events, "resumed_events": exported.resumed_events, "last": exported.last}
        line = json_text({"file": path, **counts})
    else:
        before = f", {exported.resumed_events:,} of them before" if exported.resumed_events else ""
        name = "standard output" if path == STANDARD else path
        line = f"{name}: {counted(exported.events, 'event')}{before}, up to position {exported.last:,}"
    if path == STANDARD:
        remark(line)
    else:
        print_line(line)
