"""Remits: bytes to requests on logs and iterators, replies to bytes. `docs/protocols/remits.md` describes it."""

from penstock.wire.remits.cbor import DEPTH_MAX, ITEMS_MAX, check_message, first_invalid, plainly_valid
from penstock.wire.remits.frames import DATA, ERROR, INFO, REQUEST, Frame, Parser, Rejected, pack, parse_data
from penstock.wire.remits.operations import (
    MESSAGES_MAX,
    OPERATIONS,
    Exchange,
    decode,
    error_frame,
    item_payload,
    refusal_frame,
)

__all__ = [
    "DATA",
    "DEPTH_MAX",
    "ERROR",
    "INFO",
    "ITEMS_MAX",
    "MESSAGES_MAX",
    "OPERATIONS",
    "REQUEST",
    "Exchange",
    "Frame",
    "Parser",
    "Rejected",
    "check_message",
    "decode",
    "error_frame",
    "first_invalid",
    "item_payload",
    "pack",
    "parse_data",
    "plainly_valid",
    "refusal_frame",
]
