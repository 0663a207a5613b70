"""CURVE, the encryption of ZeroMQ: the server's side of its handshake, and the frames after it.

Sans-IO: a mechanism of `penstock.wire.zmtp`. The specifications are ZeroMQ's RFCs 25 and 26. All cryptography is
libsodium's, through PyNaCl: X25519 between keys, XSalsa20 and Poly1305 over content.

Server and client each have a permanent key pair, and make another one for each connection, so that an attacker with a
permanent secret key cannot read earlier connections. HELLO shows that the client knows the server's key. WELCOME
has the server's key of this connection, and a cookie, which alone keeps its secret half meanwhile. INITIATE brings the
cookie back, and the client's permanent key with a vouch that it is the client's. Then each frame is a MESSAGE with a
nonce that only grows: nothing can be read, changed, repeated, or put in another order on its way.
"""

from base64 import b85decode, b85encode
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from nacl.bindings import (
    crypto_box_beforenm,
    crypto_box_easy_afternm,
    crypto_box_keypair,
    crypto_box_open_easy_afternm,
    crypto_scalarmult_base,
    crypto_secretbox_easy,
    crypto_secretbox_open_easy,
    randombytes,
)
from nacl.exceptions import CryptoError

from penstock.wire.zmtp import (
    LONG,
    MORE,
    SHORT_BYTES_MAX,
    Metadata,
    PeerError,
    command,
    decode_metadata,
    encode_metadata,
)

KEY_BYTES: Final = 32
KEY_CHARACTERS: Final = 40
LONG_NONCE_BYTES: Final = 16
"""Of a nonce that is random; the other 8 of 24 bytes are its prefix."""
SHORT_NONCE_BYTES: Final = 8
"""Of a nonce that counts; the other 16 of 24 bytes are its prefix."""
MAC_BYTES: Final = 16
COOKIE_BYTES: Final = LONG_NONCE_BYTES + 2 * KEY_BYTES + MAC_BYTES
VOUCH_BYTES: Final = LONG_NONCE_BYTES + 2 * KEY_BYTES + MAC_BYTES

VERSION: Final = b"\1\0"
PADDING_BYTES: Final = 72
"""Makes HELLO longer than WELCOME, so that an attacker cannot use the server to amplify a flood."""
SIGNATURE: Final = bytes(64)
HELLO_BYTES: Final = len(VERSION) + PADDING_BYTES + KEY_BYTES + SHORT_NONCE_BYTES + len(SIGNATURE) + MAC_BYTES
INITIATE_BYTES_MIN: Final = COOKIE_BYTES + SHORT_NONCE_BYTES + MAC_BYTES + KEY_BYTES + VOUCH_BYTES
MESSAGE: Final = b"\x07MESSAGE"
MESSAGE_HEAD_BYTES: Final = len(MESSAGE) + SHORT_NONCE_BYTES
OVERHEAD_BYTES: Final = MESSAGE_HEAD_BYTES + MAC_BYTES + 1
"""What CURVE adds to the body of a frame; one byte has its flags."""
FLAGS: Final = frozenset({0, MORE, 2})
"""Of the frame in a MESSAGE. 2 is a command such as PING: libzmq's addition to the specification."""
COMMAND: Final = 2

UNKNOWN_KEY: Final = "400"
"""What ZeroMQ's authentication (RFC 27) answers to a key that may not come in. libzmq tells its program."""
WRONG_SERVER_KEY: Final = (
    "the HELLO of CURVE is not for the key of this server: give the client the public key that the server's log names"
)

_SHORT_NONCE: Final = Struct(">Q")
_SHORT_HEAD: Final = Struct(f">BB{len(MESSAGE)}sQ")
_LONG_HEAD: Final = Struct(f">BQ{len(MESSAGE)}sQ")
_B85: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85: Final = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85: Final = bytes.maketrans(_B85, _Z85)
_FROM_Z85: Final = bytes.maketrans(_Z85, _B85)


# --- keys -----------------------------------------------------------------------------------------------------


def key_text(key: bytes) -> str:
    """A key as ZeroMQ writes it: 40 characters of Z85 (RFC 32)."""
    return b85encode(key).translate(_TO_Z85).decode()


