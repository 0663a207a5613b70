"""Functions for the transformations of a pipeline: events of one type as typed columns, and events that do not fit.

Each event is checked once: `judged` adds the reason why it fits no table. `accepted` returns the events of a type
without a reason, `rejected` those with one. Neither checks again, so an event is in exactly one of them even if columns
change in between. `fitting` and `misfits` do both steps. docs/pipelines.md is the guide.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.body_schema import KEPT, body_check, column_name, schema_of

__all__ = ["accepted", "fitting", "judged", "misfits", "rejected"]

QUARANTINED: Final = ("position", "context", "stream", "type", "event_id", "timestamp", "recorded_at", "body", "text")
"""Columns of events in the quarantine, before the reason."""
REASON: Final = "reason"
UNREADABLE: Final = "Spark's JSON reader does not take the body"
_CORRUPT: Final = "__corrupt"
_DATA: Final = "__data"


def judged(df: DataFrame, tables: Mapping[str, str | StructType], ignored: Collection[str] = ()) -> DataFrame:
    """The events with the reason why each fits no table, or null. `tables` has the columns of each type.

    Events of other types have a reason too, and ignored types are left out. `body` is null unless there is a reason:
    `text` is enough for the others.
    """
    schemas = {type: _schema(columns) for type, columns in tables.items()}
    rows = df.where(~f.col("type").isin(list(ignored))) if ignored else df
    rows = rows.select(*KEPT, "type", "body", "text", _reason(schemas).alias(REASON))
    body = f.when(f.col(REASON).isNotNull(), f.col("body")).alias("body")
    return rows.select(*KEPT, "type", body, "text", REASON)


def accepted(df: DataFrame, type: str, columns: str | StructType) -> DataFrame:
    """Of judged events, those of a type that fit, with their fields as columns instead of `body` and `text`.

    `columns` is a schema or its DDL; a NOT NULL field must be there. A field whose name is a column of the table
    becomes `body_NAME`.
    """
    # While a program defines a pipeline, its tables have no columns yet, so this must not query the DataFrame.
    schema = _schema(columns)
    chosen = df.where((f.col("type") == type) & f.col(REASON).isNull())
    fields = (f.col(_DATA).getField(name).alias(column_name(name)) for name in schema.fieldNames())
    return chosen.select(*KEPT, _data(schema).alias(_DATA)).select(*KEPT, *fields)


def rejected(df: DataFrame) -> DataFrame:
    """Of judged events, those that fit no table, each with the reason."""
    return df.where(f.col(REASON).isNotNull()).select(*QUARANTINED, REASON)


def fitting(df: DataFrame, type: str, columns: str | StructType) -> DataFrame:
    """The events of a type whose bodies fit, as `accepted` returns them."""
    return accepted(judged(df.where(f.col("type") == type), {type: columns}), type, columns)


def misfits(df: DataFrame, tables: Mapping[str, str | StructType], ignored: Collection[str] = ()) -> DataFrame:
    """The events that fit none of the tables, each with the reason. `tables` has the columns of each type."""
    return rejected(judged(df, tables, ignored))


def _schema(columns: str | StructType) -> StructType:
    # `StructType.fromDDL` asks Spark, which a program that defines a pipeline must not do.
    schema = columns if isinstance(columns, StructType) else StructType.fromJson(schema_of(columns))
    body_check(schema.jsonValue())
    return schema


def _reason(schemas: Mapping[str, StructType]) -> Column:
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
    """The check of bodies as a function of columns."""

    def problems(types: pa.Array, texts: pa.Array) -> pa.Array:
        checks = {type: body_check(schema) for type, schema in schemas.items()}
        found = [
            checks[type](text) if type in checks else f"type {type} has no table"
            for type, text in zip(types.to_pylist(), texts.to_pylist(), strict=True)
        ]
        return pa.array(found, pa.string())

    return arrow_udf(problems, StringType())
