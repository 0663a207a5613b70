"""Remits: bytes to requests on logs and iterators, replies to bytes. `docs/protocols/remits.md` is its page."""

from penstock.wire.remits.answers import Failure, parse_data, parse_error, parse_info, request
from penstock.wire.remits.cbor import check_message, first_invalid, plainly_valid
from penstock.wire.remits.codes import CODES, NAMES, Refused, code_of
from penstock.wire.remits.decoding import MESSAGES_MAX, OPERATIONS, decode
from penstock.wire.remits.encoding import error_frame, item_payload, refusal_frame
from penstock.wire.remits.exchange import Exchange
from penstock.wire.remits.frames import DATA, ERROR, INFO, REQUEST, Frame, Parser, pack
from penstock.wire.remits.scanning import DEPTH_MAX, ITEMS_MAX

__all__ = [
    "CODES",
    "DATA",
    "DEPTH_MAX",
    "ERROR",
    "INFO",
    "ITEMS_MAX",
    "MESSAGES_MAX",
    "NAMES",
    "OPERATIONS",
    "REQUEST",
    "Exchange",
    "Failure",
    "Frame",
    "Parser",
    "Refused",
    "check_message",
    "code_of",
    "decode",
    "error_frame",
    "first_invalid",
    "item_payload",
    "pack",
    "parse_data",
    "parse_error",
    "parse_info",
    "plainly_valid",
    "refusal_frame",
    "request",
]
