"""ZMTP, the protocol of ZeroMQ: the side that binds a ROUTER socket, in versions 2.0, 3.0 and 3.1.

Sans-IO. `Connection.receive` takes what a socket gave and returns events; `data_to_send` has what the protocol itself
wants to say after that: greeting, handshake, PONG. `Connection.send` turns a message into bytes. The specifications are
ZeroMQ's RFCs 15 (2.0), 23 (3.0) and 37 (3.1); docs/protocols/res01.md says what a peer of Penstock should know.

The greeting goes out in steps: the signature at once, the version when that of the peer is known, the security
mechanism when the peer has said its own. Our first frame
follows the peer's first frame. So no read of the peer has both the end of a greeting and a frame, which NetMQ 3.3 does
not survive.

Without a mechanism (NULL) everything is in plain text; `penstock.wire.curve` has another one, which encrypts.

The parser reads whole frames in place and copies only their bodies. It trusts no length: a frame, a message and the
number of its frames have limits, which it checks before it takes memory.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from penstock.errors import LimitExceeded

MORE: Final = 1
LONG: Final = 2
COMMAND: Final = 4
FLAGS: Final = {"2": frozenset({0, MORE, LONG, LONG | MORE})}
FLAGS["3"] = FLAGS["2"] | {COMMAND, COMMAND | LONG}
"""The flags that a frame may have, by major version. A command has one frame, so it never has MORE."""

SIGNATURE: Final = b"\xff\0\0\0\0\0\0\0\1\x7f"
"""Eight bytes of padding in it. Versions since 3.0 ignore them; ZMTP 1.0 reads the length of an identity there."""
SIGNATURE_BYTES: Final = 10
REVISION_AT: Final = 10
GREETING_2_BYTES: Final = 12
GREETING_3_BYTES: Final = 64
MECHANISM: Final = slice(12, 32)

SOCKET_TYPES: Final = (b"PAIR", b"PUB", b"SUB", b"REQ", b"REP", b"DEALER", b"ROUTER", b"PULL", b"PUSH")
"""In the order of their numbers in ZMTP 2.0."""
PEER_TYPES: Final = frozenset({b"REQ", b"DEALER", b"ROUTER"})
"""The sockets that may talk to a ROUTER."""
ROUTER: Final = SOCKET_TYPES.index(b"ROUTER")
KNOWN_MECHANISMS: Final = frozenset({b"NULL", b"PLAIN", b"CURVE", b"GSSAPI"})
REMEDIES: Final = {
    (b"CURVE", b"NULL"): "start it with --curve-secret-key FILE, or connect without the keys of CURVE",
    (b"NULL", b"CURVE"): "give the client the public key of the server, and a key pair of its own",
    (b"PLAIN", b"CURVE"): "give the client the public key of the server, and a key pair of its own",
}
"""Advice for each side, by the mechanism that the peer asks for and the one that the server has."""
SEALED_COMMAND: Final = 2
"""The flag of a command in an encrypted frame."""

IDENTITY_BYTES_MAX: Final = 255
PING_CONTEXT_BYTES_MAX: Final = 16
COMMAND_BYTES_MAX: Final = 8192
"""Bytes of one command. Only metadata in READY can be long."""
HEAD_FRAMES_MAX: Final = 1000
"""Frames of a message over a limit that are kept, so that it can be answered."""
FRAME_OVERHEAD_BYTES: Final = 64
"""Memory of a frame beyond its body."""

_SHORT: Final = Struct(">BB")
_LONG: Final = Struct(">BQ")
_SIZE: Final = Struct(">I")
_TTL: Final = Struct(">H")
SHORT_BYTES_MAX: Final = 255
# Looking a head up is faster than packing it.
_LAST_HEADS: Final = [_SHORT.pack(0, size) for size in range(SHORT_BYTES_MAX + 1)]
_MORE_HEADS: Final = [_SHORT.pack(MORE, size) for size in range(SHORT_BYTES_MAX + 1)]

Message = list[bytes]
"""The bodies of a message's frames, at least one."""
Metadata = dict[bytes, bytes]
"""Properties of the peer by their names in lower case."""


class Ready(NamedTuple):
    """The handshake is complete. Messages follow."""

    version: str
    socket_type: str
    identity: bytes


class Ping(NamedTuple):
    """The peer wants a sign of life; the PONG is in `data_to_send`."""

    ttl_ms: int
    """How long the peer may be silent from now on before it counts as dead; 0: as long as it likes."""


