"""Blocks are read many rows at a time. They have the same events, and the same mistakes, as rows read one by one."""

import io
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock import cloudevents, event_json
from penstock.cloudevents import Incoming
from penstock.event_json import Defaults, NotPlain, json_lines, plain_ids
from penstock.interchange import blocks, formats, parquet_format
from penstock.interchange.blocks import Block, batches, block_of
from penstock.interchange.formats import Flaw, csv_blocks, from_json_lines, json_blocks
from penstock.interchange.parquet_format import parquet_blocks
from penstock.model import Event, NewEvent, stamp_of
from penstock.model.chunks import chunked
from penstock.model.events import compact
from penstock.model.times import EXAMPLE, UNIX_EPOCH_TICKS, stamp_of_text, text_of_stamp
from tests.interchange.files import write_parquet

ID = "6f1f0e0c-5b0a-4f39-9a6c-3d0f4d1d8a11"
GIVEN = {"context": "shop", "stream": "s", "type": "T", "id": ID, "timestamp": EXAMPLE}
VALUES = [
    *("1", "-0", "-0.0", "0.1", "12.50", "1e5", "1E400", "-1e-7", "1e16", "9999999999999998.0", "0.0001", "0.00001"),
    *("123456789012345678901234567890", "18446744073709551616", "1" * 5000, "5e-324", "NaN", "-Infinity", "01", "1."),
    *("null", "true", "[]", "{}", '{"a":1,"a":2}', '{"a":{"b":[{"c":1,"d":2,"c":3}]}}', '[1, {"b" : 2}]'),
    *(
        '""',
        '"\\u0022"',
        '"\\u0041\\/"',
        '"\\ud83d\\ude00"',
        '"\\ud800"',
        '"\\u0000\\u001f\\u007f"',
        '"\t"',
        '"\\"\\\\"',
    ),
    *('"ü😀"', '"' + "a" * 3000 + '"', "[" * 300 + "]" * 300, "[" * 450 + "]" * 450, "[" * 3000 + "]" * 3000, "", "x"),
    *(f'"{ID}"', f'"{ID.upper()}"', f'"{{{ID}}}"', f'"{ID[:8]}{ID[9:]}"', f'"{ID[:-1]} "', f'"{ID[:-1]}-"'),
    *(f'"{EXAMPLE}"', '"2026-11-15T06:00:00.1234567Z"', '"2026-11-15T06:00:61.1234567Z"', '"2026-11-15 06:00:00.5"'),
    *('"2026-02-30T06:00:00.1234567Z"', '"2026-11-15t06:00:00.1234567Z"', '"٢026-11-15T06:00:00.1234567Z"', '"remits"'),
    *('{"a":1.10}', '"YWJj"', '"YWJ"', '"cbor"', '"' + "é" * 300 + '"'),
]
NAMES = [
    *("context", "stream", "type", "id", "event_id", "time", "timestamp", "headers", "body", "text", "base64"),
    *("position", "sequence", "recorded", "recorded_at", "commit", "other", "\\u0062ody"),
]
SPACES = st.sampled_from(["", "", "", " ", "\t", "\r", "\u00a0"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line that is an event, or nearly one."""
    given = [(name, json.dumps(value)) for name, value in GIVEN.items() if draw(st.integers(0, 9))]
    given += draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=3))
    space = draw(SPACES)
    members = [f'"{name}"{space}:{space}{value}' for name, value in draw(st.permutations(given))]
    return space + "{" + f"{space},{space}".join(members) + "}" + draw(SPACES)


FILES = st.lists(lines() | st.text(max_size=5) | st.just(""), max_size=5).map("\n".join)


def outcome(rows: Iterable[Incoming]) -> tuple[list[Incoming], tuple[str, str] | None]:
    """The events, or the flaw that keeps them from being imported."""
    try:
        return list(rows), None
    except Flaw as flaw:
        return [], (flaw.place, flaw.reason)


def rows_of(blocks: Iterator[Block]) -> Iterator[Incoming]:
    for block in blocks:
        yield from block.rows()


@pytest.fixture(autouse=True, scope="module")
def _same_ids_and_times() -> Iterator[None]:
    """What a file leaves to the reader is the same both ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_json, "random_id", lambda: bytes(16))
        for module in (event_json, blocks, cloudevents):
            patch.setattr(module, "now_ticks", lambda: UNIX_EPOCH_TICKS)
        yield


@settings(max_examples=400)
@given(FILES, st.sampled_from([Defaults(), Defaults("crm", "d", "D")]), st.sampled_from([1, 100, 1 << 16]))
@example('{"stream":"s","type":"T","body":{"a":1,"a":2}}\n{"stream":"s","type":"T"}', Defaults("shop"), 1 << 16)
@example('{"stream":"s","stream":"t","type":"T"}', Defaults("shop"), 1 << 16)
@example('{"context":null,"stream":"s","type":"T","headers":{"h":"\\u0022"}}', Defaults("shop"), 1 << 16)
@example(compact({"stream": "s", "type": "T", "id": ID, "context": EXAMPLE}), Defaults(), 1)
def test_json_lines_are_read_alike_both_ways(text: str, defaults: Defaults, read_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "READ_BYTES", read_bytes)
        rows, flaw = outcome(rows_of(json_blocks(io.BytesIO(text.encode()), defaults)))
        expected, expected_flaw = outcome(from_json_lines(io.BytesIO(text.encode()), defaults))
    assert flaw == expected_flaw
    assert rows == expected


@example("null", "id")
@given(st.sampled_from(VALUES), st.sampled_from(["headers", "body", "text", "base64", "id", "timestamp", "position"]))
def test_a_member_is_read_alike_both_ways(value: str, member: str) -> None:
    text = compact({name: given for name, given in GIVEN.items() if name != member})[:-1] + f',"{member}":{value}}}'
    found = outcome(rows_of(json_blocks(io.BytesIO(text.encode()), Defaults())))
    assert found == outcome(from_json_lines(io.BytesIO(text.encode()), Defaults()))


@given(st.binary(max_size=60))
@example(b"\xef\xbb\xbf{}")
@example(b'{"stream":"\xff"}')
@example(b"\n\n \r\n")
def test_any_bytes_are_read_alike_both_ways(data: bytes) -> None:
    found = outcome(rows_of(json_blocks(io.BytesIO(data), Defaults())))
    assert found == outcome(from_json_lines(io.BytesIO(data), Defaults()))


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers())
def test_numbers_keep_the_text_that_python_gives_them(number: float, whole: int) -> None:
    body = compact({"a": number, "b": [whole]})
    (row,) = rows_of(json_blocks(io.BytesIO(compact({**GIVEN, "body": json.loads(body)}).encode()), Defaults()))
    assert row.event.body.decode() == body


