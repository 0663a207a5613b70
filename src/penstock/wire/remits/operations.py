"""Remits' operations: one table from request frames to requests, and from replies to answer frames.

Nothing that arrives makes `decode` raise: every mistake becomes an answer with its code. The engine checks names. A
payload is one CBOR map of simple values, and for Message Add the messages. Unknown keys are skipped with their values,
and null counts as absent.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
from cbor2 import dumps

from penstock import model
from penstock.errors import FunctionFailed, PenstockError
from penstock.model import IteratorKind, Reply, Request, unix_ns_of
from penstock.wire.codes import RemitsCode, codes_of
from penstock.wire.remits.cbor import BREAK, SHORT, NotAnItem, argument, end_of, simple_value
from penstock.wire.remits.frames import DATA, ERROR, INFO, LENGTH_MAX, LENGTH_MIN, REQUEST, Frame, Rejected, pack

MESSAGES_MAX: Final = 10_000
"""Messages in one Message Add, by default."""
FIELDS_MAX: Final = 100
"""Keys of a payload, with the unknown ones."""
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
DETAIL_CHARACTERS_MAX: Final = 4096
"""How much of a function's error the client gets; the function chooses its text."""

_ITEM_LENGTH: Final = Struct(">I")
_OK: Final = pack(INFO, 0, dumps("ok"))

Write = Callable[[Any], bytes]
"""Makes the answer to a request from a reply of its kind."""


class Exchange(msgspec.Struct, frozen=True):
    """A decoded frame: its request, and how the reply becomes a frame.

    A frame that is rejected has no request: `answer()` is its answer at once. `refused` is the reason for logs; the
    client gets the code's name.
    """

    request: Request | None
    write: Write
    refused: str | None = None

    def answer(self, reply: Reply | PenstockError | None = None) -> bytes:
        """The finished frame, from the reply to the request or from its error."""
        return error_frame(reply) if isinstance(reply, PenstockError) else self.write(reply)


class Key(NamedTuple):
    """A field of a payload: its reader, the names that it may have, and the attribute of the request."""

    read: Callable[..., Any]
    names: tuple[str, ...]
    attribute: str


@dataclass(frozen=True)
class Operation:
    """An operation: its name, its request, the fields of its payload, and how its reply becomes a frame."""

    name: str
    request: type[Request]
    keys: tuple[Key, ...]
    write: Write
    empty: bool = False
    ignored: bool = False

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(name for key in self.keys for name in key.names)

    def read(self, values: Mapping[str, Any]) -> Request:
        return self.request(**{key.attribute: key.read(values, *key.names) for key in self.keys})


def decode(frame: Frame, messages_max: int = MESSAGES_MAX) -> Exchange:
    """Decode a frame. `messages_max`: how many messages one Message Add may have."""
    try:
        if frame.kind in (INFO, DATA, ERROR):
            sentence = f"a frame of kind {frame.kind} is an answer; only requests are accepted"
            raise Rejected(sentence, RemitsCode.ServerOnlyAcceptsRequests)
        if frame.kind != REQUEST:
            raise Rejected(f"there is no frame of kind {frame.kind}", RemitsCode.UnknownFrameKind)
        operation = OPERATIONS.get(frame.code)
        if operation is None:
            raise Rejected(f"there is no request {frame.code}", RemitsCode.UnknownRequestCode)
        is_empty = operation.ignored or (operation.empty and not frame.payload)
        values = {} if is_empty else read_payload(frame.payload, operation.known, messages_max)
        request = operation.read(values)
    except Rejected as rejected:
        answer = refusal_frame(rejected.code)
        return Exchange(None, lambda _reply: answer, rejected.reason)
    return Exchange(request, operation.write)


# --- payloads ---------------------------------------------------------------------------------------------------


def _text(values: Mapping[str, Any], *names: str) -> str:
    value = _one(values, *names)
    if not isinstance(value, str):
        raise _wrong(names[0], value, "a text")
    return value


