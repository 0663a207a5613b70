"""Times of an answer as texts: ISO 8601, whatever the year is, and `infinity`.

DuckDB has years that Python has not, and some that Arrow does not write. Those are seldom, and are worked out here:
the calendar repeats itself every 400 years.
"""

from datetime import date
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

FOREVER: Final = {(1 << 63) - 1: "infinity", -(1 << 63) + 1: "-infinity"}
"""What DuckDB has for times without end."""
FOREVER_DAYS: Final = {(1 << 31) - 1: "infinity", -(1 << 31) + 1: "-infinity"}
DAY_S: Final = 86_400
CYCLE_DAYS: Final = 146_097
CYCLE_YEARS: Final = 400
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""How many there are behind the seconds, by the unit of Arrow's."""
_UNWRITTEN: Final = "<"
"""What a text of Arrow's begins with that says that a time is out of its range."""


def moments(array: pa.Array) -> list[str | None]:
    """Timestamps; those with a zone are in UTC here, and get a `Z`."""
    # To have Arrow write them with a zone, or by a pattern, takes thirty times as long.
    unit, zone = array.type.unit, "" if array.type.tz is None else "Z"
    texts = pc.replace_substring(array.cast(pa.timestamp(unit)).cast(pa.string()), " ", "T")
    if zone:
        texts = pc.binary_join_element_wise(texts, zone, "")
    found: list[str | None] = texts.to_pylist()
    for place, value in enumerate(array.cast(pa.int64()).to_pylist()):
        text = found[place]
        if value in FOREVER:
            found[place] = FOREVER[value]
        elif text is not None and text[0] == _UNWRITTEN:
            found[place] = _moment(value, _DIGITS[unit]) + zone
    return found


def days(array: pa.Array) -> list[str | None]:
    """Dates."""
    numbers = array.cast(pa.date32()).cast(pa.int32())
    found: list[str | None] = array.cast(pa.string()).to_pylist()
    for place, value in enumerate(numbers.to_pylist()):
        text = found[place]
        if text is not None and text[0] == _UNWRITTEN:
            found[place] = FOREVER_DAYS.get(value) or _day(value)
    return found


def clocks(array: pa.Array) -> list[str | None]:
    """Times of a day, whose last one is 24:00:00."""
    return [None if text is None else _clock(text) for text in array.cast(pa.string()).to_pylist()]


def _clock(text: str) -> str:
    if text[0] == _UNWRITTEN:
        return "24:00:00"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: int, digits: int) -> str:
    seconds, fraction = divmod(value, 10**digits)
    day, rest = divmod(seconds, DAY_S)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{_day(day)}T{clock}" + (f".{fraction:0{digits}}" if digits else "")


def _day(days: int) -> str:
    """A day by its number since 1970."""
    cycles, rest = divmod(days, CYCLE_DAYS)
    found = date.fromordinal(date(1970, 1, 1).toordinal() + rest)
    return f"{found.year + CYCLE_YEARS * cycles:04}-{found:%m-%d}"
