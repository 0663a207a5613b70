"""Scans read enough rows for a filter, and no more than necessary."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.history.columns import TABLE
from penstock.history.options import ReadOptions
from penstock.history.source import History, StoredHistory, open_history
from penstock.model import ANY, EventFilter, NewEvent, new_event
from penstock.model.columns import columns_of
from penstock.model.times import TICKS_MAX, stamp_of, ticks_of_datetime
from penstock.sql import Session, open_session
from penstock.sql.dataset import recorded_between
from penstock.sql.pushdown import (
    NONE,
    ParsedFilter,
    ValueRange,
    narrowed,
    parse_filter,
    recorded_ticks,
)
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteStore
from tests.spark.support import NOON, Written, fill
from tests.sql.support import AWKWARD_TEXTS, awkward, plain_rows

NAMES = ("", "a", "ab", "ab*", "b", "order-", "order-1", "order.", *AWKWARD_TEXTS)
MICROS = st.sampled_from(
    [-62_135_596_800_000_000, -1, 0, 1, 10, 253_402_300_799_999_999, -(1 << 63) + 1, (1 << 63) - 1]
)
EXTREMES = st.sampled_from([-(1 << 63), (1 << 63) - 1])
TIMES = ("timestamp", "recorded_at")


# -- expressions


def moment(micros: int) -> Any:
    return pa.scalar(micros, pa.timestamp("us", tz="UTC"))


def comparisons(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = pc.field(column)
    made = [
        values.map(lambda value: field == value),
        values.map(lambda value: field != value),
        values.map(lambda value: field < value),
        values.map(lambda value: field <= value),
        values.map(lambda value: field > value),
        values.map(lambda value: field >= value),
        st.lists(values, min_size=1, max_size=3).map(lambda found: _among(column, found)),
        st.just(field.is_valid()),
    ]
    return st.one_of(made)


def _among(column: str, values: list[Any]) -> Any:
    """As DuckDB's package says IN."""
    field, kind = pc.field(column), TABLE.field(column).type
    plain = [value.value if isinstance(value, pa.Scalar) else value for value in values]
    return pc.if_else(field.is_valid(), field.isin(pa.array(plain, kind)), pa.scalar(None, pa.bool_()))


