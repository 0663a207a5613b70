"""Every format, on its own: what is written of an event is read as the same event, whatever is in it."""

import io
import json
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cloudevents import Incoming
from penstock.event_json import Defaults, id_of, json_lines
from penstock.interchange.formats import (
    FileRefused,
    Flaw,
    Format,
    column_of,
    csv_header,
    format_of,
    from_cloud_lines,
    from_csv,
    from_json_lines,
    to_cloud_lines,
    to_csv,
)
from penstock.interchange.parquet_format import from_parquet
from penstock.model import Event, NewEvent
from penstock.model.times import (
    KIND_LOCAL,
    KIND_UNSPECIFIED,
    KIND_UTC,
    TICKS_MAX,
    stamp_of,
    stamp_of_text,
    text_of_stamp,
)
from tests.interchange.files import write_parquet

NOTHING = Defaults()
UNICODE = st.characters(codec="utf-8", exclude_characters="\0")
NAMES = st.text(UNICODE, min_size=1, max_size=20) | st.sampled_from(
    ["order-1", 'a "b", c', "x\r\ny", "=1+1", " ", "\ufeff"]
)
PLAIN_NAMES = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), min_size=1, max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(UNICODE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(UNICODE), inner, max_size=3),
    max_leaves=8,
)
COMPACT = JSON.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8")),
    COMPACT,
    JSON.map(lambda value: json.dumps(value, indent=1)),
    st.sampled_from(['{"a":1,"a":2}', "NaN", "1.0e5", '"\\ud800"', "[" * 5000, "\r", 'a"b\r\n', "\u2028", "1" * 5000]),
)
BODIES = st.binary(max_size=40) | TEXTS.map(str.encode)
HEADERS = st.none() | TEXTS.filter(bool)
TICKS = st.integers(0, TICKS_MAX)


def events(names: st.SearchStrategy[str], kinds: Sequence[int]) -> st.SearchStrategy[Event]:
    stamps = st.builds(stamp_of, TICKS, st.sampled_from(kinds))
    ids = st.binary(min_size=16, max_size=16)
    parts = (names, names, st.just(1), ids, stamps, names, HEADERS, BODIES, TICKS, ids)
    return st.builds(Event, st.integers(1, 1 << 40), *parts).filter(lambda event: event.context != "remits")


AWKWARD = st.lists(events(NAMES, (KIND_UTC, KIND_UNSPECIFIED, KIND_LOCAL)), max_size=4)


def rows(found: Sequence[Event]) -> list[Incoming]:
    """The same events as they should come back."""
    return [Incoming(e.context, e.stream, NewEvent(e.id, e.stamp, e.type, e.headers, e.body)) for e in found]


@given(AWKWARD)
def test_json_lines_come_back_as_they_were(found: list[Event]) -> None:
    written = json_lines(found)
    assert written.count(b"\n") == len(found)
    assert list(from_json_lines(io.BytesIO(written), NOTHING)) == rows(found)


@given(AWKWARD)
def test_csv_comes_back_as_it_was(found: list[Event]) -> None:
    written = csv_header() + to_csv(found)
    assert list(from_csv(io.BytesIO(written), NOTHING)) == rows(found)


@given(st.lists(events(PLAIN_NAMES, (KIND_UTC,)), max_size=4))
def test_cloudevents_come_back_as_they_were(found: list[Event]) -> None:
    written = to_cloud_lines(found)
    assert list(from_cloud_lines(io.BytesIO(written), NOTHING)) == rows(found)


@settings(max_examples=40)
@given(AWKWARD)
def test_parquet_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, found: list[Event]) -> None:
    path = tmp_path_factory.getbasetemp() / "one.parquet"
    parquet(path, found)
    assert list(from_parquet(path, NOTHING)) == rows(found)


def parquet(path: Path, found: Sequence[Event]) -> None:
    with path.open("wb") as file:
        write_parquet(file, found)


@given(st.builds(stamp_of, TICKS, st.sampled_from([KIND_UTC, KIND_UNSPECIFIED, KIND_LOCAL])))
def test_a_time_is_the_same_time_as_text(stamp: int) -> None:
    assert stamp_of_text(text_of_stamp(stamp)) == stamp


@given(st.uuids())
def test_an_id_is_the_same_id_as_text(id: UUID) -> None:
    assert id_of("id", str(id)) == id.bytes


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("2026-11-15T06:00:00+02:00", "2026-11-15T04:00:00Z"),
        ("2026-11-15 06:00:00.5Z", "2026-11-15T06:00:00.5000000Z"),
        ("2026-11-15T06:00:00.123456789Z", "2026-11-15T06:00:00.1234567Z"),
        ("2026-11-15T06:00:00", "2026-11-15T06:00:00"),
    ],
)
def test_times_of_other_programs_can_be_read(text: str, said: str) -> None:
    assert text_of_stamp(stamp_of_text(text)) == said


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "2026-11-15"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|ticks"):
        stamp_of_text(text)


