"""`penstock import` and `penstock export`: events from files and into files."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from penstock.cli.connection import address_of, error_line
from penstock.cli.options import TIMES, AsJson, Data, Filter, OfContext, Types, Url, argument, moment, option
from penstock.cli.output import (
    counted,
    fail,
    json_text,
    print_line,
    print_lines,
    progress_bar,
    refuse,
    remark,
    stop_command,
)
from penstock.cli.signals import INTERRUPTED
from penstock.errors import PenstockError
from penstock.interchange.formats import STANDARD, FileRefused, Format, format_of
from penstock.model import check_context, check_stream, check_type, ticks_of_datetime

if TYPE_CHECKING:
    from penstock.event_json import Defaults
    from penstock.interchange.importer import Imported, Source, Survey

COPY_BYTES: Final = 1 << 20

FormatOption = Annotated[Format | None, option("--format", "the format of the files, if their names do not tell")]


def _format_of(path: str, format: Format | None) -> Format:
    try:
        return format_of(path, format)
    except FileRefused as error:
        refuse(str(error))


def import_command(
    files: Annotated[list[str], argument("FILE…", "files to import; - is standard input")],
    format: FormatOption = None,
    context: Annotated[str | None, option("--context", "the context of events whose file has none", "NAME")] = None,
    stream: Annotated[str | None, option("--stream", "the stream of events whose file has none", "NAME")] = None,
    type: Annotated[str | None, option("--type", "the type of events whose file has none", "NAME")] = None,
    name: Annotated[str, option("--name", "import files again that were imported under another name", "TEXT")] = "",
    check: Annotated[bool, option("--check", "only check whether the files can be imported")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Import events from files: JSON lines, CSV, Parquet or CloudEvents.

    The command checks all files first: if one has a mistake, nothing is imported. If an import is interrupted, run the
    same command again: it continues where it was, and imports nothing twice.
    """
    # They take a moment to import, and help does not need them.
    from penstock.client.transport import transport_to  # noqa: PLC0415
    from penstock.event_json import Defaults  # noqa: PLC0415
    from penstock.interchange.importer import rehearsed, survey  # noqa: PLC0415

    defaults = Defaults(context, stream, type)
    if reason := defaults.check():
        refuse(reason)
    if files.count(STANDARD) > 1:
        refuse("standard input can be read only once")
    with ExitStack() as spools:
        address = None if check else address_of(url, data)
        if address is not None:
            # Report a wrong address now, not after all files are read.
            transport_to(address)
        sources = [spools.enter_context(_source(file, format, defaults)) for file in files]
        surveys: list[Survey] = []
        for source in sources:
            with progress_bar(f"checking {source.path.name}") as bar:
                found = survey(source, name, partial(bar, total=None))
            # The server checks it too: nothing is sent before all files are sound.
            surveys.append(rehearsed(found, address))
        for found in surveys:
            imported = None if address is None else _import(found, address)
            if as_json:
                new = {} if imported is None else {"new_events": imported.new_events}
                file = {"file": found.source.name, "format": found.source.format.value}
                print_lines([{**file, "events": found.events, **new}])
            else:
                print_line(f"{found.source.name}: {_import_result(found, imported)}")
            sys.stdout.flush()


@contextmanager
def _source(file: str, format: Format | None, defaults: "Defaults") -> "Iterator[Source]":
    """A file that can be read twice: a pipe is copied into a temporary file first."""
    from penstock.interchange.importer import Source  # noqa: PLC0415

    kind, path = _format_of(file, format), Path(file)
    is_pipe = path.exists() and not path.is_file() and not path.is_dir()
    if file != STANDARD and not is_pipe:
        yield Source(file, path, kind, defaults)
        return
    name = "standard input" if file == STANDARD else file
    with _errors_name("$TMPDIR"):
        spool = tempfile.NamedTemporaryFile(prefix="penstock-import-", buffering=0)  # noqa: SIM115 - closed below
    with spool:
        with sys.stdin.buffer if file == STANDARD else path.open("rb") as pipe:
            while True:
                with _errors_name(name):
                    rest = memoryview(pipe.read(COPY_BYTES))
                if not rest:
                    break
                with _errors_name(spool.name):
                    while rest:
                        rest = rest[spool.write(rest) :]
        yield Source(name, Path(spool.name), kind, defaults)


