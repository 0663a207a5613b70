"""What the transformations of a pipeline need: events of one type as typed columns, and those that do not fit.

Each event is judged once: `judged` adds the reason why it fits no table. `accepted` has the events of a type without
one, `rejected` those with one; neither judges again, so that an event is in the one or in the other, whatever happens
to columns in between. `fitting` and `misfits` do both steps at once. docs/pipelines.md is the guide.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.bodies import KEPT, body_check, column_name
from penstock.spark.ddl import schema_of

__all__ = ["accepted", "fitting", "judged", "misfits", "rejected"]

QUARANTINED: Final = ("position", "context", "stream", "type", "event_id", "timestamp", "recorded_at", "body", "text")
"""Columns of events that the quarantine has; the reason comes after them."""
REASON: Final = "reason"
UNREADABLE: Final = "Spark's JSON reader does not take the body"
_CORRUPT: Final = "__corrupt"
_DATA: Final = "__data"


def judged(df: DataFrame, tables: Mapping[str, str | StructType], ignored: Collection[str] = ()) -> DataFrame:
    """The events with the reason why each fits no table, or null. Tables are given as columns by type.

    Events of other types have a reason too, but for those that are ignored: they are left out. `body` is there if there
    is a reason: `text` is enough for the others.
    """
    schemas = {type: _schema(columns) for type, columns in tables.items()}
    rows = df.where(~f.col("type").isin(list(ignored))) if ignored else df
    rows = rows.select(*KEPT, "type", "body", "text", _reason(schemas).alias(REASON))
    body = f.when(f.col(REASON).isNotNull(), f.col("body")).alias("body")
    return rows.select(*KEPT, "type", body, "text", REASON)


def accepted(df: DataFrame, type: str, columns: str | StructType) -> DataFrame:
    """Of events that are judged, those of a type that fit, with their fields as columns instead of `body` and `text`.

    `columns` is a schema or its DDL; a field that is NOT NULL must be there. A field that is named like a column of the
    table gets the name `body_NAME`.
    """
    # While a pipeline is defined its tables have no columns yet: nothing may be asked of the DataFrame.
    schema = _schema(columns)
    chosen = df.where((f.col("type") == type) & f.col(REASON).isNull())
    return chosen.select(*KEPT, _data(schema).alias(_DATA)).select(*KEPT, *_fields(schema))


def rejected(df: DataFrame) -> DataFrame:
    """Of events that are judged, those that fit no table, each with the reason."""
    return df.where(f.col(REASON).isNotNull()).select(*QUARANTINED, REASON)


def fitting(df: DataFrame, type: str, columns: str | StructType) -> DataFrame:
    """The events of a type whose bodies fit, as `accepted` has them."""
    return accepted(judged(df.where(f.col("type") == type), {type: columns}), type, columns)


def misfits(df: DataFrame, tables: Mapping[str, str | StructType], ignored: Collection[str] = ()) -> DataFrame:
    """The events that are in none of the tables, which are given as columns by type, each with the reason."""
    return rejected(judged(df, tables, ignored))


def _schema(columns: str | StructType) -> StructType:
    # Spark would have to be asked to read DDL, which it may not be while a pipeline is defined.
    schema = columns if isinstance(columns, StructType) else StructType.fromJson(schema_of(columns))
    body_check(schema.jsonValue())
    return schema


def _reason(schemas: Mapping[str, StructType]) -> Column:
    """Why an event is in no table; null if it is in one."""
    unread = f.lit(None).cast("string")
    for type, schema in schemas.items():
        corrupt = _data(schema).getField(_CORRUPT).isNotNull()
        unread = f.when((f.col("type") == type) & corrupt, f.lit(UNREADABLE)).otherwise(unread)
    checks = {type: schema.jsonValue() for type, schema in schemas.items()}
    return f.coalesce(_problem(checks)(f.col("type"), f.col("text")), unread)


def _data(schema: StructType) -> Column:
    with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    return f.from_json(f.col("text"), with_corrupt, options)


def _problem(schemas: Mapping[str, Mapping[str, Any]]) -> Any:
    """The check of bodies, as a function for columns."""

    def problems(types: pa.Array, texts: pa.Array) -> pa.Array:
        checks = {type: body_check(schema) for type, schema in schemas.items()}
        found = [
            checks[type](text) if type in checks else f"type {type} has no table"
            for type, text in zip(types.to_pylist(), texts.to_pylist(), strict=True)
        ]
        return pa.array(found, pa.string())

    return arrow_udf(problems, StringType())


def _fields(schema: StructType) -> list[Column]:
    return [f.col(_DATA).getField(name).alias(column_name(name)) for name in schema.fieldNames()]
