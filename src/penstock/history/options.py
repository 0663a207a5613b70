"""The options of a read, checked in one place.

Spark hands options over as text, and in lower case: names are compared without regard to case. What is wrong is
InvalidRequest, which names the option as it is documented, and its value. docs/spark.md has the table.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from penstock.errors import InvalidRequest
from penstock.history.columns import COLUMNS
from penstock.model import EventFilter
from penstock.model.address import addressed, checked_token
from penstock.model.events import check_context, check_stream, check_type
from penstock.model.times import ticks_of_text
from penstock.settings.table import size, switch, whole_number

POSITION_MAX: Final = (1 << 63) - 1
SCHEMES: Final = ("sqlite:///", "postgresql://", "postgres://", "penstock://", "zmq+tcp://")


Made = TypeVar("Made")


def option(name: str, parse: Callable[[str], Any], default: Any = MISSING) -> Any:
    """A field of a dataclass of options: the name that users write, and how its text is read."""
    return field(default=default, metadata={"option": name, "parse": parse})


def token_option() -> Any:
    """The option `token`. Its value goes to tasks with the URL, and is in no field."""
    return option("token", checked_token, None)


def parse_options(kind: type[Made], given: Mapping[str, str], ignored: Collection[str] = ()) -> Made:
    """A dataclass of options. Raises InvalidRequest for an unknown option and for a bad value."""
    known = {each.metadata["option"].lower(): each for each in fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in given.items():
        if found := known.get(key.lower()):
            values[found.name] = _read(found.metadata["option"], value, found.metadata["parse"])
        elif key.lower() not in ignored:
            names = {lowered: each.metadata["option"] for lowered, each in known.items()}
            raise InvalidRequest(f"option {key}", f"is unknown; {_suggestion(key, names)}")
    if "url" not in values:
        raise InvalidRequest("option url", "is missing; say sqlite:///DIR, postgresql://… or penstock://HOST:PORT")
    values["url"] = addressed(values["url"], values.pop("token", None))
    return kind(**values)


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


def check_url(value: str) -> str:
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


def whole(least: int) -> Callable[[str], int]:
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


# -- the options of a read


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """A part of the history to read. Positions are inclusive; `until` is the first time, in ticks, that is left out."""

    url: str = option("url", check_url)
    context: str | None = option("context", lambda value: _checked(value, check_context(value)), None)
    filter: str = option(
        "filter", lambda value: value if value in ("", "*") else _checked(value, check_stream(value)), ""
    )
    types: tuple[str, ...] | None = option(
        "type", lambda value: tuple(_checked(name, check_type(name)) for name in _names(value)), None
    )
    columns: tuple[str, ...] = option("columns", _columns, COLUMNS)
    first: int = option("startPosition", whole(0), 1)
    last: int = option("endPosition", whole(0), POSITION_MAX)
    since: int | None = option("startTime", _time, None)
    until: int | None = option("endTime", _time, None)
    trigger_events_max: int | None = option("maxEventsPerTrigger", whole(1), None)
    partition_bytes: int | None = option("partitionBytes", size(1), None)
    push_filters: bool = option("pushFilters", switch, False)
    token: None = token_option()

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "ReadOptions":
        return parse_options(cls, given)

    @property
    def wanted(self) -> EventFilter:
        """The filter, without positions and times."""
        return EventFilter(self.context, self.filter, self.types)
