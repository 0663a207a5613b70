"""The writers of the sink without Spark around them: what tasks stage, what a driver publishes, what is left behind."""

import json
import os
import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest, LimitExceeded, PenstockError, StageLost, StoreInUse
from penstock.event_json import NotPlain
from penstock.spark import sink, stages
from penstock.spark.body_schema import schema_of
from penstock.spark.sink import PenstockStreamWriter, PenstockWriter, WriteOptions
from penstock.spark.source import PenstockSource
from penstock.store import open_store, store_url
from penstock.store.sqlite import SqliteStore
from penstock.testing import server
from tests.postgres import Schemas
from tests.spark.sink_targets import SQLITE, Target
from tests.spark.support import PATIENCE_S, counted, fill, history, until

TICKS = 638_500_000_000_000_123
ROW = {"context": "shop", "stream": "s", "type": "T", "text": "{}"}


def table(texts: Any, **more: Any) -> pa.RecordBatch:
    """Rows of one stream."""
    columns = {name: pa.array([value] * len(texts)) for name, value in ROW.items() if name != "text"}
    return pa.RecordBatch.from_pydict({**columns, "text": texts, **more})


def options(place: Path, **given: Any) -> WriteOptions:
    return WriteOptions.of({"url": store_url(place), **{name: str(value) for name, value in given.items()}})


def save(where: WriteOptions, *batches: pa.RecordBatch) -> None:
    """Write a table of one task, as Spark does."""
    writer = PenstockWriter(where)
    try:
        message = writer.write(iter(batches))
        writer.commit([message])
    except Exception:
        writer.abort([None])
        raise


def bodies(place: Path) -> list[bytes]:
    return [event.body for event in history(place)]


def bad_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def not_utf8() -> pa.Array:
    """Two texts, the second of which is none: Spark hands such values on."""
    offsets, data = b"\0\0\0\0\1\0\0\0\2\0\0\0", b"a\xff"
    return pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


# -- attempts


def test_of_two_attempts_of_a_task_the_one_that_won_is_published(data: Path) -> None:
    writer = PenstockWriter(options(data))
    # Each attempt is in a process of its own.
    told = [pickle.loads(pickle.dumps(writer)).write(iter([table([f"{which} 0"])])) for which in ("lost", "won")]
    pickle.loads(pickle.dumps(writer)).commit([told[1]])
    assert bodies(data) == [b"won 0"]
    assert not (data / "staging").exists()


def test_files_that_the_driver_does_not_see_fail_the_job(data: Path) -> None:
    writer = PenstockWriter(options(data))
    told = writer.write(iter([table(["one"])]))
    shutil.rmtree(data / "staging")
    with pytest.raises(StageLost):
        writer.commit([told])
    assert history(data) == []


def test_a_publication_that_fails_leaves_nothing_in_the_store(data: Path) -> None:
    fill(data, [("shop", "s", counted(2))])
    with pytest.raises(Exception, match="expected 1; nothing was written"):
        save(options(data), table(["x"] * 100, expected_version=[1] * 100))
    assert Target(SQLITE, store_url(data), data).staged() == []
    assert not (data / "staging").exists()


def test_files_of_drivers_that_were_killed_go_after_a_day(data: Path) -> None:
    fill(data, [])
    for name, age_s in (("old", 2 * stages.IDLE_S_MAX), ("new", 0.0)):
        folder = data / "staging" / name
        folder.mkdir(parents=True)
        (folder / "0-a").touch()
        make_old(folder, age_s)
    writer = PenstockWriter(options(data))
    told = writer.write(iter([table(["a"])]))
    (own,) = {*(data / "staging").iterdir()} - {data / "staging" / "old", data / "staging" / "new"}
    make_old(own, 2 * stages.IDLE_S_MAX)
    writer.commit([told])
    assert bodies(data) == [b"a"]
    assert [path.name for path in (data / "staging").iterdir()] == ["new"]


