"""Records with a right checksum and wrong insides: refused, in both ways of reading, and never served."""

from contextlib import suppress
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from penstock.errors import DamagedRecord
from penstock.model import NewEvent
from penstock.store.arrow import record_batch
from penstock.store.record import HEADER, RUN, Record, columns_of, encode_commit

EVENTS = [
    NewEvent(b"1" * 16, 7, "made", "head", b"body"),
    NewEvent(b"2" * 16, 8, "paid", None, b"more"),
]
GOOD = encode_commit(columns_of(EVENTS), 5, b"shop", b"orders", 3, b"c" * 16, 99)
RUNS = HEADER.size
FIXED = RUNS + RUN.size
TYPES = FIXED + 24 * len(EVENTS)
HEADER_LENGTHS = TYPES + 2 * len(EVENTS)
BODY_LENGTHS = HEADER_LENGTHS + 4 * len(EVENTS)


def sealed(data: bytes) -> bytes:
    """The same with a checksum that matches."""
    return pack("<Q", xxh3_64_intdigest(data[8:])) + data[8:]


def changed(at: int, new: bytes) -> bytes:
    return sealed(GOOD[:at] + new + GOOD[at + len(new) :])


def test_the_record_that_is_changed_here_is_good() -> None:
    assert [event.body for event in Record(GOOD, 5).events()] == [b"body", b"more"]
    assert record_batch([Record(GOOD, 5)])["headers"].to_pylist() == ["head", None]


@pytest.mark.parametrize(
    ("at", "new"),
    [
        pytest.param(RUNS + 32, pack("<I", 0), id="a commit without events"),
        pytest.param(RUNS + 32, pack("<I", 3), id="a commit with too many"),
        pytest.param(RUNS + 36, pack("<I", 2), id="a context that is no name"),
        pytest.param(RUNS + 40, pack("<I", 9), id="a stream that is no name"),
        pytest.param(TYPES, pack("<H", 2), id="a type that is none"),
        pytest.param(HEADER_LENGTHS, pack("<I", 6), id="headers that reach into the bodies"),
        pytest.param(HEADER_LENGTHS, pack("<I", 0), id="headers that are too short"),
        pytest.param(BODY_LENGTHS, pack("<I", 3), id="bodies that do not fill it"),
        pytest.param(BODY_LENGTHS + 8, pack("<H", 5), id="names that do not fill their place"),
    ],
)
def test_insides_that_do_not_fit_are_refused_both_ways(at: int, new: bytes) -> None:
    data = changed(at, new)
    with pytest.raises(DamagedRecord, match="position 5"):
        Record(data, 5).events()
    with pytest.raises(DamagedRecord, match="position 5"):
        record_batch([Record(data, 5)])


def test_two_records_whose_mistakes_cancel_out_are_refused() -> None:
    longer, shorter = changed(BODY_LENGTHS, pack("<I", 5)), changed(BODY_LENGTHS, pack("<I", 3))
    with pytest.raises(DamagedRecord):
        record_batch([Record(longer, 5), Record(shorter, 5)])


@given(st.integers(8, len(GOOD) - 1), st.integers(0, 255))
def test_whatever_one_byte_says_nothing_but_the_proper_error_comes_out(at: int, value: int) -> None:
    data = changed(at, bytes([value]))
    for read in (Record.events, Record.runs, lambda record: record_batch([record])):
        with suppress(DamagedRecord):
            read(Record(data, 5))
