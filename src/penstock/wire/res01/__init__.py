"""Res01, text and binary: lists of frames to requests, replies to lists of frames. See docs/protocols/res01.md."""

from penstock.wire.res01.asking import fields_of, message_of, reply_of
from penstock.wire.res01.codes import CODES, code_of
from penstock.wire.res01.commands import Command
from penstock.wire.res01.decoding import BINARY_COMMANDS, ORIGINAL_TAG, TEXT_COMMANDS, TEXT_TAG, Unanswerable, decode
from penstock.wire.res01.events import binary_frames, full_frames, text_frames
from penstock.wire.res01.exchange import Envelope, Exchange, Frames, Presenter, Replies
from penstock.wire.res01.refusals import error_of

__all__ = [
    "BINARY_COMMANDS",
    "CODES",
    "ORIGINAL_TAG",
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
    "error_of",
    "fields_of",
    "full_frames",
    "message_of",
    "reply_of",
    "text_frames",
]
