"""Times as text, to 100 ns, with the kind of time that a client sent.

`2026-11-15T06:00:00.1234567Z` is a time in UTC; without the `Z` it is one of which nobody said where; and `local`
behind it says that it was the local time of whoever sent it. All three are kept as they are.
"""

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from penstock.model.events import (
    KIND_LOCAL,
    KIND_UNSPECIFIED,
    KIND_UTC,
    TICKS_MAX,
    TICKS_PER_SECOND,
    stamp_of,
    ticks_of,
    ticks_of_datetime,
)

SECONDS_KEPT: Final = 1024
LIKE: Final = "2026-11-15T06:00:00Z"
_KINDS: Final = {"": KIND_UNSPECIFIED, "local": KIND_LOCAL}
_ENDS: Final = {KIND_UNSPECIFIED: "", KIND_UTC: "Z", KIND_LOCAL: "local"}
_DAY_ONE: Final = datetime(1, 1, 1)  # noqa: DTZ001 - the zone is written behind it
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|local|[+-]\d\d:\d\d)?", re.ASCII)


def text_of_stamp(stamp: int) -> str:
    """A time as text."""
    seconds, fraction = divmod(ticks_of(stamp), TICKS_PER_SECOND)
    end = _ENDS.get(stamp >> 62, "Z")
    return f"{_second(seconds)}.{fraction:07}{end}" if fraction else _second(seconds) + end


# Many events are of one second; both ways it is the second that takes long.
@lru_cache(SECONDS_KEPT)
def _second(seconds: int) -> str:
    return (_DAY_ONE + timedelta(seconds=seconds)).isoformat()


@lru_cache(SECONDS_KEPT)
def _ticks(text: str) -> int:
    return ticks_of_datetime(datetime.fromisoformat(text))


def stamp_of_text(text: str) -> int:
    """The time that a text says. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"is {text[:40]!r}, not a time such as {LIKE}")
    day, second, fraction, end = found.groups(default="")
    zone = "" if end in _KINDS else end.upper()
    try:
        ticks = _ticks(f"{day}T{second}{zone}") + int(fraction.ljust(7, "0")[:7])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is {text[:40]!r}, not a time: {error}") from None
    return stamp_of_ticks(ticks, _KINDS.get(end, KIND_UTC))


def stamp_of_ticks(ticks: int, kind: int = KIND_UTC) -> int:
    """The stamp of ticks that somebody gave. Raises ValueError."""
    if not 0 <= ticks <= TICKS_MAX:
        raise ValueError(f"is {ticks} ticks, and there are {TICKS_MAX} of them")
    if kind not in _ENDS:
        raise ValueError(f"is of kind {kind}; there are 0, 1 and 2")
    return stamp_of(ticks, kind)
