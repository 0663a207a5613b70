"""Sessions: one snapshot, whatever is asked of it; three kinds of stores; errors that say where and what."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import CannotConnect, DamagedRecord, InvalidRequest, NotAStore, PenstockError, StoreChanged
from penstock.history.columns import COLUMNS, TABLE
from penstock.history.source import Now, open_history
from penstock.sql import Limits, Session, open_session
from penstock.store import store_url
from penstock.store.contract import StoreIdentity
from penstock.testing import server
from tests.lake.support import rows_of, store_table
from tests.postgres import Schemas
from tests.spark.support import counted, fill, until
from tests.sql.support import awkward, plain_rows

ALL = "FROM events ORDER BY position"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return fill(tmp_path_factory.mktemp("sessions") / "data", [*awkward(), ("shop", "many", counted(5000))], seal=True)


@pytest.fixture(scope="module")
def session(url: str) -> Iterator[Session]:
    with open_session(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def open_session_of_all_files(url: str) -> Iterator[Session]:
    with open_session(url, Limits(directories=("/",))) as opened:
        yield opened


# -- what is there


def test_the_table_has_all_columns_and_rows(url: str, session: Session) -> None:
    answer = session.query(ALL)
    assert answer.schema.names == list(COLUMNS)
    assert [field.type for field in answer.schema] == [field.type for field in TABLE]
    assert plain_rows(answer) == rows_of(store_table(url))


def test_a_store_on_postgresql_is_read(schemas: Schemas, tmp_path: Path) -> None:
    url = fill(schemas.url(tmp_path), [*awkward(), ("shop", "many", counted(500))], seal=True)
    with open_session(url) as session:
        assert plain_rows(session.query(ALL)) == rows_of(store_table(url))
        narrow = "SELECT count(*) FROM events WHERE context = 'ü' AND recorded_at > '2020-01-01' AND position > 2"
        assert plain_rows(session.query(narrow)) == [(2,)]


@pytest.mark.parametrize("scheme", ["penstock", "zmq+tcp"])
def test_a_store_is_read_through_its_server(url: str, tmp_path: Path, scheme: str) -> None:
    fill(tmp_path / "data", [*awkward(), ("shop", "many", counted(500))])
    with server(tmp_path / "data") as served:
        address = {"penstock": served.url, "zmq+tcp": served.zmq_url}[scheme]
        with open_session(address) as session:
            assert plain_rows(session.query(ALL)) == rows_of(store_table(store_url(tmp_path / "data")))
            narrow = (
                "SELECT count(*) FROM events WHERE type = 'Told' AND recorded_at > '2020-01-01' AND context = 'shop'"
            )
            assert plain_rows(session.query(narrow)) == [(2,)]


def test_an_empty_store_is_an_empty_table(tmp_path: Path) -> None:
    with open_session(fill(tmp_path / "data", [])) as session:
        assert plain_rows(session.query(ALL)) == []
        assert plain_rows(session.query("SELECT count(*) FROM events WHERE recorded_at > now()")) == [(0,)]


def test_json_and_times_are_at_hand(session: Session) -> None:
    found = session.query("SELECT sum((text ->> '$.number')::INT) FROM events WHERE stream = 'many'")
    assert int(found.rows()[0][0]) == 5000 * 5001 // 2
    days = session.query("SELECT date_trunc('day', recorded_at) AS day, count(*) FROM events GROUP BY ALL").rows()
    assert [day.tzinfo is not None and day.hour for day, _ in days] == [0] * len(days)


def test_kinds_that_only_duckdb_has_become_text(session: Session) -> None:
    answer = session.query("SELECT '101'::BIT, INTERVAL 1 DAY, '10:00:00+01'::TIMETZ, 1::BIGNUM, 7 AS n")
    assert answer.rows() == [("101", "1 day", "10:00:00+01", "1", 7)]
    within = """
        SELECT {'a "b"': INTERVAL 1 DAY, 'n': NULL} AS struct, [[BIT '101']] AS lists, MAP {INTERVAL 1 DAY: 1} AS map,
        row(1, union_value(x := 2)) AS tuple, array_value(1::UHUGEINT, 2::UHUGEINT) AS array
    """
    assert session.query(within).rows() == [
        ({'a "b"': "1 day", "n": None}, [["101"]], [("1 day", 1)], {"element1": 1, "element2": "2"}, ["1", "2"])
    ]


# -- one snapshot


def test_self_joins_and_ctes_see_the_same_rows_while_others_append(tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [("shop", f"s-{number}", counted(3)) for number in range(200)])
    stop = threading.Event()

    def append() -> None:
        while not stop.is_set():
            fill(tmp_path / "data", [("shop", "s-new", counted(10))])

    appending = threading.Thread(target=append)
    with open_session(url) as session:
        appending.start()
        try:
            for statement in (
                "SELECT count(*) FROM events a JOIN events b USING (position)",
                "WITH a AS (FROM events), b AS (FROM events) SELECT (SELECT count(*) FROM a) FROM b LIMIT 1",
                "SELECT max(position) FROM (FROM events UNION ALL FROM events)",
                "SELECT count(*) FROM events WHERE position > 0",
            ):
                assert plain_rows(session.query(statement)) == [(600,)]
            with closing(open_history(url)) as history:
                until(lambda: history.now().head > 600)
            assert plain_rows(session.query("SELECT max(position) FROM events")) == [(600,)]
        finally:
            stop.set()
            appending.join()
    with open_session(url) as session:
        assert session.query("SELECT max(position) FROM events").rows()[0][0] > 600


def test_positions_of_another_store_are_not_read(url: str) -> None:
    with Session() as session:
        session.add_history("events", url, Now(StoreIdentity("another", 1), 10))
        with pytest.raises(StoreChanged, match="of store another"):
            session.query("FROM events").rows()


# -- what goes wrong


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELECT typ FROM events", r'line 1, column 8: .* column "typ" not found .*"type"'),
        ("SELECT\n  position,\n  lenght(type)\nFROM events", r"line 3, column 3: .*lenght.* [Dd]id you mean"),
        ("SELECT 'ü', ü, nope.x FROM events", r"line 1, column 13: .*"),
        ("FROM event", r'line 1, column 6: .*event does not exist; Did you mean "events"'),
        ("FROM orders", r"line 1, column 6: .*orders does not exist.* the table is called events"),
        ("SELEC 1", r'line 1, column 1: parser error: syntax error at or near "SELEC"'),
        ("SELECT 'a", r"line 1, column 8: .*unterminated"),
        ("SELECT type::INT FROM events", r"line 1, column 12: conversion error: Could not convert"),
        ("SELECT error('boo')", r"boo"),
        ("", "is empty"),
        ("-- nothing", "is empty"),
        ("SELECT 1; SELECT 2", "is 2 statements"),
        ("SELECT ?", "has parameters"),
        ("SELECT '\udcff'", "is not valid Unicode"),
        ("SELECT nextval('orders')", "Sequence with name orders does not exist$"),
        ("FROM sqlite_scan('a', 'b')", "exists in the sqlite_scanner extension[.]$"),
        ("FROM read_csv('/no/such/file.csv')", "/no/such/file.csv"),
        ("FROM 'https://127.0.0.1/x.parquet'", "https"),
        ("COPY events TO 'x.csv'", r"\(COPY\).*--file PATH"),
        ("ATTACH 'x.db'", r"\(ATTACH\).*--allow-dir DIR"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_says_where(session: Session, statement: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as raised:
        session.query(statement).rows()
    assert "\n" not in str(raised.value)
    assert plain_rows(session.query("SELECT 1")) == [(1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "COPY events TO '{}'",
        "COPY (SELECT 1) TO '{}'",
        "EXPORT DATABASE '{}'",
        "ATTACH '{}'",
        "CREATE TABLE t AS FROM events",
        "INSERT INTO events SELECT * FROM events",
        "DELETE FROM events",
        "UPDATE events SET type = 'x'",
        "INSTALL httpfs",
        "LOAD '{}'",
        "SET temp_directory = '{}'",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY events TO '{}'",
        "EXPLAIN (ANALYZE) COPY events TO '{}'",
        "explain /* */ analyze COPY events TO '{}'",
        "WITH x AS (COPY (SELECT 1) TO '{}') FROM x",
        "with x as /* */ (copy events to '{}' (format parquet)) select 1",
        "EXPLAIN ANALYZE WITH x AS (COPY events TO '{}') FROM x",
        "WITH x AS (COPY (SELECT 1) TO '{}') PIVOT x ON Count USING count(*)",
        "FROM query('WITH x AS (COPY (SELECT 1) TO ''{}'') FROM x')",
        "BEGIN",
        "DROP VIEW events",
    ],
)
def test_only_what_reads_is_run(
    session: Session, open_session_of_all_files: Session, tmp_path: Path, statement: str
) -> None:
    for one in (session, open_session_of_all_files):
        with pytest.raises(InvalidRequest):
            one.query(statement.format(tmp_path / "written"))
        assert list(tmp_path.iterdir()) == []
        assert one.query("SELECT count(*) > 0 FROM events").rows() == [(True,)]


@pytest.mark.parametrize(
    "statement",
    [
        "FROM events LIMIT 1",
        "WITH a AS (SELECT 1) FROM a",
        "VALUES (1)",
        "DESCRIBE events",
        "SUMMARIZE FROM events LIMIT 10",
        "SHOW TABLES",
        "EXPLAIN FROM events",
        "EXPLAIN ANALYZE SELECT count(*) FROM events",
        "PIVOT (SELECT context, type FROM events LIMIT 20) ON type USING count(*)",
        "SELECT 1;",
        "WITH copy AS (SELECT 'COPY_TO_FILE') FROM copy",
    ],
)
def test_all_that_reads_is_run(session: Session, statement: str) -> None:
    assert session.query(statement).rows()


def test_a_damaged_record_is_told_with_its_position(tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [("shop", f"s-{number}", counted(2)) for number in range(5)])
    connection = apsw.Connection(str(tmp_path / "data" / "penstock.db"))
    changed = "CAST(substr(data, 1, 60) || x'7F' || substr(data, 62) AS BLOB)"
    connection.execute(f"UPDATE records SET data = {changed} WHERE position = 5")
    connection.close()
    with open_session(url) as session:
        with pytest.raises(DamagedRecord) as raised:
            session.query("SELECT count(*) FROM events").rows()
        assert raised.value.position == 5
        # Only errors that need the hint have it.
        with pytest.raises(InvalidRequest, match="parser error"):
            session.query("SELEC 1")
        # What does not touch it can be asked, also where a look for a time meets it.
        assert session.query("SELECT count(*) FROM events WHERE position < 5").rows() == [(4,)]
        later = "SELECT count(*) FROM events WHERE position > 6 AND recorded_at > '2020-01-01'"
        assert session.query(later).rows() == [(4,)]


@pytest.mark.parametrize("place", ["sqlite:////no/such/store", "postgresql://127.0.0.1:1/x", "penstock://127.0.0.1:1"])
def test_a_store_that_is_not_there_is_told(place: str) -> None:
    with pytest.raises((PenstockError, OSError)) as raised, open_session(place):
        pass
    assert not isinstance(raised.value, InvalidRequest)
    assert isinstance(raised.value, CannotConnect | NotAStore | OSError | PenstockError)


def test_a_large_sort_spills_within_its_memory_and_leaves_nothing(url: str, tmp_path: Path) -> None:
    limits = Limits(memory_bytes=64 << 20, threads=1, folder=str(tmp_path))
    with open_session(url, limits) as session:
        answer = session.query("SELECT event_id, n FROM events, range(300) r(n) ORDER BY hash(event_id, n)")
        batches = answer.batches()
        first = next(batches)
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir())
        assert first.num_rows + sum(batch.num_rows for batch in batches) == 300 * len(store_table(url))
    assert list(tmp_path.iterdir()) == []


def test_what_needs_more_memory_than_it_may_use_says_so(url: str) -> None:
    with open_session(url, Limits(memory_bytes=32 << 20, threads=1)) as session:
        statement = "SELECT list(a.text) FROM events a, range(20000) b"
        with pytest.raises(InvalidRequest, match=r"[Mm]emory.*--memory"):
            session.query(statement).rows()


def test_a_query_is_interrupted_from_another_thread(url: str) -> None:
    with open_session(url) as session:
        ended = threading.Event()

        def interrupt() -> None:
            # What is interrupted before it has begun goes on.
            while not ended.wait(0.05):
                session.interrupt()

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                session.query(
                    "SELECT count(*) FROM events a, events b, events c WHERE a.type < b.type || c.type"
                ).rows()
        finally:
            ended.set()
            interrupting.join()
        assert session.query("SELECT count(*) FROM events WHERE stream = 'many'").rows() == [(5000,)]


def test_an_answer_that_nobody_reads_to_its_end_holds_up_nothing(url: str) -> None:
    with open_session(url) as session:
        answer = session.query("FROM events")
        assert next(answer.batches()).num_rows
    with open_session(url) as session:
        assert session.query("SELECT count(*) FROM events LIMIT 1").rows()


def test_years_one_and_9999_come_as_they_are(session: Session) -> None:
    found = session.query("SELECT timestamp FROM events WHERE stream IN ('early', 'late') ORDER BY ticks").rows()
    assert found == [(datetime(1, 1, 1, tzinfo=UTC),), (datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),)]


# -- files


def test_a_table_of_ones_own_can_be_joined(url: str, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("context,name\nshop,The Shop\nü,Umlaut\n", encoding="utf-8")
    statement = f"SELECT name, count(*) FROM events JOIN '{tmp_path}/names.csv' USING (context) GROUP BY 1 ORDER BY 1"
    with open_session(url, Limits(directories=(str(tmp_path),))) as session:
        assert [name for name, _ in session.query(statement).rows()] == ["The Shop", "Umlaut"]
        assert isinstance(session.query(statement).schema, pa.Schema)


@pytest.mark.parametrize(
    "statement",
    [
        "FROM '{}/a.csv'",
        "FROM '{}/a.parquet'",
        "SELECT (SELECT count(*) FROM '{}/a.csv') FROM events LIMIT 1",
        "FROM read_csv('{}/a.csv')",
        "FROM read_json('{}/a.json')",
        "FROM read_parquet(['{}/a.parquet'])",
        "FROM read_text('{}/a.csv')",
        "FROM read_blob('file://{}/a.csv')",
        "FROM glob('{}/*')",
        "FROM sniff_csv('{}/a.csv')",
        "FROM parquet_metadata('{}/a.parquet')",
        "EXPLAIN ANALYZE FROM read_text('{}/a.csv')",
        "PIVOT (FROM '{}/a.csv') ON x USING count(*)",
        "FROM query('FROM read_text(''{}/a.csv'')')",
    ],
)
def test_a_file_that_nobody_allowed_is_not_read(
    session: Session, open_session_of_all_files: Session, tmp_path: Path, statement: str
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "a.json").write_text('{"x": 1}\n')
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InvalidRequest, match=rf'must not read ".*{tmp_path}/.*"; .* --allow-dir DIR'):
        session.query(statement.format(tmp_path)).rows()
    assert open_session_of_all_files.query(statement.format(tmp_path)).rows()


def test_a_directory_that_is_allowed_opens_no_other(url: str, tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine too"
    for folder in (mine, other):
        folder.mkdir()
        (folder / "a.csv").write_text("x\n1\n")
    (mine / "link.csv").symlink_to(other / "a.csv")
    with open_session(url, Limits(directories=(str(mine),))) as session:
        assert session.query(f"SELECT count(*) FROM read_text('{mine}/a.csv')").rows() == [(1,)]
        for path in (f"{other}/a.csv", f"{mine}/../mine too/a.csv", f"{mine}/link.csv", f"{tmp_path}/*/a.csv"):
            with pytest.raises(InvalidRequest, match="--allow-dir"):
                session.query(f"FROM read_text('{path}')").rows()


@pytest.mark.parametrize(
    "statement",
    [
        "FROM enable_logging(storage = 'file')",
        "FROM enable_logging(storage = 'file', storage_config = {{'path': '{}'}})",
        "CALL enable_logging(storage = 'file', storage_config = {{'path': '{}'}})",
        "SET enable_external_access = true",
        "SET allowed_directories = ['{}']",
        "RESET lock_configuration",
        "FROM enable_profiling(save_location = '{}/profile')",
        "FROM disable_logging()",
    ],
)
def test_no_setting_is_changed(
    session: Session, open_session_of_all_files: Session, tmp_path: Path, statement: str
) -> None:
    for one in (session, open_session_of_all_files):
        with pytest.raises(InvalidRequest, match=r"must not change DuckDB's setting|does more than read"):
            one.query(statement.format(tmp_path)).rows()
    assert list(tmp_path.iterdir()) == []
