"""Seals: a merged record has exactly what its parts have, and a block is done in as few steps as it takes."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedRecord, LimitExceeded
from penstock.model import Event, EventFilter
from penstock.model.columns import TYPES_MAX, columns_of
from penstock.store import Store
from penstock.store.arrow import record_batch
from penstock.store.contract import Page, ReadLimits, Seal, Unsealed
from penstock.store.erasure_filter import Hidden
from penstock.store.record import Record, encode_commit, with_checksum
from penstock.store.rewrites import erased
from penstock.store.seals import (
    BLOCK_BITS,
    LARGE_BYTES,
    LARGE_EVENTS,
    SEALED_BYTES_MAX,
    SEALED_EVENTS,
    checked,
    group,
    merge,
    next_seal,
)
from penstock.store.sqlite import SqliteStore
from tests.store.kit import commit, do, event
from tests.store.strategies import Run, arrow_rows, commit_record, runs, sealed_record

ONE = Run(b"c" * 16, 1, 99, "shop", "orders", [event(5, "made", "häd", b"one")])
SHORT = ONE._replace(events=[event(n, f"t{n}", None, b"x" * n) for n in range(3)])


def records_of(groups: Sequence[Sequence[Run]], position: int = 5) -> list[Record]:
    """Records end to end; a group of several runs is one record."""
    made = []
    for several in groups:
        data = commit_record(several[0], position) if len(several) == 1 else sealed_record(several, position)
        made.append(Record(data, position))
        position = made[-1].last + 1
    return made


def events_of(records: Sequence[Record]) -> list[Event]:
    """All events of records, one by one."""
    return [one for record in records for one in record.events()]


# --- merging --------------------------------------------------------------------------------------------------

single = runs.map(lambda run: run._replace(events=run.events[:1]))
groups_of_runs = st.lists(st.lists(runs, min_size=1, max_size=3), min_size=1, max_size=6)


@given(groups_of_runs | st.lists(st.lists(single, min_size=1, max_size=1), min_size=1, max_size=20))
def test_a_merged_record_reads_like_its_parts(groups: list[list[Run]]) -> None:
    records = records_of(groups)
    merged = Record(merge(records), 5)
    assert merged.events() == events_of(records)
    assert merged.runs() == [run for record in records for run in record.runs()]
    assert merged.ids() == [number for record in records for number in record.ids()]
    assert arrow_rows(record_batch([merged])) == arrow_rows(record_batch(records))
    assert merged.last == records[-1].last
    names, types = merged.texts()[: merged.name_count], merged.texts()[merged.name_count :]
    assert len(set(names)) == len(names)
    assert len(set(types)) == len(types)
    assert len(merged.data) <= sum(len(record.data) for record in records)


@given(groups_of_runs)
def test_a_merged_record_is_what_the_documentation_says(groups: list[list[Run]]) -> None:
    assert merge(records_of(groups)) == sealed_record([run for several in groups for run in several], 5)


@given(groups_of_runs, st.integers(1, 5))
def test_it_is_the_same_to_merge_in_two_steps(groups: list[list[Run]], at: int) -> None:
    records = records_of(groups)
    first, second = records[:at], records[at:]
    halves = [Record(merge(half), half[0].position) for half in (first, second) if half]
    assert merge(halves) == merge(records)


def test_tombstones_stay_tombstones() -> None:
    records = records_of([[SHORT], [SHORT._replace(stream="secret")], [ONE]])
    records[1] = erased(records[1], Hidden({("shop", "secret"): 2}))
    merged = Record(merge(records), 5)
    assert [one.position for one in merged.events()] == [5, 6, 7, 10, 11]
    assert merged.events() == events_of(records)
    assert len(merged.ids()) == 7


def test_records_that_do_not_lie_end_to_end_are_not_merged() -> None:
    first, second, third = records_of([[ONE], [SHORT], [ONE]])
    with pytest.raises(DamagedRecord) as caught:
        merge([first, third])
    assert caught.value.position == third.position
    with pytest.raises(DamagedRecord):
        merge([first, second, second])


def test_a_merged_record_can_name_all_its_types_or_is_not_made() -> None:
    many = [event(type=f"t{n}") for n in range(TYPES_MAX)]
    records = records_of([[ONE._replace(events=many)], [ONE._replace(events=[event(type="t7")])]])
    assert Record(merge(records), 5).type_count == TYPES_MAX
    with pytest.raises(LimitExceeded):
        merge(records_of([[ONE._replace(events=many)], [ONE]]))


def test_a_record_with_more_types_than_events_is_not_merged() -> None:
    first, second = records_of([[ONE], [ONE]])
    start, text = second.at.lengths, second.at.text
    # One type more, with a length of 0 and no text.
    counted = second.data[8:10] + (2).to_bytes(2, "little") + second.data[12:start]
    more = Record(with_checksum(counted + second.data[start:text] + b"\0\0" + second.data[text:]), second.position)
    assert more.events() == second.events()
    with pytest.raises(DamagedRecord) as caught:
        merge([first, more])
    assert caught.value.position == more.position


def broken(run: Run, position: int, old: bytes, new: bytes) -> Record:
    """A record with a right checksum and wrong insides."""
    data = commit_record(run, position)
    assert data.count(old) == 1
    return Record(with_checksum(data[8:].replace(old, new)), position)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("häd".encode(), b"h\xffxd", id="headers that are no text"),
        pytest.param(b"orders", b"order\xff", id="a stream that is no text"),
        pytest.param(b"made", b"mad\xff", id="a type that is no text"),
    ],
)
def test_a_record_with_broken_text_is_named_and_not_merged(old: bytes, new: bytes) -> None:
    good = [record.position for record in records_of([[ONE]] * 3)]
    records = records_of([[ONE]] * 3)
    records[1] = broken(ONE, good[1], old, new)
    with pytest.raises(DamagedRecord) as caught:
        merge(records)
    assert caught.value.position == good[1]


def test_text_that_is_whole_only_together_with_its_neighbour_is_broken() -> None:
    one = encode_commit(columns_of([event(headers="x"), event(headers="yz")]), 5, b"a", b"b", 1, b"c" * 16, 9)
    assert one.count(b"xyz") == 1
    record = Record(with_checksum(one[8:].replace(b"xyz", "aä".encode())), 5)
    assert record_batch([record], columns=["headers"])["headers"].to_pylist() == ["a", "ä"]
    split = Record(with_checksum(one[8:].replace(b"xyz", "äa".encode())), 5)
    for read in (Record.events, lambda record: record_batch([record]), lambda record: merge([record])):
        with pytest.raises(DamagedRecord):
            read(split)


# --- which records --------------------------------------------------------------------------------------------

SMALL_ROW, LARGE_ROW = (1, 300), (LARGE_EVENTS, 300)


def rows_of(*sizes: tuple[int, int], start: int = 1) -> list[tuple[int, int, int]]:
    """A listing of records end to end, from their counts and bytes."""
    rows = []
    for count, size in sizes:
        rows.append((start, count, size))
        start += count
    return rows


def steps(rows: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """What is merged, step by step, until the rows are used up."""
    merged = []
    left = list(rows)
    while left:
        positions, mark = group(left)
        merged.append(positions)
        assert mark > left[0][0]
        left = [row for row in left if row[0] >= mark]
    return merged


def test_small_records_of_a_block_become_one_in_one_step() -> None:
    rows = rows_of(*[SMALL_ROW] * 4095)
    assert group(rows) == ([row[0] for row in rows], 4096)
    assert rows[-1][0] >> BLOCK_BITS == 0


def test_a_large_record_is_left_alone_and_parts_its_neighbours() -> None:
    for large in (LARGE_ROW, (1, LARGE_BYTES)):
        rows = rows_of(SMALL_ROW, SMALL_ROW, large, SMALL_ROW, SMALL_ROW)
        assert steps(rows) == [[1, 2], [rows[3][0], rows[4][0]]]


def test_what_is_not_merged_takes_no_step_of_its_own() -> None:
    assert steps(rows_of(LARGE_ROW, SMALL_ROW, LARGE_ROW, SMALL_ROW)) == [[]]
    assert steps(rows_of(SMALL_ROW)) == [[]]
    rows = rows_of(SMALL_ROW, LARGE_ROW, SMALL_ROW, SMALL_ROW, LARGE_ROW, LARGE_ROW, SMALL_ROW)
    assert steps(rows) == [[rows[2][0], rows[3][0]]]


def test_records_of_two_blocks_are_not_merged() -> None:
    rows = rows_of((2, 1), (2, 1), (5, 1), (1, 1), start=4091)
    assert [row[0] >> BLOCK_BITS for row in rows] == [0, 0, 0, 1]
    assert group(rows) == ([4091, 4093, 4095], 4101)


def test_a_merged_record_keeps_to_its_bytes() -> None:
    rows = rows_of(*[(1, LARGE_BYTES - 1)] * 9)
    assert [len(positions) for positions in steps(rows)] == [4, 4]
    assert 4 * (LARGE_BYTES - 1) <= SEALED_BYTES_MAX


def test_nothing_is_merged_over_a_gap() -> None:
    assert steps([(1, 1, 9), (2, 1, 9), (5, 1, 9), (6, 1, 9)]) == [[1, 2], [5, 6]]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 300, 511, 512, 5000]), st.integers(1, 2 << 20)), min_size=1))
def test_each_step_merges_what_may_be_merged(sizes: list[tuple[int, int]]) -> None:
    rows = rows_of(*sizes)
    by_position = {row[0]: row for row in rows}
    found = steps(rows)
    assert all(found) or found == [[]]
    for positions in filter(None, found):
        members = [by_position[position] for position in positions]
        assert len(members) > 1
        assert len({position >> BLOCK_BITS for position in positions}) == 1
        assert all(count < LARGE_EVENTS and size < LARGE_BYTES for _, count, size in members)
        assert sum(size for _, _, size in members) <= SEALED_BYTES_MAX
        assert sum(count for _, count, _ in members) < SEALED_EVENTS + LARGE_EVENTS


# --- step by step ---------------------------------------------------------------------------------------------


class Shelf:
    """Records in order and a mark, and nothing else of a store. All of its blocks are closed."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.data: dict[int, tuple[int, bytes]] = {record.position: (record.count, record.data) for record in records}
        self.mark = records[0].position

    def unsealed(self) -> Unsealed | None:
        rows = [(at, count, len(data)) for at, (count, data) in sorted(self.data.items()) if at >= self.mark]
        if not rows:
            return None
        positions, mark = group(rows)
        records = checked([(at, *self.data[at]) for at in positions])
        if len(records) < len(positions):
            damaged = positions[len(records)]
            mark = damaged + self.data[damaged][0]
        return Unsealed(records, mark, (7, 8))

    def seal(self, seal: Seal) -> None:
        """Carry it out."""
        assert seal.ledger == (7, 8)
        assert seal.next > self.mark
        if seal.data is not None:
            self.data = {at: row for at, row in self.data.items() if not seal.first <= at <= seal.last}
            self.data[seal.first] = (seal.last - seal.first + 1, seal.data)
        self.mark = seal.next

    def seal_all(self) -> int:
        """Seal until there is nothing left; in how many steps."""
        number = 0
        while (seal := next_seal(cast("Store", self))) is not None:
            self.seal(seal)
            number += 1
        return number

    def records(self) -> list[Record]:
        """All records in order."""
        return [Record(data, at) for at, (_, data) in sorted(self.data.items())]


