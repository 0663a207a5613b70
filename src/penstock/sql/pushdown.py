"""Predicate pushdown: which rows a filter can let through, so that a scan reads no others.

An Arrow expression does not show its parts, but Arrow can write it as Substrait, whose messages are Protocol Buffers.
This module reads the few messages that filters of queries use. All others put no constraint on the rows. So constraints
are never too narrow. They may be too wide: the scan filters as well.

Field numbers are those of Substrait's `extended_expression.proto` and `algebra.proto`. The `substrait` package would
replace the reader of Protocol Buffers below, and bring four packages and a limit on the version of protobuf.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import takewhile
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.history.options import POSITION_MAX, ReadOptions
from penstock.model.events import check_context, check_stream
from penstock.model.times import TICKS_MAX, TICKS_PER_US, UNIX_EPOCH_TICKS

# --- constraints ----------------------------------------------------------------------------------------------


class ValueRange(NamedTuple):
    """Values between two, both included; None is no end.

    The upper end of a range of texts is a pair: the text, and whether the range includes it.
    """

    low: Any = None
    high: Any = None


@dataclass(frozen=True, slots=True)
class Constraints:
    """For some columns the range of their values, for some the set of their values."""

    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def __and__(self, other: "Constraints") -> "Constraints":
        ranges = {name: _intersect(self.range(name), other.range(name)) for name in {*self.ranges, *other.ranges}}
        common = self.values.keys() & other.values.keys()
        both = {name: self.values[name] & other.values[name] for name in common}
        return Constraints(ranges, {**self.values, **other.values, **both})

    def __or__(self, other: "Constraints") -> "Constraints":
        """Rows of either, and the values between them."""
        ranges = {name: _span(self.range(name), other.range(name)) for name in self.ranges.keys() & other.ranges.keys()}
        common = self.values.keys() & other.values.keys()
        return Constraints(ranges, {name: self.values[name] | other.values[name] for name in common})

    def range(self, column: str) -> ValueRange:
        return self.ranges.get(column, ValueRange())


NONE: Final = Constraints()


def _among(column: str, values: frozenset[Any]) -> Constraints:
    if not values:
        return NONE
    return Constraints({column: ValueRange(min(values), _up_to(max(values)))}, {column: values})


def _up_to(value: Any) -> Any:
    return value if isinstance(value, int) else (value, True)


_COMPARISONS: Final[dict[str, Callable[[str, Any], Constraints]]] = {
    "equal": lambda name, value: _among(name, frozenset([value])),
    "gt": lambda name, value: Constraints({name: ValueRange(low=value + 1 if isinstance(value, int) else value)}),
    "gte": lambda name, value: Constraints({name: ValueRange(low=value)}),
    "lt": lambda name, value: Constraints(
        {name: ValueRange(high=value - 1 if isinstance(value, int) else (value, False))}
    ),
    "lte": lambda name, value: Constraints({name: ValueRange(high=_up_to(value))}),
}


def _intersect(one: ValueRange, other: ValueRange) -> ValueRange:
    lows = [end for end in (one.low, other.low) if end is not None]
    highs = [end for end in (one.high, other.high) if end is not None]
    return ValueRange(max(lows, default=None), min(highs, default=None))


def _span(one: ValueRange, other: ValueRange) -> ValueRange:
    low = None if one.low is None or other.low is None else min(one.low, other.low)
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    return ValueRange(low, high)


# --- what to read ---------------------------------------------------------------------------------------------

_AFTER_SURROGATES: Final = 0xE000


def narrowed(options: ReadOptions, constraints: Constraints) -> ReadOptions:
    """Options that let all rows within constraints through, and as few others as they can."""
    low, high = constraints.range("position")
    contexts = constraints.values.get("context", frozenset())
    types = constraints.values.get("type")
    since, until = _intersect(constraints.range("ticks"), _ticks(constraints.range("timestamp")))
    return replace(
        options,
        context=next((name for name in contexts if len(contexts) == 1 and not check_context(name)), None),
        filter=_prefix(constraints.range("stream")),
        types=None if types is None else tuple(types),
        first=max(options.first, 1 if low is None else low),
        last=min(options.last, POSITION_MAX if high is None else high),
        since=None if since is None else _clipped(since),
        until=None if until is None else _clipped(until) + 1,
    )


def _prefix(streams: ValueRange) -> str:
    """The common prefix of all names in a range, if a name can begin with it."""
    if streams.low is None or streams.high is None:
        return ""
    high, is_included = streams.high
    if not is_included:
        # Names below `order.`, but not below `order-`, begin with `order-`.
        last = ord(high[-1]) if high else 0
        high = f"{high[:-1]}{chr(last - 1)}" if last and last != _AFTER_SURROGATES else high
    same = takewhile(lambda pair: pair[0] == pair[1], zip(streams.low, high, strict=False))
    common = "".join(letter for letter, _ in same)
    # As an option, a lone star means every stream.
    return "" if not common or common == "*" or check_stream(common) else common


def recorded_ticks(constraints: Constraints) -> ValueRange:
    """The ticks between which events can have been recorded."""
    return _ticks(constraints.range("recorded_at"))


def _ticks(micros: ValueRange) -> ValueRange:
    """The ticks of times that are cut to microseconds."""
    low, high = micros
    first = None if low is None else _clipped(low * TICKS_PER_US + UNIX_EPOCH_TICKS)
    last = None if high is None else _clipped((high + 1) * TICKS_PER_US - 1 + UNIX_EPOCH_TICKS)
    return ValueRange(first, last)


def _clipped(ticks: int) -> int:
    return min(max(ticks, -1), TICKS_MAX + 1)


# --- Substrait ------------------------------------------------------------------------------------------------

_EXTENSIONS, _REFERRED, _REFERRED_EXPRESSION = 2, 3, 1
_EXTENSION_FUNCTION, _FUNCTION_ANCHOR, _FUNCTION_NAME = 3, 2, 3
_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _OR_LIST = 1, 2, 3, 6, 8
_REFERENCE, _ARGUMENTS, _ARGUMENT_VALUE = 1, 4, 3
_DIRECT, _STRUCT_FIELD, _FIELD, _CHILD = 1, 2, 1, 2
_IFS, _ELSE, _IF, _THEN = 1, 2, 1, 2
_OR_VALUE, _OR_OPTIONS = 1, 2
_I64, _STRING, _BINARY, _TIMESTAMP_TZ, _NULL = 7, 12, 13, 27, 29


@dataclass(frozen=True, slots=True)
class ParsedFilter:
    """An expression, as far as this module understands it."""

    columns: frozenset[str] | None = None
    """The columns that it reads; None if they are unknown."""
    constraints: Constraints = NONE
    """Constraints that all rows meet for which it is true."""
    column: str | None = None
    """Its name, if it is a column."""
    literal: int | str | bytes | None = None
    """Its value, if it is a constant: a number, a text, bytes, or a time as microseconds since 1970."""
    is_null: bool = False


def parse_filter(expression: pc.Expression, schema: pa.Schema) -> ParsedFilter:
    """Read an expression over a table of this schema."""
    try:
        message = _Message(bytes(expression.to_substrait(schema)))
        functions = {}
        for extension in message.all(_EXTENSIONS):
            function = extension.one(_EXTENSION_FUNCTION)
            name = function.one(_FUNCTION_NAME).data.decode()
            functions[function.number(_FUNCTION_ANCHOR)] = name.partition(":")[0]
        return _parse(message.one(_REFERRED).one(_REFERRED_EXPRESSION), functions, schema.names)
    except (pa.ArrowException, AttributeError, LookupError, ValueError):
        return ParsedFilter()


def _parse(expression: "_Message", functions: Mapping[int, str], names: Sequence[str]) -> ParsedFilter:
    def parse(part: "_Message") -> ParsedFilter:
        return _parse(part, functions, names)

    kind = next(iter(expression.fields), None)
    if kind not in (_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _OR_LIST):
        return ParsedFilter()
    found = expression.one(kind)
    if kind == _LITERAL:
        return _parse_literal(found)
    if kind == _SELECTION:
        selected = found.one(_DIRECT).one(_STRUCT_FIELD)
        name = names[selected.number(_FIELD)]
        return ParsedFilter() if _CHILD in selected.fields else ParsedFilter(frozenset([name]), column=name)
    if kind == _FUNCTION:
        arguments = [parse(each.one(_ARGUMENT_VALUE)) for each in found.all(_ARGUMENTS)]
        return ParsedFilter(_columns(arguments), _constraints(functions[found.number(_REFERENCE)], arguments))
    if kind == _OR_LIST:
        value, options = parse(found.one(_OR_VALUE)), [parse(each) for each in found.all(_OR_OPTIONS)]
        literals = frozenset(option.literal for option in options)
        is_known = value.column is not None and None not in literals
        return ParsedFilter(_columns([value, *options]), _among(value.column or "", literals) if is_known else NONE)
    # `if X then Y else null` is true where both X and Y are.
    branches = found.all(_IFS)
    parts = [parse(branch.one(each)) for branch in branches for each in (_IF, _THEN)]
    otherwise = parse(found.one(_ELSE))
    is_and = len(branches) == 1 and otherwise.is_null
    return ParsedFilter(_columns([*parts, otherwise]), _constraints("and", parts) if is_and else NONE)


def _parse_literal(literal: "_Message") -> ParsedFilter:
    kind = next(iter(literal.fields))
    value = literal.fields[kind][0]
    if kind in (_I64, _TIMESTAMP_TZ) and isinstance(value, int):
        return ParsedFilter(frozenset(), literal=value - (1 << 64) if value >> 63 else value)
    if kind in (_STRING, _BINARY) and isinstance(value, bytes):
        return ParsedFilter(frozenset(), literal=value.decode() if kind == _STRING else value)
    return ParsedFilter(frozenset(), is_null=kind == _NULL)


def _columns(parts: Sequence[ParsedFilter]) -> frozenset[str] | None:
    found = [part.columns for part in parts]
    return None if None in found else frozenset[str]().union(*filter(None, found))


def _constraints(function: str, arguments: Sequence[ParsedFilter]) -> Constraints:
    if function in ("and", "or") and arguments:
        combine = Constraints.__and__ if function == "and" else Constraints.__or__
        return reduce(combine, (argument.constraints for argument in arguments))
    if function in _COMPARISONS and len(arguments) == 2:
        column, value = arguments[0].column, arguments[1].literal
        return NONE if column is None or value is None else _COMPARISONS[function](column, value)
    return NONE


# --- Protocol Buffers -----------------------------------------------------------------------------------------

_VARINT, _BYTES = 0, 2
_FIXED_BYTES: Final = {1: 8, 5: 4}


class _Message:
    """The fields of a message by number, in order. A field has a list of values."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def fields(self) -> dict[int, list[int | bytes]]:
        found: dict[int, list[int | bytes]] = {}
        for number, value in _fields(self.data):
            found.setdefault(number, []).append(value)
        return found

    def all(self, field: int) -> list["_Message"]:
        return [_Message(value) for value in self.fields.get(field, []) if isinstance(value, bytes)]

    def one(self, field: int) -> "_Message":
        return self.all(field)[0]

    def number(self, field: int) -> int:
        """A missing number is 0."""
        found: Any = self.fields.get(field, [0])[-1]
        return found if isinstance(found, int) else 0


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value, at = (_FIXED_BYTES[kind], at) if kind in _FIXED_BYTES else _varint(data, at)
        if kind == _VARINT:
            yield number, value
        elif kind == _BYTES or kind in _FIXED_BYTES:
            yield number, data[at : at + value]
            at += value
        else:
            raise ValueError(f"field {number} is of kind {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
