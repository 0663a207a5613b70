"""Times: ticks, stamps, and both as text.

A *tick* is 100 ns; ticks count from 0001-01-01 UTC. A *stamp* is 64 bits: the ticks in the low 62, and in the top two
the kind of time that the client sent (.NET's `DateTimeKind`), so that a time comes back as it was sent. Only ticks are
compared, never stamps.

As text, `2026-11-15T06:00:00.1234567Z` is a time in UTC. Without the `Z` its zone is unknown, and `local` in place of
the `Z` marks the local time of the client that sent it.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from penstock.errors import InvalidRequest

KIND_UNSPECIFIED: Final = 0
KIND_UTC: Final = 1
KIND_LOCAL: Final = 2

TICKS_PER_SECOND: Final = 10_000_000
TICKS_PER_MS: Final = 10_000
TICKS_PER_US: Final = 10
TICKS_BITS: Final = 62
TICKS_MASK: Final = (1 << TICKS_BITS) - 1
TICKS_MAX: Final = 3_155_378_975_999_999_999
"""9999-12-31 23:59:59.9999999, the last tick there is."""
UNIX_EPOCH_TICKS: Final = 621_355_968_000_000_000
EXAMPLE: Final = "2026-11-15T06:00:00Z"

_YEAR_ONE: Final = datetime(1, 1, 1, tzinfo=UTC)
_SECONDS_CACHED: Final = 1024
_KINDS: Final = {"": KIND_UNSPECIFIED, "local": KIND_LOCAL}
_SUFFIXES: Final = {KIND_UNSPECIFIED: "", KIND_UTC: "Z", KIND_LOCAL: "local"}
_EXPORTED_CHARS: Final = 28
_TICKS_PER_MINUTE: Final = 60 * TICKS_PER_SECOND
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|local|[+-]\d\d:\d\d)?", re.ASCII)


def stamp_of(ticks: int, kind: int = KIND_UTC) -> int:
    return kind << 62 | ticks


def ticks_of(stamp: int) -> int:
    """The time of a stamp, whatever its kind."""
    return stamp & TICKS_MASK


def ticks_of_unix_ns(nanoseconds: int) -> int:
    return UNIX_EPOCH_TICKS + nanoseconds // 100


def unix_ns_of(ticks: int) -> int:
    return (ticks - UNIX_EPOCH_TICKS) * 100


def ticks_of_datetime(moment: datetime) -> int:
    """Ticks of a datetime; one without an offset is UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _YEAR_ONE) // timedelta(microseconds=1) * TICKS_PER_US


def ticks_of_time(time: datetime, what: str = "time") -> int:
    """Ticks of a time that a program gives. Raises InvalidRequest, also for one that could mean several moments."""
    if not isinstance(time, datetime):
        raise InvalidRequest(what, f"is {time!r}; pass a datetime, such as datetime.now(UTC)")
    if time.utcoffset() is None:
        known = "add tzinfo=UTC, or call .astimezone() if it is a local time"
        raise InvalidRequest(what, f"{time.isoformat()} has no time zone: {known}")
    ticks = ticks_of_datetime(time)
    if not 0 <= ticks <= TICKS_MAX:
        raise InvalidRequest(what, f"{time.isoformat()} is outside the years 1 to 9999 in UTC")
    return ticks


def datetime_of(ticks: int) -> datetime:
    """The datetime of ticks, in UTC, cut to microseconds."""
    return _YEAR_ONE + timedelta(microseconds=ticks // TICKS_PER_US)


def now_ticks() -> int:
    return UNIX_EPOCH_TICKS + time.time_ns() // 100


def now_text() -> str:
    """The time by this machine's clock, to the second: `2026-11-15T06:00:00+00:00`."""
    return datetime.now(UTC).isoformat(timespec="seconds")


# --- as text --------------------------------------------------------------------------------------------------


def text_of_ticks(ticks: int) -> str:
    """A time in UTC as ISO 8601, with as many digits of the second as it needs."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    return f"{_text_of_seconds(seconds)}.{fraction:07}".rstrip("0").rstrip(".") + "Z"


def text_of_stamp(stamp: int) -> str:
    """A time with its kind; `stamp_of_text` reads it."""
    seconds, fraction = divmod(ticks_of(stamp), TICKS_PER_SECOND)
    suffix = _SUFFIXES.get(stamp >> 62, "Z")
    return f"{_text_of_seconds(seconds)}.{fraction:07}{suffix}" if fraction else _text_of_seconds(seconds) + suffix


def ticks_of_text(text: str) -> int:
    """The time of an ISO 8601 text, to 100 ns; without an offset it is UTC. Raises ValueError."""
    head, point, rest = text.replace("z", "Z").partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    ticks = ticks_of_datetime(datetime.fromisoformat(head + rest[len(digits) :]))
    fraction = int(digits.ljust(7, "0")[:7]) if point else 0
    if not 0 <= ticks + fraction <= TICKS_MAX or fraction >= TICKS_PER_SECOND:
        raise ValueError(text)
    return ticks + fraction


def stamp_of_text(text: str) -> int:
    """The time and the kind that a text gives. Raises ValueError."""
    if len(text) == _EXPORTED_CHARS and text[19] == "." and text[27] == "Z" and text.isascii():
        # Nearly always, as exports write it: `_STAMP` with all digits, in UTC.
        digits = text[17:19] + text[20:27]
        if digits.isdecimal() and (ticks := int(digits)) < _TICKS_PER_MINUTE:
            minute = _stamp_of_minute(text[:17])
            if minute is not None:
                return minute + ticks
    found = _STAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"is {text[:40]!r}, not a time such as {EXAMPLE}")
    day, second, fraction, suffix = found.groups(default="")
    zone = "" if suffix in _KINDS else suffix.upper()
    try:
        ticks = _ticks_of_second(f"{day}T{second}{zone}") + int(fraction.ljust(7, "0")[:7])
    except (ValueError, OverflowError) as error:
        raise ValueError(f"is {text[:40]!r}, not a time: {error}") from None
    return stamp_of_ticks(ticks, _KINDS.get(suffix, KIND_UTC))


def stamp_of_ticks(ticks: int, kind: int = KIND_UTC) -> int:
    """The stamp of a time and its kind, checked. Raises ValueError."""
    if not 0 <= ticks <= TICKS_MAX:
        raise ValueError(f"is {ticks} ticks; the last time has {TICKS_MAX}")
    if kind not in _SUFFIXES:
        raise ValueError(f"is of kind {kind}; there are 0, 1 and 2")
    return stamp_of(ticks, kind)


# Many events share one second, and the second is what takes long, both ways.
@lru_cache(_SECONDS_CACHED)
def _text_of_seconds(seconds: int) -> str:
    return (_YEAR_ONE + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


@lru_cache(_SECONDS_CACHED)
def _stamp_of_minute(text: str) -> int | None:
    """The stamp of `2026-11-15T06:00:` in UTC; None leaves it to the general way."""
    try:
        return stamp_of_text(f"{text}00Z")
    except ValueError:
        return None


@lru_cache(_SECONDS_CACHED)
def _ticks_of_second(text: str) -> int:
    return ticks_of_datetime(datetime.fromisoformat(text))
