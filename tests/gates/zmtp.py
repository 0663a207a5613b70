"""ZMTP by hand over a plain socket: what NetMQ speaks (2.0), and what no well-behaved library would send (3.0, 3.1)."""

import socket
import struct

from tests.gates.res_client import PATIENCE_S
from tests.wire.zmtp_checks import (
    COMMAND,
    LONG,
    MORE,
    OUR_SIGNATURE,
    SIGNATURE,
    command,
    frame,
    greeting_2,
    greeting_3,
    message,
    ping,
    ready,
)

__all__ = ["COMMAND", "LONG", "MORE", "SIGNATURE", "command", "frame", "greeting_3", "message", "ping", "ready"]


def connected(endpoint: str, source: str = "127.0.0.1") -> socket.socket:
    """A plain connection to where a ZeroMQ server listens."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), PATIENCE_S, source_address=(source, 0))


def peer_of(connection: socket.socket) -> str:
    """How the server's log shows this end of a connection."""
    host, port = connection.getsockname()
    return f"{host}:{port}"


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
    """Step by step as NetMQ does: it answers each part of the server's greeting before the next may come."""
    connection.sendall(SIGNATURE)
    assert read_exactly(connection, 10) == OUR_SIGNATURE
    connection.sendall(greeting_2()[10:])
    assert read_exactly(connection, 2) == b"\x01\x06"
    connection.sendall(frame(b""))
    assert read_frame(connection) == (0, b"")


def greet_as_3(connection: socket.socket, minor: int = 0) -> None:
    """The greeting without security, and READY from both sides."""
    connection.sendall(greeting_3(minor))
    assert read_exactly(connection, 64)[:10] == OUR_SIGNATURE
    connection.sendall(ready())
    flags, body = read_frame(connection)
    assert flags & COMMAND
    assert body.startswith(b"\x05READY")


def is_closed(connection: socket.socket) -> bool:
    """Whether the other side closes before it sends anything."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def rest(connection: socket.socket) -> bytes:
    """Everything until the other side closes."""
    found = b""
    try:
        while piece := connection.recv(1 << 16):
            found += piece
    except ConnectionError:
        pass
    return found