def make_old(folder: Path, age_s: float) -> None:
    """Let a folder and its files look as if nothing had been added for so long."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - age_s,) * 2)


# -- producers


def stream_batch(where: WriteOptions, query: str, batch: int, *texts: str) -> None:
    """A batch of a query."""
    message = sink._stage(where, sink._job_of(where, query, str(batch)), iter([table([*texts])]))
    PenstockStreamWriter(where).commit([message], batch)


def test_a_batch_of_another_query_is_no_repetition_but_refused(data: Path) -> None:
    where = options(data, producer="copier")
    stream_batch(where, "first", 0, "1", "2")
    with pytest.raises(InvalidRequest, match="producer copier has published number 0 from another origin") as caught:
        stream_batch(where, "second", 0, "1", "2", "3")
    assert "use another producer name" in str(caught.value)
    stream_batch(where, "first", 0, "replayed")
    stream_batch(where, "first", 1, "3")
    assert bodies(data) == [b"1", b"2", b"3"]


def test_a_table_does_not_pass_for_a_batch_of_a_query(data: Path) -> None:
    stream_batch(options(data, producer="p"), "query", 0, "1")
    with pytest.raises(InvalidRequest, match="producer p"):
        save(options(data, producer="p", batch=0), table(["2"]))
    assert bodies(data) == [b"1"]


def test_a_table_with_a_producer_needs_a_number(data: Path) -> None:
    with pytest.raises(InvalidRequest, match="option producer needs a number for each table; set batch too"):
        PenstockWriter(options(data, producer="nightly"))


def test_a_producers_name_leaves_room_for_those_of_its_jobs(data: Path) -> None:
    with pytest.raises(InvalidRequest, match="at most 400"):
        options(data, producer="p" * 401)


def test_a_job_with_a_number_is_written_once(data: Path) -> None:
    for batch in (1, 1, 2, 2):
        save(options(data, producer="nightly", batch=batch), table([f"{batch}"] * 10))
    assert len(history(data)) == 20
    with pytest.raises(PenstockError, match="nightly"):
        save(options(data, producer="nightly", batch=1), table(["1"] * 10))
    assert len(history(data)) == 20


def test_an_expected_version_that_holds_is_written(data: Path) -> None:
    fill(data, [("shop", "s", counted(2))])
    save(options(data), table(["a", "b"], expected_version=[3, 3]))
    assert [event.sequence for event in history(data)] == [1, 2, 3, 4]


# -- options, columns and the order


SCHEMA = "context string, stream string, type string, text string"


def writer_of(
    data: Path, schema: str, given: Mapping[str, str] | None = None, *, overwrite: bool = False
) -> PenstockWriter:
    """What Spark gets that wants to write a table."""
    columns = StructType.fromJson(schema_of(schema))
    return PenstockSource({"url": store_url(data), **(given or {})}).writer(columns, overwrite)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"orderby": "nothing"}, "option orderBy names 'nothing', which is no column of the table"),
        ({"badRows": "hide"}, "option badRows is 'hide': it must be one of fail, divert"),
        ({"badRows": "divert"}, "option badRowsPath belongs to badRows=divert"),
        ({"badRows": "divert", "badRowsPath": "s3://b/x"}, "option badRowsPath is 's3://b/x'"),
        ({"batch": "1"}, "option batch is the number of a producer's table"),
        ({"producer": "p"}, "option producer needs a number for each table"),
        ({"producer": "p", "batch": "-1"}, "option batch is '-1'"),
        ({"ordreBy": "at"}, "did you mean orderBy?"),
    ],
)
def test_options_are_checked(data: Path, given: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        writer_of(data, SCHEMA, given)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (SCHEMA.replace("stream string, ", ""), "column stream is missing"),
        (SCHEMA.replace(", text string", ""), "column body is missing, and so is text"),
        (f"{SCHEMA}, more int", "column more is unknown"),
        (SCHEMA.replace("type string", "type int"), "column type is of type int; it must be string"),
    ],
)
def test_the_table_is_checked(data: Path, schema: str, reason: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        writer_of(data, schema)
    assert reason in str(caught.value)


def test_a_history_is_never_overwritten(data: Path) -> None:
    with pytest.raises(InvalidRequest, match="a history only grows"):
        writer_of(data, SCHEMA, overwrite=True)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ORDERS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "bigint": (pa.int64(), lambda number: number),
    "double": (pa.float64(), lambda number: number / 3),
    "timestamp": (pa.timestamp("us", "UTC"), lambda number: EPOCH + timedelta(microseconds=number)),
    "date": (pa.date32(), lambda number: (EPOCH + timedelta(days=number)).date()),
    "string": (pa.string(), lambda number: f"{number + 250:06d}"),
    "binary": (pa.binary(), lambda number: b"%06d" % (number + 250)),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_a_column_of_any_of_these_types_gives_the_order(data: Path, kind: str) -> None:
    (type, made), numbers = ORDERS[kind], [*range(-250, 250)]
    Random(7).shuffle(numbers)
    halves = [numbers[:200], numbers[200:]]
    save(
        options(data, orderBy="at"),
        *(table([f"{at}" for at in half], at=pa.array(map(made, half), type)) for half in halves),
    )
    assert [int(body) for body in bodies(data)] == [*range(-250, 250)]


# -- bad rows


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("context", "", "column context"),
        ("context", "remits", "column context is remits"),
        ("stream", None, "column stream is null"),
        ("type", None, "column type is null"),
        ("text", None, "column text is null"),
        ("event_id", "no uuid", "column event_id is 'no uuid', which is no UUID"),
        ("expected_version", 0, "column expected_version is 0"),
    ],
)
def test_what_is_bad_is_named(data: Path, column: str, value: Any, reason: str) -> None:
    kind = pa.int64() if column == "expected_version" else pa.string()
    columns = {name: pa.array([each], pa.string()) for name, each in ROW.items()}
    with pytest.raises(InvalidRequest) as caught:
        save(options(data), pa.RecordBatch.from_pydict({**columns, column: pa.array([value], kind)}))
    assert reason in str(caught.value)


def test_a_job_whose_bad_rows_the_driver_does_not_see_adds_nothing(data: Path, tmp_path: Path) -> None:
    url, aside = fill(data, []), tmp_path / "bad"
    writer = PenstockWriter(WriteOptions.of({"url": url, "badRows": "divert", "badRowsPath": str(aside)}))
    told = writer.write(iter([table(["a", None])]))
    shutil.rmtree(aside)
    with pytest.raises(InvalidRequest, match="option badRowsPath"):
        writer.commit([told])
    assert history(data) == []


def test_a_table_that_is_written_again_shows_its_bad_rows_once(data: Path, tmp_path: Path) -> None:
    where = options(data, badRows="divert", badRowsPath=tmp_path / "bad", producer="a/b", batch=1)
    for _ in range(2):
        save(where, table(["a", None]))
    save(options(data, badRows="divert", badRowsPath=tmp_path / "bad", producer="a_b", batch=1), table([None, "c"]))
    assert bodies(data) == [b"a", b"c"]
    assert sorted(bad["row"] for bad in bad_rows(tmp_path / "bad")) == [0, 1]
    save(where, table(["a"]))
    assert [bad["row"] for bad in bad_rows(tmp_path / "bad")] == [0]


def test_text_that_is_not_utf8_is_a_bad_row(data: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="row 1 of partition 0: column text is not UTF-8"):
        save(options(data), table(not_utf8()))
    save(options(data, badRows="divert", badRowsPath=tmp_path / "bad"), table(not_utf8()))
    assert bodies(data) == [b"a"]
    (bad,) = bad_rows(tmp_path / "bad")
    assert (bad["column"], bad["reason"], bad["values"]["text"]) == ("text", "is not UTF-8", "ff")


def test_ticks_alone_are_an_event_time(data: Path) -> None:
    save(options(data), table(["a"], ticks=[TICKS]))
    assert [event.ticks for event in history(data)] == [TICKS]
    for wrong in (-1, 1 << 62):
        with pytest.raises(InvalidRequest, match="column ticks is not within the years 1 to 9999"):
            save(options(data), table(["a"], ticks=[wrong]))


# -- limits


def test_a_servers_limits_are_the_sinks(tmp_path: Path) -> None:
    limits = {"event_bytes_max": "1KiB", "commit_bytes_max": "64KiB", "commit_events_max": 100}
    with server(tmp_path / "data", **limits) as served:
        where = {"url": served.url, "badRows": "divert", "badRowsPath": str(tmp_path / "bad")}
        save(WriteOptions.of(where), table(["x" * 900] * 300 + ["x" * 1024]))
        assert len(history(tmp_path / "data")) == 300
    (bad,) = bad_rows(tmp_path / "bad")
    assert (bad["row"], bad["column"]) == (300, "text")
    assert bad["reason"] == "makes an event of 1025 bytes; 1024 are the most"


def test_a_job_may_stage_only_so_much_where_others_write_too(
    schemas: Schemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(schemas.url(tmp_path), [])
    monkeypatch.setattr(sink, "UNIT_EVENTS_MAX", 1)
    monkeypatch.setattr(stages.StoreStages.__init__, "__defaults__", ((1 << 20, 3),))
    with pytest.raises(LimitExceeded, match="stage_units_max"):
        save(WriteOptions(url), table(["x"] * 4))
    save(WriteOptions(url), table(["x"] * 3))
    assert len(history(url)) == 3


def test_what_a_task_holds_is_bounded_by_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "BUFFERED_BYTES_MAX", 64_000)
    units = sink.UnitBuilder(None, lambda _bad: None, 1 << 20)
    names = [f"s{number}" for number in range(99)]
    assert list(units.add(table(["{}"] * 99).set_column(1, "stream", pa.array(names)))) == []
    assert len(list(units.add(table(["{}"])))) == 100
    assert list(units.flush()) == []


ID = "6f1f0e0c-5b0a-4f39-9a6c-3d0f4d1d8a11"
CELLS: dict[str, list[Any]] = {
    "context": ["shop", "shop", "crm", "", None, "remits"],
    "stream": ["s", "s", "t", "", None, "s" * 600],
    "type": ["T", "T", "Ü", "", None, "a\0"],
    "body": [b"", b"{}", b"\xff", None, b"x" * 90],
    "text": ["", "{}", "ü", None],
    "headers": [None, "", "h", "ü"],
    "event_id": [ID, ID, ID.upper(), "", "x"],
    "ticks": [TICKS, TICKS, 0, -1, 1 << 62],
    "expected_version": [None, None, None, -1, 1, 2, 0],
    "order": [1.5, 1.5, -0.0, 2.0, float("nan"), None],
}
KINDS = {"body": pa.binary(), "ticks": pa.int64(), "expected_version": pa.int64(), "order": pa.float64()}


@given(
    st.data(), st.sampled_from([None, "order"]), st.lists(st.sampled_from(["body", "text"]), min_size=1, unique=True)
)
def test_rows_are_staged_alike_many_at_a_time_and_one_by_one(
    data: st.DataObject, order_by: str | None, content: list[str]
) -> None:
    names = [name for name in CELLS if name not in ("body", "text") or name in content]
    rare = data.draw(st.integers(0, 3))
    # Most values are the first one, so that most batches have few bad rows, or none.
    batches = [
        pa.RecordBatch.from_pydict(
            {
                name: pa.array(
                    [data.draw(st.sampled_from(CELLS[name])) if rare == 3 else CELLS[name][0] for _ in range(3)],
                    KINDS.get(name, pa.string()),
                )
                if data.draw(st.integers(0, 4))
                else pa.array(data.draw(st.permutations(CELLS[name]))[:3], KINDS.get(name, pa.string()))
                for name in names
            }
        )
        for _ in range(2)
    ]

    def staged() -> tuple[list[Any], list[Any]]:
        bad: list[Any] = []
        units = sink.UnitBuilder(order_by, lambda row: bad.append(repr(row)), 64)
        found = [unit for batch in batches for unit in units.add(batch)]
        return [*found, *units.flush()], bad

    def refuse(*_: object) -> None:
        raise NotPlain

    quick = staged()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink.UnitBuilder, "_plain_rows", refuse)
        assert staged() == quick


# -- owners


def test_a_store_that_somebody_else_owns_is_refused_with_advice(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "OWNER_S_MAX", 0.1)
    with closing(SqliteStore(data)) as owner:
        with pytest.raises(InvalidRequest, match="is of a store in use") as caught:
            save(options(data), table(["a"]))
        assert owner.head() == 0
    assert "penstock://HOST:PORT" in str(caught.value)
    assert not (data / "staging").exists()


def test_a_driver_waits_while_another_job_is_published(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[StoreInUse] = []

    def opened(*given: Any, **more: Any) -> Any:
        try:
            return open_store(*given, **more)
        except StoreInUse as error:
            refused.append(error)
            raise

    monkeypatch.setattr(stages, "OWNER_S_MAX", float(PATIENCE_S))
    monkeypatch.setattr(stages, "open_store", opened)
    with ThreadPoolExecutor(1) as pool:
        with closing(SqliteStore(data)):
            writing = pool.submit(save, options(data), table(["a"]))
            until(lambda: bool(refused), "waiting")
        writing.result()
    assert bodies(data) == [b"a"]
