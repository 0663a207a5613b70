"""What commands print: tables and lines for people, JSON for programs, complaints.

Rules: what was asked for goes to standard output, everything else to standard error. Names and bodies come from
strangers, so no control character of theirs reaches a terminal: they are shown escaped, and so they are in JSON. What
is piped has no colours, and is neither cropped nor wrapped.

`--json` prints one object per line where there may be many (events, streams), and one document otherwise (`stats`).
"""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import IO, TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from penstock.model.ticks import TICKS_PER_SECOND

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "INTERRUPTED",
    "AsJson",
    "complain",
    "console",
    "counted",
    "fail",
    "has_colours",
    "iso",
    "json_text",
    "painted",
    "plain",
    "print_document",
    "print_line",
    "print_lines",
    "print_table",
    "refuse",
    "shown",
    "size",
    "table",
]

INTERRUPTED: Final = 130
"""The exit code of a command that was ended by Ctrl-C, as shells have it."""
PIPED_COLUMNS: Final = 100_000
"""How wide tables may become where no terminal sets an end to them."""
JOINERS: Final = "\u200c\u200d"
"""Characters that cannot be seen, but belong into words and emoji."""

AsJson = Annotated[bool, typer.Option("--json", help="print JSON, for programs")]


# --- texts ----------------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    r"""A text for a terminal: what is not printable is escaped, as in `\x1b` or `\n`."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in JOINERS else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which no control character is left raw, nor half of a character, nor what cannot be printed here."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=not prints_unicode(), separators=separators, indent=indent, default=str)
    if text.isprintable():
        return text
    return "".join(letter if letter == "\n" or _is_plain(letter) else f"\\u{ord(letter):04x}" for letter in text)


def prints_unicode() -> bool:
    """Whether standard output takes every character."""
    return (sys.stdout.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def _is_plain(letter: str) -> bool:
    # Beyond the first 65,536 there are no controls that a terminal knows, and `\u` would not reach.
    return letter.isprintable() or letter in JOINERS or ord(letter) > 0xFFFF


def iso(ticks: int) -> str:
    """A time as ISO 8601 has it, in UTC, to 100 ns where it is that fine."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    text = (datetime.min + timedelta(seconds=seconds)).isoformat()  # noqa: DTZ901 - the zone is written below
    return f"{text}.{fraction:07}".rstrip("0").rstrip(".") + "Z"


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
    print_line(json_text(value, indent=2))


def print_lines(values: Iterable[Any]) -> None:
    """JSON, one value in each line, each written as soon as it is there if somebody watches."""
    for value in values:
        print_line(json_text(value))


def print_line(line: str) -> None:
    """A line to standard output. What is in it must be fit for a terminal: see `shown`."""
    sys.stdout.write(f"{line}\n")


def console(file: IO[str] | None = None) -> "Console":
    """Where tables go: as wide as the terminal, or as wide as they are. Nothing in a text is taken for markup."""
    # Rich takes long to import, and JSON needs none of it.
    from rich.console import Console  # noqa: PLC0415

    plain: dict[str, Any] = {"file": file, "highlight": False, "markup": False, "emoji": False}
    found = Console(**plain)
    return found if found.is_terminal else Console(**plain, width=PIPED_COLUMNS)


def has_colours() -> bool:
    """Whether standard output is a terminal that shows colours, and nobody has forbidden them (`NO_COLOR`)."""
    found = console()
    return found.is_terminal and not found.no_color and not found.is_dumb_terminal


def painted(text: str, style: str) -> str:
    """A text as a terminal shows it in a style: `dim`, `bold` or a colour."""
    return typer.style(text, **({style: True} if style in ("dim", "bold") else {"fg": style}))


def plain(text: str, _style: str) -> str:
    """A text as it is, where there are no colours."""
    return text


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], caption: str | None = None) -> "Table":
    """A table for people. Columns whose names begin with `#` hold numbers, and stand at the right."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    made = Table(box=box.SIMPLE_HEAD, caption=caption)
    for column in columns:
        made.add_column(column.removeprefix("#"), justify="right" if column[0] == "#" else "left", overflow="fold")
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else shown(str(value))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str, caption: str | None = None
) -> None:
    """A table for people; if it has no rows, `empty` in a line on standard error."""
    found = list(rows)
    if found:
        console().print(table(columns, found, caption))
    else:
        sys.stderr.write(f"{empty}\n")


# --- standard error -------------------------------------------------------------------------------------------


def complain(message: str, code: int) -> int:
    """Say in one line on standard error what is wrong; the exit code."""
    line = " | ".join(part.strip() for part in message.splitlines())
    sys.stderr.write(f"penstock: {shown(line)}\n")
    return code


def fail(message: str) -> NoReturn:
    """End the command: it could not be done."""
    raise typer.Exit(complain(message, 1))


def refuse(message: str) -> NoReturn:
    """End the command: it was not asked for in a way that can be understood."""
    raise typer.Exit(complain(message, 2))
