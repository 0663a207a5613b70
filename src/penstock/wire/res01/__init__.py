"""Res01, in the original's dialects and our own: lists of frames to requests, replies to lists of frames.

See docs/protocols/res01.md. `commands` is the table of all commands.
"""

from penstock.wire.res01.commands import BINARY_COMMANDS, OURS, OWN_COMMANDS, TEXT_COMMANDS
from penstock.wire.res01.dialects import (
    ORIGINAL_TAG,
    OWN_TAG,
    TEXT_TAG,
    Frames,
    Presenter,
    binary_frames,
    error_frame,
    error_of,
    full_frames,
    text_frames,
)
from penstock.wire.res01.messages import Envelope, Exchange, Unanswerable, decode, fields_of, message_of, reply_of
from penstock.wire.res01.schema import Command, Replies

__all__ = [
    "BINARY_COMMANDS",
    "ORIGINAL_TAG",
    "OURS",
    "OWN_COMMANDS",
    "OWN_TAG",
    "TEXT_COMMANDS",
    "TEXT_TAG",
    "Command",
    "Envelope",
    "Exchange",
    "Frames",
    "Presenter",
    "Replies",
    "Unanswerable",
    "binary_frames",
    "decode",
    "error_frame",
    "error_of",
    "fields_of",
    "full_frames",
    "message_of",
    "reply_of",
    "text_frames",
]
