"""`penstock sql`: SQL over the history, and what `penstock lake query` prints alike."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connecting import URL_ENVIRONMENT, Url, default_url, telling
from penstock.cli.options import Config, Data, StoreUrl, directory
from penstock.cli.output import complain, counted, print_line, print_table, refuse, shown
from penstock.cli.sparks import interruptible
from penstock.settings.table import size

if TYPE_CHECKING:
    from penstock.sql import Answer, Limits

__all__ = [
    "INTERRUPTION",
    "AllowDir",
    "FileOption",
    "Format",
    "Memory",
    "Output",
    "Spilling",
    "Statement",
    "format_of",
    "limits_of",
    "sql_command",
    "statement_of",
    "write_answer",
]

STATEMENT_BYTES_MAX: Final = 1 << 20
"""How long a statement on standard input may be."""
TABLE_ROWS_MAX: Final = 50
"""Rows of a table for people; files and programs get all."""
COUNTED_ROWS_MAX: Final = 100_000
"""Rows that are counted for people. It would take as long as the whole answer to count more."""
CELL_LETTERS_MAX: Final = 500
STANDARD: Final = "-"
INTERRUPTION: Final = "interrupted"
"""What is said after Ctrl-C or SIGTERM. A file that was asked for is not there then, or as it was."""


class Format(StrEnum):
    """What an answer is written as."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


SUFFIXES: Final = {
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".parquet": Format.PARQUET,
}

