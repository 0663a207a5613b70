"""From stored events to rows of the table, without Spark's help."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest
from penstock.history.columns import COLUMNS, batch_of, between, json_of, stored_columns, table_batch
from penstock.model import NewEvent
from penstock.model.columns import columns_of
from penstock.model.times import TICKS_MASK, TICKS_MAX, datetime_of, stamp_of
from penstock.spark.source import TABLE, arrow_schema
from penstock.store.arrow import SCHEMA, record_batch
from penstock.store.record import Record, encode_commit
from penstock.wire.remits.cbor import check_message

EVENTS = st.builds(
    NewEvent,
    id=st.binary(min_size=16, max_size=16),
    stamp=st.builds(stamp_of, st.integers(0, TICKS_MAX), st.integers(0, 2)),
    type=st.sampled_from(["Made", "Sold", "grün"]),
    headers=st.none() | st.text(min_size=1, max_size=9),
    body=st.binary(max_size=9),
)
RECORDED = 638_500_000_000_000_123


def record(events: list[NewEvent]) -> Record:
    return Record(encode_commit(columns_of(events), 7, b"shop", "ü".encode(), 3, bytes(16), RECORDED), 7)


def shown_as_json(body: bytes) -> str:
    return json_of(body) if check_message(body) is None else ""


@given(st.lists(EVENTS, min_size=1, max_size=20))
def test_rows_say_what_the_events_say(events: list[NewEvent]) -> None:
    stored = record(events)
    rows = table_batch(record_batch([stored]), arrow_schema(TABLE)).to_pylist()
    for row, event in zip(rows, stored.events(), strict=True):
        assert row.pop("text") in (event.body.decode(errors="replace"), None, shown_as_json(event.body))
        assert row == {
            "position": event.position,
            "sequence": event.sequence,
            "context": "shop",
            "stream": "ü",
            "type": event.type,
            "headers": event.headers,
            "event_id": str(UUID(bytes=event.id)),
            "timestamp": event.timestamp,
            "recorded_at": datetime_of(RECORDED),
            "ticks": event.stamp & TICKS_MASK,
            "body": event.body,
        }


@given(st.lists(EVENTS, min_size=1, max_size=20), st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True))
def test_a_few_events_make_the_same_rows_as_records(events: list[NewEvent], columns: list[str]) -> None:
    stored, needed = record(events), stored_columns(columns)
    schema = arrow_schema(StructType([TABLE[name] for name in columns]))
    few = table_batch(batch_of(stored.events(), needed), schema)
    assert few.equals(table_batch(record_batch([stored], columns=needed), schema))
    assert few.schema.names == columns


def test_a_part_of_a_batch_makes_the_rows_of_that_part() -> None:
    events = [NewEvent(bytes([number]) * 16, stamp_of(number), "Made", None, b"%d" % number) for number in range(9)]
    batch = record_batch([record(events)])
    whole = table_batch(batch, arrow_schema(TABLE))
    assert table_batch(batch.slice(3, 4), arrow_schema(TABLE)).to_pylist() == whole.slice(3, 4).to_pylist()


def test_times_between_two_are_from_the_first_and_before_the_second() -> None:
    events = [NewEvent(bytes(16), stamp_of(ticks), "Made", None, b"") for ticks in (5, 1, 3, 2, 4)]
    batch = record_batch([record(events)], columns=["ticks"])
    assert between(batch, 2, 4)["ticks"].to_pylist() == [3, 2]
    assert between(batch, None, 2)["ticks"].to_pylist() == [1]
    assert between(batch, 5, None)["ticks"].to_pylist() == [5]


@pytest.mark.parametrize("ticks", [0, 9, 10, TICKS_MAX - 1, TICKS_MAX])
def test_the_first_and_the_last_time_there_is_have_a_place(ticks: int) -> None:
    batch = record_batch([record([NewEvent(bytes(16), stamp_of(ticks), "Made", None, b"")])])
    (row,) = table_batch(batch, arrow_schema(TABLE)).to_pylist()
    assert row["timestamp"] == datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)


def test_every_column_that_is_needed_is_stored() -> None:
    assert set(stored_columns(COLUMNS)) == set(SCHEMA.names) - {"commit"}
    assert stored_columns(["text", "body", "timestamp"]) == ["body", "type", "ticks"]


@pytest.mark.parametrize("ddl", [[("when", pa.int64())], [("position", pa.string())]])
def test_a_column_that_is_not_in_the_table_is_refused(ddl: list[tuple[str, pa.DataType]]) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    with pytest.raises(InvalidRequest, match="is not in the table"):
        arrow_schema(from_arrow_schema(pa.schema(ddl)))
