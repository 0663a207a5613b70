"""The options of a write, checked in one place, and what a table must have to be written.

What is wrong is InvalidRequest, which names the option or column as it is documented. docs/spark.md has the tables.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidRequest
from penstock.history.options import parsed, url
from penstock.model.events import check_name
from penstock.settings.table import choice, whole_number

FAIL: Final = "fail"
DIVERT: Final = "divert"
NUMBER_MAX: Final = (1 << 63) - 1
PRODUCER_BYTES_MAX: Final = 400
"""Bytes of a producer's name: those of its jobs begin with it, and have a query and a batch besides."""
_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
ORDERED: Final = (*_WHOLE, FloatType, DoubleType, DateType, TimestampType, TimestampNTZType, StringType, BinaryType)
"""Types of a column that `orderBy` can name."""

TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "context": (StringType,),
    "stream": (StringType,),
    "type": (StringType,),
    "body": (BinaryType,),
    "text": (StringType,),
    "headers": (StringType,),
    "event_id": (StringType, BinaryType),
    "timestamp": (TimestampType,),
    "ticks": (LongType,),
    "expected_version": _WHOLE,
}
"""The columns of a table that is written, and their types."""
REQUIRED: Final = ("context", "stream", "type")
GIVEN: Final = ("position", "sequence", "recorded_at")
"""Columns of a table that was read which a write leaves out: the store gives them."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Where and how to write."""

    url: str
    order_by: str | None = None
    bad_rows: str = FAIL
    bad_rows_path: str | None = None
    producer: str | None = None
    batch: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "WriteOptions":
        """The options of a write, from what Spark has."""
        options = cls(**parsed(given, _OPTIONS, _SPARKS_OWN))
        if (options.bad_rows == DIVERT) != (options.bad_rows_path is not None):
            raise InvalidRequest("option badRowsPath", "belongs to badRows=divert: say both, or neither")
        if options.batch is not None and options.producer is None:
            raise InvalidRequest("option batch", "is a number of a producer's: say producer too")
        return options


def _name(value: str) -> str:
    if reason := check_name(value):
        raise ValueError(reason)
    if (size := len(value.encode())) > PRODUCER_BYTES_MAX:
        raise ValueError(f"has {size} bytes; at most {PRODUCER_BYTES_MAX} are allowed")
    return value


def _column(value: str) -> str:
    if not value:
        raise ValueError("must be the name of a column")
    return value


def _folder(value: str) -> str:
    path = value.removeprefix("file://")
    if not path or "://" in path:
        raise ValueError("must be a directory that the driver and all executors see under this name")
    return path


def _number(value: str) -> int:
    number = whole_number(value)
    if not 0 <= number <= NUMBER_MAX:
        raise ValueError(f"must be a whole number from 0 to {NUMBER_MAX}")
    return number


_OPTIONS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "url": ("url", url),
    "orderBy": ("order_by", _column),
    "badRows": ("bad_rows", choice(FAIL, DIVERT)),
    "badRowsPath": ("bad_rows_path", _folder),
    "producer": ("producer", _name),
    "batch": ("batch", _number),
}
NAMES: Final = tuple(_OPTIONS)
"""The names of all options."""
_SPARKS_OWN: Final = ("checkpointlocation", "path", "queryname")
"""Options that Spark itself adds to a write."""


def check_table(schema: StructType, options: WriteOptions) -> None:
    """Refuse a table that cannot be written."""
    names = schema.fieldNames()
    for name in REQUIRED:
        if name not in names:
            raise InvalidRequest(f"column {name}", f"is missing; the table has {', '.join(names)}")
    if "body" not in names and "text" not in names:
        raise InvalidRequest("column body", f"is missing, and so is text; the table has {', '.join(names)}")
    if options.order_by is not None and options.order_by not in names:
        raise InvalidRequest("option orderBy", f"names {options.order_by!r}, which is no column of the table")
    for field in schema:
        _check_column(field.name, field.dataType, options)


def _check_column(name: str, kind: DataType, options: WriteOptions) -> None:
    if name == options.order_by and not isinstance(kind, ORDERED):
        raise InvalidRequest("option orderBy", f"names {name}, and {kind.simpleString()} is no type to order by")
    if name in TYPES and not isinstance(kind, TYPES[name]):
        wanted = " or ".join(one().simpleString() for one in TYPES[name])
        raise InvalidRequest(f"column {name}", f"is of type {kind.simpleString()}; it must be {wanted}")
    if name not in TYPES and name not in GIVEN and name != options.order_by:
        known = ", ".join(TYPES)
        raise InvalidRequest(f"column {name}", f"is not known; a table that is written has {known}")
