"""TLS between a loop's transport and a protocol, for the listening side.

The loop's own TLS shows a connection to its protocol after the handshake. Here the protocol has it from its first
moment, so that every limit holds for connections that only shake hands: they are counted, listed, timed and cut off
like the others. The layer sends after the handshake the bytes that the protocol writes before.
"""

import asyncio
import ssl
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from penstock.tcp.session import CloseReason

SLICE_BYTES: Final = 1 << 16
"""Bytes that are encrypted or decrypted at once. OpenSSL keeps buffers of this size for each connection."""
RECORD_BYTES_MAX: Final = 1 << 14
"""Plain bytes of one TLS record."""
ANSWER_S_MAX: Final = 1.0
"""How long a peer that spoke plain text may take to read the answer."""
HANDSHAKE_RECORD: Final = 0x16
"""The first byte of a TLS connection."""
ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x0a"
"""An alert of TLS: "unexpected message". Those that spoke plain text recognise a server that speaks TLS by it."""


class Securable(Protocol):
    """What a protocol behind a `TlsLayer` has in addition to the methods of `asyncio.Protocol`."""

    def secured(self) -> None:
        """The handshake is done."""

    def unsecured(self, why: CloseReason, detail: str = "") -> None:
        """There was no handshake. The layer closes the connection."""


class TlsLayer(asyncio.Protocol, asyncio.Transport):
    """The loop's protocol, and the transport of the protocol behind it."""

    def __init__(self, protocol: asyncio.Protocol, context: ssl.SSLContext, plain_answer: bytes = ALERT) -> None:
        """`plain_answer` goes to a peer that speaks plain text."""
        self._protocol = protocol
        self._context = context
        self._plain_answer = plain_answer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._early: list[bytes] = []
        """Bytes that the protocol wrote before the handshake was done."""
        self._is_begun = self._is_secured = self._is_finished = self._is_over = False
        self._stays_open: bool | None = None
        """After the peer's end: whether the protocol still writes."""
        self._wants_eof = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_shaking_hands(self) -> bool:
        return not self._is_secured

    # -- the loop's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast("asyncio.Transport", transport)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if not self._is_begun:
            self._is_begun = True
            if data[0] != HANDSHAKE_RECORD:
                self._fail(CloseReason.PLAIN, self._plain_answer)
                return
        if len(data) <= SLICE_BYTES:
            self._take(data)
            return
        # In slices: OpenSSL keeps a buffer as large as the largest piece that it got.
        with memoryview(data) as view:
            for start in range(0, len(data), SLICE_BYTES):
                if not self._is_over:
                    self._take(view[start : start + SLICE_BYTES])

    def _take(self, data: bytes | memoryview) -> None:
        self._incoming.write(data)
        if self._is_secured or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send_outgoing()
            return False
        except ssl.SSLError as error:
            self._send_outgoing()
            self._fail(CloseReason.HANDSHAKE, detail=words_of(error))
            return False
        self._send_outgoing()
        self._is_secured = True
        early, self._early = self._early, []
        cast("Securable", self._protocol).secured()
        for piece in early:
            self.write(piece)
        if self._wants_eof:
            self.write_eof()
        return not self._is_over

    def _read(self) -> None:
        incoming, tls = self._incoming, self._tls
        pieces, is_over, is_broken = [], False, False
        try:
            while incoming.pending:
                if piece := tls.read(RECORD_BYTES_MAX):
                    pieces.append(piece)
                else:
                    is_over = True
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            is_over = True
        except ssl.SSLError:
            is_broken = True
        if self._outgoing.pending:
            self._send_outgoing()
        if pieces:
            self._protocol.data_received(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if is_broken:
            # What follows was changed on its way, or is no TLS.
            self.abort()
        elif is_over and not self.eof_received():
            self.close()

    def _fail(self, why: CloseReason, answer: bytes = b"", detail: str = "") -> None:
        self._is_over = True
        cast("Securable", self._protocol).unsecured(why, detail)
        if answer:
            self._raw.write(answer)
        if self._raw.can_write_eof():
            # If unread bytes are left at the close, the system drops our last ones.
            self._raw.write_eof()
            self._timer = asyncio.get_running_loop().call_later(ANSWER_S_MAX, self._raw.abort)
        else:
            self._raw.close()

    def eof_received(self) -> bool:
        """The peer sends nothing more. It may have said so before, inside TLS."""
        if not self._is_secured:
            if not self._is_over:
                self._is_over = True
                cast("Securable", self._protocol).unsecured(CloseReason.PEER)
            return False
        if self._stays_open is None:
            self._stays_open = bool(self._protocol.eof_received())
        return self._stays_open

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._early.clear()
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        # The protocol has a reference to this layer for a while: OpenSSL's buffers must not wait for that.
        del self._tls, self._incoming, self._outgoing
        protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    # -- the protocol's transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_secured:
            if not self._is_over:
                self._early.append(bytes(data))
            return
        if self._is_over or self._is_finished or not data:
            return
        tls, outgoing = self._tls, self._outgoing
        try:
            if len(data) <= RECORD_BYTES_MAX:
                tls.write(data)
                self._raw.write(outgoing.read())
                return
            with memoryview(data) as view:
                at, end = 0, len(view)
                while at < end:
                    at += tls.write(view[at : at + RECORD_BYTES_MAX])
                    if outgoing.pending >= SLICE_BYTES or at == end:
                        self._raw.write(outgoing.read())
        except ssl.SSLError:
            self.abort()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Say that nothing more comes. The peer may still send."""
        if not self._is_secured:
            self._wants_eof = True
        elif not self._is_finished:
            self._finish()
            self._raw.write_eof()

    def close(self) -> None:
        if self._is_secured:
            self._finish()
        self._is_over = True
        self._raw.close()

    def _finish(self) -> None:
        if self._is_finished or self._is_over:
            return
        self._is_finished = True
        # The error says that the peer has not ended yet. The connection does not wait for that.
        with suppress(ssl.SSLError):
            self._tls.unwrap()
        self._send_outgoing()

    def abort(self) -> None:
        self._is_over = True
        self._raw.abort()

    def _send_outgoing(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def is_closing(self) -> bool:
        return self._is_over or self._is_finished or self._raw.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == "ssl_object":
            return None if self._is_over else self._tls
        return self._raw.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size() + sum(map(len, self._early))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._raw.get_write_buffer_limits()

    def is_reading(self) -> bool:
        return self._raw.is_reading()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol


def words_of(error: ssl.SSLError) -> str:
    """What OpenSSL says of an error, as words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.lower()
    return (error.reason or error.strerror or "unknown reason").replace("_", " ").lower()
