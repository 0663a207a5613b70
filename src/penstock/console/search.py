"""The page to search events: by place, type, time, header and field of a JSON body, within limits that it tells."""

import time
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.console.bodies import Row
from penstock.console.jobs import COUNTED_MAX, ROWS, Condition, Found, Value, first_recorded, search
from penstock.console.visit import NUMBER_MAX, Refused, Visit, ticks
from penstock.model import EventFilter, ReadAll

SEARCH_S_MAX: Final = 2.0
"""How long a search takes. Then the page links to where it goes on."""
VALUE_CHARACTERS_MAX: Final = 4096
NAMES_MAX: Final = 20
"""Names in the path of a field."""
TYPES_MAX: Final = 100
FIELDS: Final = (
    "context",
    "prefix",
    "types",
    "since",
    "until",
    "from",
    "to",
    "header",
    "header_value",
    "field",
    "value",
)
"""What the form has."""


class Result(NamedTuple):
    """`matches` are those from `start` to before `next`; `is_end`: there are no more."""

    rows: list[Row]
    matches: int
    passed_over: int
    start: int
    next: int
    is_end: bool
    seconds: float

    @property
    def is_counted(self) -> bool:
        """Whether the search ended because it has found enough."""
        return self.matches >= COUNTED_MAX and not self.is_end

    @property
    def more(self) -> int | None:
        """Where to go on for more matches; None if there are none."""
        if len(self.rows) < self.matches:
            return self.rows[-1].position + 1
        return None if self.is_end else self.next


async def page(visit: Visit) -> Mapping[str, Any]:
    given = {name: visit.one(name) for name in FIELDS}
    result = await _searched(visit) if any(name in visit.query for name in (*FIELDS, "at")) else None
    return {"given": given, "is_narrow": any(given.values()), "result": result, "head": visit.engine.head}


async def _searched(visit: Visit) -> Result:
    types = tuple(one for text in visit.query.get("types", []) for one in map(str.strip, text.split(",")) if one)
    if len(types) > TYPES_MAX:
        raise Refused(400, f"these are {len(types)} types; a search takes up to {TYPES_MAX}", "Take fewer.")
    wanted = EventFilter(visit.one("context") or None, visit.one("prefix"), types or None)
    condition = Condition(
        _ticks(visit, "since") or 0,
        _ticks(visit, "until"),
        _value(visit, "header", "header_value", dotted=False),
        _value(visit, "field", "value", dotted=True),
    )
    # What the principal may see of this is what it may read.
    request, head = ReadAll(1, wanted.context, wanted.prefix, wanted.types), visit.engine.head
    first, last = max(1, visit.number("from", 1), visit.number("at", 1)), min(visit.number("to", NUMBER_MAX), head)
    began = time.monotonic()
    with visit.console.searches.one():
        if condition.since:
            first = max(first, await visit.run(request, first_recorded, condition.since, head))
        start, rows, matches, passed_over, is_end = first, list[Row](), 0, 0, first > last
        while not is_end and matches < COUNTED_MAX and time.monotonic() - began < SEARCH_S_MAX:
            found: Found = await visit.run(request, search, wanted, condition, first, last, ROWS - len(rows))
            rows, matches = rows + found.rows, matches + found.matches
            passed_over, first, is_end = passed_over + found.passed_over, found.next, found.end
    return Result(rows, matches, passed_over, start, max(start, first), is_end, time.monotonic() - began)


def _ticks(visit: Visit, name: str) -> int | None:
    return ticks(text) if (text := visit.one(name).strip()) else None


def _value(visit: Visit, name: str, value: str, *, dotted: bool) -> Value | None:
    path, text = visit.one(name), visit.one(value)
    if not path:
        if text:
            raise Refused(400, f"there is a value, {text[:60]!r}, and no name for it", "Say what has this value.")
        return None
    if max(len(path), len(text)) > VALUE_CHARACTERS_MAX:
        raise Refused(400, f"a name and a value have up to {VALUE_CHARACTERS_MAX:,} characters", "Take a shorter one.")
    names = tuple(path.split(".")) if dotted else (path,)
    if len(names) > NAMES_MAX:
        raise Refused(400, f"a path has up to {NAMES_MAX} names, and this one {len(names)}", "Take a shorter one.")
    return Value(names, text)
