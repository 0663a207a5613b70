"""`penstock sql`: SQL over the history. `penstock lake query` prints its results in the same way."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from penstock.cli.connection import default_url, named_address
from penstock.cli.options import Config, StoreData, StoreUrl, Url, argument, directory, option
from penstock.cli.output import counted, json_text, print_line, print_table, refuse
from penstock.cli.signals import interruptible
from penstock.settings.table import size
from penstock.terminal import escape, print_error

if TYPE_CHECKING:
    from penstock.sql import Limits, QueryResult

STATEMENT_BYTES_MAX: Final = 1 << 20
TABLE_ROWS_MAX: Final = 50
"""Rows of a table for people; the other formats have all."""
COUNTED_ROWS_MAX: Final = 100_000
"""Rows counted for people. To count more would take as long as the whole result."""
CELL_LETTERS_MAX: Final = 500
STANDARD: Final = "-"
INTERRUPTION: Final = "interrupted"
"""The message after Ctrl-C or SIGTERM. The output file does not exist then, or is as it was."""


class OutputFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


SUFFIXES: Final = {
    ".csv": OutputFormat.CSV,
    ".json": OutputFormat.JSON,
    ".jsonl": OutputFormat.JSON,
    ".ndjson": OutputFormat.JSON,
    ".parquet": OutputFormat.PARQUET,
}

Statement = Annotated[str, argument("STATEMENT", "one statement that reads the table `events`; - is standard input")]
Output = Annotated[
    OutputFormat | None,
    option(
        "--output",
        "a table for people, or a format for programs; JSON is one object per line",
        show_default="table, or the format that the name of --file tells",
    ),
]
FileOption = Annotated[Path | None, option("--file", "write to this file, which appears when it is complete", "PATH")]
Memory = Annotated[str, option("--memory", "how much memory DuckDB may use before it spills to disk", "SIZE")]
SpillDir = Annotated[
    Path | None, option("--temp", "the directory to spill to", "DIR", show_default="the temporary directory")
]
AllowDir = Annotated[
    list[Path] | None,
    option(
        "--allow-dir",
        "let the statement read files below this directory; can be repeated",
        "DIR",
        parser=directory,
        show_default="no files",
    ),
]


def sql_command(
    statement: Statement,
    data: StoreData = None,
    store: StoreUrl = None,
    url: Url = None,
    config: Config = None,
    output: Output = None,
    file: FileOption = None,
    memory: Memory = "1 GiB",
    temp: SpillDir = None,
    allow_dir: AllowDir = None,
    as_json: Annotated[bool, option("--json", "", hidden=True)] = False,
) -> None:
    """Query the history in SQL: the table `events`, directly from a store or through its server, with DuckDB.

    The result is a snapshot of the moment when the query starts. Statements cannot write, and read files only below
    --allow-dir.
    """
    if as_json:
        refuse("use --output json instead of --json: sql has several formats")
    kind = format_of(output, file)
    with interruptible(INTERRUPTION):
        limits = limits_of(memory, temp, allow_dir)
        address = named_address(url, data, store, config) or default_url()
        text = statement_of(statement)
        # DuckDB and Arrow take a moment to import, and help does not need them.
        from penstock.sql import open_session  # noqa: PLC0415

        with open_session(address, limits) as session:
            write_answer(session.query(text), kind, file)


def statement_of(text: str) -> str:
    """The statement, read from standard input if it is `-`."""
    if text != STANDARD:
        return text
    given = sys.stdin.buffer.read(STATEMENT_BYTES_MAX + 1)
    if len(given) > STATEMENT_BYTES_MAX:
        refuse(f"the statement on standard input is longer than {STATEMENT_BYTES_MAX:,} bytes")
    try:
        # Some editors write a byte order mark first.
        return given.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(f"the statement on standard input is not UTF-8 (byte {error.start + 1:,})")


def limits_of(memory: str, temp: Path | None, allowed: list[Path] | None) -> "Limits":
    from penstock.sql.session import MEMORY_BYTES_MIN, Limits  # noqa: PLC0415

    for flag, path in [("--temp", temp), *(("--allow-dir", path) for path in allowed or ())]:
        if path is not None and not path.is_dir():
            refuse(f"{flag} is {str(path)!r}: there is no such directory")
    folder, directories = None if temp is None else str(temp), tuple(map(str, allowed or ()))
    try:
        return Limits(size(MEMORY_BYTES_MIN)(memory), folder=folder, directories=directories)
    except ValueError as error:
        refuse(f"--memory is {memory!r}: it {error}")


def format_of(output: OutputFormat | None, file: Path | None) -> OutputFormat:
    """The format: that of `--output`, or of the file's suffix, or a table."""
    kind = output or (SUFFIXES.get(file.suffix.lower()) if file is not None else OutputFormat.TABLE)
    if kind is None:
        refuse(f"the suffix of {str(file)!r} names no format: use --output csv, json or parquet")
    if kind is OutputFormat.TABLE and file is not None:
        refuse("a table is for people; write a file with --output csv, json or parquet")
    if kind is OutputFormat.PARQUET and file is None and sys.stdout.isatty():
        refuse("Parquet is binary: use --file PATH, or redirect the output into a file or a pipe")
    return kind


def write_answer(answer: "QueryResult", kind: OutputFormat, file: Path | None) -> None:
    if kind is OutputFormat.TABLE:
        _print_table(answer)
        return
    from penstock.sql import results  # noqa: PLC0415

    with results.opened(file) as target:
        if kind is OutputFormat.CSV:
            results.write_csv(answer, target, escape if target.isatty() else None)
        elif kind is OutputFormat.JSON:
            results.write_json(answer, target)
        else:
            results.write_parquet(answer, target)
    if file is not None:
        print_error(f"{counted(answer.rows_read, 'row')} in {file}")


def _print_table(answer: "QueryResult") -> None:
    import pyarrow as pa  # noqa: PLC0415

    from penstock.sql.results import plain  # noqa: PLC0415

    rows: list[tuple[Any, ...]] = []
    total = 0
    for batch in answer.batches():
        wanted = batch.slice(0, max(0, TABLE_ROWS_MAX - len(rows)))
        rows += zip(*map(plain, wanted.columns), strict=True)
        total += batch.num_rows
        if total > COUNTED_ROWS_MAX:
            break
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    columns = [f"{'#' * any(test(field.type) for test in numbers)}{field.name}" for field in answer.schema]
    print_table(columns, [tuple(map(_cell, row)) for row in rows], empty="no rows")
    if total > TABLE_ROWS_MAX:
        count = f"more than {COUNTED_ROWS_MAX:,}" if total > COUNTED_ROWS_MAX else f"{total:,}"
        print_line(f"{TABLE_ROWS_MAX} of {count} rows; --output csv, json or parquet writes all")


def _cell(value: Any) -> Any:
    # Numbers have no commas here: users paste them into the next statement.
    text = json_text(value) if isinstance(value, list | dict | bool | int) else value
    if isinstance(text, str) and len(text) > CELL_LETTERS_MAX:
        return text[:CELL_LETTERS_MAX] + "…"
    return text