def test_sealing_changes_nothing_but_the_number_of_records() -> None:
    before = records_of([[ONE]] * 700 + [[SHORT._replace(events=[event()] * 1200)]] + [[SHORT]] * 1000, 1)
    shelf = Shelf(before)
    # 700 small ones, a large one, small ones up to the end of the first block and those of the second.
    assert shelf.seal_all() == 3
    assert [record.count for record in shelf.records()] == [700, 1200, 2196, 804]
    assert events_of(shelf.records()) == events_of(before)
    assert next_seal(cast("Store", shelf)) is None


@pytest.mark.parametrize("bad", [[0], [9], [4], [4, 5], [0, 2, 4, 6, 8], list(range(10))])
def test_sealing_goes_around_records_with_wrong_checksums(bad: list[int]) -> None:
    records = records_of([[SHORT]] * 10)
    shelf = Shelf(records)
    for index in bad:
        at, data = records[index].position, bytearray(records[index].data)
        data[-1] ^= 1
        shelf.data[at] = (3, bytes(data))
    damaged = {records[index].position: shelf.data[records[index].position] for index in bad}
    assert shelf.seal_all() <= 2 * len(bad) + 1
    assert {at: shelf.data[at] for at in damaged} == damaged
    sound = [Record(data, at) for at, (_, data) in sorted(shelf.data.items()) if at not in damaged]
    assert events_of(sound) == events_of([record for record in records if record.position not in damaged])
    alone = "".join("x" if index in bad else "." for index in range(10))
    assert len(sound) == len([part for part in alone.split("x") if part])


