"""Which statements are run: one, and only if all it does is read."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import duckdb

from penstock.errors import InvalidRequest

READING: Final = "SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE, SHOW or EXPLAIN"
READABLE: Final = "it reads only files below a directory that --allow-dir DIR names"
_INSTEAD: Final = {
    "ATTACH": READABLE,
    "COPY": "--file PATH writes an answer to a file",
    "EXPORT": "--file PATH writes an answer to a file",
}
"""What to do in place of some statements."""
_PIVOTING: Final = re.compile(r"\s*(pivot|from|with|select|\()", re.IGNORECASE)
_COPYING: Final = re.compile(r"\bcopy\b", re.IGNORECASE)
_COPIED: Final = "COPY_TO_FILE"
_EXPLAINED: Final = re.compile(r"\s*explain\s+(?:analyze\s+|\([^)]*\)\s*)?", re.IGNORECASE)


def checked(database: Any, statement: str) -> str:
    """The one statement in a text; raises InvalidRequest, or what DuckDB says of its syntax."""
    if any("\ud800" <= letter <= "\udfff" for letter in statement):
        raise InvalidRequest("statement", "is not valid Unicode")
    found = database.extract_statements(statement)
    if not found:
        raise InvalidRequest("statement", "is empty")
    if len(found) > 1:
        raise InvalidRequest("statement", f"is {len(found)} statements; say one, with WITH for what it builds on")
    (one,) = found
    if not _reads(database, one):
        raise _does_more(one.type.name)
    if _copies(database, one):
        raise _does_more("COPY")
    if one.named_parameters:
        raise InvalidRequest("statement", "has parameters, which nobody gives values; write them out")
    return str(one.query)


def _does_more(kind: str) -> InvalidRequest:
    instead = f"; {_INSTEAD[kind]}" if kind in _INSTEAD else ""
    return InvalidRequest("statement", f"does more than read ({kind}); say {READING}{instead}")


def _reads(database: Any, statement: Any) -> bool:
    kinds = duckdb.StatementType
    if statement.type == kinds.EXPLAIN:
        # EXPLAIN ANALYZE does what it explains.
        explained = database.extract_statements(_EXPLAINED.sub("", statement.query, count=1))
        return len(explained) == 1 and explained[0].type == kinds.SELECT
    # A PIVOT that looks for its columns itself is two statements, the first of which makes a type in memory.
    is_pivot = statement.type == kinds.MULTI and _PIVOTING.match(statement.query) is not None
    return is_pivot or bool(statement.type == kinds.SELECT)


def _copies(database: Any, statement: Any) -> bool:
    """Whether a query writes a file as well: what WITH says may be a COPY."""
    query = _EXPLAINED.sub("", statement.query, count=1)
    if _COPYING.search(query) is None:
        return False
    if statement.type == duckdb.StatementType.MULTI:
        # What comes first of it would be done, only to see what the rest is.
        return True
    try:
        ((_, plan),) = database.execute(f"EXPLAIN (FORMAT JSON) {query}").fetchall()
    except duckdb.Error:
        # Then it cannot be run either, and whoever tries is told why.
        return False
    return any(name.endswith(_COPIED) for node in json.loads(plan) for name in _operators(node))


def _operators(node: dict[str, Any]) -> Iterator[str]:
    """What a plan does, from its end on."""
    yield node["name"]
    for child in node["children"]:
        yield from _operators(child)
