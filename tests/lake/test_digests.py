"""Digests are of rows alone; pieces are cut by rows alone; files that are full are left alone."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.history.columns import TABLE
from penstock.lake import slices
from penstock.lake.compaction import groups_of
from penstock.lake.manifests import LakeFile, is_passed_over, named, path_of
from penstock.lake.parquet import DAY_US, Erased, digest

ROW: dict[str, Any] = {
    "position": 1,
    "sequence": 1,
    "context": "shop",
    "stream": "s",
    "type": "T",
    "headers": None,
    "event_id": "i",
    "timestamp": 5,
    "recorded_at": 7,
    "ticks": 9,
    "body": b"abc",
    "text": "abc",
}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([{**ROW, **row} for row in rows], TABLE)


ROWS = table({}, {"position": 2, "headers": "{}"}, {"position": 3, "body": b"", "text": None})


def test_a_digest_does_not_depend_on_how_arrow_holds_the_rows() -> None:
    wanted = digest(ROWS)
    assert digest(pa.concat_tables([ROWS.slice(0, 1), ROWS.slice(1)])) == wanted
    assert digest(pa.concat_tables([table({"position": 9}), ROWS, ROWS]).slice(1, 3)) == wanted
    # Bytes behind a null are nobody's.
    mask = pa.array([True, False, True])
    headers = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"\0\0\0\0\2\0\0\0\4\0\0\0\6\0\0\0"), pa.py_buffer(b"xx{}yy"), pa.py_buffer(b"\2")
    )
    assert headers.is_null().equals(mask)
    assert digest(ROWS.set_column(5, TABLE.field("headers"), headers)) == wanted
    assert digest(TABLE.empty_table()) == digest(ROWS.slice(3))


@pytest.mark.parametrize(
    "change",
    [
        *({"position": 4}, {"sequence": 2}, {"context": "shops"}, {"stream": ""}, {"type": "U"}, {"headers": ""}),
        *({"event_id": "j"}, {"timestamp": 6}, {"recorded_at": 8}, {"ticks": 8}, {"body": b"abd"}, {"text": None}),
    ],
)
def test_a_digest_changes_with_every_column(change: dict[str, Any]) -> None:
    assert digest(table(change)) != digest(table({}))


def test_a_digest_tells_where_one_text_ends_and_the_next_begins() -> None:
    assert digest(table({"stream": "ab"}, {"stream": "c"})) != digest(table({"stream": "a"}, {"stream": "bc"}))
    assert digest(table({}, {"position": 2})) != digest(table({"position": 2}, {}))


def test_pieces_are_cut_by_rows_however_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "EVENTS_BYTES_MAX", 350)
    rows = table(
        *(
            {"position": number, "recorded_at": (number // 5) * DAY_US, "body": b"x" * (number % 3)}
            for number in range(12)
        )
    )
    cuts = []
    for size in (1, 2, 5, 12):
        sliced = slices._cut(iter(rows.to_batches(max_chunksize=size)))
        cuts.append([part["position"][0].as_py() for part, is_cut in sliced if is_cut])
    assert cuts == [[3, 5, 8, 10]] * 4


def test_what_is_erased_is_cut_with_its_piece() -> None:
    erased = Erased(10, 5, "people", "ann", 3, 99)
    assert erased.between(1, 9) is None
    assert erased.between(1, 20) == erased
    assert erased.between(12, 13) == (12, 2, "people", "ann", 5, 99)


def test_a_path_says_what_a_file_has() -> None:
    path = path_of("2026-11-15", 1, 20)
    assert named(path) == ("2026-11-15", 1, 20)
    assert named(f"elsewhere/{path}") is None
    assert [is_passed_over(each) for each in ("_a/b", "a/.b", path)] == [True, True, False]


def file(first: int, size: int, day: str = "2026-11-15") -> LakeFile:
    empty = LakeFile("", first, first + 9, 10, size, 10, "", "", None, None, None, None)
    return replace(empty, path=path_of(day, first, first + 9))


def test_small_neighbours_of_a_day_are_compacted_and_full_files_are_not() -> None:
    sizes = [10, 10, 60, 10, 10, 90, 30, 40, 40, 10]
    files = [file(1 + 10 * number, size) for number, size in enumerate(sizes)]
    files += [file(101, 10, "2026-11-16"), file(111, 10, "2026-11-16")]
    found = [[each.bytes for each in group] for group in groups_of(files, 100)]
    assert found == [[10, 10], [10, 10], [30, 40], [40, 10], [10, 10]]
    assert groups_of(files[:1], 100) == []