@pytest.mark.parametrize("bad", [[0], [9], [4], [4, 5], [0, 2, 4, 6, 8], list(range(10))])
def test_sealing_goes_around_records_with_wrong_insides(bad: list[int]) -> None:
    records = records_of([[ONE]] * 10)
    ways = (("häd".encode(), b"h\xffxd"), (b"orders", b"order\xff"))
    for index in bad:
        records[index] = broken(ONE, records[index].position, *ways[index % 2])
    shelf = Shelf(records)
    damaged = {records[index].position: shelf.data[records[index].position] for index in bad}
    shelf.seal_all()
    assert {at: shelf.data[at] for at in damaged} == damaged
    sound = [record for record in shelf.records() if record.position not in damaged]
    assert events_of(sound) == events_of([record for record in records if record.position not in damaged])


FILTERS = [EventFilter(), EventFilter("shop"), EventFilter("shop", "s1"), EventFilter("more", "", ["t2"])]
LIMITS = [ReadLimits(), ReadLimits(events_max=10), ReadLimits(events_max=1), ReadLimits(bytes_max=500)]


def all_pages(store: SqliteStore, position: int, wanted: EventFilter, end: int | None) -> Iterator[Page]:
    """Everything from a position on, a few events at a time."""
    page = Page([], position, False)
    while not page.end:
        page = store.read_all(page.next, wanted, ReadLimits(events_max=200), end)
        assert len(page.events) <= 200
        yield page


