"""Functions for notebooks: events as a DataFrame, and the bodies of one type of event as columns."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest
from penstock.model.times import text_of_ticks, ticks_of_time

VARIANT: Final = object()
"""Makes `typed` return bodies as Spark's VARIANT, which needs no schema."""
SAMPLE_EVENTS: Final = 1000
DATA: Final = "data"
_CONTENT: Final = ("body", "text")


def events(spark: SparkSession, url: str, *, context: str | None = None, **options: Any) -> DataFrame:
    """The events of a history, or of one of its contexts, as a DataFrame.

    The options are those of `spark.read.format("penstock")`. Their values may be lists and datetimes.
    """
    given: dict[str, str] = {}
    for name, value in {"url": url, "context": context, **options}.items():
        if isinstance(value, datetime):
            given[name] = text_of_ticks(ticks_of_time(value, name))
        elif isinstance(value, Iterable) and not isinstance(value, str):
            given[name] = ",".join(value)
        elif value is not None:
            given[name] = str(value)
    return spark.read.format("penstock").options(**given).load()


def typed(df: DataFrame, type: str, schema_or_sample: StructType | str | int | object = SAMPLE_EVENTS) -> DataFrame:
    """The events of one type, with the fields of their JSON bodies as columns instead of `body` and `text`.

    The fields are those of a schema (a StructType, or its DDL). Given a number, they are the fields of so many events,
    in the order of their names. A field whose name is a column of the table becomes `body_NAME`. With VARIANT there is
    one column `data` of that type. A body that is no JSON, or does not fit, fails the query.
    """
    chosen = df.where(f.col("type") == type)
    content = f.col("text") if "text" in df.columns else f.col("body").cast("string")
    kept = [name for name in df.columns if name not in _CONTENT]
    if schema_or_sample is VARIANT:
        return chosen.select(*kept, f.parse_json(content).alias(DATA))
    schema = _schema(chosen.select(content), type, schema_or_sample)
    data = f.from_json(content, schema, {"mode": "FAILFAST"})
    rows, taken = chosen.select(*kept, data.alias(DATA)), {name.lower() for name in kept}
    names = {name: f"body_{name}" if name.lower() in taken else name for name in schema.fieldNames()}
    return rows.select(*kept, *(f.col(DATA).getField(name).alias(alias) for name, alias in names.items()))


def _schema(contents: DataFrame, type: str, given: StructType | str | int | object) -> StructType:
    if isinstance(given, StructType):
        return given
    if isinstance(given, str):
        return cast("StructType", StructType.fromDDL(given))
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidRequest("schema_or_sample", f"is {given!r}; give a schema, a number of events, or VARIANT")
    if contents.isStreaming:
        raise InvalidRequest("schema_or_sample", "must be a schema or VARIANT: a stream has no sample")
    schema = contents.sparkSession.read.json(contents.limit(given), mode="FAILFAST").schema
    if not schema.fields:
        raise InvalidRequest("schema_or_sample", f"finds no fields: there are no events of type {type}")
    return schema