def key_of(text: str) -> bytes:
    """Raises ValueError, without the text in it: it may be a secret."""
    if len(text) != KEY_CHARACTERS or not text.isascii() or not set(text.encode()) <= set(_Z85):
        raise ValueError(f"is not a key of CURVE: it must have {KEY_CHARACTERS} characters of Z85")
    try:
        return b85decode(text.encode().translate(_FROM_Z85))
    except ValueError:
        # Five characters may stand for a number that four bytes cannot have.
        raise ValueError("is not a key of CURVE: it stands for no 32 bytes") from None


def public_key(secret: bytes) -> bytes:
    return crypto_scalarmult_base(secret)


def new_secret_key() -> bytes:
    return crypto_box_keypair()[1]


# --- the handshake --------------------------------------------------------------------------------------------


class Curve:
    """The handshake of one connection. `admit` gets the client's key, and returns whether the client may connect."""

    name = b"CURVE"

    def __init__(self, secret: bytes, public: bytes, admit: Callable[[bytes], bool]) -> None:
        self.box: Box | None = None
        self._secret = secret
        self._public = public
        self._admit = admit
        self._peer_nonce = -1
        self._cookie_key: bytes | None = None

    def receive(self, name: bytes, data: bytes) -> bytes | Metadata:
        if name == b"ERROR":
            raise PeerError("the peer refused the handshake with ERROR")
        if self._peer_nonce < 0:
            if name != b"HELLO":
                raise PeerError("the handshake of CURVE does not begin with HELLO")
            return self._welcome(data)
        if name != b"INITIATE":
            raise PeerError("the handshake of CURVE does not go on with INITIATE")
        return self._initiate(data)

    def ready(self, properties: Metadata) -> bytes:
        assert self.box is not None
        return command(b"READY", self.box.seal_ready(encode_metadata(properties)))

    def _welcome(self, data: bytes) -> bytes:
        if len(data) != HELLO_BYTES:
            raise PeerError("the HELLO of CURVE has a wrong length")
        version, padding, peer, nonce, box = _split(data, len(VERSION), PADDING_BYTES, KEY_BYTES, SHORT_NONCE_BYTES)
        if version != VERSION:
            raise PeerError("the peer speaks another version of CURVE than 1.0")
        if any(padding):
            raise PeerError("the HELLO of CURVE is malformed")
        try:
            shared = crypto_box_beforenm(peer, self._secret)
            opened = crypto_box_open_easy_afternm(box, b"CurveZMQHELLO---" + nonce, shared)
        except CryptoError:
            raise PeerError(WRONG_SERVER_KEY) from None
        if opened != SIGNATURE:
            raise PeerError("the HELLO of CURVE is malformed")
        self._count(nonce)
        public, secret = crypto_box_keypair()
        self._cookie_key, nonce = randombytes(KEY_BYTES), randombytes(LONG_NONCE_BYTES)
        cookie = nonce + crypto_secretbox_easy(peer + secret, b"COOKIE--" + nonce, self._cookie_key)
        nonce = randombytes(LONG_NONCE_BYTES)
        return command(b"WELCOME", nonce + crypto_box_easy_afternm(public + cookie, b"WELCOME-" + nonce, shared))

    def _initiate(self, data: bytes) -> Metadata:
        if len(data) < INITIATE_BYTES_MIN:
            raise PeerError("the INITIATE of CURVE is too short")
        cookie_key, self._cookie_key = self._cookie_key, None
        assert cookie_key is not None
        cookie_nonce, cookie, nonce, box = _split(
            data, LONG_NONCE_BYTES, COOKIE_BYTES - LONG_NONCE_BYTES, SHORT_NONCE_BYTES
        )
        self._count(nonce)
        try:
            kept = crypto_secretbox_open_easy(cookie, b"COOKIE--" + cookie_nonce, cookie_key)
        except CryptoError:
            raise PeerError("the cookie in INITIATE is not of this connection") from None
        peer, secret = kept[:KEY_BYTES], kept[KEY_BYTES:]
        try:
            shared = crypto_box_beforenm(peer, secret)
            opened = crypto_box_open_easy_afternm(box, b"CurveZMQINITIATE" + nonce, shared)
        except CryptoError:
            raise PeerError("the INITIATE of CURVE cannot be opened") from None
        client, vouch_nonce, vouch, metadata = _split(
            opened, KEY_BYTES, LONG_NONCE_BYTES, VOUCH_BYTES - LONG_NONCE_BYTES
        )
        try:
            vouched = crypto_box_open_easy_afternm(
                vouch, b"VOUCH---" + vouch_nonce, crypto_box_beforenm(client, secret)
            )
        except CryptoError:
            raise PeerError("the vouch in INITIATE is not of the client's key") from None
        if vouched != peer + self._public:
            raise PeerError("the vouch in INITIATE is for another connection")
        properties = decode_metadata(metadata)
        if not self._admit(client):
            raise PeerError("the key of the client stands for no principal, and this gate takes no other", UNKNOWN_KEY)
        self.box = Box(shared, self._peer_nonce)
        return properties

    def _count(self, nonce: bytes) -> None:
        number = _SHORT_NONCE.unpack(nonce)[0]
        if number <= self._peer_nonce:
            raise PeerError("a nonce of CURVE came again, or out of order")
        self._peer_nonce = number