LEAVES = st.one_of(
    comparisons("position", st.one_of(st.integers(-1, 12), EXTREMES)),
    comparisons("ticks", st.one_of(st.integers(-1, 30), EXTREMES)),
    *(comparisons(column, st.sampled_from(NAMES)) for column in ("context", "stream", "type")),
    *(comparisons(column, MICROS.map(moment)) for column in TIMES),
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        inner.map(lambda one: ~one),
    ),
    max_leaves=6,
)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 12))
    names = st.sampled_from(NAMES)
    columns: dict[str, list[Any]] = {
        name: draw(st.lists(names, min_size=count, max_size=count)) for name in ("context", "stream", "type")
    }
    ticks = draw(st.lists(st.sampled_from([0, 1, 9, 10, 19, 20, TICKS_MAX]), min_size=count, max_size=count))
    micros = [each // 10 - 62_135_596_800_000_000 for each in ticks]
    columns |= {"position": list(range(1, count + 1)), "ticks": ticks, "timestamp": micros, "recorded_at": micros}
    found = [field for field in TABLE if field.name in columns]
    return pa.table([pa.array(columns[field.name], field.type) for field in found], schema=pa.schema(found))


@given(FILTERS, tables())
def test_no_row_that_passes_a_filter_lies_outside_of_what_is_read(passing: Any, table: pa.Table) -> None:
    constraints = parse_filter(passing, TABLE).constraints
    options, recorded = narrowed(ReadOptions("sqlite:///x"), constraints), recorded_ticks(constraints)
    for row in table.filter(passing).drop(list(TIMES)).to_pylist():
        assert options.first <= row["position"] <= options.last
        assert options.wanted.wants_stream(row["context"], row["stream"])
        assert options.types is None or row["type"] in options.types
        assert (options.since or 0) <= row["ticks"] < (TICKS_MAX + 2 if options.until is None else options.until)
        assert (recorded.low or 0) <= row["ticks"] <= (TICKS_MAX if recorded.high is None else recorded.high)


def pushed(expression: Any) -> ReadOptions:
    return narrowed(ReadOptions("sqlite:///x"), parse_filter(expression, TABLE).constraints)


def test_what_is_simple_is_pushed() -> None:
    field = pc.field
    found = pushed((field("context") == "a/b") & (field("stream") == "order-1") & (field("position") > 5))
    assert (found.context, found.filter, found.first) == ("a/b", "order-1", 6)
    found = pushed((field("stream") >= "order-") & (field("stream") < "order.") & (field("position") <= 9))
    assert (found.filter, found.last) == ("order-", 9)
    assert set(pushed(_among("type", ["A", "B"])).types or ()) == {"A", "B"}
    assert pushed((field("position") == 5) | (field("position") == 77)).last == 77
    assert pushed(field("timestamp") >= moment(0)).since == 621_355_968_000_000_000
    assert pushed(field("ticks") < 7).until == 7


@pytest.mark.parametrize("name", ["*", "", "x" * 5000])
def test_names_that_no_option_can_say_are_left_to_the_filter(name: str) -> None:
    found = pushed((pc.field("stream") == name) & (pc.field("context") == name))
    assert found.filter == ""
    assert found.context in (None, name)


def test_what_is_not_understood_says_nothing() -> None:
    strange = pc.utf8_length(pc.field("type")) > 3
    assert parse_filter(strange, TABLE).constraints == NONE
    assert parse_filter(strange, TABLE).columns in (None, frozenset(["type"]))
    assert parse_filter(pc.field("no such column") == 1, TABLE) == ParsedFilter()


# -- against a store

NUMBER_OF_EVENTS = 60


def events(number: int) -> list[NewEvent]:
    stamps = [stamp_of(ticks_of_datetime(NOON + timedelta(hours=number + each))) for each in range(3)]
    return [new_event(f"T{number % 4}", b'{"n":%d}' % number)._replace(stamp=stamp) for stamp in stamps]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sealed, recorded over some hours, with commits that are not sealed after it."""
    path = tmp_path_factory.mktemp("pushing") / "data"
    commits: list[Written] = [(f"c{number % 3}", f"order-{number % 5}", events(number)) for number in range(20)]
    fill(path, [*awkward(), *commits], seal=True)
    _fill_at(path, int((datetime.now(UTC) + timedelta(hours=2)).timestamp() * 1e9))
    fill(path, commits[:3])
    return path


PREDICATES = [
    "context = 'c1'",
    "context = '007'",
    "context = 'no such'",
    "context IN ('c1', 'ü', 'a/b')",
    "context > 'c1'",
    "context = 'c1' AND stream = 'order-1'",
    "stream = 'order-1'",
    "stream = '*'",
    "stream = ''",
    "stream LIKE 'order-%'",
    "stream LIKE '%-1'",
    "stream LIKE 'o''r%'",
    "starts_with(stream, 'order-')",
    "stream >= 'order-' AND stream < 'order.'",
    "stream BETWEEN 'order-1' AND 'order-3'",
    "stream >= 'order-4' OR stream = '007'",
    "stream = chr(1114111)",
    "type = 'T1'",
    "type IN ('T1', 'cbor')",
    "type <> 'T1' AND context = 'c2'",
    "NOT (type = 'T1' OR context = 'c1')",
    "type = 'T1' OR position < 5",
    "position = 7",
    "position = 7.0",
    "position > 5 AND position <= 10",
    "position BETWEEN 3 AND 4 OR position = 20",
    "position > 100000",
    "position < 0",
    "position IN (1, 5, 1000000)",
    "position % 2 = 0 AND position > 50",
    "recorded_at > '2001-01-01'",
    "recorded_at > now() + INTERVAL 1 HOUR",
    "recorded_at <= now() + INTERVAL 1 HOUR AND context = 'c1'",
    "recorded_at < '0001-01-01'",
    "recorded_at = (SELECT max(recorded_at) FROM events)",
    "recorded_at::DATE = current_date",
    "timestamp >= '2024-05-01 20:00:00+00' AND timestamp < '2024-05-02'",
    "timestamp >= '2024-05-01 20:00:00+00' AND context = 'c1'",
    "timestamp < '0001-01-02'",
    "timestamp > '9999-12-31'",
    "timestamp = '2024-05-01 13:00:00+00'",
    "ticks = 0",
    "ticks > 638501616000000000 AND context = 'c0'",
    "headers IS NULL",
    "headers IS NOT NULL AND context = 'ü'",
    "text IS NULL",
    "body = '\\xFF\\xFE\\x00'::BLOB",
    "event_id = (SELECT event_id FROM events WHERE position = 9)",
    "sequence = 1 AND stream = 'order-2'",
    "text LIKE '%\"n\":1%' AND type IN ('T1')",
    "context = 'c1' AND context = 'c2'",
    "true",
    "false",
]


@pytest.fixture(scope="module")
def session(store: Path) -> Iterator[Session]:
    with open_session(f"sqlite:///{store}") as opened:
        yield opened


@pytest.fixture(scope="module")
def copied(session: Session) -> Iterator[duckdb.DuckDBPyConnection]:
    """All rows in a table of DuckDB's own."""
    rows = pa.Table.from_batches(list(session.query("FROM events").batches())).cast(TABLE)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", rows)
        connection.execute("CREATE TABLE events AS FROM rows")
        yield connection


@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_filter_lets_the_same_rows_through_as_without_any_pushing(
    session: Session, copied: duckdb.DuckDBPyConnection, predicate: str
) -> None:
    statement = f"SELECT position, type, stream FROM events WHERE {predicate} ORDER BY position"
    assert plain_rows(session.query(statement)) == copied.execute(statement).fetchall()


class Reads:
    """The positions that a scan reads, and for which table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.positions: list[int] = []
        real = StoredHistory.records

        def records(history: Any, wanted: Any, position: int, end: int) -> Any:
            for found in real(history, wanted, position, end):
                self.positions += [record.position for record in found]
                yield found

        monkeypatch.setattr(StoredHistory, "records", records)


def test_only_the_records_of_a_range_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = fill(tmp_path / "data", [("c", f"s-{number}", events(1)) for number in range(50)])
    reads = Reads(monkeypatch)
    with open_session(url) as session:
        assert len(plain_rows(session.query("FROM events WHERE position BETWEEN 30 AND 35"))) == 6
        assert reads.positions == [28, 31, 34]
        reads.positions.clear()
        assert len(plain_rows(session.query("FROM events WHERE stream = 's-7'"))) == 3
        assert reads.positions == [22]


def test_recorded_times_are_found_in_a_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'data'}"
    _fill_at(tmp_path / "data", *(1_700_000_000_000_000_000 + hour * 3_600_000_000_000 for hour in range(100)))
    reads = Reads(monkeypatch)
    with open_session(url) as session:
        since, until = "2023-11-16 00:00:00+00", "2023-11-16 03:00:00+00"
        found = session.query(f"SELECT position FROM events WHERE recorded_at >= '{since}' AND recorded_at < '{until}'")
        assert [row[0] for row in plain_rows(found)] == [53, 54, 55, 56, 57, 58]
    assert len(reads.positions) < 25


def _fill_at(path: Path, *times: int) -> None:
    """Two events at each time."""
    events = columns_of([new_event("A", b""), new_event("B", b"")])
    now = [times[0]]
    with closing(SqliteStore(path, clock=lambda: now[0])) as store:
        for now[0] in times:
            store.write([Transaction((Commit("c", "s", ANY, events),))])


def test_recorded_times_between_runs_of_one_record_are_exact(store: Path) -> None:
    with closing(open_history(f"sqlite:///{store}")) as history:
        head = history.now().head
        runs = [(record, run) for record in _all(history, head) for run in record.runs()]
        for _, run in runs[::7]:
            low, high = recorded_between(history, ValueRange(run.recorded, run.recorded), 1, head)
            expected = _positions(history, head, run.recorded)
            assert (low, high) == (expected[0], expected[-1])
        assert recorded_between(history, ValueRange(TICKS_MAX, None), 1, head) == (head + 1, head)
        assert recorded_between(history, ValueRange(None, 0), 1, head) == (1, 0)


def _all(history: History, head: int) -> list[Any]:
    return [record for records in history.records(EventFilter(), 1, head + 1) for record in records]


def _positions(history: History, head: int, recorded: int) -> list[int]:
    found = [event for record in _all(history, head) for event in record.events()]
    return [event.position for event in found if event.recorded == recorded]
