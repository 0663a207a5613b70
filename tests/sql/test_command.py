"""`penstock sql`: every output, every place to ask, pipes, full disks, Ctrl-C; never a traceback."""

import csv
import io
import json
import os
import resource
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from penstock.files import is_replaceable
from penstock.model import new_event
from penstock.store import store_url
from penstock.testing import server
from tests.cli.support import Done, called, terminal_output
from tests.lake.support import archive, rows_of, store_table
from tests.spark.support import counted, fill, until
from tests.sql.support import awkward
from tests.test_server import PATIENCE_S, PENSTOCK, environment

ALL = "FROM events ORDER BY position"


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sql") / "data"
    fill(path, [*awkward(), ("shop", "many", counted(300))], seal=True)
    return path


def sql(*arguments: object, stdin: str | bytes = b"") -> Done:
    """Run the command to its end, in this process."""
    return called("sql", *arguments, stdin=stdin)


def started(*arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    command = [*PENSTOCK, "sql", *map(str, arguments)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)


def test_the_line_of_the_readme_works_beside_a_running_server(data: Path) -> None:
    with server(data):
        process = started("select type, count(*) from events group by 1", "--data", data)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, err) == (0, b"")
    lines = [line.split() for line in out.decode().splitlines() if line.strip()]
    assert lines[0] == ["type", "count_star()"]
    assert ["Counted", "300"] in lines


def test_a_table_shows_the_first_rows_and_how_many_there_are(data: Path) -> None:
    code, out, err = sql("SELECT position FROM events", "--data", data)
    assert (code, err) == (0, "")
    assert "50 of 316 rows; --output csv, json or parquet writes all" in out
    assert sql("FROM events WHERE false", "--data", data)[1:] == ("", "no rows\n")
    assert "of 5" not in sql("FROM events LIMIT 5", "--data", data)[1]
    assert "more than 100,000 rows" in sql("SELECT 1 FROM range(200000)", "--data", data)[1]


def test_nothing_in_a_table_reaches_the_terminal_raw(tmp_path: Path) -> None:

    fill(
        tmp_path / "data", [("c", "s", [new_event("\x1b[31mred", b"\x9b31m\nline"), new_event("[bold]x", b"y" * 5000)])]
    )
    _, out, _ = sql('SELECT type, text AS "a\x1bb" FROM events', "--data", tmp_path / "data")
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    assert "[bold]x" in out
    assert "y" * 501 not in out
    _, out, _ = sql("SELECT type, text FROM events LIMIT 1", "--data", tmp_path / "data", "--output", "json")
    assert "\x1b" not in out
    assert json.loads(out)["type"] == "\x1b[31mred"


def test_json_is_an_object_on_each_line(data: Path) -> None:
    code, out, _ = sql(ALL, "--data", data, "--output", "json")
    found = [json.loads(line) for line in out.splitlines()]
    expected = store_table(store_url(data)).drop(["timestamp", "recorded_at"]).to_pylist()
    assert code == 0
    assert [{**row, "body": b""} for row in expected] == [
        {key: b"" if key == "body" else value for key, value in row.items() if key not in ("timestamp", "recorded_at")}
        for row in found
    ]
    bodies = {row["type"]: row["body"] for row in found}
    assert (bodies["Bytes"], bodies["Told"]) == ("//4A", "grün ☃")
    times = {row["stream"]: row["timestamp"] for row in found}
    assert (times["early"], times["late"]) == ("0001-01-01T00:00:00.000000Z", "9999-12-31T23:59:59.999999Z")


