"""Shared by the tests of SQL: rows to compare, and stores that are hard to get right."""

import uuid
from typing import Any, Final

import pyarrow as pa

from penstock.model import NewEvent, new_event
from penstock.model.times import TICKS_MAX, stamp_of
from penstock.sql import QueryResult

AWKWARD_TEXTS: Final = ("007", "a/b", "ü", 'o\'r "x" %_', "*", "1e3", "nul\u2028l", "\U0010ffff")


def plain_rows(answer: QueryResult) -> list[tuple[Any, ...]]:
    """Rows as tuples; times are microseconds, because some are before or after what Python has."""
    rows: list[tuple[Any, ...]] = []
    for batch in answer.batches():
        columns = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in batch.columns
        ]
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return rows


def awkward() -> list[tuple[str, str, list[NewEvent]]]:
    """Commits whose names and contents are hard to get right."""
    text = new_event("Told", "grün ☃".encode(), '{"user":"ä"}')
    named = [(name, name, [new_event("Named", name.encode())]) for name in AWKWARD_TEXTS]
    return [
        *named,
        ("a/b", "c=d/e", [new_event("Bytes", b"\xff\xfe\x00"), text, new_event("Ümläut", b"x" * 70_000)]),
        ("ü", "null", [text._replace(headers=None, id=uuid.uuid4().bytes)]),
        ("shop", "cbor", [new_event("cbor", b"\xa1\x61\x61\x01"), new_event("cbor", b"\xff")]),
        ("shop", "early", [text._replace(stamp=stamp_of(0), id=uuid.uuid4().bytes)]),
        ("shop", "late", [text._replace(stamp=stamp_of(TICKS_MAX), id=uuid.uuid4().bytes)]),
    ]