def test_a_long_line_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(formats, "READ_BYTES", 100)
    first = compact(GIVEN).encode() + b"\n"
    file = io.BytesIO(first + b" " * 100_000)
    with pytest.raises(Flaw, match=r"line 2, column 1: a line has more than 1000 bytes"):
        list(json_blocks(file, Defaults()))
    assert file.tell() < 2000


TEXTS = st.sampled_from(
    ["", "a", "ü", "remits", "\0", " ", "cbor", EXAMPLE, ID, ID[:-1], "YQ==", "{}", "text", "base64", "5"]
)


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([*formats.CSV_COLUMNS, "time", "event_id"]), min_size=1, max_size=8, unique=True),
    st.lists(st.lists(TEXTS, min_size=8, max_size=8), max_size=4),
    st.booleans(),
    st.sampled_from([Defaults(), Defaults("crm", "d", "D")]),
)
def test_csv_is_read_alike_both_ways(names: list[str], rows: list[list[str]], ragged: bool, defaults: Defaults) -> None:
    text = "\n".join(",".join(row[: len(names)]) for row in ([*names, *"xyzuvwqr"][: len(names)], *rows) if row)
    text += ",\n" if ragged else "\n"

    def read() -> tuple[list[Incoming], tuple[str, str] | None]:
        return outcome(rows_of(csv_blocks(io.BytesIO(text.encode()), defaults)))

    assert read() == slowly(formats, "_plain_rows", read)


def slowly(module: object, name: str, read: Callable[[], object]) -> object:
    """What is read if no rows are plain."""

    def refuse(*_: object) -> None:
        raise NotPlain

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, refuse)
        return read()


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([None, "", "shop", "remits", "a" * 300]), min_size=3, max_size=3),
    st.lists(st.sampled_from([None, 0, 5, -1, 1 << 61, 1 << 62]), min_size=3, max_size=3),
    st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=3, max_size=3),
    st.lists(st.sampled_from([None, "", ID, "x"]), min_size=3, max_size=3),
)
def test_parquet_is_read_alike_both_ways(
    tmp_path_factory: pytest.TempPathFactory,
    contexts: list[str | None],
    ticks: list[int | None],
    kinds: list[int | None],
    ids: list[str | None],
) -> None:
    path = tmp_path_factory.getbasetemp() / "alike.parquet"
    columns = {
        "context": contexts,
        "event_id": ids,
        "ticks": pa.array(ticks, pa.int64()),
        "kind": pa.array(kinds, pa.int8()),
        "headers": [None, "", "h"],
        "body": [b"", b"\xff", b"{}"],
    }
    pq.write_table(pa.table(columns), path)

    def read() -> tuple[list[Incoming], tuple[str, str] | None]:
        return outcome(rows_of(parquet_blocks(path, Defaults("crm", "s", "T"))))

    assert read() == slowly(parquet_format, "_plain_batch", read)


