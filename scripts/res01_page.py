"""Generates the table of commands in docs/protocols/res01.md.

`make docs` runs it, and a test compares.
"""

import re
import sys
from pathlib import Path
from typing import Final

from penstock.model import Right
from penstock.wire.res01.commands import BINARY_COMMANDS, OWN_COMMANDS, TEXT_COMMANDS
from penstock.wire.res01.schema import Answer, Command, described

TABLE: Final = re.compile(r"(?<=<!-- commands: made by `make docs` -->\n).*?(?=<!-- end of commands -->)", re.DOTALL)


def commands_table() -> str:
    """All commands: their fields, answers, rights, limits, and whether a repeat is harmless."""
    lines = [
        "| command | what it does | fields | answer | right | repeat | bytes |",
        "|---|---|---|---|---|---|---|",
        *(_row(command) for command in OWN_COMMANDS.values()),
        "",
        "In the binary dialect:",
        "",
        "| command | fields | answer |",
        "|---|---|---|",
        *(f"| `{c.code.decode()}` | {_fields(c)} | {_answer(c.answer)} |" for c in BINARY_COMMANDS.values()),
    ]
    return "\n".join(lines) + "\n"


def _row(command: Command) -> str:
    request = command.request
    right = "" if command.code not in TEXT_COMMANDS else (Right(request.right).name or "").lower()
    size = "" if command.bytes_max is None else f"{command.bytes_max:,}"
    about = (f"`{command.code.decode()}`", command.about, _fields(command), _answer(command.answer))
    return f"| {' | '.join((*about, right, request.repeat.value, size))} |"


def _fields(command: Command) -> str:
    shared = described(command.layout.fields)
    if command.each is None:
        return shared
    each = f"int `Count`, then for each: {described(command.each.fields)}"
    return f"{shared}, {each}" if shared else each


def _answer(answer: Answer) -> str:
    name = f"`{answer.code.decode()}`" + (" for each" if answer.each else "")
    fields = described(answer.layout.fields)
    return f"{name}: {fields}" if fields else name


def page_with_table(page: str) -> str:
    """The page with its table as it is now."""
    return TABLE.sub(lambda _old: commands_table(), page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page_with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
