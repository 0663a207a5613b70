"""From a frame to what it asks for.

Nothing that arrives makes this raise: every mistake becomes an answer with its code. Whether names can be names is for
the engine to say.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.model import (
    AddMessages,
    CreateIterator,
    CreateLog,
    DropIterator,
    DropLog,
    IteratorKind,
    ListIterators,
    ListLogs,
    NextItems,
    Request,
    ShowLog,
)
from penstock.wire.remits import encoding
from penstock.wire.remits.codes import (
    REQUESTS_ONLY,
    UNKNOWN_KIND,
    UNKNOWN_REQUEST,
    UNREADABLE_PAYLOAD,
    Refused,
)
from penstock.wire.remits.exchange import Exchange, Write
from penstock.wire.remits.fields import Fields, read_fields
from penstock.wire.remits.frames import DATA, ERROR, INFO, REQUEST, Frame

MESSAGES_MAX: Final = 10_000
"""Messages in one Message Add, unless the gate says otherwise."""

_KINDS: Final = {kind.value: kind for kind in IteratorKind}


class Operation(NamedTuple):
    """An operation: its name, the keys that its payload may have, how they become a request, and how it is answered."""

    name: str
    keys: frozenset[str]
    decode: Callable[[Fields], Request | None]
    write: Write
    empty: bool = False
    """Whether a payload of no bytes stands for one without fields."""
    ignored: bool = False
    """Whether a payload is not looked at."""


def decode(frame: Frame, messages_max: int = MESSAGES_MAX) -> Exchange:
    """What a frame asks for. `messages_max`: how many messages one Message Add may have."""
    try:
        operation = _operation(frame)
        request = operation.decode(_fields(frame.payload, operation, messages_max))
    except Refused as refused:
        answer = encoding.refusal_frame(refused.code)
        return Exchange(None, lambda _reply: answer, refused.reason)
    return Exchange(request, operation.write)


def _operation(frame: Frame) -> Operation:
    if frame.kind in (INFO, DATA, ERROR):
        raise Refused(REQUESTS_ONLY, f"a frame of kind {frame.kind} is an answer; only requests are taken")
    if frame.kind != REQUEST:
        raise Refused(UNKNOWN_KIND, f"there is no frame of kind {frame.kind}")
    operation = OPERATIONS.get(frame.code)
    if operation is None:
        raise Refused(UNKNOWN_REQUEST, f"there is no request {frame.code}")
    return operation


def _fields(payload: bytes, operation: Operation, messages_max: int) -> Fields:
    if operation.ignored or (operation.empty and not payload):
        return Fields({})
    return read_fields(payload, operation.keys, messages_max)


# --- what each operation asks for -----------------------------------------------------------------------------


def add_messages(fields: Fields) -> Request:
    """Message Add. The messages stay as they came; whether they are CBOR is for the engine to say."""
    return AddMessages(fields.text("log_name"), tuple(fields.messages()))


def add_iterator(fields: Fields) -> Request:
    """Iterator Add."""
    name, log = fields.text("iterator_name"), fields.text("log_name")
    kind = _KINDS.get(fields.text("iterator_type", "iterator_kind"))
    if kind is None:
        raise Refused(UNREADABLE_PAYLOAD, f"iterator_type must be one of {', '.join(_KINDS)}")
    return CreateIterator(name, log, kind, fields.text("iterator_func"), fields.flag("indexed"))


def next_items(fields: Fields) -> Request:
    """Iterator Next."""
    iterator, ordinal, count = fields.text("iterator_name"), fields.number("message_id"), fields.number("count")
    if count < 0:
        raise Refused(UNREADABLE_PAYLOAD, f"count is {count}; it must be 0 or more")
    return NextItems(iterator, ordinal, count)


def authenticate(fields: Fields) -> None:
    """Request 32, a token. AUTHENTICATION GOES HERE: until there is any, every token is fine and means nothing."""
    fields.text("token")


# --- leaves ---------------------------------------------------------------------------------------------------


def _of_log(make: Callable[[str], Request]) -> Callable[[Fields], Request]:
    return lambda fields: make(fields.text("log_name"))


_LOG: Final = frozenset({"log_name"})
_ITERATOR: Final = frozenset({"log_name", "iterator_name"})

OPERATIONS: Final[dict[int, Operation]] = {
    0: Operation("Log Show", _LOG, _of_log(ShowLog), encoding.write_summary),
    1: Operation("Log Add", _LOG, _of_log(CreateLog), encoding.write_done),
    2: Operation("Log Delete", _LOG, _of_log(DropLog), encoding.write_done),
    3: Operation("Log List", frozenset(), lambda _: ListLogs(), encoding.write_array, ignored=True),
    4: Operation("Message Add", _LOG | {"messages", "message"}, add_messages, encoding.write_done),
    5: Operation(
        "Iterator Add",
        _ITERATOR | {"iterator_type", "iterator_kind", "iterator_func", "indexed"},
        add_iterator,
        encoding.write_done,
    ),
    6: Operation(
        "Iterator List",
        _LOG,
        lambda fields: ListIterators(fields.text_or_none("log_name")),
        encoding.write_each,
        empty=True,
    ),
    7: Operation(
        "Iterator Next", frozenset({"iterator_name", "message_id", "count"}), next_items, encoding.write_items
    ),
    8: Operation(
        "Iterator Delete",
        _ITERATOR,
        lambda fields: DropIterator(fields.text("log_name"), fields.text("iterator_name")),
        encoding.write_done,
    ),
    32: Operation("Token", frozenset({"token"}), authenticate, encoding.write_done),
}