class Oversize(NamedTuple):
    """A message is over a limit. Nothing more is read."""

    error: LimitExceeded
    head: Message
    """The frames that came before, at most HEAD_FRAMES_MAX."""


class Violation(NamedTuple):
    """The peer has sent what the protocol, or this server, does not allow. Nothing more is read.

    The sentence has nothing in it that the peer can choose freely, so that it can be counted by.
    """

    what: str


Event = Ready | Message | Ping | Oversize | Violation


class PeerError(Exception):
    """The peer breaks the protocol, or wants what this server does not have. It becomes a `Violation`."""

    def __init__(self, what: str, told: str = "") -> None:
        """`told` goes to the peer with ERROR, unless it is empty. It has at most 255 characters."""
        super().__init__(what)
        self.told = told.encode()


class Limits(NamedTuple):
    frame_bytes_max: int = 16 << 20
    message_bytes_max: int = 64 << 20
    """Bytes of all frames, their heads included."""
    message_frames_max: int = 250_000


# --- frames and commands --------------------------------------------------------------------------------------


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > SHORT_BYTES_MAX:
        return _LONG.pack(flags | LONG, len(body)) + body
    return _SHORT.pack(flags, len(body)) + body


def _frame_bytes(body_bytes: int) -> int:
    return body_bytes + (_SHORT.size if body_bytes <= SHORT_BYTES_MAX else _LONG.size)


def command(name: bytes, data: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name + data, COMMAND)


def split_command(body: bytes) -> tuple[bytes, bytes]:
    end = 1 + body[0] if body else 0
    if not 1 < end <= len(body):
        raise PeerError("a command has no name")
    return body[1:end], body[end:]


def encode_metadata(properties: Metadata) -> bytes:
    return b"".join(bytes([len(name)]) + name + _SIZE.pack(len(value)) + value for name, value in properties.items())


def decode_metadata(data: bytes) -> Metadata:
    properties: Metadata = {}
    at = 0
    while at < len(data):
        name_end = at + 1 + data[at]
        if name_end == at + 1 or name_end + _SIZE.size > len(data):
            raise PeerError("the metadata of the peer is malformed")
        start = name_end + _SIZE.size
        end = start + _SIZE.unpack_from(data, name_end)[0]
        if end > len(data):
            raise PeerError("the metadata of the peer is malformed")
        properties[data[at + 1 : name_end].lower()] = data[start:end]
        at = end
    return properties


# --- security mechanisms --------------------------------------------------------------------------------------


class Encryption(Protocol):
    """The encryption of every frame after a handshake."""

    overhead_bytes: int
    """How much longer an encrypted frame is than the body of the frame in it."""

    def seal(self, message: Sequence[bytes]) -> list[bytes]:
        """The frames of a message as the pieces of their bytes."""

    def seal_command(self, body: bytes) -> bytes:
        """A short command as a frame."""

    def open(self, data: bytes, start: int, stop: int) -> tuple[int, bytes]:
        """The frame in the body of an encrypted one: its flags, MORE or SEALED_COMMAND, and its body.

        Raises PeerError.
        """


class Mechanism(Protocol):
    """The handshake between the greeting and the first message, on the server's side. Each connection has its own."""

    name: bytes

    @property
    def box(self) -> Encryption | None:
        """Encrypts what follows the handshake, if the mechanism does that."""

    def receive(self, name: bytes, data: bytes) -> bytes | Metadata:
        """Take a command of the peer. The reply to it, or the peer's metadata if it was the last of its handshake.

        Raises PeerError to refuse the peer.
        """

    def ready(self, properties: Metadata) -> bytes:
        """Our last command, after the peer's metadata was accepted."""


class Null:
    """No security: each side says READY."""

    name = b"NULL"
    box = None

    def receive(self, name: bytes, data: bytes) -> bytes | Metadata:
        if name == b"ERROR":
            raise PeerError("the peer refused the handshake with ERROR")
        if name != b"READY":
            raise PeerError("the handshake does not begin with READY")
        return decode_metadata(data)

    def ready(self, properties: Metadata) -> bytes:
        return command(b"READY", encode_metadata(properties))


# --- connections ----------------------------------------------------------------------------------------------


