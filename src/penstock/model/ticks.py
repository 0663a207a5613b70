"""Time as the history keeps it: ticks and stamps.

A *tick* is 100 ns; ticks count from 0001-01-01 UTC. A *stamp* is 64 bits: the ticks in the low 62, and in the
top two the kind of time the client sent (.NET's `DateTimeKind`), so that a time comes back as it was sent.
All comparisons are between ticks, never between stamps.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Final

KIND_UNSPECIFIED: Final = 0
KIND_UTC: Final = 1
KIND_LOCAL: Final = 2

TICKS_PER_SECOND: Final = 10_000_000
TICKS_PER_MS: Final = 10_000
TICKS_MASK: Final = (1 << 62) - 1
TICKS_MAX: Final = 3_155_378_975_999_999_999
"""9999-12-31 23:59:59.9999999, the last tick there is."""
UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000

_YEAR_ONE: Final = datetime(1, 1, 1, tzinfo=UTC)


def stamp_of(ticks: int, kind: int = KIND_UTC) -> int:
    """The stamp of a time and its kind."""
    return kind << 62 | ticks


def ticks_of(stamp: int) -> int:
    """The time of a stamp, whatever its kind."""
    return stamp & TICKS_MASK


def ticks_of_unix_ns(nanoseconds: int) -> int:
    """Ticks of a time given as nanoseconds since 1970."""
    return UNIX_EPOCH_TICKS + nanoseconds // 100


def unix_ns_of(ticks: int) -> int:
    """Nanoseconds since 1970 of a time given as ticks."""
    return (ticks - UNIX_EPOCH_TICKS) * 100


def ticks_of_datetime(moment: datetime) -> int:
    """Ticks of a datetime; one without an offset is taken as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _YEAR_ONE) // timedelta(microseconds=1) * 10


def datetime_of(ticks: int) -> datetime:
    """The datetime of ticks, in UTC, cut to microseconds."""
    return _YEAR_ONE + timedelta(microseconds=ticks // 10)


def now_ticks() -> int:
    """The time by this machine's clock."""
    return ticks_of_unix_ns(time.time_ns())
