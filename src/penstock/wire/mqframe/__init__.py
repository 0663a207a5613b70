"""MqFrames: messages of frames on a stream of bytes, with pings between them and a reason at the end.

Sans-IO: `Parser` takes what a socket gave and yields messages; `put_message` and `disconnect` make what a socket
sends. The protocol's page is docs/protocols/mqframe.md.
"""

from penstock.wire.mqframe.frames import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    PING,
    EmptyMessage,
    FrameTooLong,
    Reason,
    cut,
    disconnect,
    encode,
    put_message,
)
from penstock.wire.mqframe.parser import Disconnected, Message, Parser, Violation

__all__ = [
    "FRAME_BYTES_MAX",
    "FRAME_BYTES_SENT_MAX",
    "PING",
    "Disconnected",
    "EmptyMessage",
    "FrameTooLong",
    "Message",
    "Parser",
    "Reason",
    "Violation",
    "cut",
    "disconnect",
    "encode",
    "put_message",
]
