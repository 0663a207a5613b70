"""Cutting records at positions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DamagedRecord
from penstock.model import Scope, View
from penstock.store.record import Record
from penstock.store.rewrites import cut, seen_parts
from tests.store.strategies import runs, sealed_record


@given(st.lists(runs, min_size=1, max_size=6), st.integers(1, 1 << 40), st.data())
def test_the_parts_of_a_record_hold_the_same_as_the_whole(
    made: list[object], position: int, data: st.DataObject
) -> None:
    record = Record(sealed_record(made, position), position)  # type: ignore[arg-type]
    place = data.draw(st.integers(record.position, record.last))
    left = cut(record, 1, place)
    assert (left.position, left.last) == (record.position, place)
    parts = [left]
    if place < record.last:
        right = cut(record, place + 1, record.last + 9)
        assert (right.position, right.last) == (place + 1, record.last)
        parts.append(right)
    assert [event for part in parts for event in part.events()] == record.events()
    assert b"".join(each for part in parts for each in part.ids()) == b"".join(record.ids())
    assert sum(run.length for part in parts for run in part.runs()) == record.count


@given(st.lists(runs, min_size=1, max_size=3))
def test_a_record_that_is_not_cut_is_the_same(made: list[object]) -> None:
    record = Record(sealed_record(made, 10), 10)  # type: ignore[arg-type]
    assert cut(record, 1, record.last) is record
    assert cut(record, 10, 1 << 50) is record


@given(st.lists(runs, min_size=1, max_size=6), st.integers(1, 20), st.integers(1, 20))
def test_a_part_names_nothing_that_its_events_do_not_have(made: list[object], first: int, count: int) -> None:
    record = Record(sealed_record(made, 1), 1)  # type: ignore[arg-type]
    first = min(first, record.count)
    part = cut(record, first, min(first + count - 1, record.count))
    texts = part.texts()
    names, types = set(texts[: part.name_count]), set(texts[part.name_count :])
    if part is not record:
        assert names == {name.encode() for run in part.runs() for name in (run.context, run.stream)}
        assert types == {event.type.encode() for event in part.events()}


@given(st.lists(runs, min_size=2, max_size=6), st.data())
def test_a_damaged_record_is_never_cut(made: list[object], data: st.DataObject) -> None:
    whole = Record(sealed_record(made, 10), 10)  # type: ignore[arg-type]
    place = data.draw(st.integers(whole.at.ids, whole.at.stamps - 1))
    flipped = whole.data[place] ^ data.draw(st.integers(1, 255))
    damaged = Record(whole.data[:place] + bytes([flipped]) + whole.data[place + 1 :], 10, checked=False)
    every = {(run.context, run.stream) for run in whole.runs()}
    for context, stream in every:
        scopes = tuple(Scope(*other, True) for other in every - {(context, stream)})
        with pytest.raises(DamagedRecord, match="checksum"):
            seen_parts(damaged, View(scopes))
    # Who may see all of it checks it: the record is sent as it is.
    assert seen_parts(damaged, View(tuple(Scope(*one, True) for one in every))) == [damaged]