def test_values_of_all_kinds_are_json(data: Path) -> None:
    statement = """
        SELECT 'nan'::DOUBLE AS nan, 'inf'::FLOAT AS inf, 1.5::DECIMAL(4, 2) AS exact, 2::HUGEINT AS huge, true AS yes,
        12345678901234567890.123456789::DECIMAL(38, 9) AS long, [1, NULL] AS list, {'a': 'x', 'b': [0.5]} AS struct,
        MAP {'k': 1} AS map, DATE '2024-05-01' AS day, TIME '10:00' AS clock, TIMESTAMP '2024-05-01 10:00' AS wall,
        TIMESTAMPTZ '2024-05-01 12:00+02' AS moment, 'infinity'::TIMESTAMPTZ AS never,
        UUID '00000000-0000-0000-0000-000000000001' AS id, INTERVAL 90 MINUTE AS span, NULL AS nothing,
        'b'::ENUM('a', 'b') AS kind,
        'x%s"' AS "100%s", 1 AS same, 2 AS same,
        [TIMESTAMPTZ '2024-05-01 12:00+00'] AS times, ['\\xFF'::BLOB] AS blobs
    """
    _, out, _ = sql(statement, "--data", data, "--output", "json")
    assert json.loads(out) == {
        "nan": None,
        "inf": None,
        "exact": 1.5,
        "huge": 2,
        "yes": True,
        "long": "12345678901234567890.123456789",
        "list": [1, None],
        "struct": {"a": "x", "b": [0.5]},
        "map": {"k": 1},
        "day": "2024-05-01",
        "clock": "10:00:00",
        "wall": "2024-05-01T10:00:00.000000",
        "moment": "2024-05-01T10:00:00.000000Z",
        "never": "infinity",
        "id": "00000000-0000-0000-0000-000000000001",
        "span": "01:30:00",
        "nothing": None,
        "kind": "b",
        "100%s": 'x%s"',
        "same": 1,
        "same_2": 2,
        "times": ["2024-05-01T12:00:00.000000Z"],
        "blobs": ["/w=="],
    }


def test_times_that_python_does_not_have_are_written(data: Path) -> None:
    statement = """
        SELECT DATE 'infinity' AS never, [DATE '10000-01-01', DATE '5877642-06-25 (BC)', '-infinity', NULL] AS days,
        {'at': [TIMESTAMPTZ '100000-01-01 10:11:12.5+00', TIMESTAMPTZ 'infinity']} AS moments,
        TIMESTAMP_MS '200000-02-29' AS wall, TIME '24:00' AS midnight,
        MAP {DATE '20000-01-01': TIME '10:00:00.5'} AS map
    """
    expected = {
        "never": "infinity",
        "days": ["10000-01-01", "-5877641-06-25", "-infinity", None],
        "moments": {"at": ["100000-01-01T10:11:12.500000Z", "infinity"]},
        "wall": "200000-02-29T00:00:00.000",
        "midnight": "24:00:00",
        "map": {"20000-01-01": "10:00:00.5"},
    }
    assert json.loads(sql(statement, "--data", data, "--output", "json")[1]) == expected
    row = next(csv.DictReader(io.StringIO(sql(statement, "--data", data, "--output", "csv")[1])))
    assert row["days"] == json.dumps(expected["days"])
    assert "100000-01-01T10:11:12.500000Z" in sql(statement, "--data", data)[1]


