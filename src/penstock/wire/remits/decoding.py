"""From a frame to what it asks for.

Nothing that arrives makes this raise: every mistake becomes an answer with its code. Whether names can be names is for
the engine to say.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

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
from penstock.wire.remits.codes import REQUESTS_ONLY, UNKNOWN_KIND, UNKNOWN_REQUEST, UNREADABLE_PAYLOAD, Refused
from penstock.wire.remits.exchange import Exchange, Write
from penstock.wire.remits.fields import Fields, read_fields
from penstock.wire.remits.frames import DATA, ERROR, INFO, REQUEST, Frame

MESSAGES_MAX: Final = 10_000
"""Messages in one Message Add, unless the gate says otherwise."""


class Key(NamedTuple):
    """A field of a payload: how it is read, under which names it may come, and the attribute that it stands for."""

    read: Callable[..., Any]
    names: tuple[str, ...]
    attribute: str


class Operation(NamedTuple):
    """An operation: its name, what it asks for, the fields of its payload, and how it is answered."""

    name: str
    request: type[Request] | None
    """None: it is answered at once."""
    keys: tuple[Key, ...]
    write: Write
    empty: bool = False
    """Whether a payload of no bytes stands for one without fields."""
    ignored: bool = False
    """Whether a payload is not looked at."""

    @property
    def known(self) -> frozenset[str]:
        """The names that its payload may have."""
        return frozenset(name for key in self.keys for name in key.names)

    def read(self, fields: Fields) -> Request | None:
        """What its fields make."""
        values = {key.attribute: key.read(fields, *key.names) for key in self.keys}
        return None if self.request is None else self.request(**values)


def decode(frame: Frame, messages_max: int = MESSAGES_MAX) -> Exchange:
    """What a frame asks for. `messages_max`: how many messages one Message Add may have."""
    try:
        operation = _operation(frame)
        request = operation.read(_fields(frame.payload, operation, messages_max))
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
    return read_fields(payload, operation.known, messages_max)


# --- the table ------------------------------------------------------------------------------------------------


def _messages(fields: Fields, *_names: str) -> tuple[bytes, ...]:
    """The messages stay as they came; whether they are CBOR is for the engine to say."""
    return tuple(fields.messages())


def _kind(fields: Fields, *names: str) -> IteratorKind:
    try:
        return IteratorKind(fields.text(*names))
    except ValueError:
        raise Refused(UNREADABLE_PAYLOAD, f"{names[0]} must be one of {', '.join(IteratorKind)}") from None


def _count(fields: Fields, name: str) -> int:
    count = fields.number(name)
    if count < 0:
        raise Refused(UNREADABLE_PAYLOAD, f"{name} is {count}; it must be 0 or more")
    return count


LOG: Final = Key(Fields.text, ("log_name",), "log")
NAME: Final = Key(Fields.text, ("iterator_name",), "name")

OPERATIONS: Final[dict[int, Operation]] = {
    0: Operation("Log Show", ShowLog, (LOG,), encoding.write_summary),
    1: Operation("Log Add", CreateLog, (LOG,), encoding.write_done),
    2: Operation("Log Delete", DropLog, (LOG,), encoding.write_done),
    3: Operation("Log List", ListLogs, (), encoding.write_array, ignored=True),
    4: Operation(
        "Message Add", AddMessages, (LOG, Key(_messages, ("messages", "message"), "messages")), encoding.write_done
    ),
    5: Operation(
        "Iterator Add",
        CreateIterator,
        (
            NAME,
            LOG,
            Key(_kind, ("iterator_type", "iterator_kind"), "kind"),
            Key(Fields.text, ("iterator_func",), "function"),
            Key(Fields.flag, ("indexed",), "indexed"),
        ),
        encoding.write_done,
    ),
    6: Operation(
        "Iterator List",
        ListIterators,
        (Key(Fields.text_or_none, ("log_name",), "log"),),
        encoding.write_each,
        empty=True,
    ),
    7: Operation(
        "Iterator Next",
        NextItems,
        (
            NAME._replace(attribute="iterator"),
            Key(Fields.number, ("message_id",), "ordinal"),
            Key(_count, ("count",), "count"),
        ),
        encoding.write_items,
    ),
    8: Operation("Iterator Delete", DropIterator, (LOG, NAME), encoding.write_done),
    # AUTHENTICATION GOES HERE: until there is any, every token is fine and means nothing.
    32: Operation("Token", None, (Key(Fields.text, ("token",), "token"),), encoding.write_done),
}
