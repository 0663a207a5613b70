"""The client's side of CURVE, written out by hand, and what must hold of any bytes: for tests and the fuzzer."""

import os
from collections.abc import Sequence
from struct import pack, unpack
from typing import Final

from nacl.public import Box, PrivateKey, PublicKey
from nacl.secret import SecretBox

from penstock.wire.curve import OVERHEAD_BYTES, Curve
from penstock.wire.zmtp import Connection, Event, Limits, Message, Oversize, Violation
from tests.wire.zmtp_checks import SMALL, command, frame, greeting_3, properties

SERVER: Final = PrivateKey(bytes(range(32)))
CLIENT: Final = PrivateKey(bytes(range(1, 33)))
TRANSIENT: Final = PrivateKey(bytes(range(2, 34)))
"""Of the client, for one connection."""
GREETING: Final = greeting_3(mechanism=b"CURVE")
GREETING_BYTES: Final = 64
WELCOME_AT: Final = slice(GREETING_BYTES, GREETING_BYTES + 170)
MORE, COMMAND = 1, 2
"""Flags of an encrypted frame."""
METADATA: Final = properties(Socket_Type=b"DEALER", Identity=b"me")


def server(limits: Limits = Limits(), *, admits: bool = True, key: PrivateKey = SERVER) -> Connection:  # noqa: B008
    return Connection(limits, Curve(bytes(key), bytes(key.public_key), lambda _: admits))


def number(value: int) -> bytes:
    return pack(">Q", value)


def body_of(wire: bytes) -> bytes:
    """The body of the one frame that these bytes are."""
    start = 9 if wire[0] & 2 else 2
    size = unpack(">Q", wire[1:9])[0] if wire[0] & 2 else wire[1]
    assert len(wire) == start + size
    return wire[start:]


class Client:
    """A client that does what it should, or with other arguments something else."""

    def __init__(self, server_key: PublicKey = SERVER.public_key, transient: PrivateKey = TRANSIENT) -> None:
        self.server_key = server_key
        self.transient = transient
        self.nonce = 0
        self.peer_nonce = 0

    def next(self) -> bytes:
        self.nonce += 1
        return number(self.nonce)

    def hello(
        self,
        *,
        version: bytes = b"\1\0",
        padding: bytes = bytes(72),
        signature: bytes = bytes(64),
        nonce: bytes | None = None,
        public: bytes | None = None,
    ) -> bytes:
        nonce = nonce or self.next()
        box = Box(self.transient, self.server_key).encrypt(signature, b"CurveZMQHELLO---" + nonce).ciphertext
        return command(b"HELLO", version + padding + (public or bytes(self.transient.public_key)) + nonce + box)

    def welcome(self, wire: bytes) -> bytes:
        """Read the server's WELCOME; the cookie."""
        body = body_of(wire)
        assert len(body) == 168
        assert body.startswith(b"\x07WELCOME")
        opened = Box(self.transient, self.server_key).decrypt(body[24:], b"WELCOME-" + body[8:24])
        assert len(opened) == 128
        self.box = Box(self.transient, PublicKey(opened[:32]))
        self.server_transient = PublicKey(opened[:32])
        self.cookie = opened[32:]
        return self.cookie

    def vouch(
        self, key: PrivateKey = CLIENT, vouched: bytes | None = None, signed_by: PrivateKey | None = None
    ) -> bytes:
        vouched = vouched or bytes(self.transient.public_key) + bytes(self.server_key)
        nonce = bytes(range(16))
        box = Box(signed_by or key, self.server_transient).encrypt(vouched, b"VOUCH---" + nonce).ciphertext
        return bytes(key.public_key) + nonce + box

    def initiate(
        self,
        *,
        cookie: bytes | None = None,
        nonce: bytes | None = None,
        vouch: bytes | None = None,
        metadata: bytes = METADATA,
    ) -> bytes:
        nonce = nonce or self.next()
        content = (self.vouch() if vouch is None else vouch) + metadata
        box = self.box.encrypt(content, b"CurveZMQINITIATE" + nonce).ciphertext
        return command(b"INITIATE", (cookie or self.cookie) + nonce + box)

    def ready(self, wire: bytes) -> bytes:
        """Read the server's READY; its metadata."""
        body = body_of(wire)
        assert body.startswith(b"\x05READY")
        (self.peer_nonce,) = unpack(">Q", body[6:14])
        return self.box.decrypt(body[14:], b"CurveZMQREADY---" + body[6:14])

    def frame(self, body: bytes, flags: int = 0, *, nonce: bytes | None = None, outer: int = 0) -> bytes:
        """A MESSAGE; `outer` are the flags of its own frame."""
        nonce = nonce or self.next()
        box = self.box.encrypt(bytes([flags]) + body, b"CurveZMQMESSAGEC" + nonce).ciphertext
        return frame(b"\x07MESSAGE" + nonce + box, outer)

    def message(self, frames: Sequence[bytes]) -> bytes:
        return b"".join(self.frame(body, MORE) for body in frames[:-1]) + self.frame(frames[-1])

    def command(self, name: bytes, data: bytes = b"") -> bytes:
        return self.frame(bytes([len(name)]) + name + data, COMMAND)

    def read(self, wire: bytes) -> list[tuple[int, bytes]]:
        """Flags and bodies of the frames that the server has sent; it counts its nonces."""
        found = []
        while wire:
            start = 9 if wire[0] & 2 else 2
            stop = start + (unpack(">Q", wire[1:9])[0] if wire[0] & 2 else wire[1])
            body, wire = wire[start:stop], wire[stop:]
            assert body.startswith(b"\x07MESSAGE")
            assert unpack(">Q", body[8:16]) == (self.peer_nonce + 1,)
            self.peer_nonce += 1
            opened = self.box.decrypt(body[16:], b"CurveZMQMESSAGES" + body[8:16])
            found.append((opened[0], opened[1:]))
        return found


def greeted(limits: Limits = Limits()) -> tuple[Client, Connection]:  # noqa: B008
    """Both ends of a connection whose handshake is complete."""
    client, connection = Client(), server(limits)
    connection.receive(GREETING + client.hello())
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    connection.receive(client.initiate())
    client.ready(connection.data_to_send())
    return client, connection


def forged_cookie(client: Client) -> bytes:
    """A cookie as the server makes them, with another key."""
    nonce = os.urandom(16)
    content = bytes(client.transient.public_key) + bytes(PrivateKey.generate())
    return nonce + SecretBox(bytes(32)).encrypt(content, b"COOKIE--" + nonce).ciphertext


def check(connection: Connection, chunks: Sequence[bytes], limits: Limits = SMALL) -> list[Event]:
    """Whatever the bytes are, they are read without a raise and within the limits; the events."""
    events: list[Event] = []
    longest = max(map(len, chunks), default=0)
    most = limits.message_bytes_max + 64 * limits.message_frames_max + 300 + OVERHEAD_BYTES
    for chunk in chunks:
        was_closed = connection.is_closed
        given = connection.receive(chunk)
        connection.data_to_send()
        events += given
        assert not (was_closed and given)
        assert connection.pending_bytes <= most + 65 * longest
    endings = [event for event in events if isinstance(event, (Oversize, Violation))]
    assert endings == events[-1:] if connection.is_closed else not endings
    for event in events:
        if isinstance(event, list):
            bodies: Message = event
            assert 1 <= len(bodies) <= limits.message_frames_max
            assert all(type(body) is bytes and len(body) <= limits.frame_bytes_max for body in bodies)
    return events
