"""A client's side of Remits: requests to frames, and what the frames of answers say."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from cbor2 import dumps

from penstock.errors import PenstockError, Unexpected
from penstock.wire.codes import ERROR_CODES, RemitsCode, codes_of
from penstock.wire.remits.cbor import NotAnItem, simple_value
from penstock.wire.remits.frames import REQUEST, Frame, pack

CODES: Final = {kind: remits for kind, (_, remits) in ERROR_CODES.items()}
LENGTH_BYTES: Final = 4
NAMES: Final = {int(code): code.name for code in RemitsCode}


class Failure(NamedTuple):
    """What an Error frame says."""

    code: int
    name: str
    detail: str


def code_of(error: PenstockError) -> int:
    return codes_of(error)[1]


def request(code: int, fields: Mapping[str, Any] | None = None) -> bytes:
    """A Request frame; without fields its payload is empty."""
    return pack(REQUEST, code, b"" if fields is None else dumps(fields))


def parse_error(frame: Frame) -> Failure:
    """The code, the name and what comes after it of an Error frame."""
    name, _, detail = parse_info(frame.payload).partition(": ")
    return Failure(frame.code, name or NAMES.get(frame.code, ""), detail)


def parse_info(payload: bytes) -> str:
    """The text of an Info frame."""
    try:
        text, end = simple_value(payload, 0, 1)
    except NotAnItem as error:
        raise Unexpected(f"an answer is no text: {error}") from None
    if not isinstance(text, str) or end != len(payload):
        raise Unexpected("an answer is no text")
    return text


def parse_data(payload: bytes) -> list[bytes]:
    """The items of a Data frame, each as CBOR."""
    items: list[bytes] = []
    at = 0
    while at < len(payload):
        start = at + LENGTH_BYTES
        if start > len(payload):
            raise Unexpected(f"an answer is cut short in the length of item {len(items)}")
        at = start + int.from_bytes(payload[at:start], "big")
        if at > len(payload):
            raise Unexpected(f"an answer is cut short in item {len(items)}")
        items.append(payload[start:at])
    return items