def test_ids_of_another_length_are_not_taken_for_others() -> None:
    """Together they have as many digits and dashes as two ids."""
    assert plain_ids([ID, ID.upper()]) == [UUID(ID).bytes] * 2
    for texts in ([ID + "0", ID[:-1]], [ID[:-2] + " 1", ID], [ID[:8] + "0" + ID[9:], "-" + ID[1:]], [b"", ID], [0, ID]):
        with pytest.raises(NotPlain):
            plain_ids(texts)


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(1, 7))
def test_batches_are_cut_as_ever(sizes: list[int], part: int) -> None:
    """The marks of an import count its batches: another version must cut a file in the same places."""
    rows = [Incoming("shop", "s", NewEvent(bytes(16), 0, "T", "é" if size else None, bytes(size))) for size in sizes]
    blocks = (block_of(rows[at : at + part]) for at in range(0, len(rows), part))
    found = [list(batch.rows()) for batch in batches(blocks, 20, 5)]
    assert found == list(chunked(rows, lambda row: len(row.event.body) + len(row.event.headers or "") + 1, 20, 5))


def test_a_run_of_one_stream_is_one_commit() -> None:
    places = [("a", "1"), ("a", "1"), ("a", "2"), ("b", "2"), ("a", "1")]
    events = [NewEvent(bytes([at]) * 16, stamp_of(at), "T", None, b"%d" % at) for at in range(5)]
    block = block_of([Incoming(*place, event) for place, event in zip(places, events, strict=True)])
    commits = block.commits()
    assert [(one.context, one.stream) for one in commits] == [("a", "1"), ("a", "2"), ("b", "2"), ("a", "1")]
    assert [one.columns().split_bodies() for one in commits] == [[b"0", b"1"], [b"2"], [b"3"], [b"4"]]


@given(st.lists(st.sampled_from(VALUES), max_size=6))
def test_lines_of_an_export_say_body_only_where_it_comes_back(values: list[str]) -> None:
    times = stamp_of_text(EXAMPLE)
    events = [
        Event(at, "shop", "s", at, bytes(16), times, "T", value or None, value.encode(), times, bytes(16))
        for at, value in enumerate(values, 1)
    ]
    for value, line in zip(values, json_lines(events).splitlines(), strict=True):
        try:
            is_compact = compact(json.loads(value)) == value
        except (ValueError, RecursionError):
            is_compact = False
        assert (b',"body":' in line) == is_compact
        assert (b'"headers":{' in line) == (is_compact and value.startswith("{"))


@given(st.integers(0, 3_155_378_975_999_999_999), st.sampled_from(["", "Z", "z", "local", "+01:00"]))
def test_a_time_with_all_its_digits_is_read_as_the_others(ticks: int, zone: str) -> None:
    text = text_of_stamp(stamp_of(ticks)).removesuffix("Z")
    spaced = text.replace("T", " ") + zone
    try:
        expected = stamp_of_text(spaced)
    except ValueError:
        with pytest.raises(ValueError, match="time"):
            stamp_of_text(text + zone)
    else:
        assert stamp_of_text(text + zone) == expected


def test_what_an_export_writes_is_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = stamp_of_text("2026-11-15T06:00:00.1234567Z")
    bodies = (b'{"a":[1,2.5,"\xc3\xbc \\"x\\"",null,{"b":12345678901234567890123}]}', b"text", b"")
    events = [
        Event(at, "shop", "s", at, bytes(16), times, "T", '{"h":1}' if at > 1 else None, body, times, bytes(16))
        for at, body in enumerate(bodies, 1)
    ]
    path = tmp_path / "a.parquet"
    with path.open("wb") as file:
        write_parquet(file, events)
    expected = [Incoming("shop", "s", NewEvent(one.id, one.stamp, one.type, one.headers, one.body)) for one in events]

    def fail(*_: object) -> None:
        raise AssertionError("a row was read on its own")

    for name in ("_from_line", "_csv_event"):
        monkeypatch.setattr(formats, name, fail)
    monkeypatch.setattr(parquet_format, "_row", fail)
    csv = formats.csv_header() + formats.to_csv(events)
    assert list(rows_of(json_blocks(io.BytesIO(json_lines(events)), Defaults()))) == expected
    assert list(rows_of(csv_blocks(io.BytesIO(csv), Defaults()))) == expected
    assert list(rows_of(parquet_blocks(path, Defaults()))) == expected