@given(st.dictionaries(st.text(UNICODE), JSON, min_size=1, max_size=4), st.data())
def test_the_column_of_a_member_is_where_its_value_begins(members: dict[str, object], data: st.DataObject) -> None:
    text = json.dumps(members, indent=data.draw(st.sampled_from([None, 1])))
    member = data.draw(st.sampled_from(list(members)))
    value, _ = json.JSONDecoder().raw_decode(text, column_of(text, member))
    assert value == members[member]


# --- what is no event -----------------------------------------------------------------------------------------

WHOLE = '{"context":"a","stream":"b","type":"c","body":1}\n'


@pytest.mark.parametrize(
    ("line", "place", "reason"),
    [
        ('{"context":"a",}', "line 3, column 16", "expecting property name"),
        ("[1]", "line 3, column 1", "no JSON object"),
        ('{"context":"a","stream":"b"}', "line 3, column 1", "'type' is missing"),
        ('{"context":"a","stream":"b","type":7}', "line 3, column 36", "'type' is 7"),
        ('{"context":"a","stream":"b","type":"c","id":"x"}', "line 3, column 45", "no UUID"),
        ('{"context":"a","stream":"b","type":"c","time":"x"}', "line 3, column 47", "not a time"),
        ('{"context":"a","stream":"b","type":"c","time":7}', "line 3, column 47", "'time' is 7, where text belongs"),
        ('{"context":"a","stream":"b","type":"c","time":-5}', "line 3, column 47", "'time' is -5"),
        ('{"context":"a","stream":"b","type":"c","timestamp":1' + 23 * "0" + "}", "line 3, column 52", "where text"),
        ('{"context":"a","stream":"b","type":"c","time":true}', "line 3, column 47", "a boolean, where text belongs"),
        ('{"context":"a","stream":"b","type":"c","body":{"a":1,"a":2}}', "line 3, column 1", "a name is there twice"),
        ('{"context":"a","context":"b","stream":"b","type":"c"}', "line 3, column 1", "a name is there twice"),
        ('{"context":"a","stream":"b","type":"c","body":1e999}', "line 3, column 1", "1e999 is too large"),
        ('{"context":"a","stream":"b","type":"c","boddy":1}', "line 3, column 48", "'boddy' is no member"),
        ('{"context":"a","stream":"b","type":"c","body":1,"text":""}', "line 3, column 56", "together with body"),
        ('{"context":"a","stream":"b","type":"c","base64":"?"}', "line 3, column 49", "not base64"),
        ('{"context":"a","stream":"b","type":"c","body":NaN}', "line 3, column 1", "NaN is not JSON"),
        ('{"context":"a","stream":"b","type":"c","headers":[1]}', "line 3, column 50", "is an array"),
        ('{"context":"a","stream":"' + 600 * "b" + '","type":"c"}', "line 3, column 25", "at most 512"),
        ('{"context":"remits","stream":"b","type":"c"}', "line 3, column 41", "'cbor' only"),
        ('{"context":"remits","stream":"b","type":"cbor","text":"?"}', "line 3, column 1", "no message for a log"),
        ("\udcff", "line 3, column 1", "not UTF-8"),
    ],
)
def test_a_broken_line_is_named_with_its_column(line: str, place: str, reason: str) -> None:
    file = io.BytesIO((WHOLE + "\n" + line + "\n" + WHOLE).encode("utf-8", "surrogateescape"))
    found: Iterator[Incoming] = from_json_lines(file, NOTHING)
    next(found)
    with pytest.raises(Flaw) as caught:
        next(found)
    assert caught.value.place == place
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "line 1, column 1", "no header row"),
        ("stream,stream\n", "line 1, column 2", "twice"),
        ("stream,bodi,body\n", "line 1, column 2", "'bodi' is no column"),
        ('stream,type,body\na,"b\nb",c\nd,e\n', "line 4, column 3", "there are 2 columns"),
        ("stream,type,body,encoding\na,b,?,base64\n", "line 2, column 3", "not base64"),
        ("stream,type,body,encoding\na,b,?,latin1\n", "line 2, column 4", "must be text or base64"),
        ('stream,type\na,"b\n', "line 2, column 1", "not CSV"),
        ("stream,type,timestamp\na,b,now\n", "line 2, column 3", "not a time"),
    ],
)
def test_a_broken_csv_is_named_with_its_column(text: str, place: str, reason: str) -> None:
    with pytest.raises(Flaw) as caught:
        list(from_csv(io.BytesIO(text.encode()), Defaults("shop")))
    assert caught.value.place == place
    assert reason in caught.value.reason


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.interchange.formats.LINE_BYTES_MAX", 100)
    with pytest.raises(Flaw, match="more than 100 bytes"):
        list(from_json_lines(io.BytesIO(b"x" * 1000), NOTHING))


# --- what other programs write --------------------------------------------------------------------------------


