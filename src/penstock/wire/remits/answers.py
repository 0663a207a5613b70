"""The client's side: requests to frames, and what the frames of answers say."""

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from cbor2 import dumps

from penstock.errors import Unexpected
from penstock.wire.remits.codes import NAMES
from penstock.wire.remits.frames import REQUEST, Frame, pack
from penstock.wire.remits.scanning import NotAnItem, simple_value

_LENGTH: Final = Struct(">I")


class Failure(NamedTuple):
    """What an Error frame says."""

    code: int
    name: str
    detail: str


def request(code: int, fields: Mapping[str, Any] | None = None) -> bytes:
    """A Request frame; without fields its payload is empty."""
    return pack(REQUEST, code, b"" if fields is None else dumps(fields))


def parse_data(payload: bytes) -> list[bytes]:
    """The items of a Data frame, each as CBOR."""
    items: list[bytes] = []
    at = 0
    while at < len(payload):
        start = at + _LENGTH.size
        if start > len(payload):
            raise Unexpected(f"an answer is cut short in the length of item {len(items)}")
        at = start + _LENGTH.unpack_from(payload, at)[0]
        if at > len(payload):
            raise Unexpected(f"an answer is cut short in item {len(items)}")
        items.append(payload[start:at])
    return items


def parse_info(payload: bytes) -> str:
    """The text of an Info frame."""
    return _text(payload)


def parse_error(frame: Frame) -> Failure:
    """The code, the name and what comes after it of an Error frame."""
    name, _, detail = _text(frame.payload).partition(": ")
    return Failure(frame.code, name or NAMES.get(frame.code, ""), detail)


def _text(payload: bytes) -> str:
    try:
        text, end = simple_value(payload, 0, 1)
    except NotAnItem as error:
        raise Unexpected(f"an answer is no text: {error}") from None
    if not isinstance(text, str) or end != len(payload):
        raise Unexpected("an answer is no text")
    return text