def test_csv_can_be_read_again(data: Path) -> None:
    columns = "position, context, stream, type, headers, text, body, timestamp, [position, 1] AS list"
    code, out, _ = sql(f"SELECT {columns} FROM events ORDER BY position", "--data", data, "--output", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    expected = store_table(store_url(data))
    assert code == 0
    assert [row["stream"] for row in rows] == expected["stream"].to_pylist()
    assert [row["context"] for row in rows] == expected["context"].to_pylist()
    assert [row["text"] or None for row in rows] == expected["text"].to_pylist()
    assert rows[2]["list"] == "[3, 1]"
    assert out.splitlines()[0].startswith('"position","context"')


def test_parquet_in_a_file_has_the_columns_as_they_are(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    code, out, err = sql(ALL, "--data", data, "--file", path)
    assert (code, out, err) == (0, "", f"penstock: 316 rows in {path}\n")
    found = pq.read_table(path)
    assert rows_of(found) == rows_of(store_table(store_url(data)))
    assert sql("SELECT 1 AS a, 2 AS a, INTERVAL 1 DAY AS i", "--data", data, "--file", path)[0] == 0
    assert pq.read_table(path).to_pylist() == [{"a": 1, "a_2": 2, "i": "1 day"}]
    assert [each.name for each in tmp_path.iterdir()] == ["all.parquet"]


def test_parquet_goes_through_a_pipe_and_not_to_a_terminal(data: Path) -> None:
    process = started(ALL, "--data", data, "--output", "parquet")
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert pq.read_table(io.BytesIO(out)).num_rows == 316
    with terminal_output() as (number, _):
        done = called("sql", ALL, "--data", data, "--output", "parquet", stdout=number)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--file PATH" in done.err


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_disk_that_runs_full_leaves_no_half_file(data: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("before")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    statement = "SELECT position, n, hash(event_id, n) AS h FROM events, range(300) r(n)"
    process = started(statement, "--data", data, "--file", tmp_path / name, preexec_fn=limit)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err.count(b"\n")) == (1, 1), err
    assert err.lower() == f"penstock: {tmp_path / name}: file too large\n".encode().lower()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [(name, "before")]


def test_what_is_no_file_is_written_into_as_it_is(data: Path, tmp_path: Path) -> None:
    pipe, statement = tmp_path / "pipe", "SELECT position FROM events ORDER BY 1 LIMIT 2"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        piped = sql(statement, "--data", data, "--output", "csv", "--file", pipe)
        assert piped == (0, "", f"penstock: 2 rows in {pipe}\n")
        assert read.result() == '"position"\n1\n2\n'
    assert pipe.is_fifo()
    full = sql(statement, "--data", data, "--output", "json", "--file", "/dev/full")
    assert full == (1, "", "penstock: /dev/full: no space left on device\n")
    assert Path("/dev/full").is_char_device()
    process = started(statement, "--data", data, "--output", "json", "--file", "/dev/stdout")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (out, err) == (b'{"position":1}\n{"position":2}\n', b"penstock: 2 rows in /dev/stdout\n")
    # What went into a pipe cannot be taken back: such an answer is not begun a second time.
    streams = (pipe, Path("/dev/null"), Path("/dev/stdout"), Path("/proc/self/fd/1"))
    assert [is_replaceable(path) for path in streams] == [False] * 4
    assert is_replaceable(tmp_path / "new.csv")


def test_a_link_is_followed_and_a_file_keeps_its_mode(data: Path, tmp_path: Path) -> None:
    there, away = tmp_path / "there.csv", tmp_path / "away.csv"
    there.write_text("before")
    there.chmod(0o640)
    for name, target in (("link.csv", there), ("new.csv", away)):
        (tmp_path / name).symlink_to(target.name)
        assert sql("SELECT 1 AS n", "--data", data, "--file", tmp_path / name)[0] == 0
        assert (tmp_path / name).is_symlink()
        assert target.read_text() == '"n"\n1\n'
    assert there.stat().st_mode & 0o777 == 0o640
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    code, _, err = sql("SELECT 1 AS n", "--data", data, "--file", tmp_path / "loop.csv")
    assert (code, err) == (1, f"penstock: {tmp_path / 'loop.csv'}: too many levels of symbolic links\n")
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("column", ["ticks", "position", "sequence"])
def test_the_largest_and_smallest_numbers_are_compared(data: Path, column: str) -> None:
    least, most = -(1 << 63), (1 << 63) - 1
    for condition, rows in (
        (f"<= {most}", 316),
        (f"> {most}", 0),
        (f">= {least}", 316),
        (f"< {least}", 0),
        (f"IN ({least}, {most})", 0),
        (f"> {most} AND context = 'shop'", 0),
    ):
        statement = f"SELECT count(*) AS n FROM events WHERE {column} {condition}"
        assert sql(statement, "--data", data, "--output", "json") == (0, f'{{"n":{rows}}}\n', "")


def test_the_statement_may_come_by_standard_input(data: Path) -> None:
    out = sql("-", "--data", data, "--output", "json", stdin="SELECT count(*) AS n\nFROM events\n")[1]
    assert json.loads(out) == {"n": 316}
    done = sql("-", "--data", data, stdin=b"SELECT '\xff'")
    assert done == (2, "", "penstock: the statement on standard input is not UTF-8 (byte 9)\n")
    code, out, err = sql("-", "--data", data, stdin="-" * 2_000_000)
    assert (code, out) == (2, "")
    assert err == "penstock: the statement on standard input is longer than 1,048,576 bytes\n"


def test_a_server_and_a_store_by_url_answer_alike(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = ("SELECT count(*) AS n FROM events", "--output", "json")
    assert sql(*count, "--store", store_url(data)) == (0, '{"n":316}\n', "")
    with server(data) as served:
        assert sql(*count, "--url", served.url) == (0, '{"n":316}\n', "")
        monkeypatch.setenv("PENSTOCK_URL", served.url)
        assert sql(*count) == (0, '{"n":316}\n', "")
        monkeypatch.setenv("PENSTOCK_URL", "penstock://127.0.0.1:1")
        assert sql(*count, "--data", data) == (0, '{"n":316}\n', "")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["SELECT typ FROM events"], 1, 'line 1, column 8: binder error: Referenced column "typ" not found'),
        (["DELETE FROM events"], 1, "does more than read (DELETE)"),
        (["SELECT 1", "--output", "xml"], 2, "xml"),
        (["SELECT 1", "--file", "x.txt"], 2, "the suffix of 'x.txt' names no format"),
        (["SELECT 1", "--file", "x.csv", "--output", "table"], 2, "a table is for people"),
        (["SELECT 1", "--file", "/no/such/folder/x.csv"], 1, "no such file or directory"),
        (["SELECT 1", "--memory", "lots"], 2, "--memory is 'lots'"),
        (["SELECT 1", "--memory", "1 KiB"], 2, "--memory is '1 KiB'"),
        (["SELECT 1", "--temp", "/no/such/folder"], 2, "--temp is '/no/such/folder'"),
        (["SELECT 1", "--allow-dir", "/no/such/folder"], 2, "--allow-dir is '/no/such/folder'"),
        (["SELECT 1", "--allow-dir", ""], 2, "must not be empty"),
        (["FROM read_text('/etc/hostname')"], 1, 'must not read "/etc/hostname"; it reads only files below'),
        (["FROM enable_logging(storage='file')"], 1, "must not change DuckDB's setting enable_logging"),
        (["SELECT 1", "--url", "penstock://127.0.0.1:1"], 2, "only one of --url, --data and --store"),
        ([], 2, "missing argument"),
    ],
)
def test_a_mistake_is_one_line(data: Path, arguments: list[str], code: int, told: str) -> None:
    found, out, err = sql(*arguments, "--data", data)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert told in err


