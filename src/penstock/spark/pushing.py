"""Filters of a query that become options of its read."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.history.columns import NULLABLE
from penstock.history.options import ReadOptions
from penstock.model.events import check_context, check_stream

ALL: Final = "*"
"""As an option this means every stream; in a query it is a text like any other, which no option can say."""


def push(options: ReadOptions, filters: Sequence[Filter]) -> tuple[ReadOptions, list[Filter]]:
    """Options narrowed by filters, and the filters that they do not do all of."""
    left = []
    for each in filters:
        options, is_done = _pushed(options, each)
        if not is_done:
            left.append(each)
    return options, left


def _pushed(options: ReadOptions, given: Filter) -> tuple[ReadOptions, bool]:
    """Options narrowed by one filter, and whether that is all of it."""
    match given:
        case EqualTo((column,), value) | EqualNullSafe((column,), value):
            return _among(options, column, (value,))
        case In((column,), values):
            return _among(options, column, values)
        case StringStartsWith(("stream",), str(prefix)):
            return _beginning(options, prefix), prefix != ALL
        case GreaterThan(("position",), int(value)):
            return _from(options, value + 1), True
        case GreaterThanOrEqual(("position",), int(value)):
            return _from(options, value), True
        case LessThan(("position",), int(value)):
            return _up_to(options, value - 1), True
        case LessThanOrEqual(("position",), int(value)):
            return _up_to(options, value), True
        case IsNotNull((column,)):
            return options, column not in NULLABLE
        case _:
            return options, False


def _among(options: ReadOptions, column: str, values: Sequence[Any]) -> tuple[ReadOptions, bool]:
    known = [value for value in values if value is not None]
    match column, known:
        case "type", _:
            types = known if options.types is None else [value for value in known if value in options.types]
            return replace(options, types=tuple(types)), True
        case "context", [context]:
            return _in_context(options, context), True
        case "stream", [stream]:
            # Other streams may begin with the same text.
            return _beginning(options, stream), False
        case "position", [position]:
            return _up_to(_from(options, position), position), True
        case _:
            return options, False


def _in_context(options: ReadOptions, context: str) -> ReadOptions:
    if options.context not in (None, context) or check_context(context):
        return _none(options)
    return replace(options, context=context)


def _beginning(options: ReadOptions, prefix: str) -> ReadOptions:
    given = "" if options.filter == ALL else options.filter
    if prefix == ALL or given.startswith(prefix):
        return options
    if not prefix.startswith(given) or check_stream(prefix):
        return _none(options)
    return replace(options, filter=prefix)


def _from(options: ReadOptions, position: int) -> ReadOptions:
    return replace(options, first=max(options.first, position))


def _up_to(options: ReadOptions, position: int) -> ReadOptions:
    return replace(options, last=min(options.last, position))


def _none(options: ReadOptions) -> ReadOptions:
    """Options that let nothing through."""
    return replace(options, last=0)