@contextmanager
def _errors_name(name: str) -> Iterator[None]:
    """Put a file's name into errors: those of an open file have none."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


def _import(found: "Survey", address: str) -> "Imported":
    """Import a file; if that fails half-way, the message says how much is imported."""
    from penstock.interchange.importer import import_file  # noqa: PLC0415

    written = 0

    def progress(events: int) -> None:
        nonlocal written
        written = events
        bar(events, found.events)

    def so_far() -> str:
        events = f"{written:,} of the {counted(found.events, 'event')} of {found.source.name}"
        return f"{events} are imported; run the same command again to continue"

    try:
        with progress_bar(f"importing {found.source.path.name}") as bar:
            return import_file(found, address, progress)
    except KeyboardInterrupt:
        stop_command(f"interrupted: {so_far()}", INTERRUPTED)
    except PenstockError as error:
        if not written:
            raise
        fail(f"{error_line(error)}: {so_far()}")


def _import_result(found: "Survey", imported: "Imported | None") -> str:
    events = counted(found.events, "event")
    if imported is None:
        return f"{events}, nothing wrong"
    if imported.new_events == found.events:
        return f"{events} imported"
    if not imported.new_events:
        return f"{events}, all of them imported before"
    return f"{events} imported, {imported.new_events:,} of them now"


def export_command(
    path: Annotated[str, argument("PATH", "the file to write; - is standard output")],
    format: FormatOption = None,
    context: OfContext = None,
    filter: Filter = "",
    types: Types = None,
    first: Annotated[int, option("--from", "from this position on", "POSITION", min=1)] = 1,
    last: Annotated[int | None, option("--to", "up to and including this position", "POSITION", min=0)] = None,
    since: Annotated[str | None, option("--since", f"only events of this time or later: {TIMES}", "TIME")] = None,
    until: Annotated[str | None, option("--until", "only events before this time", "TIME")] = None,
    anew: Annotated[bool, option("--anew", "start over instead of continuing an unfinished export")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Export events to a file: JSON lines, CSV, Parquet or CloudEvents.

    The file appears when it is complete. Until then the command writes PATH.partial, and if it is interrupted, the same
    command continues with that.
    """
    # They take a moment to import, and help does not need them.
    from penstock.interchange.exporter import POSITION_MAX, Selection, export_events  # noqa: PLC0415

    path = STANDARD if path == "/dev/stdout" else path
    named = tuple(types) if types else None
    check_names(context, filter, named or ())
    times = (None if text is None else ticks_of_datetime(moment(text)) for text in (since, until))
    selection = Selection(context, filter, named, first, POSITION_MAX if last is None else last, *times)
    kind = _format_of(path, format)
    is_on_screen = path == STANDARD and sys.stdout.isatty()
    if kind is Format.PARQUET and is_on_screen:
        refuse("Parquet is binary: name a file, or redirect the output into a file or a pipe")
    address = address_of(url, data)
    try:
        # A bar would run into events that are printed on the same terminal.
        with progress_bar(f"exporting {Path(path).name}", hidden=is_on_screen) as bar:
            exported = export_events(
                address,
                path,
                kind,
                selection,
                lambda done, total, _: bar(done, total),
                written_times=(since, until),
                restart=anew,
            )
    except KeyboardInterrupt:
        can_continue = path != STANDARD and Path(path + ".partial.json").exists()
        stop_command(f"interrupted{': run the same command again to continue' * can_continue}", INTERRUPTED)
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


def check_names(context: str | None, filter: str, types: tuple[str, ...]) -> None:
    """End the command if an option has a name that no context, stream or type can have."""
    named_types = (("--type", name, check_type) for name in types)
    for flag, value, check in (
        ("--context", context, check_context),
        ("--filter", filter, check_stream),
        *named_types,
    ):
        if value and (reason := check(value)):
            refuse(f"{flag} {reason}")
