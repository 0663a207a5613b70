"""`penstock import`: events from files into a history."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.bars import rate_bar
from penstock.cli.connecting import Data, Url, address_of, explained, telling
from penstock.cli.output import INTERRUPTED, AsJson, complain, counted, fail, print_line, print_lines, refuse
from penstock.errors import PenstockError
from penstock.interchange.formats import STANDARD, FileRefused, Format, format_of

if TYPE_CHECKING:
    from penstock.event_json import Defaults
    from penstock.interchange.importer import Imported, Source, Survey

__all__ = ["FormatOption", "import_command"]

COPY_BYTES: Final = 1 << 20

FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="what files are written in, if their names do not say it", show_default=False),
]


def import_command(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="files to import; - is standard input")],
    format: FormatOption = None,
    context: Annotated[
        str | None, typer.Option("--context", help="the context of events whose file does not say it", metavar="NAME")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", help="the stream of events whose file does not say it", metavar="NAME")
    ] = None,
    type: Annotated[
        str | None, typer.Option("--type", help="the type of events whose file does not say it", metavar="NAME")
    ] = None,
    name: Annotated[
        str, typer.Option("--name", help="import files again that were imported under another name", metavar="TEXT")
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="only look whether the files can be imported")] = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Import events from files: JSON lines, CSV, Parquet or CloudEvents.

    All files are looked through first: if one has a mistake, nothing is imported. Whatever ends an import, the same
    command goes on where it was, and adds nothing twice.
    """
    # It takes a moment to import, and help needs none of it.
    from penstock.event_json import Defaults  # noqa: PLC0415

    defaults = Defaults(context, stream, type)
    if reason := defaults.check():
        refuse(reason)
    if files.count(STANDARD) > 1:
        refuse("standard input can be read once only")
    with telling(), ExitStack() as spools:
        address = None if check else _checked(address_of(url, data))
        sources = [spools.enter_context(_source(file, format, defaults)) for file in files]
        surveys = [_surveyed(source, name, address) for source in sources]
        if address is None:
            _show([(found, None) for found in surveys], as_json)
        else:
            _show(((found, _imported(found, address)) for found in surveys), as_json)


def _checked(address: str) -> str:
    """An address that can be one: otherwise it would be told after all files are read. Raises BadUrl."""
    from penstock.client.urls import transport_to  # noqa: PLC0415

    transport_to(address)
    return address


@contextmanager
def _source(file: str, format: Format | None, defaults: "Defaults") -> "Iterator[Source]":
    """A file that can be read twice: what is none is copied into one first."""
    from penstock.interchange.importer import Source  # noqa: PLC0415

    try:
        kind = format_of(file, format)
    except FileRefused as error:
        refuse(str(error))
    if file != STANDARD and not _is_pipe(Path(file)):
        yield Source(file, Path(file), kind, defaults)
        return
    name = "standard input" if file == STANDARD else file
    with _named("$TMPDIR"):
        spool = tempfile.NamedTemporaryFile(prefix="penstock-import-", buffering=0)  # noqa: SIM115 - closed below
    with spool:
        with sys.stdin.buffer if file == STANDARD else Path(file).open("rb") as pipe:
            _copy(pipe, name, spool)
        yield Source(name, Path(spool.name), kind, defaults)


def _copy(pipe: IO[bytes], name: str, spool: Any) -> None:
    while True:
        with _named(name):
            rest = memoryview(pipe.read(COPY_BYTES))
        if not rest:
            return
        with _named(spool.name):
            while rest:
                rest = rest[spool.write(rest) :]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """What goes wrong with something that is open already is told with its name."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise


def _is_pipe(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def _surveyed(source: "Source", name: str, address: str | None) -> "Survey":
    """Look through a file, and ask the server of it: nothing is sent before all are sound."""
    from penstock.interchange.importer import rehearsed, survey  # noqa: PLC0415

    with rate_bar(f"checking {source.path.name}") as bar:
        found = survey(source, name, lambda events: bar(events, None))
    return rehearsed(found, address)


def _imported(found: "Survey", address: str) -> "Imported":
    """Import a file; say how far it came if it ends early."""
    from penstock.interchange.importer import import_file  # noqa: PLC0415

    written = 0

    def progressed(events: int) -> None:
        nonlocal written
        written = events
        bar(events, found.events)

    def so_far() -> str:
        return (
            f"{written:,} of the {counted(found.events, 'event')} of {found.source.name} are imported; "
            "run the same command again, and it goes on"
        )

    try:
        with rate_bar(f"importing {found.source.path.name}") as bar:
            return import_file(found, address, progressed)
    except KeyboardInterrupt:
        raise typer.Exit(complain(f"interrupted: {so_far()}", INTERRUPTED)) from None
    except PenstockError as error:
        if not written:
            raise
        fail(f"{explained(error)}: {so_far()}")


def _show(results: Any, as_json: bool) -> None:
    """What came of each file, as soon as it is known."""
    for found, imported in results:
        if as_json:
            print_lines([_document(found, imported)])
        else:
            print_line(_line(found, imported))
        sys.stdout.flush()


def _document(found: "Survey", imported: "Imported | None") -> dict[str, Any]:
    new = {} if imported is None else {"new_events": imported.new_events}
    return {"file": found.source.name, "format": found.source.format.value, "events": found.events, **new}


def _line(found: "Survey", imported: "Imported | None") -> str:
    events = counted(found.events, "event")
    if imported is None:
        return f"{found.source.name}: {events}, nothing wrong"
    if imported.new_events == found.events:
        return f"{found.source.name}: {events} imported"
    if not imported.new_events:
        return f"{found.source.name}: {events}, all of them imported before"
    return f"{found.source.name}: {events} imported, {imported.new_events:,} of them now"
