"""Files to import that are damaged or forged: an import refuses them as a whole, or they are events."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.event_json import json_lines
from penstock.interchange.formats import csv_header, to_cloud_lines, to_csv
from penstock.model import Event, new_event, now_ticks
from tests.hostile.mutations import (
    CHANGES,
    EDITS,
    LINES,
    TOO_DEEP,
    Change,
    Edit,
    Insert,
    Lines,
    changed,
    edited,
    raw,
    spoilt,
)
from tests.hostile.support import Tally, ended, some, untouched
from tests.interchange.files import write_parquet

BODIES = (b'{"a":[1,{"b":null}],"c":"\xc3\xbc"}', b"\xff\xfe", b'plain, "text"\r\n', b"", b"1")


def events() -> list[Event]:
    made = [new_event(f"T{number}", body, '{"h":1}' if number else None) for number, body in enumerate(BODIES)]
    return [
        Event(
            number, "shop", "order-1", number, one.id, one.stamp, one.type, one.headers, one.body, now_ticks(), one.id
        )
        for number, one in enumerate(made, 1)
    ]


def parquet() -> bytes:
    file = io.BytesIO()
    write_parquet(file, events())
    return file.getvalue()


FILES = {
    "jsonl": json_lines(events()),
    "csv": csv_header() + to_csv(events()),
    "cloudevents": to_cloud_lines(events()),
    "parquet": parquet(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


def looked_through(folder: Path, kind: str, data: bytes) -> int:
    """Look whether a file can be imported: how many events are in it, or -1 if it is refused."""
    path = folder / f"file.{kind}"
    path.write_bytes(data)
    with untouched(folder):
        done = ended("import", "--check", "--json", path)
    if done.code:
        assert done.code == 1
        assert not done.out
        assert str(path) in done.err
        return -1
    return int(json.loads(done.out)["events"])


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_is_refused_or_has_only_whole_events(folder: Path, kind: str) -> None:
    """Files to import have no checksum: what still is an event may be another one, and there are not many more."""
    seen = Tally()
    changes = CHANGES if kind == "parquet" else CHANGES | st.lists(LINES, min_size=1, max_size=2)

    @some(4)
    @given(changes)
    @example([Insert(0, b"\0")])
    def check(found: list[Change | Lines]) -> None:
        count = looked_through(folder, kind, changed(FILES[kind], found))  # type: ignore[arg-type]
        assert count <= 2 * len(BODIES) + 8
        seen.add(count < 0)

    check()
    seen.check(1 / 4)


@pytest.mark.parametrize("kind", ["jsonl", "cloudevents"])
def test_an_event_that_was_made_up_is_refused_or_is_one(folder: Path, kind: str) -> None:
    """Whatever value stands where: the file is refused, with line and column, or it has as many events as lines."""
    seen = Tally()
    lines = FILES[kind].splitlines()

    @some(4)
    @given(st.integers(0, len(lines) - 1), EDITS)
    @example(0, [Edit("value", 0, TOO_DEEP)])
    def check(number: int, edits: list[Edit]) -> None:
        line = raw(json.dumps(edited(json.loads(lines[number]), edits)).encode())
        count = looked_through(folder, kind, b"\n".join([*lines[:number], line, *lines[number + 1 :]]))
        assert count in (-1, len(lines))
        seen.add(count < 0)

    check()
    seen.check(1 / 3)


def columns() -> Iterator[pa.Array]:
    """Columns of one value that an event may not have, or that Python has no value for."""
    for kind in (pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.duration("s"), pa.duration("ns")):
        for value in (-(1 << 31), -1, 0, (1 << 31) - 1):
            yield pa.array([value], pa.int32() if kind in (pa.date32(), pa.time32("s")) else pa.int64()).view(kind)
    for unit in ("ms", "us", "ns"):
        for value in (-(1 << 63), -1, 0, (1 << 63) - 1):
            yield pa.array([value], pa.int64()).view(pa.timestamp(unit))
            yield pa.ListArray.from_arrays([0, 1], pa.array([value], pa.int64()).view(pa.timestamp(unit, "UTC")))
    for plain in (None, True, 0, 1 << 62, -1, 1.5, float("nan"), "", "\0", "x" * 100_000, b"\xff", [], [1], {"a": 1}):
        yield pa.array([plain])
    yield pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    yield pa.array([b"\xff\xfe"]).cast(pa.string(), safe=False)
    yield pa.array([10**37], pa.decimal128(38, 0))
    yield pa.array(["a"]).dictionary_encode()


def test_lines_that_are_appended_are_events_or_named(folder: Path) -> None:
    """Lines before one that is no event are written, and none after it: the error says which it is."""
    seen, lines = Tally(), FILES["jsonl"].splitlines()

    @some(4)
    @given(st.integers(0, len(lines) - 1), CHANGES | EDITS)
    @example(0, [Edit("value", 0, TOO_DEEP)])
    def check(number: int, changes: list[Change] | list[Edit]) -> None:
        data = b"\n".join([*lines[:number], spoilt(lines[number], changes), *lines[number + 1 :]])
        with TemporaryDirectory() as name, untouched(folder):
            done = ended("append", "-", "--data", f"{name}/data", stdin=data)
            assert not done.code or "line" in done.err
            count = len(ended("read", "--json", "--data", f"{name}/data").out.splitlines())
            assert number <= count <= len(lines) + 1
        seen.add(done.code != 0)

    check()
    seen.check(1 / 4)


NAMES = ("context", "stream", "type", "id", "time", "timestamp", "ticks", "kind", "headers", "body", "other")
COLUMNS = list(columns())


def test_a_parquet_file_with_any_column_is_refused_or_has_its_events(folder: Path) -> None:
    plain = {name: pa.array(["x"]) for name in ("context", "stream", "type")}
    seen = Tally()

    @some(4)
    @given(st.sampled_from(NAMES), st.sampled_from(COLUMNS))
    @example("other", COLUMNS[0])
    @example("other", COLUMNS[25])
    def check(name: str, values: pa.Array) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({**plain, name: values}), sink)
        count = looked_through(folder, "parquet", sink.getvalue().to_pybytes())
        assert count in (-1, 1)
        seen.add(count < 0)

    check()
    seen.check(1 / 4)


def test_a_row_of_csv_without_an_end_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its lines is short, and together they are one row: rows have a limit as well."""
    monkeypatch.setattr("penstock.interchange.formats.LINE_BYTES_MAX", 10_000)
    assert looked_through(folder, "csv", b"context,stream,type,body\n" + b'"a\n",' * 5_000) == -1


def test_reading_csv_leaves_the_limit_of_fields_of_the_process(folder: Path) -> None:
    before = csv.field_size_limit()
    large = b"context,stream,type,body\nc,s,t," + b"x" * (2 * before) + b"\n"
    assert looked_through(folder, "csv", large) == 1
    assert csv.field_size_limit() == before