def _split(data: bytes, *lengths: int) -> list[bytes]:
    """Parts of these lengths, and what remains."""
    parts, at = [], 0
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    return [*parts, data[at:]]


# --- frames ---------------------------------------------------------------------------------------------------


class Box:
    """Encrypts and decrypts the frames of one connection after its handshake."""

    __slots__ = ("_nonce", "_peer_nonce", "_shared")

    overhead_bytes = OVERHEAD_BYTES

    def __init__(self, shared: bytes, peer_nonce: int) -> None:
        self._shared = shared
        self._nonce = 0
        self._peer_nonce = peer_nonce

    def seal_ready(self, metadata: bytes) -> bytes:
        self._nonce += 1
        nonce = _SHORT_NONCE.pack(self._nonce)
        return nonce + crypto_box_easy_afternm(metadata, b"CurveZMQREADY---" + nonce, self._shared)

    def seal(self, message: Sequence[bytes]) -> list[bytes]:
        """A message as the pieces of its bytes on the wire."""
        # A hot loop. libzmq sends MESSAGE without the flag of a command, and so do we.
        out: list[bytes] = []
        add, encrypt, shared, nonce = out.append, crypto_box_easy_afternm, self._shared, self._nonce
        last = nonce + len(message)
        for body in message:
            nonce += 1
            full_nonce = b"CurveZMQMESSAGES" + _SHORT_NONCE.pack(nonce)
            box = encrypt((b"\1" if nonce < last else b"\0") + body, full_nonce, shared)
            size = MESSAGE_HEAD_BYTES + len(box)
            pack, flags = (_SHORT_HEAD.pack, 0) if size <= SHORT_BYTES_MAX else (_LONG_HEAD.pack, LONG)
            add(pack(flags, size, MESSAGE, nonce))
            add(box)
        self._nonce = nonce
        return out

    def seal_command(self, body: bytes) -> bytes:
        """A short command, such as PONG."""
        self._nonce += 1
        full_nonce = b"CurveZMQMESSAGES" + _SHORT_NONCE.pack(self._nonce)
        box = crypto_box_easy_afternm(bytes([COMMAND]) + body, full_nonce, self._shared)
        return _SHORT_HEAD.pack(0, MESSAGE_HEAD_BYTES + len(box), MESSAGE, self._nonce) + box

    def open(self, data: bytes, start: int, stop: int) -> tuple[int, bytes]:
        """Flags and body of the frame in a MESSAGE, which is between two places of the data. Raises PeerError."""
        if not data.startswith(MESSAGE, start, stop):
            raise PeerError("a frame is not encrypted, although the connection is")
        if stop - start < OVERHEAD_BYTES:
            raise PeerError("an encrypted frame is too short")
        box_at = start + MESSAGE_HEAD_BYTES
        (nonce,) = _SHORT_NONCE.unpack_from(data, start + len(MESSAGE))
        if nonce <= self._peer_nonce:
            raise PeerError("a nonce of CURVE came again, or out of order")
        full_nonce = b"CurveZMQMESSAGEC" + data[start + len(MESSAGE) : box_at]
        try:
            opened = crypto_box_open_easy_afternm(data[box_at:stop], full_nonce, self._shared)
        except CryptoError:
            raise PeerError("an encrypted frame cannot be opened: it was changed on its way") from None
        self._peer_nonce = nonce
        flags = opened[0]
        if flags not in FLAGS:
            raise PeerError("an encrypted frame has flags that do not exist")
        return flags, opened[1:]
