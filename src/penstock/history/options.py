"""The options of a read, checked in one place.

Spark hands options over as text, and in lower case: names are compared without regard to case. What is wrong is
InvalidRequest, which names the option as it is documented, and its value. docs/spark.md has the table.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.history.columns import COLUMNS
from penstock.model import EventFilter
from penstock.model.events import check_context, check_stream, check_type
from penstock.model.times import ticks_of_text
from penstock.settings.table import size, switch, whole_number

POSITION_MAX: Final = (1 << 63) - 1
SCHEMES: Final = ("sqlite:///", "postgresql://", "postgres://", "penstock://", "zmq+tcp://")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What to read. Positions are inclusive; `until` is the first time, in ticks, that is not wanted."""

    url: str
    context: str | None = None
    filter: str = ""
    types: tuple[str, ...] | None = None
    columns: tuple[str, ...] = COLUMNS
    first: int = 1
    last: int = POSITION_MAX
    since: int | None = None
    until: int | None = None
    trigger_events_max: int | None = None
    partition_bytes: int | None = None
    push_filters: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        return cls(**parsed(given, _OPTIONS))

    @property
    def wanted(self) -> EventFilter:
        """The filter, without positions and times."""
        return EventFilter(self.context, self.filter, self.types)


Options = Mapping[str, tuple[str, Callable[[str], Any]]]
"""Options by name: the field that each is for, and how it is read."""


def parsed(given: Mapping[str, str], options: Options, ignored: Collection[str] = ()) -> dict[str, Any]:
    """The fields of these options. Raises InvalidRequest for an unknown option and for a bad value."""
    names = {name.lower(): name for name in options}
    fields = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is not None:
            fields[options[name][0]] = _read(name, value, options[name][1])
        elif key.lower() not in ignored:
            raise InvalidRequest(f"option {key}", f"is unknown; {_suggestion(key, names)}")
    if "url" not in fields:
        raise InvalidRequest("option url", "is missing; say sqlite:///DIR, postgresql://… or penstock://HOST:PORT")
    return fields


def _read(name: str, value: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        shown = "is not usable" if name == "url" else f"is {value!r}"
        raise InvalidRequest(f"option {name}", f"{shown}: it {error}") from None


def _suggestion(key: str, names: Mapping[str, str]) -> str:
    close = get_close_matches(key.lower(), names, 1)
    return f"did you mean {names[close[0]]}?" if close else f"there are {', '.join(names.values())}"


# -- values


def url(value: str) -> str:
    # Its value is not repeated in errors: it may hold a password.
    if not any(value.startswith(scheme) and value != scheme for scheme in SCHEMES):
        raise ValueError("must be sqlite:///DIR, postgresql://… or penstock://HOST:PORT")
    return value


def _checked(value: str, reason: str | None) -> str:
    if reason:
        raise ValueError(reason)
    return value


def _columns(value: str) -> tuple[str, ...]:
    names = _names(value)
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"names {name!r}, which is no column; there are {', '.join(COLUMNS)}")
        if names.count(name) > 1:
            raise ValueError(f"names {name} twice")
    return names


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names):
        raise ValueError("must be names with commas between them")
    return names


def _whole(least: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        number = whole_number(value)
        if not least <= number <= POSITION_MAX:
            raise ValueError(f"must be a whole number from {least} to {POSITION_MAX}")
        return number

    return parse


def _time(value: str) -> int:
    try:
        return ticks_of_text(value)
    except ValueError:
        raise ValueError("must be a time such as 2024-05-01T12:00:00Z") from None


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", url),
    "context": ("context", lambda value: _checked(value, check_context(value))),
    "filter": ("filter", lambda value: value if value in ("", "*") else _checked(value, check_stream(value))),
    "type": ("types", lambda value: tuple(_checked(name, check_type(name)) for name in _names(value))),
    "columns": ("columns", _columns),
    "startPosition": ("first", _whole(0)),
    "endPosition": ("last", _whole(0)),
    "startTime": ("since", _time),
    "endTime": ("until", _time),
    "maxEventsPerTrigger": ("trigger_events_max", _whole(1)),
    "partitionBytes": ("partition_bytes", size(1)),
    "pushFilters": ("push_filters", switch),
}
NAMES: Final = tuple(_OPTIONS)