class Connection:
    """One connection of a peer. After `Oversize` or `Violation` it reads nothing more."""

    def __init__(self, limits: Limits = Limits(), mechanism: Mechanism | None = None) -> None:  # noqa: B008
        self.is_closed = False
        self.is_ready = False
        self.version = ""
        """Of the protocol, once the peer has said it: 2.0, 3.0 or 3.1."""
        self._limits = limits
        self._mechanism = mechanism or Null()
        self._box: Encryption | None = None
        """Encrypts all frames, once the handshake has agreed on keys."""
        self._out = [SIGNATURE]
        self._greeting_bytes = 0
        """The length of the peer's greeting, once its version is known."""
        self._socket_type = b""
        # Messages up to this size are within all limits, whatever frames they are made of.
        self._small = min(limits.message_frames_max, limits.message_bytes_max)
        self._tail = b""
        """A part of the greeting, of a frame's head or of a short frame."""
        self._parts: Message = []
        """Frames of an incomplete message."""
        self._size = 0
        self._body = bytearray()
        """The beginning of a long frame."""
        self._missing = 0
        self._flags = 0

    # -- out

    def data_to_send(self) -> bytes:
        """Bytes of the protocol itself. Send them when the connection is made and after each `receive`."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def send(self, message: Sequence[bytes]) -> list[bytes]:
        """A message as the pieces of its bytes, which only need to be joined. It has at least one frame."""
        # A hot loop; see bench/zmtp.py.
        if self._box is not None:
            return self._box.seal(message)
        out: list[bytes] = []
        add, heads = out.append, _MORE_HEADS
        for body in message:
            size = len(body)
            add(heads[size] if size <= SHORT_BYTES_MAX else _LONG.pack(MORE | LONG, size))
            add(body)
        size = len(message[-1])
        out[-2] = _LAST_HEADS[size] if size <= SHORT_BYTES_MAX else _LONG.pack(LONG, size)
        return out

    def ping(self) -> bytes:
        """A PING, which a 3.1 peer answers; nothing for others, which may not know it."""
        return self._command(b"PING", _TTL.pack(0)) if self.is_ready and self.version == "3.1" else b""

    def _command(self, name: bytes, data: bytes) -> bytes:
        return command(name, data) if self._box is None else self._box.seal_command(bytes([len(name)]) + name + data)

    # -- in

    @property
    def pending_bytes(self) -> int:
        incomplete = len(self._tail) + len(self._body) + (_LONG.size if self._missing else 0)
        return self._size + FRAME_OVERHEAD_BYTES * len(self._parts) + incomplete

    def forget(self) -> None:
        """Let go of an incomplete message, and read nothing more."""
        self.is_closed = True
        self._tail, self._parts, self._body = b"", [], bytearray()
        self._size = self._missing = 0

    def receive(self, data: bytes) -> list[Event]:
        """Take the next bytes; the events that they complete."""
        events: list[Event] = []
        if self.is_closed:
            return events
        try:
            self._read(data, events)
        except LimitExceeded as error:
            # Its traceback would keep the whole message in memory.
            events.append(Oversize(error.with_traceback(None), self._parts[:HEAD_FRAMES_MAX]))
            self.forget()
        except PeerError as error:
            if error.told:
                self._out.append(command(b"ERROR", bytes([len(error.told)]) + error.told))
            events.append(Violation(str(error)))
            self.forget()
        return events

    def _read(self, data: bytes, events: list[Event]) -> None:
        at = 0
        if self._tail:
            data, self._tail = self._tail + data, b""
        elif self._missing:
            at = self._fill(data, events)
        while at < len(data):
            before = at
            if self._box is not None:
                at = self._read_sealed(self._box, data, at, events)
            elif self.is_ready:
                at = self._read_messages(data, at, events)
            elif self.version:
                at = self._read_frame(data, at, events)
            else:
                at = self._read_greeting(data)
            if at == before:
                self._tail = data[at:]
                return

    # -- the greeting

    def _read_greeting(self, data: bytes) -> int:
        """Answer the greeting as soon as its version is known. Where it ends, or 0 to wait for more."""
        if data[0] != SIGNATURE[0] or (len(data) >= SIGNATURE_BYTES and not data[SIGNATURE_BYTES - 1] & 1):
            raise PeerError("the peer does not speak ZMTP 2.0 or newer")
        if len(data) <= REVISION_AT:
            return 0
        revision, ours = data[REVISION_AT], self._mechanism.name
        if not revision:
            raise PeerError("the peer speaks ZMTP 1.0")
        if not self._greeting_bytes:
            self._greeting_bytes = GREETING_2_BYTES if revision < 3 else GREETING_3_BYTES
            self._out.append(bytes([1, ROUTER]) if revision < 3 else bytes([3, 1]))
        if len(data) < self._greeting_bytes:
            return 0
        if revision < 3:
            if ours != b"NULL":
                raise PeerError(f"the peer speaks ZMTP 2.0, which has no security; this server has {ours.decode()}")
            self.version = "2.0"
            number = data[REVISION_AT + 1]
            self._socket_type = SOCKET_TYPES[number] if number < len(SOCKET_TYPES) else b""
        else:
            self.version = "3.1" if revision > 3 or data[REVISION_AT + 1] else "3.0"
            # Only now: libzmq leaves as soon as it sees another mechanism, and then this log could not say why.
            self._out.append(ours.ljust(20, b"\0") + bytes([ours != b"NULL"]).ljust(32, b"\0"))
            asked = data[MECHANISM].rstrip(b"\0")
            if asked != ours:
                name = asked.decode() if asked in KNOWN_MECHANISMS else "unknown"
                remedy = f": {REMEDIES[asked, ours]}" if (asked, ours) in REMEDIES else ""
                has = f"this server has {ours.decode()}{remedy}"
                raise PeerError(f"the peer asks for the security mechanism {name}; {has}", has)
        return self._greeting_bytes

    # -- the handshake

    def _handshake(self, flags: int, body: bytes) -> Ready | None:
        """Take one frame before the first message: a command, or in ZMTP 2.0 the peer's identity."""
        if self.version == "2.0":
            if flags:
                raise PeerError("the handshake does not begin with an identity")
            identity, reply = body, frame(b"")
        else:
            if not flags & COMMAND:
                raise PeerError("a message came before the handshake was complete")
            outcome = self._mechanism.receive(*split_command(body))
            if isinstance(outcome, bytes):
                self._out.append(outcome)
                return None
            self._socket_type = outcome.get(b"socket-type", b"DEALER")
            identity = outcome.get(b"identity", b"")
            reply = self._mechanism.ready({b"Socket-Type": b"ROUTER", b"Identity": b""})
        if self._socket_type not in PEER_TYPES:
            told = "" if self.version == "2.0" else "a ROUTER talks to REQ, DEALER and ROUTER"
            raise PeerError("the peer is no REQ, DEALER or ROUTER", told)
        if len(identity) > IDENTITY_BYTES_MAX:
            raise PeerError(f"the identity of the peer has more than {IDENTITY_BYTES_MAX} bytes")
        self._out.append(reply)
        self.is_ready = True
        self._box = self._mechanism.box
        return Ready(self.version, self._socket_type.decode(), identity)

    # -- messages and commands

    def _read_messages(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read whole frames of messages. Where the next frame begins, or `at` to wait for more."""
        # The hot loop of this protocol; see bench/zmtp.py.
        head, long_head, end, small = _SHORT.unpack_from, _LONG.unpack_from, len(data), self._small
        frame_bytes_max = self._limits.frame_bytes_max
        last_head, last_long_head = end - _SHORT.size, end - _LONG.size
        parts = self._parts
        began = at - self._size
        while at <= last_head:
            flags, size = head(data, at)
            start = at + 2
            if flags > MORE:
                if flags >= COMMAND or at > last_long_head:
                    break
                flags, size = long_head(data, at)
                start = at + 9
            stop = start + size
            if stop > end or size > frame_bytes_max:
                break
            parts.append(data[start:stop])
            at = stop
            if not flags & MORE:
                if at - began > small:
                    self._parts = parts
                    self._check_message(at - began)
                events.append(parts)
                parts = []
                began = at
        self._parts = parts
        self._size = at - began
        if self._size > small:
            self._check_message(self._size)
        return self._read_frame(data, at, events) if at < end else at

    def _read_sealed(self, box: Encryption, data: bytes, at: int, events: list[Event]) -> int:
        """Read whole encrypted frames. Where the next one begins, or `at` to wait for more."""
        head, long_head, end = _SHORT.unpack_from, _LONG.unpack_from, len(data)
        frame_bytes_max = self._limits.frame_bytes_max + box.overhead_bytes
        last_head, last_long_head = end - _SHORT.size, end - _LONG.size
        while at <= last_head:
            flags, size = head(data, at)
            start = at + 2
            if flags & LONG:
                if at > last_long_head:
                    break
                flags, size = long_head(data, at)
                start = at + 9
            stop = start + size
            if flags & ~(LONG | COMMAND) or stop > end or size > frame_bytes_max:
                break
            self._unseal(box, data, start, stop, events)
            at = stop
        return self._read_frame(data, at, events) if at < end else at

    def _unseal(self, box: Encryption, data: bytes, start: int, stop: int, events: list[Event]) -> None:
        """Take an encrypted frame. It counts against the limits as the one that is in it."""
        flags, body = box.open(data, start, stop)
        size = len(body)
        if flags == SEALED_COMMAND:
            if size > COMMAND_BYTES_MAX:
                raise PeerError(f"a command has more than {COMMAND_BYTES_MAX} bytes")
            self._obey(body, events)
            return
        self._parts.append(body)
        self._size += _frame_bytes(size)
        if self._size > self._small:
            self._check_message(self._size)
        if not flags:
            events.append(self._parts)
            self._parts, self._size = [], 0

    def _read_frame(self, data: bytes, at: int, events: list[Event]) -> int:
        """Read one frame of any kind, or its beginning. Where the next begins, or `at` to wait for more."""
        flags = data[at]
        if flags not in FLAGS[self.version[0]] or (self._box is not None and flags & MORE):
            raise PeerError("a frame has flags that do not exist")
        start = at + (_LONG.size if flags & LONG else _SHORT.size)
        if start > len(data):
            return at
        size = _LONG.unpack_from(data, at)[1] if flags & LONG else data[at + 1]
        stop = start + size
        if self._box is not None:
            size = max(0, size - self._box.overhead_bytes)
            self._check_frame(size, _frame_bytes(size))
        elif self.is_ready and not flags & COMMAND:
            self._check_frame(size, stop - at)
        elif size > COMMAND_BYTES_MAX:
            raise PeerError(f"a command has more than {COMMAND_BYTES_MAX} bytes")
        if stop <= len(data):
            self._take(flags, data[start:stop], stop - at, events)
            return stop
        if stop - start <= SHORT_BYTES_MAX:
            return at
        self._flags = flags
        self._body += data[start:]
        self._missing = stop - len(data)
        return len(data)

    def _check_frame(self, body_bytes: int, frame_bytes: int) -> None:
        if body_bytes > self._limits.frame_bytes_max:
            raise LimitExceeded("frame_bytes_max", body_bytes, self._limits.frame_bytes_max)
        self._check_message(self._size + frame_bytes)

    def _check_message(self, size: int) -> None:
        """Refuse a message, complete or not, that is over a limit."""
        limits, frames = self._limits, len(self._parts)
        if frames > limits.message_frames_max:
            raise LimitExceeded("message_frames_max", frames, limits.message_frames_max)
        if size > limits.message_bytes_max:
            raise LimitExceeded("message_bytes_max", size, limits.message_bytes_max)

    def _fill(self, data: bytes, events: list[Event]) -> int:
        """Add to the body of a long frame; where the rest of the data begins."""
        end = min(self._missing, len(data))
        self._body += data[:end]
        self._missing -= end
        if not self._missing:
            body, self._body = bytes(self._body), bytearray()
            self._take(self._flags, body, _LONG.size + len(body), events)
        return end

    def _take(self, flags: int, body: bytes, size: int, events: list[Event]) -> None:
        if not self.is_ready:
            if (ready := self._handshake(flags, body)) is not None:
                events.append(ready)
        elif self._box is not None:
            self._unseal(self._box, body, 0, len(body), events)
        elif flags & COMMAND:
            self._obey(body, events)
        else:
            self._parts.append(body)
            self._size += size
            if not flags & MORE:
                self._check_message(self._size)
                events.append(self._parts)
                self._parts, self._size = [], 0

    def _obey(self, body: bytes, events: list[Event]) -> None:
        """A command between messages, or between the frames of one. Unknown ones mean nothing to a ROUTER."""
        name, data = split_command(body)
        if name == b"ERROR":
            raise PeerError("the peer ended the connection with ERROR")
        if name == b"PING":
            context = data[_TTL.size :]
            if len(data) < _TTL.size or len(context) > PING_CONTEXT_BYTES_MAX:
                raise PeerError("a PING is malformed")
            self._out.append(self._command(b"PONG", context))
            events.append(Ping(100 * _TTL.unpack_from(data)[0]))
