"""What commands print: tables and lines for people, JSON for programs, complaints.

Rules: what was asked for goes to standard output, everything else to standard error. Names and bodies come from
strangers, so whatever is printed here is escaped as `penstock.terminal` has it, and commands need not think of it: they
print through this module only (the linter refuses other ways). What is piped has no colours, and is neither cropped nor
wrapped.

`--json` prints one object per line where there may be many (events, streams), and one document otherwise (`stats`).
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, NoReturn

import typer

from penstock.terminal import complain, shown, shown_document

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.cli.screen import Screen

__all__ = [
    "INTERRUPTED",
    "AsJson",
    "Painted",
    "agreed",
    "complain",
    "console",
    "counted",
    "fail",
    "has_colours",
    "json_text",
    "print_document",
    "print_line",
    "print_lines",
    "print_table",
    "refuse",
    "remark",
    "shown",
    "size",
    "table",
]

INTERRUPTED: Final = 130
"""The exit code of a command that was ended by Ctrl-C, as shells have it."""

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


# --- texts ----------------------------------------------------------------------------------------------------


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which nothing is raw that could mislead, nor half of a character, nor what cannot be printed here."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=not prints_unicode(), separators=separators, indent=indent, default=str)
    return shown_document(text)


def prints_unicode() -> bool:
    """Whether standard output takes every character."""
    return (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def counted(number: int, thing: str) -> str:
    """A number of things: `1 event`, `1,200 events`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def size(number: int) -> str:
    """Bytes as people read them: `12.3 MB`."""
    from rich.filesize import decimal  # noqa: PLC0415

    return decimal(number)


# --- standard output ------------------------------------------------------------------------------------------


def print_document(value: Any) -> None:
    """One JSON document, for programs."""
    sys.stdout.write(f"{json_text(value, indent=2)}\n")


def print_lines(values: Iterable[Any]) -> None:
    """JSON, one value in each line, each written as soon as it is there if somebody watches."""
    for value in values:
        sys.stdout.write(f"{json_text(value)}\n")


class Painted(NamedTuple):
    """A part of a line in a style, where there are colours: `dim`, `bold` or the name of one."""

    text: str
    style: str


def print_line(*parts: str | Painted, colours: bool = False) -> None:
    """A line to standard output, in parts that may be painted."""
    sys.stdout.write("".join(_drawn(part, colours) for part in parts) + "\n")


def _drawn(part: str | Painted, colours: bool) -> str:
    if isinstance(part, str):
        return shown(part)
    text, style = shown(part.text), part.style
    return typer.style(text, **({style: True} if style in ("dim", "bold") else {"fg": style})) if colours else text


def console(*, stderr: bool = False) -> "Screen":
    """Where tables and bars go."""
    # Rich takes long to import, and JSON needs none of it.
    from penstock.cli.screen import screen  # noqa: PLC0415

    return screen(stderr=stderr)


def has_colours() -> bool:
    """Whether standard output is a terminal that shows colours, and nobody has forbidden them (`NO_COLOR`)."""
    found = console()
    return found.is_terminal and not found.no_color and not found.is_dumb_terminal


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str | None = None) -> "Table":
    """A table for people. Columns whose names begin with `#` hold numbers, and stand at the right."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=box.SIMPLE_HEAD, caption=caption)
    for column in columns:
        justify: Any = "right" if column.startswith("#") else "left"
        made.add_column(column.removeprefix("#"), justify=justify, overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, caption: str | None = None
) -> None:
    """A table for people; if it has no rows, `empty` in a line on standard error."""
    found = list(rows)
    if found:
        console().print(table(columns, found, caption))
    else:
        remark(empty)


# --- standard error -------------------------------------------------------------------------------------------


def remark(line: str) -> None:
    """A line to standard error beside what was asked for: that there is nothing, or what is under way."""
    sys.stderr.write(f"{shown(line)}\n")


def agreed(question: str) -> bool:
    """Whether somebody at the terminal says yes. Standard output is for what was asked for."""
    sys.stderr.write(f"{shown(question)} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def fail(message: str) -> NoReturn:
    """End the command: it could not be done."""
    raise typer.Exit(complain(message, 1))


def refuse(message: str) -> NoReturn:
    """End the command: it was not asked for in a way that can be understood."""
    raise typer.Exit(complain(message, 2))