def test_a_foreign_csv_becomes_bodies_of_its_own_columns() -> None:
    text = "\ufeffcustomer,amount,timestamp\r\nAnn,3,2026-11-15T06:00:00Z\r\n"
    (row,) = from_csv(io.BytesIO(text.encode()), Defaults("shop", "orders", "Ordered"))
    assert row[:2] == ("shop", "orders")
    assert row.event.body == b'{"customer":"Ann","amount":"3"}'
    assert text_of_stamp(row.event.stamp) == "2026-11-15T06:00:00Z"


def test_a_foreign_parquet_becomes_bodies_of_its_own_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    times = pa.array([1_700_000_000_000], pa.timestamp("ms", "UTC"))
    table = pa.table({"stream": ["a"], "amount": [3], "tags": [["x"]], "timestamp": times, "seen": times})
    pq.write_table(table, tmp_path / "f.parquet")
    (row,) = from_parquet(tmp_path / "f.parquet", Defaults("shop", None, "Ordered"))
    assert json.loads(row.event.body) == {"amount": 3, "tags": ["x"], "seen": "2023-11-14T22:13:20Z"}
    assert text_of_stamp(row.event.stamp) == "2023-11-14T22:13:20Z"


def test_what_json_does_not_have_is_text_or_null_in_bodies_of_foreign_parquet(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"bytes": [b"\xff\x00"], "text": ["Größe".encode()], "nan": [float("nan")], "cost": [Decimal("1.50")]}
    nested = {
        "deep": [[{"day": date(2026, 11, 15), "bytes": b"x", "inf": float("inf")}]],
        "none": [None],
        "no": [False],
        "kind": ["retail"],
    }
    pq.write_table(pa.table({**columns, **nested}), tmp_path / "f.parquet")
    (row,) = from_parquet(tmp_path / "f.parquet", Defaults("shop", "s", "T"))
    assert json.loads(row.event.body) == {
        "bytes": "/wA=",
        "text": "Größe",
        "nan": None,
        "cost": "1.50",
        "deep": [{"day": "2026-11-15", "bytes": "x", "inf": None}],
        "none": None,
        "no": False,
        "kind": "retail",
    }


def test_rows_of_which_nothing_is_read_are_events_too(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"position": [1, 2]}), tmp_path / "f.parquet")
    found = list(from_parquet(tmp_path / "f.parquet", Defaults("shop", "s", "T")))
    assert [row.event.body for row in found] == [b"", b""]
    assert len(list(from_csv(io.BytesIO(b"position\n1\n2\n"), Defaults("shop", "s", "T")))) == 2


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "f.parquet")
    with pytest.raises(Flaw, match="the header, column 2: there are two columns 'a'"):
        list(from_parquet(tmp_path / "f.parquet", Defaults("shop", "s", "T")))


@pytest.mark.parametrize(
    ("columns", "place", "reason"),
    [
        ({"position": [1], "text": ["x"], "stream": [None]}, "row 1, column 3", "'stream' is missing"),
        ({"stream": ["a"], "time": [1_700_000_000]}, "row 1, column 2", "no time"),
        ({"stream": ["a"], "ticks": [1], "kind": ["utc"]}, "row 1, column 3", "no kind of time"),
        ({"stream": ["a", "b"], "event_id": [None, "x"]}, "row 2, column 2", "no UUID"),
        ({"stream": ["a", None]}, "row 2, column 1", "'stream' is missing"),
        ({"stream": ["a"], "ticks": [-1]}, "row 1, column 2", "ticks"),
        ({"stream": ["a"], "body": [1]}, "row 1, column 2", "where bytes or text belong"),
        ({"stream": ["a"], "more": [1], "body": ["x"]}, "the header, column 2", "no column of events"),
    ],
)
def test_a_broken_parquet_is_named_with_its_row(
    tmp_path: Path, columns: dict[str, list[object]], place: str, reason: str
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), tmp_path / "f.parquet")
    with pytest.raises(Flaw) as caught:
        list(from_parquet(tmp_path / "f.parquet", Defaults("shop", None, "T")))
    assert caught.value.place == place
    assert reason in caught.value.reason


def test_foreign_cloudevents_need_to_be_told_where_they_belong() -> None:
    line = b'{"specversion":"1.0","id":"7","source":"https://example.org","type":"t"}\n'
    (row,) = from_cloud_lines(io.BytesIO(line), Defaults("shop", "hooks"))
    assert row[:2] == ("shop", "hooks")
    with pytest.raises(Flaw, match="line 1, column 40: 'source'"):
        list(from_cloud_lines(io.BytesIO(line), NOTHING))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", Format.JSONL),
        ("a.CSV", Format.CSV),
        ("x.y.parquet", Format.PARQUET),
        ("a.cloudevents.jsonl", Format.CLOUDEVENTS),
        ("-", Format.JSONL),
    ],
)
def test_the_end_of_a_name_tells_the_format(name: str, kind: Format) -> None:
    assert format_of(name, None) is kind
    assert format_of(name, Format.CSV) is Format.CSV


def test_a_name_that_tells_no_format_is_refused() -> None:
    with pytest.raises(FileRefused, match="say --format"):
        format_of("a.txt", None)
