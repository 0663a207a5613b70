"""Taking a request's payload apart: one CBOR map of simple values, and for Message Add the messages.

Nothing is built but what is wanted: keys that nobody knows are skipped with their values. A value that is null counts
as not given.
"""

from collections.abc import Mapping
from typing import Any, Final

from penstock.wire.remits.codes import LIMIT, NOT_BINARY, UNREADABLE_PAYLOAD, Refused
from penstock.wire.remits.scanning import BREAK, SHORT, NotAnItem, argument, end_of, simple_value

FIELDS_MAX: Final = 100
"""Keys of a payload, the unknown ones included."""
FIELD_ITEMS_MAX: Final = 1000
"""Items in one value of a payload; `messages` has its own limit."""
MESSAGES: Final = "messages"

_INT64: Final = range(-(1 << 63), 1 << 63)
_ARRAY: Final = 4
_BYTES: Final = 2
_MAP: Final = 5
_INDEFINITE: Final = 31
_WHAT: Final = {
    type(None): "missing",
    bool: "true or false",
    int: "a number",
    str: "a text",
    bytes: "a byte string",
    list: "an array",
}


class Fields:
    """The values of a payload by their names."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, *names: str) -> str:
        """A text that must be there, under one of these names."""
        value = self._one(names)
        if not isinstance(value, str):
            raise Refused(UNREADABLE_PAYLOAD, f"{names[0]} is {_what(value)}; it must be a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A text, if it is there."""
        return None if self._values.get(name) is None else self.text(name)

    def number(self, name: str) -> int:
        """A number of 64 bits that must be there."""
        value = self._values.get(name)
        if type(value) is not int or value not in _INT64:
            raise Refused(UNREADABLE_PAYLOAD, f"{name} is {_what(value)}; it must be an integer of 64 bits")
        return value

    def flag(self, name: str) -> bool:
        """True or false; false if it is not there."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise Refused(UNREADABLE_PAYLOAD, f"{name} is {_what(value)}; it must be true or false")
        return bool(value)

    def messages(self) -> list[bytes]:
        """Those of `messages`, or the one of `message`."""
        value = self._one((MESSAGES, "message"))
        if isinstance(value, list):
            return value
        if value is None or self._values.get(MESSAGES) is not None:
            raise Refused(UNREADABLE_PAYLOAD, f"messages is {_what(value)}; it must be an array")
        if not isinstance(value, bytes):
            raise Refused(NOT_BINARY, f"message is {_what(value)}; it must be a byte string")
        return [value]

    def _one(self, names: tuple[str, ...]) -> Any:
        """The value under one of the names, or None."""
        given = [value for name in names if (value := self._values.get(name)) is not None]
        if len(given) > 1:
            raise Refused(UNREADABLE_PAYLOAD, f"{' and '.join(names)} are the same field, and both are given")
        return given[0] if given else None


def read_fields(payload: bytes, known: frozenset[str], messages_max: int) -> Fields:
    """The payload of a request, as far as its keys are known."""
    try:
        values, end = _read_map(payload, known, messages_max)
    except NotAnItem as error:
        raise Refused(UNREADABLE_PAYLOAD, f"the payload is not CBOR: {error}") from None
    if end != len(payload):
        raise Refused(UNREADABLE_PAYLOAD, f"the payload ends at byte {end}, and more follows")
    return Fields(values)


def _read_map(payload: bytes, known: frozenset[str], messages_max: int) -> tuple[dict[str, Any], int]:
    count, at = _opened(payload, 0, _MAP, "the payload")
    if count is not None and count > FIELDS_MAX:
        raise Refused(UNREADABLE_PAYLOAD, f"the payload has {count} keys; at most {FIELDS_MAX} are read")
    values: dict[str, Any] = {}
    for _ in range(FIELDS_MAX if count is None else count):
        if count is None and payload[at : at + 1] == bytes([BREAK]):
            return values, at + 1
        at = _read_field(payload, at, known, messages_max, values)
    return values, at if count is not None else _ended(payload, at)


def _read_field(payload: bytes, at: int, known: frozenset[str], messages_max: int, values: dict[str, Any]) -> int:
    name, at = simple_value(payload, at, FIELD_ITEMS_MAX)
    if not isinstance(name, str) or name not in known:
        return end_of(payload, at, FIELD_ITEMS_MAX)
    if name in values:
        raise Refused(UNREADABLE_PAYLOAD, f"{name} is there twice")
    if name == MESSAGES and at < len(payload) and payload[at] >> 5 == _ARRAY:
        values[name], at = read_messages(payload, at, messages_max)
    else:
        values[name], at = simple_value(payload, at, FIELD_ITEMS_MAX)
    return at


def read_messages(data: bytes, at: int, messages_max: int) -> tuple[list[bytes], int]:
    """An array of byte strings, and where it ends. The hot loop of Message Add: the usual lengths are read in place."""
    count, at = _opened(data, at, _ARRAY, MESSAGES)
    if count is not None and count > messages_max:
        raise Refused(LIMIT, f"messages has {count} messages; at most {messages_max} are allowed")
    messages: list[bytes] = []
    size = len(data)
    while len(messages) != count:
        if at >= size:
            raise NotAnItem(SHORT)
        head = data[at]
        if head == 0x58 and at + 1 < size:
            start = at + 2
            end = start + data[at + 1]
            message = data[start:end]
        elif 0x40 <= head < 0x58:
            start = at + 1
            end = start + head - 0x40
            message = data[start:end]
        elif head == BREAK and count is None:
            return messages, at + 1
        else:
            message, end = _unusual_message(data, at, len(messages))
        if end > size:
            raise NotAnItem(SHORT)
        if len(messages) == messages_max:
            raise Refused(LIMIT, f"messages has more than {messages_max} messages")
        messages.append(message)
        at = end
    return messages, at


def _unusual_message(data: bytes, at: int, index: int) -> tuple[bytes, int]:
    if data[at] >> 5 != _BYTES:
        raise Refused(NOT_BINARY, f"message {index} is not a byte string")
    message, end = simple_value(data, at, FIELD_ITEMS_MAX)
    assert isinstance(message, bytes)
    return message, end


def _opened(data: bytes, at: int, kind: int, what: str) -> tuple[int | None, int]:
    """How many entries a map or array has (None: up to a break), and where the first begins."""
    if at >= len(data):
        raise NotAnItem(SHORT)
    if data[at] >> 5 != kind:
        raise Refused(UNREADABLE_PAYLOAD, f"{what} is no {'map' if kind == _MAP else 'array'}")
    return (None, at + 1) if data[at] & 31 == _INDEFINITE else argument(data, at)


def _ended(data: bytes, at: int) -> int:
    """Past the break that must be here."""
    if data[at : at + 1] != bytes([BREAK]):
        raise NotAnItem(SHORT if at >= len(data) else "it has too many entries")
    return at + 1


def _what(value: Any) -> str:
    """A wrong value in a sentence, without what it holds: that may be long."""
    return _WHAT.get(type(value), "something else")
