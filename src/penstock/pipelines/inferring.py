"""Columns from a sample of bodies: which fields there are, of which type, and which of them every body has.

Where bodies disagree about a field, it gets the type that most of them have. Bodies that are no JSON objects count for
nothing. The order is the one in which fields were seen first.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.spark.body_schema import column_name

LONG_MAX: Final = (1 << 63) - 1
DECIMAL_MAX: Final = 10**38 - 1
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED: Final = frozenset(
    [
        "array",
        "struct",
        "map",
        "decimal",
        "interval",
        "timestamp",
        "date",
        "not",
        "null",
        "comment",
        "default",
        "generated",
    ]
)


@dataclass
class _Seen:
    """What one field, or one element of an array, was seen to be."""

    kinds: Counter[str] = field(default_factory=Counter)
    fields: dict[str, "_Seen"] = field(default_factory=dict)
    element: "_Seen | None" = None


@dataclass(frozen=True)
class Inferred:
    """Columns as DDL, a line for each; how many bodies were objects, and which fields the bodies disagree about.

    `unnamed` are fields that no column can be named after: their names cannot be written into a file that people edit,
    or the column would be called as another one.
    """

    columns: str
    objects: int
    disputed: tuple[str, ...]
    unnamed: tuple[str, ...] = ()


def infer(texts: Iterable[str | None]) -> Inferred:
    """The columns that fit most of these bodies."""
    top, count = _Seen(), 0
    for text in texts:
        body = _object(text)
        if body is not None:
            count += 1
            _note_fields(top, body)
    distinct = _distinct(top.fields)
    chosen = _named_apart(distinct)
    lines = [
        f"{_quoted(name)} {_ddl(seen)}{' NOT NULL' if _known(seen) == count else ''}" for name, seen in chosen.items()
    ]
    disputed = tuple(name for name, seen in chosen.items() if len(_merged(seen.kinds)) > 1)
    unnamed = [name for name in top.fields if not _is_writable(name) or (name in distinct and name not in chosen)]
    return Inferred(",\n".join(lines), count, disputed, tuple(unnamed))


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        body = json.loads(text) if text is not None else None
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _known(seen: _Seen) -> int:
    return sum(seen.kinds.values())


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
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return (
            "BIGINT" if -LONG_MAX <= value <= LONG_MAX else "DECIMAL(38,0)" if abs(value) <= DECIMAL_MAX else "DOUBLE"
        )
    return {float: "DOUBLE", str: "STRING", list: "ARRAY", dict: "STRUCT"}[type(value)]


def _merged(kinds: Mapping[str, int]) -> dict[str, int]:
    """Numbers are one kind: the widest of them."""
    merged = dict(kinds)
    for narrow, wide in (("BIGINT", "DECIMAL(38,0)"), ("BIGINT", "DOUBLE"), ("DECIMAL(38,0)", "DOUBLE")):
        if narrow in merged and wide in merged:
            merged[wide] += merged.pop(narrow)
    return merged


def _ddl(seen: _Seen) -> str:
    kinds = _merged(seen.kinds)
    if not kinds:
        # Nothing but null was seen: text is as good as anything.
        return "STRING"
    kind = max(kinds, key=lambda each: kinds[each])
    if kind == "ARRAY":
        return f"ARRAY<{_ddl(seen.element or _Seen())}>"
    if kind == "STRUCT":
        inner = ", ".join(f"{_quoted(name)}: {_ddl(each)}" for name, each in _distinct(seen.fields).items())
        # A struct without fields cannot be stored.
        return f"STRUCT<{inner}>" if inner else "VARIANT" if seen.fields else "MAP<STRING, STRING>"
    return kind


def _distinct(fields: Mapping[str, _Seen]) -> dict[str, _Seen]:
    """Without those that differ from an earlier one in case alone: Spark does not tell them apart."""
    found: dict[str, _Seen] = {}
    taken: set[str] = set()
    for name, seen in fields.items():
        if _is_writable(name) and name.lower() not in taken:
            found[name] = seen
            taken.add(name.lower())
    return found


def _is_writable(name: str) -> bool:
    """Whether a name can stand in a file that people edit, and be read again as it was."""
    return bool(name) and name.isprintable()


def _named_apart(fields: dict[str, _Seen]) -> dict[str, _Seen]:
    """Without fields that are called as the column of another one is, which is named like one of the table."""
    taken = {column_name(name).lower() for name in fields if column_name(name) != name}
    return {name: seen for name, seen in fields.items() if column_name(name) != name or name.lower() not in taken}


def _quoted(name: str) -> str:
    if _PLAIN.fullmatch(name) and name.lower() not in _RESERVED:
        return name
    return "`" + name.replace("`", "``") + "`"
