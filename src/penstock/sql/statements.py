"""Which statements are run: one, and only if all it does is read."""

import re
from typing import Any, Final

import duckdb

from penstock.errors import InvalidRequest

READING: Final = "SELECT, FROM, WITH, VALUES, PIVOT, DESCRIBE, SUMMARIZE, SHOW or EXPLAIN"
_PIVOTING: Final = re.compile(r"\s*(pivot|from|with|select|\()", re.IGNORECASE)
_EXPLAINED: Final = re.compile(r"\s*explain\s+(?:analyze\s+|\([^)]*\)\s*)?", re.IGNORECASE)


def checked(database: Any, statement: str) -> str:
    """The one statement in a text; raises InvalidRequest, or what DuckDB says of its syntax."""
    found = database.extract_statements(statement)
    if not found:
        raise InvalidRequest("statement", "is empty")
    if len(found) > 1:
        raise InvalidRequest("statement", f"is {len(found)} statements; say one, with WITH for what it builds on")
    (one,) = found
    if not _reads(database, one):
        raise InvalidRequest("statement", f"does more than read ({one.type.name}); say {READING}")
    if one.named_parameters:
        raise InvalidRequest("statement", "has parameters, which nobody gives values; write them out")
    return str(one.query)


def _reads(database: Any, statement: Any) -> bool:
    kinds = duckdb.StatementType
    if statement.type == kinds.EXPLAIN:
        # EXPLAIN ANALYZE does what it explains.
        explained = database.extract_statements(_EXPLAINED.sub("", statement.query, count=1))
        return len(explained) == 1 and explained[0].type == kinds.SELECT
    # A PIVOT that looks for its columns itself is two statements, the first of which makes a type in memory.
    is_pivot = statement.type == kinds.MULTI and _PIVOTING.match(statement.query) is not None
    return is_pivot or bool(statement.type == kinds.SELECT)
