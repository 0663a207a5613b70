"""What notebooks need: events as a DataFrame, and the bodies of one type of event as columns."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest

VARIANT: Final = object()
"""For `typed`: bodies as Spark's VARIANT, which needs no schema."""
SAMPLE_EVENTS: Final = 1000
DATA: Final = "data"
_CONTENT: Final = ("body", "text")


def events(spark: SparkSession, url: str, *, context: str | None = None, **options: Any) -> DataFrame:
    """The events of a history, or of one of its contexts, as a DataFrame.

    The options are those of `spark.read.format("penstock")`; lists and datetimes may be given as such.
    """
    given = {name: value for name, value in {"url": url, "context": context, **options}.items() if value is not None}
    return spark.read.format("penstock").options(**{name: _option(value) for name, value in given.items()}).load()


def _option(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(value)
    return str(value)


def typed(df: DataFrame, type: str, schema_or_sample: StructType | str | int | object = SAMPLE_EVENTS) -> DataFrame:
    """The events of one type, with the fields of their JSON bodies as columns instead of `body` and `text`.

    The fields are those of a schema (a StructType, or its DDL), or those that so many of the events have, in the order
    of their names. A field that is named like a column of the table gets the name `body_NAME`. With VARIANT there is
    one column `data` of that type. A body that is no JSON, or does not fit, fails the query.
    """
    chosen = df.where(f.col("type") == type)
    content = f.col("text") if "text" in df.columns else f.col("body").cast("string")
    kept = [name for name in df.columns if name not in _CONTENT]
    if schema_or_sample is VARIANT:
        return chosen.select(*kept, f.parse_json(content).alias(DATA))
    schema = _schema(chosen.select(content), type, schema_or_sample)
    data = f.from_json(content, schema, {"mode": "FAILFAST"})
    rows = chosen.select(*kept, data.alias(DATA))
    return rows.select(*kept, *_fields(schema, kept))


def _fields(schema: StructType, kept: list[str]) -> list[Column]:
    taken = {name.lower() for name in kept}
    names = {name: f"body_{name}" if name.lower() in taken else name for name in schema.fieldNames()}
    return [f.col(DATA).getField(name).alias(alias) for name, alias in names.items()]


def _schema(contents: DataFrame, type: str, given: StructType | str | int | object) -> StructType:
    if isinstance(given, StructType):
        return given
    if isinstance(given, str):
        schema = StructType.fromDDL(given)
        assert isinstance(schema, StructType)
        return schema
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidRequest("schema_or_sample", f"is {given!r}: say a schema, how many events to look at, or VARIANT")
    if contents.isStreaming:
        raise InvalidRequest("schema_or_sample", "must be a schema or VARIANT: of a stream no sample can be taken")
    schema = contents.sparkSession.read.json(contents.limit(given), mode="FAILFAST").schema
    if not schema.fields:
        raise InvalidRequest("schema_or_sample", f"finds no fields: there are no events of type {type} to look at")
    return schema
