"""Generates the table of rights in docs/security.md from the requests of the commands.

`make docs` runs it, and a test compares.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Final

from penstock.model import Request, Right
from penstock.wire.remits.operations import OPERATIONS
from penstock.wire.res01.commands import OWN_COMMANDS

TABLE: Final = re.compile(r"(?<=<!-- rights: made by `make docs` -->\n).*?(?=<!-- end of rights -->)", re.DOTALL)
ORDER: Final = (Right.READ, Right.APPEND, Right.CONSUME, Right.ADMIN, Right(0))


def rights_table() -> str:
    """All requests that a client can send: what each does, its commands, the right that it needs, and where."""
    named: dict[type[Request], list[str]] = defaultdict(list)
    about = {command.request: command.about for command in reversed(OWN_COMMANDS.values())}
    for command in OWN_COMMANDS.values():
        named[command.request].append(f"`{command.code.decode()}`")
    for operation in OPERATIONS.values():
        named[operation.request].append(operation.name)
    lines = ["| right | what a client does | Res01, Remits | where it needs the right |", "|---|---|---|---|"]
    for kind in sorted(named, key=lambda kind: ORDER.index(kind.right)):
        right = f"`{kind.right.words}`" if kind.right else "none"
        lines.append(f"| {right} | {about[kind]} | {', '.join(named[kind])} | {kind.reach.value} |")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    """The page with its table as it is now."""
    return TABLE.sub(lambda _old: rights_table(), page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page_with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
