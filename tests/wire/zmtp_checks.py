"""ZMTP written out by hand, and what must hold of any bytes: for the tests of codec and gate, and the fuzzer."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from struct import pack
from typing import Final, NamedTuple

from penstock.wire.zmtp import FRAME_OVERHEAD_BYTES, Connection, Event, Limits, Oversize, Violation

MORE, LONG, COMMAND = 1, 2, 4
"""Flags of a frame."""
REQ, DEALER, ROUTER = 3, 5, 6
"""Numbers of sockets in ZMTP 2.0."""
SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
SMALL: Final = Limits(frame_bytes_max=280, message_bytes_max=300, message_frames_max=20)
"""Limits small enough that random bytes reach them."""


def frame(body: bytes, flags: int = 0) -> bytes:
    """One frame; a long one has eight bytes of length."""
    if len(body) > 255:
        return pack(">BQ", flags | LONG, len(body)) + body
    return pack(">BB", flags, len(body)) + body


def message(frames: Sequence[bytes]) -> bytes:
    """All frames of a message, each but the last with the flag that more follow."""
    return b"".join(frame(body, MORE) for body in frames[:-1]) + frame(frames[-1])


def command(name: bytes, data: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name + data, COMMAND)


def properties(**values: bytes) -> bytes:
    """Metadata, with `_` for `-` in the names."""
    found = ((name.replace("_", "-").encode(), value) for name, value in values.items())
    return b"".join(bytes([len(name)]) + name + pack(">I", len(value)) + value for name, value in found)


def greeting_2(socket_type: int = DEALER) -> bytes:
    return SIGNATURE + bytes([1, socket_type])


def greeting_3(minor: int = 1, mechanism: bytes = b"NULL") -> bytes:
    return SIGNATURE + bytes([3, minor]) + mechanism.ljust(20, b"\0") + bytes(32)


def ready(socket_type: bytes = b"DEALER", identity: bytes = b"") -> bytes:
    return command(b"READY", properties(Socket_Type=socket_type, Identity=identity))


def ping(ttl: int = 0, context: bytes = b"") -> bytes:
    return command(b"PING", pack(">H", ttl) + context)


HANDSHAKES: Final = {
    "2.0": greeting_2() + frame(b""),
    "3.0": greeting_3(0) + ready(),
    "3.1": greeting_3(1) + ready(),
}
"""The bytes of a peer before its first message, by version."""
OUR_SIGNATURE: Final = b"\xff" + bytes(7) + b"\x01\x7f"
OUR_GREETING_3: Final = b"\x03\x01" + b"NULL" + bytes(16) + bytes(32)
OUR_READY: Final = command(b"READY", properties(Socket_Type=b"ROUTER", Identity=b""))
ANSWERS: Final = {
    "2.0": [OUR_SIGNATURE, b"\x01\x06", b"\x00\x00"],
    "3.0": [OUR_SIGNATURE, OUR_GREETING_3[:2], OUR_GREETING_3[2:], OUR_READY],
    "3.1": [OUR_SIGNATURE, OUR_GREETING_3[:2], OUR_GREETING_3[2:], OUR_READY],
}
"""The bytes of the server meanwhile: signature, version, in 3.x the rest of the greeting, first frame."""


class Outcome(NamedTuple):
    """Events, bytes to send, and bytes of an incomplete message."""

    events: list[Event]
    sent: bytes
    pending: int


def received(chunks: Iterable[bytes], limits: Limits = Limits()) -> Outcome:  # noqa: B008
    """The outcome of bytes that come in these chunks."""
    connection = Connection(limits)
    events = [event for chunk in chunks for event in connection.receive(chunk)]
    return Outcome(events, connection.data_to_send(), connection.pending_bytes)


def byte_by_byte(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def cut_at(data: bytes, places: Iterable[int]) -> list[bytes]:
    """The data in chunks that end at these places."""
    return [data[start:end] for start, end in pairwise([0, *sorted(places), len(data)])]


def held(connection: Connection) -> int:
    """How many bytes the connection really keeps."""
    parts = connection._parts
    return sum(map(len, parts)) + FRAME_OVERHEAD_BYTES * len(parts) + len(connection._tail) + len(connection._body)


def check(chunks: Sequence[bytes], limits: Limits = SMALL) -> Outcome:
    """Whatever the bytes are, they are read without a raise, within the limits, and the same as when whole."""
    connection, sent = Connection(limits), b""
    events: list[Event] = []
    longest = max(map(len, chunks), default=0)
    # An incomplete message is within the limits, but for the chunk that was just read.
    most = limits.message_bytes_max + FRAME_OVERHEAD_BYTES * limits.message_frames_max + 300
    for chunk in chunks:
        was_closed = connection.is_closed
        given = connection.receive(chunk)
        sent += connection.data_to_send()
        events += given
        assert not (was_closed and given)
        assert held(connection) <= connection.pending_bytes <= most + (1 + FRAME_OVERHEAD_BYTES) * longest
        assert len(connection._parts) <= limits.message_frames_max
    endings = [event for event in events if isinstance(event, (Oversize, Violation))]
    assert endings == events[-1:] if connection.is_closed else not endings
    for event in events:
        if isinstance(event, list):
            assert 1 <= len(event) <= limits.message_frames_max
            assert len(message(event)) <= limits.message_bytes_max
            assert all(type(body) is bytes and len(body) <= limits.frame_bytes_max for body in event)
    outcome = Outcome(events, sent or OUR_SIGNATURE, connection.pending_bytes)
    whole = received([b"".join(chunks)], limits)
    # How much of a message came before it was too large depends on the chunks.
    assert [_comparable(event) for event in events] == [_comparable(event) for event in whole.events]
    assert outcome.sent == whole.sent
    if not connection.is_closed:
        assert outcome.pending == whole.pending
    return outcome


def _comparable(event: Event) -> object:
    return Oversize if isinstance(event, Oversize) else event
