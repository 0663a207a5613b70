"""Filters of Arrow as trees.

An Arrow expression does not show what it is made of, but it can be written down as Substrait, whose messages are
Protocol Buffers. The few of them that the filters of a query come to are read here; anything else is `Other`, which
says nothing about the rows that pass. So nothing depends on how much of a filter is understood but how much is read.

The numbers of fields are those of Substrait's `extended_expression.proto` and `algebra.proto`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


class Column(NamedTuple):
    """A column of the table."""

    name: str


class Literal(NamedTuple):
    """A constant: a number, a text, bytes, a time as microseconds since 1970, or None."""

    value: int | str | bytes | None


class Call(NamedTuple):
    """A function of some values: `equal`, `gt`, `and`, ..."""

    function: str
    arguments: tuple["Node", ...]


class Among(NamedTuple):
    """Whether a value is one of some others."""

    value: "Node"
    options: tuple["Node", ...]


class Other(NamedTuple):
    """Something else, of these columns."""

    columns: frozenset[str] | None = None
    """None if they are not known either."""


Node = Column | Literal | Call | Among | Other


def tree(expression: pc.Expression, schema: pa.Schema) -> Node:
    """What an expression over a table of this schema is made of."""
    try:
        message = _Message(bytes(expression.to_substrait(schema)))
        return _Reader(message, schema.names).node(message.one(_REFERRED).one(_REFERRED_EXPRESSION))
    except (pa.ArrowException, AttributeError, LookupError, ValueError):
        return Other()


def columns_of(node: Node) -> frozenset[str] | None:
    """The columns that a filter looks at; None if that is not known."""
    match node:
        case Column(name):
            return frozenset([name])
        case Literal():
            return frozenset()
        case Other(columns):
            return columns
        case Call(_, parts):
            return _joined(parts)
        case Among(value, options):
            return _joined((value, *options))


def _joined(nodes: Sequence[Node]) -> frozenset[str] | None:
    found: frozenset[str] = frozenset()
    for node in nodes:
        columns = columns_of(node)
        if columns is None:
            return None
        found |= columns
    return found


# -- Substrait

_EXTENSIONS, _REFERRED, _REFERRED_EXPRESSION = 2, 3, 1
_EXTENSION_FUNCTION, _FUNCTION_ANCHOR, _FUNCTION_NAME = 3, 2, 3
_LITERAL, _SELECTION, _FUNCTION, _IF_THEN, _OR_LIST = 1, 2, 3, 6, 8
_REFERENCE, _ARGUMENTS, _ARGUMENT_VALUE = 1, 4, 3
_DIRECT, _STRUCT_FIELD, _FIELD, _CHILD = 1, 2, 1, 2
_IFS, _ELSE, _IF, _THEN = 1, 2, 1, 2
_I64, _STRING, _BINARY, _TIMESTAMP_TZ, _NULL = 7, 12, 13, 27, 29


@dataclass(frozen=True, slots=True)
class _Reader:
    message: "_Message"
    names: Sequence[str]

    def node(self, expression: "_Message") -> Node:
        """An expression."""
        if not expression.fields:
            return Other()
        kind, _ = expression.fields[0]
        read = {
            _LITERAL: self._literal,
            _SELECTION: self._column,
            _FUNCTION: self._call,
            _IF_THEN: self._condition,
            _OR_LIST: self._among,
        }.get(kind)
        return Other() if read is None else read(expression.one(kind))

    def _column(self, selection: "_Message") -> Node:
        field = selection.one(_DIRECT).one(_STRUCT_FIELD)
        if field.has(_CHILD):
            return Other()
        return Column(self.names[field.number(_FIELD)])

    def _literal(self, literal: "_Message") -> Node:
        kind, value = literal.fields[0]
        if kind in (_I64, _TIMESTAMP_TZ) and isinstance(value, int):
            return Literal(value - (1 << 64) if value >> 63 else value)
        if kind in (_STRING, _BINARY) and isinstance(value, bytes):
            return Literal(value.decode() if kind == _STRING else value)
        return Literal(None) if kind == _NULL else Other(frozenset())

    def _call(self, function: "_Message") -> Node:
        arguments = [self.node(each.one(_ARGUMENT_VALUE)) for each in function.all(_ARGUMENTS)]
        return Call(self._name(function.number(_REFERENCE)), tuple(arguments))

    def _name(self, anchor: int) -> str:
        for extension in self.message.all(_EXTENSIONS):
            function = extension.one(_EXTENSION_FUNCTION)
            if function.number(_FUNCTION_ANCHOR) == anchor:
                return function.bytes(_FUNCTION_NAME).decode().partition(":")[0]
        raise KeyError(anchor)

    def _condition(self, condition: "_Message") -> Node:
        """`if X then Y else null` passes where both X and Y are true."""
        branches = condition.all(_IFS)
        parts = tuple(self.node(branch.one(each)) for branch in branches for each in (_IF, _THEN))
        otherwise = self.node(condition.one(_ELSE))
        if len(branches) == 1 and otherwise == Literal(None):
            return Call("and", parts)
        return Other(_joined((*parts, otherwise)))

    def _among(self, listed: "_Message") -> Node:
        value, options = 1, 2
        return Among(self.node(listed.one(value)), tuple(self.node(each) for each in listed.all(options)))


# -- Protocol Buffers

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_FIXED: Final = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class _Message:
    """The fields of a message, in order: the number of each, and what it holds."""

    def __init__(self, data: bytes) -> None:
        self.fields: list[tuple[int, int | bytes]] = list(_fields(data))

    def has(self, field: int) -> bool:
        return any(number == field for number, _ in self.fields)

    def all(self, field: int) -> list["_Message"]:
        return [_Message(value) for number, value in self.fields if number == field and isinstance(value, bytes)]

    def one(self, field: int) -> "_Message":
        return self.all(field)[0]

    def bytes(self, field: int) -> bytes:
        return next(value for number, value in self.fields if number == field and isinstance(value, bytes))

    def number(self, field: int) -> int:
        """A number that is not there is 0."""
        found: Any = [value for number, value in self.fields if number == field and isinstance(value, int)]
        return found[-1] if found else 0


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
        else:
            size, at = (_FIXED[kind], at) if kind in _FIXED else _varint(data, at)
            if kind not in (*_FIXED, _BYTES):
                raise ValueError(f"field {number} is of kind {kind}")
            yield number, data[at : at + size]
            at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