Statement = Annotated[
    str, typer.Argument(metavar="STATEMENT", help="one statement that reads the table `events`; - is standard input")
]
Output = Annotated[
    Format | None,
    typer.Option(
        "--output",
        help="a table for people, or what programs read; JSON is one object per line",
        show_default="table, or what the name of --file says",
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option("--file", help="write to this file, which is there when it is whole", metavar="PATH"),
]
Memory = Annotated[str, typer.Option("--memory", help="what DuckDB may use before it spills to disk", metavar="SIZE")]
Spilling = Annotated[
    Path | None,
    typer.Option(
        "--temp", help="where it spills to", metavar="DIR", show_default="where the system has temporary files"
    ),
]

AllowDir = Annotated[
    list[Path] | None,
    typer.Option(
        "--allow-dir",
        help="let the statement read files below this directory; may be given often",
        metavar="DIR",
        parser=directory,
        show_default="no files",
    ),
]


def sql_command(
    statement: Statement,
    data: Data = None,
    store: StoreUrl = None,
    url: Url = None,
    config: Config = None,
    output: Output = None,
    file: FileOption = None,
    memory: Memory = "1 GiB",
    temp: Spilling = None,
    allow_dir: AllowDir = None,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
) -> None:
    """Ask the history in SQL: the table `events`, straight from a store or through its server, with DuckDB.

    The answer is of the moment when the question was asked. Nothing can be written in this way, and files are read only
    below --allow-dir.
    """
    if as_json:
        refuse("--json is --output json here, as there are other formats, too")
    kind = format_of(output, file)
    with telling(), interruptible(INTERRUPTION):
        limits = limits_of(memory, temp, allow_dir)
        address = _address(data, store, url, config)
        text = statement_of(statement)
        # DuckDB and Arrow take a moment to import, and the help of a command needs none of them.
        from penstock.sql import open_session  # noqa: PLC0415

        with open_session(address, limits) as session:
            write_answer(session.query(text), kind, file)


def _address(data: str | None, store: str | None, url: str | None, config: Path | None) -> str:
    """Where the history is. What is said on the command line beats what variables and files say."""
    named = [address for address in (store, _url_of(data)) if address is not None]
    if url is not None and not named:
        return url
    if len(named) > 1 or (url is not None and url != os.environ.get(URL_ENVIRONMENT)):
        refuse("only one of --url, --data and --store can be given")
    return named[0] if named else _configured(config)


def _url_of(data: str | None) -> str | None:
    from penstock.store import store_url  # noqa: PLC0415

    if data == "":
        refuse("--data must not be empty")
    return None if data is None else store_url(Path(data))


def _configured(config: Path | None) -> str:
    """What variables and files say, or else the server of this machine."""
    # They come with the whole server, which takes a moment to import.
    from penstock.cli.serve import one_store  # noqa: PLC0415
    from penstock.server import store_address  # noqa: PLC0415
    from penstock.settings import resolve  # noqa: PLC0415

    settings = one_store(resolve({}, os.environ, config))
    return default_url() if settings.data is None and settings.store is None else store_address(settings)


# --- what was asked for ---------------------------------------------------------------------------------------


def statement_of(text: str) -> str:
    """The statement, which may come by standard input."""
    if text != STANDARD:
        return text
    given = sys.stdin.buffer.read(STATEMENT_BYTES_MAX + 1)
    if len(given) > STATEMENT_BYTES_MAX:
        refuse(f"the statement on standard input is longer than {STATEMENT_BYTES_MAX:,} bytes")
    try:
        # Files of some editors begin with a mark of their own.
        return given.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(f"the statement on standard input is not UTF-8 (byte {error.start + 1:,})")


def limits_of(memory: str, temp: Path | None, allowed: list[Path] | None) -> "Limits":
    """What DuckDB may use, and read."""
    from penstock.sql.session import MEMORY_BYTES_MIN, Limits  # noqa: PLC0415

    named = [("--temp", temp), *(("--allow-dir", path) for path in allowed or ())]
    for option, path in named:
        if path is not None and not path.is_dir():
            refuse(f"{option} is {str(path)!r}: there is no such directory")
    folder, directories = None if temp is None else str(temp), tuple(map(str, allowed or ()))
    try:
        return Limits(size(MEMORY_BYTES_MIN)(memory), folder=folder, directories=directories)
    except ValueError as error:
        refuse(f"--memory is {memory!r}: it {error}")


def format_of(output: Format | None, file: Path | None) -> Format:
    """What to write: what is said, or what the name of the file says, or a table."""
    kind = output or (SUFFIXES.get(file.suffix.lower()) if file is not None else Format.TABLE)
    if kind is None:
        refuse(f"say what {str(file)!r} is to be: --output csv, json or parquet")
    if kind is Format.TABLE and file is not None:
        refuse("a table is for people; a file is written with --output csv, json or parquet")
    if kind is Format.PARQUET and file is None and sys.stdout.isatty():
        refuse("Parquet is not for terminals: say --file PATH, or send it into a file or a pipe")
    return kind


# --- what comes of it -----------------------------------------------------------------------------------------


def write_answer(answer: "Answer", kind: Format, file: Path | None) -> None:
    """Write an answer where and as it was asked for."""
    if kind is Format.TABLE:
        _print(answer)
        return
    with _opened(file) as target:
        rows = _write(answer, kind, target)
    if file is not None:
        complain(f"{counted(rows, 'row')} in {file}", 0)


def _write(answer: "Answer", kind: Format, target: IO[bytes]) -> int:
    from penstock.sql import results  # noqa: PLC0415

    if kind is Format.CSV:
        return results.write_csv(answer, target, shown if target.isatty() else None)
    return results.write_json(answer, target) if kind is Format.JSON else results.write_parquet(answer, target)


@contextmanager
def _opened(file: Path | None) -> Iterator[IO[bytes]]:
    from penstock.sql.results import opened  # noqa: PLC0415

    if file is not None:
        try:
            with opened(file) as target:
                yield target
        except OSError as error:
            # It may be written under another name first, which nobody has asked for.
            if error.errno is not None:
                error.filename = str(file)
            raise
        return
    sys.stdout.flush()
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _print(answer: "Answer") -> None:
    """The first rows for people, and how many there are."""
    from penstock.sql.results import plain  # noqa: PLC0415

    rows: list[tuple[Any, ...]] = []
    total = 0
    for batch in answer.batches():
        wanted = batch.slice(0, max(0, TABLE_ROWS_MAX - len(rows)))
        rows += zip(*map(plain, wanted.columns), strict=True)
        total += batch.num_rows
        if total > COUNTED_ROWS_MAX:
            break
    print_table(_headings(answer), [tuple(map(_cell, row)) for row in rows], empty="no rows")
    if total > TABLE_ROWS_MAX:
        print_line(_rest(total))


def _headings(answer: "Answer") -> list[str]:
    import pyarrow as pa  # noqa: PLC0415

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return [f"{'#' * any(test(field.type) for test in numbers)}{field.name}" for field in answer.schema]


def _rest(total: int) -> str:
    there = f"more than {COUNTED_ROWS_MAX:,}" if total > COUNTED_ROWS_MAX else f"{total:,}"
    return f"{TABLE_ROWS_MAX} of {there} rows; --output csv, json or parquet writes all"


def _cell(value: Any) -> Any:
    """A value in a table: short, and for lists and the like as JSON."""
    from penstock.cli.output import json_text  # noqa: PLC0415

    # Numbers as they are, without commas: somebody may paste them into the next statement.
    text = json_text(value) if isinstance(value, list | dict | bool | int) else value
    if isinstance(text, str) and len(text) > CELL_LETTERS_MAX:
        return "".join(islice(text, CELL_LETTERS_MAX)) + "…"
    return text
