"""Res01, in the original's dialects and one of our own: lists of frames to requests, replies to lists of frames.

See docs/protocols/res01.md. All commands are in one table, `commands`.
"""

from penstock.wire.res01.answers import Replies
from penstock.wire.res01.codes import CODES, code_of
from penstock.wire.res01.commands import BINARY_COMMANDS, OURS, OWN_COMMANDS, TEXT_COMMANDS, Command
from penstock.wire.res01.dialects import ORIGINAL_TAG, OWN_TAG, TEXT_TAG, Frames, Presenter, error_frame, error_of
from penstock.wire.res01.events import binary_frames, full_frames, text_frames
from penstock.wire.res01.messages import (
    Envelope,
    Exchange,
    Unanswerable,
    decode,
    fields_of,
    message_of,
    reply_of,
)

__all__ = [
    "BINARY_COMMANDS",
    "CODES",
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
    "code_of",
    "decode",
    "error_frame",
    "error_of",
    "fields_of",
    "full_frames",
    "message_of",
    "reply_of",
    "text_frames",
]
