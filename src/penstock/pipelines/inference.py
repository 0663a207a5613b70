"""Columns from a sample of bodies: fields, their types, and whether every body has them.

If bodies disagree about a field, it gets the type that most of them have. Bodies that are no JSON objects do not count.
Fields keep the order in which they were first seen. The sample has some bodies of each type of event, from the end and
the beginning of the history.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.history.columns import TABLE
from penstock.history.options import ReadOptions
from penstock.history.ranges import ReadPartition, read_range
from penstock.history.source import Now, open_history
from penstock.model import AUDIT_CONTEXT
from penstock.spark.body_schema import column_name

LONG_MAX: Final = (1 << 63) - 1
DECIMAL_MAX: Final = 10**38 - 1
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = re.compile(
    r"array|struct|map|decimal|interval|timestamp|date|not|null|comment|default|generated", re.IGNORECASE
)


@dataclass
class _Seen:
    """The types seen of a field, or of an element of an array."""

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, "_Seen"] = field(default_factory=dict)
    element: "_Seen | None" = None


@dataclass(frozen=True)
class Inferred:
    """Columns as DDL, one line each; how many bodies were objects, and which fields the bodies disagree about.

    `unnamed` are fields without a column: their names are not printable, or clash with another column.
    """

    columns: str
    objects: int
    disputed: tuple[str, ...]
    unnamed: tuple[str, ...] = ()


def infer(texts: Iterable[str | None]) -> Inferred:
    """The columns that fit most of these bodies."""
    top, count = _Seen(), 0
    for text in texts:
        try:
            body = json.loads(text) if text is not None else None
        except (ValueError, RecursionError):
            continue
        if isinstance(body, dict):
            count += 1
            _note_fields(top, body)
    distinct = _distinct(top.fields)
    # Leave out fields whose names clash with another field's column `body_NAME`.
    taken = {column_name(name).lower() for name in distinct if column_name(name) != name}
    chosen = {name: seen for name, seen in distinct.items() if column_name(name) != name or name.lower() not in taken}
    lines = [
        f"{_quoted(name)} {_ddl(seen)}{' NOT NULL' if seen.kinds.total() == count else ''}"
        for name, seen in chosen.items()
    ]
    disputed = tuple(name for name, seen in chosen.items() if len(_merged(seen.kinds)) > 1)
    unnamed = [name for name in top.fields if not _is_writable(name) or (name in distinct and name not in chosen)]
    return Inferred(",\n".join(lines), count, disputed, tuple(unnamed))


def _note(seen: _Seen, value: Any) -> None:
    if value is None:
        return
    seen.kinds[_kind(value)] += 1
    if isinstance(value, dict):
        _note_fields(seen, value)
    elif isinstance(value, list):
        seen.element = seen.element or _Seen()
        for each in value:
            _note(seen.element, each)


def _note_fields(seen: _Seen, value: Mapping[str, Any]) -> None:
    for name, each in value.items():
        _note(seen.fields.setdefault(name, _Seen()), each)


def _kind(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LONG_MAX:
        return "DECIMAL(38,0)" if abs(value) <= DECIMAL_MAX else "DOUBLE"
    kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", str: "STRING", list: "ARRAY", dict: "STRUCT"}
    return kinds[type(value)]


def _merged(kinds: Mapping[str, int]) -> dict[str, int]:
    """Merge types of numbers into the widest of them."""
    merged = dict(kinds)
    for narrow, wide in (("BIGINT", "DECIMAL(38,0)"), ("BIGINT", "DOUBLE"), ("DECIMAL(38,0)", "DOUBLE")):
        if narrow in merged and wide in merged:
            merged[wide] += merged.pop(narrow)
    return merged


def _ddl(seen: _Seen) -> str:
    kinds = _merged(seen.kinds)
    if not kinds:
        # Only null was seen.
        return "STRING"
    kind = max(kinds, key=lambda each: kinds[each])
    if kind == "ARRAY":
        return f"ARRAY<{_ddl(seen.element or _Seen())}>"
    if kind == "STRUCT":
        inner = ", ".join(f"{_quoted(name)}: {_ddl(each)}" for name, each in _distinct(seen.fields).items())
        # Parquet cannot store a struct without fields.
        return f"STRUCT<{inner}>" if inner else "VARIANT" if seen.fields else "MAP<STRING, STRING>"
    return kind


def _distinct(fields: Mapping[str, _Seen]) -> dict[str, _Seen]:
    """Fields without those that differ from an earlier one only in case: Spark does not distinguish them."""
    found: dict[str, _Seen] = {}
    taken: set[str] = set()
    for name, seen in fields.items():
        if _is_writable(name) and name.lower() not in taken:
            found[name] = seen
            taken.add(name.lower())
    return found


def _is_writable(name: str) -> bool:
    """Whether a name can be written into a file for people, and read again."""
    return bool(name) and name.isprintable()


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


SAMPLE_EVENTS: Final = 1000
"""Events of each type in the sample, by default."""
LOOKED_AT_MAX: Final = 100_000
"""Positions to sample at the end of a history, and at its beginning."""
_COLUMNS: Final = ("context", "type", "text")
_SCHEMA: Final = pa.schema([TABLE.field(name) for name in _COLUMNS])


@dataclass(frozen=True)
class Sample:
    """The bodies of each type, and the number of positions that were not read."""

    texts: dict[str, list[str | None]]
    unseen: int


def sample(url: str, context: str | None, types: Sequence[str] | None, events: int = SAMPLE_EVENTS) -> Sample:
    """Some bodies of each type; of all types, or of these."""
    given = {"url": url, "context": context, "type": ",".join(types) if types else None}
    options = ReadOptions.of({name: value for name, value in given.items() if value is not None})
    with closing(open_history(url)) as history:
        now = history.now()
    texts: dict[str, list[str | None]] = {}
    ranges = list(_ranges(now))
    for part in ranges:
        for batch in read_range(options, _SCHEMA, part):
            for found_in, type, text in zip(*(batch[name].to_pylist() for name in _COLUMNS), strict=True):
                # What administrators did is no subject of a pipeline, unless it asks for it.
                if found_in == AUDIT_CONTEXT != context:
                    continue
                found = texts.setdefault(type, [])
                if len(found) < events:
                    found.append(text)
    return Sample(texts, now.head - sum(part.last - part.first + 1 for part in ranges))


def _ranges(now: Now) -> Iterator[ReadPartition]:
    """The end comes first, because recent events matter more."""
    end = max(1, now.head - LOOKED_AT_MAX + 1)
    if now.head:
        yield ReadPartition(now.identity, end, now.head, 0, now.head + 1)
    if end > 1:
        last = min(LOOKED_AT_MAX, end - 1)
        yield ReadPartition(now.identity, 1, last, 0, last + 1)
