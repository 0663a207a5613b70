"""Records with a right checksum and wrong insides: refused, in both ways of reading, and never served."""

from collections.abc import Callable
from contextlib import suppress
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from penstock.errors import DamagedRecord
from penstock.model import EventFilter, NewEvent
from penstock.model.columns import columns_of
from penstock.store.arrow import record_batch
from penstock.store.erasure_filter import Hidden
from penstock.store.record import HEADER, RUN, Record, encode_commit
from penstock.store.rewrites import erased
from penstock.store.seals import merge
from tests.store.kit import event
from tests.store.strategies import Run, commit_record, sealed_record

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


# --- records of many runs, and of one long one ----------------------------------------------------------------

SEVERAL = [
    Run(b"c" * 16, 3, 99, "shop", "orders", EVENTS),
    Run(b"d" * 16, 1, 99, "shop", "carts", [event(9, "made", "hëad", b"x")]),
    Run(b"e" * 16, 5, 99, "shop", "orders", [event(9, "gone", None, b"y")]),
]
LONG = [SEVERAL[0]._replace(events=[event(9, "made", "h", b"x")] * 70)]
MANY = {"many": sealed_record(SEVERAL, 5), "long": sealed_record(LONG, 5), "one": GOOD}
AFTER = {name: commit_record(SEVERAL[1], Record(data, 5).last + 1) for name, data in MANY.items()}
GONE = Hidden({("shop", "orders"): 3}, [(6, 7)])
READS: list[Callable[[Record], Any]] = [
    Record.runs,
    Record.ids,
    Record.events,
    lambda record: record.events(EventFilter("shop", "o", ["made"])),
    lambda record: record.events(first=6, last=6),
    lambda record: record.events(first=6, since=9, limit=1),
    lambda record: record.events_of_stream(5, "shop", "orders", 4, 5, 2),
    lambda record: record.events_of_stream(5, "shop", "orders", 4, 4, None, backward=True),
    lambda record: record.stream_ids(5, "shop", "orders", 4, 5),
    lambda record: [column.to_pylist() for column in record_batch([record])],
    lambda record: [column.to_pylist() for column in record_batch([record], first=6, last=6)],
    lambda record: erased(record, GONE).events(),
    lambda record: Record(merge([record]), record.position).events(),
]


@pytest.mark.parametrize("name", MANY)
def test_all_reads_of_good_records_are_good(name: str) -> None:
    for read in READS:
        read(Record(MANY[name], 5))


@pytest.mark.parametrize("name", MANY)
@given(data=st.data())
def test_whatever_one_byte_says_nothing_but_the_proper_error_comes_out(name: str, data: st.DataObject) -> None:
    good = MANY[name]
    at = data.draw(st.integers(8, len(good) - 1))
    torn = sealed(good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :])
    for read in READS:
        with suppress(DamagedRecord):
            read(Record(torn, 5))


@pytest.mark.parametrize("name", MANY)
@given(data=st.data())
def test_a_record_that_was_merged_can_be_read_as_before(name: str, data: st.DataObject) -> None:
    good = MANY[name]
    at = data.draw(st.integers(8, len(good) - 1))
    torn = sealed(good[:at] + bytes([data.draw(st.integers(0, 255))]) + good[at + 1 :])
    try:
        first, second = Record(torn, 5), Record.stored(AFTER[name])
        merged = Record(merge([first, second]), 5)
    except DamagedRecord:
        return
    assert merged.events() == first.events() + second.events()
    assert merged.runs() == first.runs() + second.runs()


def test_a_commit_without_events_between_others_changes_nothing() -> None:
    good = sealed_record([SEVERAL[1], SEVERAL[0]._replace(events=[], sequence=9), SEVERAL[0]], 5)
    record = Record(good, 5)
    assert (record.count, record.run_count) == (3, 3)
    assert [one.commit for one in record.events()] == [b"d" * 16, b"c" * 16, b"c" * 16]
    assert record_batch([record])["sequence"].to_pylist() == [1, 3, 4]
    assert record_batch([record])["commit"].to_pylist() == [one.commit for one in record.events()]
    assert Record(merge([record]), 5).events() == record.events()
    assert [one.sequence for one in record.events_of_stream(6, "shop", "orders", 1, 9, None)] == [3, 4]


RUNS_MANY = HEADER.size
FIXED_MANY = RUNS_MANY + 3 * RUN.size


@pytest.mark.parametrize(
    ("at", "new"),
    [
        pytest.param(RUNS_MANY + 32, pack("<I", 0), id="a commit without events"),
        pytest.param(RUNS_MANY + 32, pack("<I", (1 << 32) - 1), id="a commit with too many"),
        pytest.param(RUNS_MANY + 36, pack("<I", 3), id="a context that is no name"),
        pytest.param(RUNS_MANY + 40, pack("<I", (1 << 32) - 1), id="a stream that is no name"),
        pytest.param(FIXED_MANY + 24 * 4, pack("<H", 3), id="a type that is none"),
        pytest.param(FIXED_MANY + 26 * 4, pack("<I", 1 << 31), id="headers that reach into the bodies"),
        pytest.param(FIXED_MANY + 30 * 4, pack("<I", 3), id="bodies that do not fill it"),
        pytest.param(FIXED_MANY + 34 * 4, pack("<H", 9), id="names that do not fill their place"),
    ],
)
def test_insides_of_many_runs_that_do_not_fit_are_refused(at: int, new: bytes) -> None:
    good = MANY["many"]
    data = sealed(good[:at] + new + good[at + len(new) :])
    for read in (
        Record.events,
        lambda record: record.events(first=5, last=5),
        lambda record: record.events_of_stream(5, "shop", "orders", 3, 3, None),
        lambda record: record_batch([record], columns=["position"]),
        lambda record: erased(record, GONE).data,
        lambda record: merge([record]),
    ):
        with pytest.raises(DamagedRecord, match="position 5"):
            read(Record(data, 5))