def test_a_mistake_in_the_middle_of_an_answer_is_one_line_and_leaves_no_file(data: Path, tmp_path: Path) -> None:
    statement = "SELECT CASE WHEN n = 90000 THEN 'x' ELSE '1' END::INT AS n FROM range(200000) r(n)"
    told = "penstock: statement line 1, column 49: conversion error: Could not convert string 'x' to INT32\n"
    for more in ((), ("--output", "csv"), ("--file", tmp_path / "out.parquet")):
        code, _, err = sql(statement, "--data", data, *more)
        assert (code, err) == (1, told)
    assert list(tmp_path.iterdir()) == []


def test_a_place_without_a_store_is_one_line(tmp_path: Path) -> None:
    for place in (("--data", tmp_path / "none"), ("--url", "penstock://127.0.0.1:1"), ("--store", "sqlite:///")):
        code, out, err = sql("SELECT 1", *place)
        assert (code in (1, 2), out, err.count("\n")) == (True, "", 1), err


def test_a_pipe_that_closes_early_ends_it_quietly(data: Path) -> None:
    process = started("SELECT n, n, n FROM range(10000000) r(n)", "--data", data, "--output", "json")
    assert process.stdout is not None
    assert process.stdout.readline() == b'{"n":0,"n_2":0,"n_3":0}\n'
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(PATIENCE_S) in (0, 1)


ENDLESS = "SELECT count(*) FROM events a, events b, events c, events d WHERE a.text || b.text < c.text || d.text"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_long_query_and_nothing_is_left(
    data: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = started(ENDLESS, "--data", data, "--temp", tmp_path)
    assert interrupted(process, tmp_path, number) == (code, b"", b"penstock: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_a_long_query_of_a_lake_and_nothing_is_left(data: Path, tmp_path: Path) -> None:
    archive(store_url(data), tmp_path / "lake")
    (temp := tmp_path / "temp").mkdir()
    command = [*PENSTOCK, "lake", "query", ENDLESS, "--lake", str(tmp_path / "lake"), "--temp", str(temp)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert interrupted(process, temp, signal.SIGTERM) == (143, b"", b"penstock: interrupted\n")
    assert list(temp.iterdir()) == []


def interrupted(process: subprocess.Popen[bytes], temp: Path, number: signal.Signals) -> tuple[int, bytes, bytes]:
    """Send a signal to a query that is under way; how it ends."""
    until(lambda: bool(list(temp.iterdir())), "the session")
    before = ticks(process)
    until(lambda: ticks(process) > before + 20, "the query")
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, err


def ticks(process: subprocess.Popen[bytes]) -> int:
    """The processor time that it has used, in hundredths of a second."""
    assert process.poll() is None, process.communicate()
    return int(Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11])
