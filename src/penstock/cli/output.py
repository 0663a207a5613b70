"""Everything commands print: tables and lines for people, JSON for programs, error messages.

Results go to standard output, everything else to standard error. Names and bodies come from strangers, so this module
escapes whatever it prints (see `penstock.terminal`), and the linter refuses other ways to print. Output into a pipe has
no colours and is neither cropped nor wrapped.

`--json` prints one object per line where there may be many (events, streams), and one document otherwise (`stats`).
"""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import typer

from penstock.terminal import escape, escape_document, print_error

if TYPE_CHECKING:
    from penstock.cli.screen import Bar, Screen


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON with control characters, lone surrogates and characters that standard output lacks escaped."""
    is_unicode = (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=not is_unicode, separators=separators, indent=indent, default=str)
    return escape_document(text)


def counted(number: int, thing: str) -> str:
    """A number of things: `1 event`, `1,200 events`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def size(number: int) -> str:
    """Bytes for people: `12.3 MB`."""
    from rich.filesize import decimal  # noqa: PLC0415

    return decimal(number)


def print_result(document: Any, line: str, *, as_json: bool) -> None:
    """Print the result of a command: a JSON document for programs, or a line for people."""
    if as_json:
        print_document(document)
    else:
        print_line(line)


def print_rows(
    documents: Iterable[Any], columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, as_json: bool
) -> None:
    """Print a list: JSON lines for programs, or a table for people (see `print_table`)."""
    if as_json:
        print_lines(documents)
    else:
        print_table(columns, rows, empty=empty)


def print_document(value: Any) -> None:
    sys.stdout.write(f"{json_text(value, indent=2)}\n")


def print_lines(values: Iterable[Any]) -> None:
    for value in values:
        sys.stdout.write(f"{json_text(value)}\n")


class Painted(NamedTuple):
    """Part of a line with a style: `dim`, `bold` or the name of a colour."""

    text: str
    style: str


def print_line(*parts: str | Painted, colours: bool = False) -> None:
    """Print a line; painted parts have their style only with `colours`."""
    sys.stdout.write("".join(_drawn(part, colours) for part in parts) + "\n")


def _drawn(part: str | Painted, colours: bool) -> str:
    if isinstance(part, str):
        return escape(part)
    text, style = escape(part.text), part.style
    return typer.style(text, **({style: True} if style in ("dim", "bold") else {"fg": style})) if colours else text


def console(*, stderr: bool = False) -> "Screen":
    # Rich takes long to import, and JSON does not need it.
    from penstock.cli.screen import screen  # noqa: PLC0415

    return screen(stderr=stderr)


def progress_bar(what: str = "events", *, hidden: bool = False, rated: bool = True) -> AbstractContextManager["Bar"]:
    """A progress bar on standard error, if that is a terminal; see `penstock.cli.screen`."""
    from penstock.cli import screen  # noqa: PLC0415

    return screen.progress_bar(what, hidden=hidden, rated=rated)


def has_colours() -> bool:
    found = console()
    return found.is_terminal and not found.no_color and not found.is_dumb_terminal


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    empty: str,
    caption: str | None = None,
    is_bold: Callable[[Sequence[object]], bool] = lambda _: False,
) -> None:
    """Print a table for people; if it has no rows, print `empty` on standard error.

    Columns whose names begin with `#` hold numbers and are aligned right.
    """
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=box.SIMPLE_HEAD, caption=caption)
    for column in columns:
        made.add_column(column.removeprefix("#"), justify="right" if column[:1] == "#" else "left", overflow="fold")
    for row in rows:
        cells = ("-" if cell is None else f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        made.add_row(*cells, style="bold" if is_bold(row) else None)
    if made.row_count:
        console().print(made)
    else:
        remark(empty)


def print_fields(fields: Mapping[str, str]) -> None:
    """Print names and values in two columns; a value may have several lines."""
    width = max(map(len, fields)) + 2
    for name, value in fields.items():
        for number, line in enumerate(value.splitlines() or [""]):
            print_line(f"{'' if number else name:<{width}}{line}")


def remark(line: str) -> None:
    """Print a line on standard error that is not an error: that a list is empty, what is in progress."""
    sys.stderr.write(f"{escape(line)}\n")


def need_yes(yes: bool, why: str) -> None:
    """Refuse a command that needs an answer if no person can give one."""
    if not yes and not can_ask():
        refuse(f"{why}: use --yes to do it without a question")


def can_ask() -> bool:
    return sys.stdin.isatty()


def agreed(question: str) -> bool:
    sys.stderr.write(f"{escape(question)} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def stop_command(message: str, code: int) -> NoReturn:
    """End the command with a message on standard error and an exit code."""
    print_error(message)
    raise typer.Exit(code) from None


def fail(message: str) -> NoReturn:
    """End the command because it failed: exit code 1."""
    stop_command(message, 1)


def refuse(message: str) -> NoReturn:
    """End the command because it was used wrongly: exit code 2."""
    stop_command(message, 2)
