"""Chunks of items, and the rows of output that they become."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.store import outputs
from penstock.store.outputs import (
    CHUNK_BYTES_MAX,
    CHUNK_ITEMS_MAX,
    ROW_BYTES_MAX,
    ROW_BYTES_MIN,
    ROW_ITEMS_MIN,
    chunk_in,
    chunks_of,
    count_items,
    iterator_of_job,
    make_output_unit,
    output_job,
    pack_items,
    rows_of,
    unpack_items,
)
from penstock.store.stages import check_unit, make_unit
from tests.store.kit import some

items = st.one_of(st.binary(max_size=5), st.builds(bytes, st.sampled_from([100, 70_000, CHUNK_BYTES_MAX, 600_000])))
lists = st.one_of(
    st.lists(items, max_size=12),
    st.builds(
        lambda item, times: [item] * times, st.binary(max_size=3), st.sampled_from([1000, 1500, CHUNK_ITEMS_MAX])
    ),
)


@given(lists)
def test_a_chunk_has_the_items_that_were_put_into_it(given_items: list[bytes]) -> None:
    chunk = pack_items(given_items)
    assert unpack_items(chunk) == given_items
    assert count_items(chunk) == len(given_items)
    assert len(chunk) == 4 + sum(4 + len(item) for item in given_items)
    unit = make_output_unit(chunk)
    check_unit(unit)
    assert chunk_in(unit.data) == chunk


@given(st.lists(lists, max_size=5), st.data())
def test_rows_have_all_items_but_the_first_and_are_neither_small_nor_large(
    chunks: list[list[bytes]], data: st.DataObject
) -> None:
    every = [item for chunk in chunks for item in chunk]
    skipped = data.draw(st.integers(0, len(every) + 1))
    found = [unpack_items(row) for row in rows_of(map(pack_items, chunks), skipped)]
    assert [item for row in found for item in row] == every[skipped:]
    for row in found:
        assert 1 <= len(row) <= CHUNK_ITEMS_MAX
        assert len(row) == 1 or sum(map(len, row)) <= ROW_BYTES_MAX
    for one, other in pairwise(found):
        together = [*one, *other]
        assert len(together) >= ROW_ITEMS_MIN or sum(map(len, together)) >= ROW_BYTES_MIN // 2


@given(lists)
def test_items_are_cut_into_chunks_in_order(given_items: list[bytes]) -> None:
    chunks = [unpack_items(chunk) for chunk in chunks_of(given_items)]
    assert [item for chunk in chunks for item in chunk] == given_items
    for chunk in chunks:
        assert 1 <= len(chunk) <= CHUNK_ITEMS_MAX
        assert len(chunk) == 1 or sum(map(len, chunk)) <= CHUNK_BYTES_MAX


@given(st.binary(max_size=40))
def test_bytes_are_a_chunk_or_refused(data: bytes) -> None:
    try:
        found = unpack_items(data)
    except InvalidRequest:
        return
    assert pack_items(found) == data


def test_a_chunk_of_too_many_items_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="4097 items"):
        count_items(pack_items([b""] * (CHUNK_ITEMS_MAX + 1)))


def test_only_a_unit_of_one_chunk_has_one() -> None:
    for data in (make_unit("penstock", "output", some(2)).data, b"", b"nonsense" * 20):
        with pytest.raises(InvalidRequest):
            chunk_in(data)


def test_the_job_of_an_output_says_whose_it_is() -> None:
    assert iterator_of_job(output_job(7)) == 7
    assert iterator_of_job("copier/7") is None
    for job in (outputs.OUTPUT_JOBS, output_job(-1), output_job(0), output_job(10**30), "penstock:"):
        with pytest.raises(InvalidRequest, match="job"):
            iterator_of_job(job)
