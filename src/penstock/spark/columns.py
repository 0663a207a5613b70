"""The table as Spark has it."""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import InvalidRequest
from penstock.history import columns

TABLE: Final = from_arrow_schema(columns.TABLE, prefer_timestamp_ntz=False)
"""All columns, in order."""


def table_with(columns: Iterable[str]) -> StructType:
    """The schema of a table with these columns."""
    return StructType([TABLE[name] for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of a read for Arrow. One that a program has given must have columns of the table, with their types."""
    for field in schema:
        if field.name not in columns.COLUMNS or TABLE[field.name].dataType != field.dataType:
            raise InvalidRequest(f"column {field.name}", f"of type {field.dataType.simpleString()} is not in the table")
    return to_arrow_schema(schema, timezone="UTC")
