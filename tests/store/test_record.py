"""The commit record: what goes in comes out, in both ways of reading, and damage is always seen."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedRecord, InvalidRequest
from penstock.model import TICKS_MAX, EventFilter, NewEvent
from penstock.model.columns import columns_of
from penstock.store.arrow import SCHEMA, record_batch
from penstock.store.record import Record
from tests.store.kit import event, passes
from tests.store.strategies import (
    Run,
    arrow_rows,
    commit_record,
    event_lists,
    event_rows,
    filters,
    new_events,
    runs,
    sealed_record,
)

GOOD = event(body=b"good")
SMALL = Run(b"c" * 16, 3, 99, "shop", "orders", [event(5, "made", "h", b"one"), event(6, "paid", None, b"")])


def place(several: Sequence[Run], start: int = 1) -> list[tuple[Run, int]]:
    """Runs with their positions, end to end."""
    placed = []
    for run in several:
        placed.append((run, start))
        start += len(run.events)
    return placed


# --- round trips ----------------------------------------------------------------------------------------------


@given(runs, st.integers(1, 1 << 40))
def test_events_come_out_of_a_record_as_they_went_in(run: Run, position: int) -> None:
    record = Record(commit_record(run, position), position)
    assert record.events() == run.rows(position)
    assert record.ids() == [one.id for one in run.events]
    assert (record.count, record.last) == (len(run.events), position + len(run.events) - 1)
    (found,) = record.runs()
    assert found == (run.commit, run.sequence, run.recorded, len(run.events), run.context, run.stream)


@given(st.lists(runs, max_size=6), filters)
def test_events_and_arrow_agree_about_any_records_and_filter(several: list[Run], wanted: EventFilter) -> None:
    placed = place(several)
    records = [Record(commit_record(run, position), position) for run, position in placed]
    right = [one for run, position in placed for one in run.rows(position) if passes(wanted, one)]
    assert [one for record in records for one in record.events(wanted)] == right
    batch = record_batch(records, wanted)
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    assert arrow_rows(batch) == event_rows(right)


@given(st.lists(runs, min_size=1, max_size=6), st.integers(1, 1 << 40), filters)
def test_a_sealed_record_of_many_runs_reads_like_its_commits(
    several: list[Run], start: int, wanted: EventFilter
) -> None:
    data = sealed_record(several, start)
    record = Record(data, start)
    placed = place(several, start)
    right = [one for run, position in placed for one in run.rows(position)]
    assert record.events() == right
    assert arrow_rows(record_batch([record])) == event_rows(right)
    filtered = [one for one in right if passes(wanted, one)]
    assert record.events(wanted) == filtered
    assert arrow_rows(record_batch([record], wanted)) == event_rows(filtered)
    assert [tuple(run) for run in record.runs()] == [(*r[:3], len(r.events), r.context, r.stream) for r in several]


@given(runs, st.integers(1, 1 << 40))
def test_the_record_of_a_commit_is_what_the_documentation_says(run: Run, position: int) -> None:
    if run.context == run.stream:
        run = run._replace(stream=run.stream + "2")  # An append does not look whether its names are the same.
    assert commit_record(run, position) == sealed_record([run], position)


@given(st.lists(st.lists(runs, min_size=1, max_size=3), min_size=1, max_size=4), filters)
def test_sealed_and_unsealed_records_read_together(groups: list[list[Run]], wanted: EventFilter) -> None:
    records, right, start = [], [], 1
    for group in groups:
        make = commit_record(group[0], start) if len(group) == 1 else sealed_record(group, start)
        records.append(Record(make, start))
        for run in group:
            right += run.rows(start)
            start += len(run.events)
    right = [one for one in right if passes(wanted, one)]
    assert [one for record in records for one in record.events(wanted)] == right
    assert arrow_rows(record_batch(records, wanted)) == event_rows(right)


# --- a part of a record ---------------------------------------------------------------------------------------

several_runs = st.lists(runs, min_size=1, max_size=6) | st.lists(runs, min_size=1, max_size=1)
near = st.integers(-3, 130)


@given(several_runs, filters, near, st.none() | near, st.none() | st.integers(0, 130), st.integers(0, 1 << 62))
def test_a_part_of_a_record_is_what_a_filter_of_all_gives(
    several: list[Run], wanted: EventFilter, first: int, last: int | None, limit: int | None, since: int
) -> None:
    record = Record(sealed_record(several, 7), 7)
    right = [one for one in record.events() if passes(wanted, one) and one.position >= first + 7]
    right = [one for one in right if last is None or one.position <= last + 7]
    last = None if last is None else last + 7
    assert record.events(wanted, first + 7, last) == right
    assert record.events(wanted, first + 7, last, limit=limit) == right[:limit]
    recent = [one for one in right if one.ticks >= since]
    assert record.events(wanted, first + 7, last, since=since, limit=limit) == recent[:limit]
    places = {one.position for one in right}
    rows = [row for row in arrow_rows(record_batch([record], wanted)) if row[0] in places]
    assert arrow_rows(record_batch([record], wanted, first=first + 7, last=last)) == rows


@given(several_runs, st.data())
def test_a_stream_is_found_by_any_of_its_positions(several: list[Run], data: st.DataObject) -> None:
    several = [run._replace(sequence=1 + n * 21) for n, run in enumerate(several)]
    record = Record(sealed_record(several, 7), 7)
    one = data.draw(st.sampled_from(record.events()))
    low, high = sorted((one.sequence + data.draw(near), one.sequence + data.draw(near)))
    limit = data.draw(st.none() | st.integers(0, 30))
    mine = [e for e in record.events() if (e.context, e.stream) == (one.context, one.stream)]
    mine = [e for e in mine if low <= e.sequence <= high]
    place = one.position, one.context, one.stream, low, high
    assert record.events_of_stream(*place, limit) == mine[:limit]
    assert record.events_of_stream(*place, limit, backward=True) == mine[::-1][:limit]
    begin = (mine[0].commit, mine[0].position) if mine else (b"", 0)
    assert record.stream_ids(*place) == ([e.id for e in mine], *begin)


@pytest.mark.parametrize("number", [1, 2])
def test_a_stream_that_is_not_at_the_position_is_not_found(number: int) -> None:
    record = Record(sealed_record([SMALL] * number, 7), 7)
    for context, stream in (("shop", "order"), ("shop", "shop"), ("orders", "orders"), ("shops", "orders")):
        assert record.events_of_stream(7, context, stream, 0, 99, None) == []
        assert record.stream_ids(7, context, stream, 0, 99) == ([], b"", 0)


@pytest.mark.parametrize("several", [[1000], [1] * 300, [5, 1, 700, 2]])
def test_a_few_events_of_a_large_record_are_the_right_ones(several: list[int]) -> None:
    sequence, made = 1, []
    for length in several:
        events = [event(n, f"t{n % 3}", "h" * (n % 4) or None, b"b" * (n % 9)) for n in range(length)]
        made.append(SMALL._replace(sequence=sequence, events=events))
        sequence += length
    record = Record(sealed_record(made, 50), 50)
    right = [one for run, position in place(made, 50) for one in run.rows(position)]
    assert record.events() == right
    for at in (0, 1, 5, 6, len(right) // 2, len(right) - 1):
        assert record.events(first=50 + at, last=50 + at) == [right[at]]
        assert record.events(first=50 + at, limit=3) == right[at : at + 3]
        assert (
            record.events(EventFilter("shop", "", ["t1"]), 50 + at, limit=2)
            == [one for one in right[at:] if one.type == "t1"][:2]
        )
        assert record.events_of_stream(50, "shop", "orders", at + 1, at + 1, None) == [right[at]]
        assert record.events_of_stream(50, "shop", "orders", 0, at + 1, 2, backward=True) == right[: at + 1][::-1][:2]


@pytest.mark.parametrize("several", [[SMALL], [SMALL, SMALL], [SMALL._replace(events=[GOOD] * 100)]])
@pytest.mark.parametrize("huge", [1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 80])
def test_no_bound_is_too_large(several: list[Run], huge: int) -> None:
    record = Record(sealed_record(several, 7), 7)
    everything = record.events()
    assert record.events(last=huge) == record.events(first=-huge) == everything
    assert record.events(first=huge) == record.events(last=-huge) == record.events(since=huge) == []
    mine = [one for one in everything if one.stream == "orders"]
    assert record.events_of_stream(7, "shop", "orders", -huge, huge, None) == mine
    assert record.events_of_stream(7, "shop", "orders", huge, huge, None) == []
    assert record.stream_ids(7, "shop", "orders", -huge, huge)[0] == [one.id for one in mine]


@given(st.lists(runs, min_size=1, max_size=3), st.lists(st.sampled_from(SCHEMA.names), unique=True, min_size=1))
def test_some_columns_are_the_same_as_of_all(several: list[Run], columns: list[str]) -> None:
    records = [Record(commit_record(run, position), position) for run, position in place(several)]
    assert record_batch(records, columns=columns) == record_batch(records).select(columns)
    assert record_batch([], columns=columns) == record_batch([]).select(columns)


def test_a_large_record_comes_back_in_both_ways() -> None:
    events = [event(n, f"t{n % 300}", "h" * (n % 5) or None, bytes([n % 256]) * (n % 700)) for n in range(20_000)]
    run = SMALL._replace(events=[*events, event(body=bytes(5_000_000))])
    record = Record(commit_record(run, 7), 7)
    assert record.events() == run.rows(7)
    assert arrow_rows(record_batch([record])) == event_rows(run.rows(7))


def test_no_records_are_an_empty_batch() -> None:
    for wanted in (None, EventFilter("shop"), EventFilter(None, "x", ("t",))):
        assert record_batch([], wanted).num_rows == 0
        assert record_batch([], wanted).schema == SCHEMA


# --- damage ---------------------------------------------------------------------------------------------------


def test_every_flipped_bit_is_seen() -> None:
    data = commit_record(SMALL, 7)
    for index in range(len(data)):
        for bit in range(8):
            torn = bytearray(data)
            torn[index] ^= 1 << bit
            with pytest.raises(DamagedRecord) as caught:
                Record(bytes(torn), 7)
            assert caught.value.position == 7


@pytest.mark.parametrize("make", [commit_record, lambda run, position: sealed_record([run, run], position)])
def test_a_record_that_is_too_short_or_too_long_is_damaged(make: Any) -> None:
    data = make(SMALL, 7)
    for size in range(len(data)):
        with pytest.raises(DamagedRecord, match="position 7"):
            Record(data[:size], 7)
    for extra in (b"\0", b"x" * 8, data):
        with pytest.raises(DamagedRecord, match="position 7"):
            Record(data + extra, 7)


@given(runs, st.data())
def test_a_flipped_bit_anywhere_is_seen(run: Run, data: st.DataObject) -> None:
    torn = bytearray(commit_record(run, 5))
    index = data.draw(st.integers(0, len(torn) - 1))
    torn[index] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedRecord):
        Record(bytes(torn), 5)


def test_a_record_at_the_wrong_position_is_damaged_and_named_by_where_it_was_found() -> None:
    data = commit_record(SMALL, 7)
    for position in (1, 6, 8, 7 << 32):
        with pytest.raises(DamagedRecord) as caught:
            Record(data, position)
        assert caught.value.position == position
        assert "7" in caught.value.reason


@pytest.mark.parametrize("version", [0, 2, 255])
def test_an_unknown_version_is_not_read(version: int) -> None:
    with pytest.raises(DamagedRecord, match=f"version {version}"):
        Record(sealed_record([SMALL], 7, version), 7)


# --- what cannot be stored ------------------------------------------------------------------------------------

BAD: dict[str, list[Any]] = {
    "id": [b"", b"x" * 15, b"x" * 17, "x" * 16, None, 7, array("i", [1] * 16), array("i", [1] * 4)],
    "stamp": [-1, 1 << 64, TICKS_MAX + 1, 1 << 62 | TICKS_MAX + 1, None, "1", 1.0, b"1", []],
    "type": ["", "a\0b", "\ud800", "t" * 1025, "ü" * 513, None, b"t", 7, [], {}],
    "headers": ["\udfff", b"h", b"", 0, 7, False, [], {}],
    "body": ["text", "", None, 7, [], [1, 2], array("i", [1, 2]), memoryview(array("i", [1, 2]))],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_a_bad_field_is_an_invalid_request_wherever_it_is(field: str, value: Any) -> None:
    bad = GOOD._replace(**{field: value})
    for events in ([bad], [bad, GOOD], [GOOD, bad], [GOOD, bad, GOOD]):
        with pytest.raises(InvalidRequest):
            columns_of(events)


@pytest.mark.parametrize("events", [[], (), [None], [()], [GOOD[:4]], [GOOD, (*GOOD, 1)], [(*GOOD, 1)], [5], ["abcde"]])
def test_what_is_not_a_list_of_events_is_an_invalid_request(events: Any) -> None:
    with pytest.raises(InvalidRequest):
        columns_of(events)


def test_lengths_of_ids_that_add_up_are_not_enough() -> None:
    with pytest.raises(InvalidRequest):
        columns_of([GOOD._replace(id=b"x" * 15), GOOD._replace(id=b"x" * 17)])


@pytest.mark.parametrize(("count", "fits"), [(65_535, True), (65_536, False), (65_537, False)])
def test_a_commit_has_as_many_types_as_a_record_can_name(count: int, fits: bool) -> None:
    events = [GOOD._replace(type=str(number)) for number in range(count)]
    if fits:
        found = Record(commit_record(SMALL._replace(events=events), 1), 1).events()
        assert [one.type for one in found] == [one.type for one in events]
    else:
        with pytest.raises(InvalidRequest):
            columns_of(events)


junk = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(0, 1 << 64), st.floats(), st.binary(max_size=20)),
    *(st.text(st.characters(), max_size=20), st.lists(st.integers(), max_size=16), st.just(object())),
    *(
        st.builds(bytearray, st.binary(max_size=20)),
        st.just(memoryview(b"seen elsewhere")),
        st.just(NewEvent),
    ),
)


@given(event_lists, st.sampled_from(NewEvent._fields), junk, st.integers(0, 20))
def test_whatever_is_sent_is_refused_or_can_be_stored(events: list[NewEvent], field: str, value: Any, at: int) -> None:
    events = list(events)
    events[at % len(events)] = events[at % len(events)]._replace(**{field: value})
    try:
        columns = columns_of(events)
    except InvalidRequest:
        return
    assert columns.length == len(events)
    run = SMALL._replace(events=events)
    record = Record(commit_record(run, 1), 1)
    assert record.events() == run.rows(1)
    assert record_batch([record]).num_rows == len(events)


@given(st.lists(st.one_of(new_events, st.tuples(junk, junk, junk, junk, junk), junk), max_size=3))
def test_anything_at_all_is_refused_in_the_same_way(events: list[Any]) -> None:
    try:
        columns_of(events)
    except InvalidRequest:
        return
    assert events
