"""Columns that a client sends: taken as they are if their events could be stored, and refused with a reason."""

from struct import pack
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.model import NewEvent, stamp_of
from penstock.model.columns import _reason_of_short, columns_of, received_columns
from penstock.model.events import TYPE_BYTES_MAX
from penstock.model.times import TICKS_MAX
from tests.fuzz import columns as fuzzer
from tests.seeds import run_seed
from tests.wire.res01_strategies import new_events

PLACED, PAID = (NewEvent(b"%d" % n * 16, stamp_of(n), kind, "h", b"xy") for n, kind in ((1, "Placed"), (2, "Paid")))
GOOD = columns_of((PLACED, PAID, PLACED))
FIXED = GOOD.fixed


def numbers(*, stamps: tuple[int, ...] = (1, 2, 3), codes: tuple[int, ...] = (0, 1, 0)) -> bytes:
    return FIXED[:48] + pack("<3Q3H", *stamps, *codes) + FIXED[78:]


@given(events=st.lists(new_events, min_size=1, max_size=15))
def test_what_a_client_makes_is_taken_as_it_is(events: list[NewEvent]) -> None:
    try:
        columns = columns_of(events)
    except InvalidRequest:
        return
    assert received_columns(columns.length, columns.types, columns.fixed, columns.headers, columns.bodies) == columns


BAD: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "no events": ({"length": 0, "fixed": b""}, "EventCount is 0"),
    "fewer than none": ({"length": -1}, "EventCount is -1"),
    "more than there are": ({"length": 4}, "Fixed has 102 bytes; 4 events have 136"),
    "a piece of an event": ({"fixed": FIXED[:-1]}, "Fixed has 101 bytes; 3 events have 102"),
    "headers too long": ({"headers": b"hhhh"}, "Headers has 4 bytes; its lengths add up to 3"),
    "bodies too short": ({"bodies": b"xyxyx"}, "Bodies has 5 bytes; its lengths add up to 6"),
    "a header that ends within a character": ({"headers": "hü".encode()}, "Headers of event 1 is not UTF-8"),
    "a type that is not there": ({"types": (b"Placed",)}, "event types do not belong to the events"),
    "a type that is not used": ({"fixed": numbers(codes=(0, 0, 0))}, "event types do not belong to the events"),
    "a type beyond the last": ({"fixed": numbers(codes=(0, 1, 2))}, "event types do not belong to the events"),
    "a type twice": ({"types": (b"Paid", b"Paid")}, "event types do not belong to the events"),
    "an empty type": ({"types": (b"Placed", b"")}, "event type is empty"),
    "a type that is not text": ({"types": (b"Placed", b"\xff")}, "event type is not UTF-8 \\(byte 0\\)"),
    "a type with NUL": ({"types": (b"Placed", b"a\0")}, "event type contains a NUL character"),
    "a time after the last": ({"fixed": numbers(stamps=(1, TICKS_MAX + 1, 1))}, "timestamp of .* ticks lies after"),
}


@pytest.mark.parametrize("name", BAD)
def test_columns_that_cannot_be_stored_are_refused_with_the_reason(name: str) -> None:
    change, reason = BAD[name]
    parts: dict[str, Any] = {name: getattr(GOOD, name) for name in ("length", "types", "fixed", "headers", "bodies")}
    with pytest.raises(InvalidRequest, match=reason):
        received_columns(**parts | change)


def test_any_bytes_are_refused_or_are_events() -> None:
    assert "taken" in fuzzer.run(run_seed(), count=3000)


def test_a_type_that_is_too_long_is_refused_and_not_kept() -> None:
    kept = _reason_of_short.cache_info().currsize
    for name in (b"x" * (TYPE_BYTES_MAX + 1), b"\xff" * 100_000):
        with pytest.raises(InvalidRequest, match=f"event type has {len(name)} bytes; at most {TYPE_BYTES_MAX}"):
            received_columns(3, (b"Placed", name), FIXED, GOOD.headers, GOOD.bodies)
    assert _reason_of_short.cache_info().currsize <= kept + 1