def _text_or_none(values: Mapping[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else _text(values, name)


def _number(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if type(value) is not int or value not in _INT64:
        raise _wrong(name, value, "an integer of 64 bits")
    return value


def _count(values: Mapping[str, Any], name: str) -> int:
    count = _number(values, name)
    if count < 0:
        raise Rejected(f"{name} is {count}; it must be 0 or more")
    return count


def _flag(values: Mapping[str, Any], name: str) -> bool:
    """True or false; false if it is absent."""
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return bool(value)


def _kind(values: Mapping[str, Any], *names: str) -> IteratorKind:
    try:
        return IteratorKind(_text(values, *names))
    except ValueError:
        raise Rejected(f"{names[0]} must be one of {', '.join(IteratorKind)}") from None


def _messages(values: Mapping[str, Any], many: str, one: str) -> tuple[bytes, ...]:
    """An array of messages, or a single one, as they came. The engine checks that they are CBOR."""
    value = _one(values, many, one)
    if isinstance(value, list):
        return tuple(value)
    if value is None or values.get(many) is not None:
        raise _wrong(many, value, "an array")
    if not isinstance(value, bytes):
        raise _wrong(one, value, "a byte string", RemitsCode.MsgFieldNotOfTypeBinary)
    return (value,)


def _one(values: Mapping[str, Any], *names: str) -> Any:
    """The value under one of the names, or None."""
    given = [value for name in names if (value := values.get(name)) is not None]
    if len(given) > 1:
        raise Rejected(f"{' and '.join(names)} are the same field, and both are given")
    return given[0] if given else None


def _wrong(name: str, value: object, wanted: str, code: RemitsCode = RemitsCode.CouldNotReadPayload) -> Rejected:
    """The reason leaves the value's content out, which may be long."""
    return Rejected(f"{name} is {_WHAT.get(type(value), 'something else')}; it must be {wanted}", code)


def read_payload(payload: bytes, known: frozenset[str], messages_max: int) -> dict[str, Any]:
    try:
        values, end = _read_map(payload, known, messages_max)
    except NotAnItem as error:
        raise Rejected(f"the payload is not CBOR: {error}") from None
    if end != len(payload):
        raise Rejected(f"the payload ends at byte {end}, and more follows")
    return values


def _read_map(payload: bytes, known: frozenset[str], messages_max: int) -> tuple[dict[str, Any], int]:
    count, at = _opened(payload, 0, _MAP, "the payload")
    if count is not None and count > FIELDS_MAX:
        raise Rejected(f"the payload has {count} keys; at most {FIELDS_MAX} are read")
    values: dict[str, Any] = {}
    for _ in range(FIELDS_MAX if count is None else count):
        if count is None and payload[at : at + 1] == bytes([BREAK]):
            return values, at + 1
        at = _read_field(payload, at, known, messages_max, values)
    if count is None:
        if payload[at : at + 1] != bytes([BREAK]):
            raise NotAnItem(SHORT if at >= len(payload) else "it has too many entries")
        at += 1
    return values, at


def _read_field(payload: bytes, at: int, known: frozenset[str], messages_max: int, values: dict[str, Any]) -> int:
    name, at = simple_value(payload, at, FIELD_ITEMS_MAX)
    if not isinstance(name, str) or name not in known:
        return end_of(payload, at, FIELD_ITEMS_MAX)
    if name in values:
        raise Rejected(f"{name} is there twice")
    if name == MESSAGES and at < len(payload) and payload[at] >> 5 == _ARRAY:
        values[name], at = read_messages(payload, at, messages_max)
    else:
        values[name], at = simple_value(payload, at, FIELD_ITEMS_MAX)
    return at


def read_messages(data: bytes, at: int, messages_max: int) -> tuple[list[bytes], int]:
    """An array of byte strings, and where it ends. The hot loop of Message Add: the usual lengths are read in place."""
    count, at = _opened(data, at, _ARRAY, MESSAGES)
    if count is not None and count > messages_max:
        raise Rejected(f"messages has {count} messages; at most {messages_max} are allowed", RemitsCode.LimitExceeded)
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
            if head >> 5 != _BYTES:
                raise Rejected(f"message {len(messages)} is not a byte string", RemitsCode.MsgFieldNotOfTypeBinary)
            message, end = simple_value(data, at, FIELD_ITEMS_MAX)
        if end > size:
            raise NotAnItem(SHORT)
        if len(messages) == messages_max:
            raise Rejected(f"messages has more than {messages_max} messages", RemitsCode.LimitExceeded)
        messages.append(message)
        at = end
    return messages, at


def _opened(data: bytes, at: int, kind: int, what: str) -> tuple[int | None, int]:
    """The number of entries of a map or array (None: up to a break), and where the first begins."""
    if at >= len(data):
        raise NotAnItem(SHORT)
    if data[at] >> 5 != kind:
        raise Rejected(f"{what} is no {'map' if kind == _MAP else 'array'}")
    return (None, at + 1) if data[at] & 31 == _INDEFINITE else argument(data, at)


# --- answers ----------------------------------------------------------------------------------------------------


def item_payload(items: Iterable[bytes]) -> bytes:
    """Items, each after its length: the payload of a Data frame. Workers call it."""
    length = _ITEM_LENGTH.pack
    return b"".join([part for item in items for part in (length(len(item)), item)])


def error_frame(error: PenstockError) -> bytes:
    """An Error frame: the name of the error's code, and the text of errors in functions."""
    return refusal_frame(codes_of(error)[1], str(error) if isinstance(error, FunctionFailed) else "")


def refusal_frame(code: int, detail: str = "") -> bytes:
    name = RemitsCode(code).name
    text = f"{name}: {detail[:DETAIL_CHARACTERS_MAX]}" if detail else name
    # A function's text need not be Unicode.
    return pack(ERROR, code, dumps(text.encode(errors="replace").decode()))


def write_done(_reply: Reply) -> bytes:
    return _OK


def write_summary(reply: model.LogSummary) -> bytes:
    """Log Show: one map."""
    shown = {
        "name": reply.log,
        "created_at": unix_ns_of(reply.created) // 1_000_000_000,
        "message_count": reply.messages,
        "bytes": reply.size_bytes,
        "iterators": reply.iterators,
    }
    return _data(item_payload([dumps(shown)]))


def write_array(reply: model.Names) -> bytes:
    """Log List: one item, an array of names."""
    return _data(item_payload([dumps(reply.names)]))


def write_each(reply: model.Names) -> bytes:
    """Iterator List: one item per name."""
    return _data(item_payload(map(dumps, reply.names)))


def write_items(reply: model.ItemPage) -> bytes:
    """Iterator Next: one item per message. A worker may have encoded them."""
    return _data(item_payload(reply.items) if reply.encoded is None else reply.encoded.content)


def _data(payload: bytes) -> bytes:
    # The length has four bytes. Pages end far below this; a list of millions of names might not.
    if len(payload) > LENGTH_MAX - LENGTH_MIN:
        return refusal_frame(RemitsCode.LimitExceeded)
    return pack(DATA, 0, payload)


# --- the table ------------------------------------------------------------------------------------------------


LOG: Final = Key(_text, ("log_name",), "log")
NAME: Final = Key(_text, ("iterator_name",), "name")
KIND: Final = Key(_kind, ("iterator_type", "iterator_kind"), "kind")
ITERATOR: Final = (NAME, LOG, KIND, Key(_text, ("iterator_func",), "function"), Key(_flag, ("indexed",), "indexed"))
NEXT: Final = (
    NAME._replace(attribute="iterator"),
    Key(_number, ("message_id",), "ordinal"),
    Key(_count, ("count",), "count"),
)
ADDED: Final = (LOG, Key(_messages, (MESSAGES, "message"), "messages"))
ONE_OR_ALL: Final = (Key(_text_or_none, ("log_name",), "log"),)

OPERATIONS: Final[dict[int, Operation]] = {
    0: Operation("Log Show", model.ShowLog, (LOG,), write_summary),
    1: Operation("Log Add", model.CreateLog, (LOG,), write_done),
    2: Operation("Log Delete", model.DropLog, (LOG,), write_done),
    3: Operation("Log List", model.ListLogs, (), write_array, ignored=True),
    4: Operation("Message Add", model.AddMessages, ADDED, write_done),
    5: Operation("Iterator Add", model.CreateIterator, ITERATOR, write_done),
    6: Operation("Iterator List", model.ListIterators, ONE_OR_ALL, write_each, empty=True),
    7: Operation("Iterator Next", model.NextItems, NEXT, write_items),
    8: Operation("Iterator Delete", model.DropIterator, (LOG, NAME), write_done),
    32: Operation("Token", model.Authenticate, (Key(_text, ("token",), "token"),), write_done),
}
