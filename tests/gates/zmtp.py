"""ZMTP by hand over a plain socket: what NetMQ speaks (2.0), and what no well-behaved library would send (3.0)."""

import socket
import struct
from collections.abc import Sequence
from typing import Final

from tests.gates.res_client import PATIENCE_S

DEALER: Final = 5
MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""


def connected(endpoint: str) -> socket.socket:
    """A plain connection to where a ZeroMQ server listens."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S)


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame; a long one has eight bytes of length."""
    if len(body) > 255:
        return struct.pack(">BQ", flags | LONG, len(body)) + body
    return struct.pack(">BB", flags, len(body)) + body


def message(frames: Sequence[bytes]) -> bytes:
    """All frames of a message, each but the last with the flag that more follow."""
    return b"".join(frame(body, MORE) for body in frames[:-1]) + frame(frames[-1])


def read_exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; fewer, and the other side has closed."""
    data = b""
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        data += piece
    return data


def read_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Flags and body of the next frame."""
    flags = read_exactly(connection, 1)[0]
    length = struct.unpack(">Q", read_exactly(connection, 8))[0] if flags & LONG else read_exactly(connection, 1)[0]
    return flags, read_exactly(connection, length)


def read_message(connection: socket.socket) -> list[bytes]:
    """The frames of the next message."""
    frames = []
    flags = MORE
    while flags & MORE:
        flags, body = read_frame(connection)
        assert not flags & COMMAND
        frames.append(body)
    return frames


def greet_as_2_0(connection: socket.socket) -> None:
    """Signature, revision 1, our socket type and an empty identity; the server's come back."""
    connection.sendall(b"\xff" + bytes(7) + b"\x01\x7f" + b"\x01" + bytes([DEALER]) + b"\0\0")
    assert read_exactly(connection, 10)[0] == 0xFF
    assert read_exactly(connection, 1)[0] >= 1
    # To an older peer the server falls back: socket type and identity instead of a security mechanism.
    read_exactly(connection, 1)
    assert read_frame(connection)[1] == b""


def greet_as_3_0(connection: socket.socket) -> None:
    """The greeting without security, and READY from both sides."""
    connection.sendall(b"\xff" + bytes(8) + b"\x7f" + b"\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32))
    assert read_exactly(connection, 64)[0] == 0xFF
    ready = b"\x05READY" + b"\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    connection.sendall(frame(ready, COMMAND))
    flags, body = read_frame(connection)
    assert flags & COMMAND
    assert body.startswith(b"\x05READY")


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes before it sends anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
