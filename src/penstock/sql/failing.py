"""What DuckDB says against a statement, in one line that says where."""

import json
import re
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.sql.statements import READABLE

_MEMORY: Final = "; give it more with --memory, or ask for less"
_TABLE: Final = "; the table is called events"
_FILE: Final = re.compile(r'Cannot access (?:file|directory) "(.*)" - ', re.DOTALL)
_LOCKED: Final = re.compile(r'Cannot change configuration option "*([^"]*)"')
_PROPOSED: Final = re.compile("Possible solutions|Please try installing")


def explained(error: Exception, statement: str) -> InvalidRequest:
    """An error of DuckDB's or Arrow's as ours."""
    kind, _, rest = str(error).partition(": ")
    found = _document(rest)
    if (refused := _refused(error, found)) is not None:
        return InvalidRequest("statement", refused)
    if found is None:
        return InvalidRequest("statement", f"failed: {_line(str(error))}")
    message = found.get("exception_message", "")
    # What it proposes are settings and extensions of DuckDB's, which nobody can have here.
    message = _line(_PROPOSED.split(message, maxsplit=1)[0])
    where = _place(found, statement)
    return InvalidRequest("statement", f"{where}: {kind.lower()}: {message}{_hint(found, message)}")


def _document(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _refused(error: Exception, found: dict[str, Any] | None) -> str | None:
    """What a statement may not do here, if that is what is wrong with it."""
    message = str(error) if found is None else str(found.get("exception_message", ""))
    if file := _FILE.search(message):
        return f'must not read "{file[1]}"; {READABLE}'
    if setting := _LOCKED.search(message):
        return f"must not change DuckDB's setting {setting[1]}; all of them are locked"
    return None


def _line(text: str) -> str:
    """A text of several lines as one."""
    parts = [part.strip().rstrip("!") for part in text.splitlines() if part.strip()]
    return re.sub(r"[.;]?; ", "; ", "; ".join(parts))


def _place(found: dict[str, Any], statement: str) -> str:
    """The line and column, both from 1; DuckDB counts bytes."""
    position = found.get("position")
    if not isinstance(position, str) or not position.isdecimal():
        return "failed"
    before = statement.encode()[: int(position)].decode(errors="replace")
    return f"line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"


def _hint(found: dict[str, Any], message: str) -> str:
    if found.get("exception_type") == "Out of Memory":
        return _MEMORY
    return _TABLE if message.startswith("Table with name") and "events" not in message else ""