def typed_events(store: SqliteStore, stream: str, first: int, limits: ReadLimits, backward: bool) -> list[Event]:
    """The events of one type from a sequence on. Pages end elsewhere in a sealed store."""
    found: list[Event] = []
    page = Page([], first, False)
    while not page.end:
        page = store.read_stream("more", stream, page.next, None, limits, backward, ("t2",))
        found += page.events
    return found


def pages(store: SqliteStore) -> list[Any]:
    """Reads of all kinds, that begin and end within records that will be sealed."""
    found: list[Any] = []
    for context, stream in (("shop", "s1"), ("shop", "s12"), ("more", "s1"), ("more", "none")):
        for first, last in ((0, None), (1, None), (3, 3), (2, 7), (9, 2), (700, None), (5, 900)):
            found += [store.read_stream(context, stream, first, last, limits) for limits in LIMITS]
            found += [store.read_stream(context, stream, first, last, limits, backward=True) for limits in LIMITS]
        for limits, first, backward in product(LIMITS, (0, 9), (False, True)):
            found += typed_events(store, stream, first, limits, backward)
        found += [store.stored_ids(context, stream, first, last) for first, last in ((1, 1), (3, 9), (2, 400), (5, 4))]
    for wanted in FILTERS:
        for position, end in ((1, None), (100, None), (2000, 2003), (4090, 4100), (1, 3)):
            found.append([one for page in all_pages(store, position, wanted, end) for one in page.events])
        found += [store.find_position(wanted, ticks, ReadLimits(events_max=5000)) for ticks in (0, 7, 3999, 9999)]
    return found


def test_a_sealed_store_reads_like_before(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    commits = []
    for number in range(2200):
        events = [event(number, f"t{number % 4}", "h" * (number % 3) or None) for _ in range(1 + number % 3)]
        commits.append(commit(f"s{number * 7 % 13}", events, context="more" if number % 5 == 0 else "shop"))
    do(store, *commits)
    before = pages(store)
    seals = 0
    while (seal := next_seal(store)) is not None:
        assert do(store, seal) == [True]
        seals += 1
    assert seals == 1
    (record, *_) = store.read_records(1, EventFilter(), ReadLimits(events_max=1)).records
    assert record.run_count > 2000
    assert pages(store) == before
    store.close()


def test_a_record_whose_count_is_another_than_the_listing_says_is_not_merged() -> None:
    first, second, third = records_of([[SHORT]] * 3)
    found = checked([(first.position, 3, first.data), (second.position, 2, second.data), (11, 3, third.data)])
    assert [record.position for record in found] == [first.position]


def test_what_is_no_record_at_all_is_not_merged() -> None:
    for data in (None, "text", b"", b"x" * 300):
        assert checked([(5, 3, data)]) == []
