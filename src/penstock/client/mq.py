"""To a server's MQ gate: `penstock://host:port`."""

import ssl
from typing import Final

from penstock.client.transport import Link, NetworkTransport
from penstock.errors import (
    AnswerMalformed,
    CannotConnect,
    ConnectionLost,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    Refused,
)
from penstock.mq import Ending, FrameTooLong, Message, MqClient, MqLimits, MqSession, Reason
from penstock.wire.mqframe import cut
from penstock.wire.res01.codes import MALFORMED
from penstock.wire.res01.dialects import OWN_TAG, Frames
from penstock.wire.res01.messages import OWN_LARGE_TAG, join_fields, split_fields

SMALL: Final = frozenset((b"AF", b"TX"))
"""Commands whose answers fit into frames, whatever the store holds."""
MESSAGE_BYTES_MAX: Final = 64 << 20
"""Bytes of one request: what a server takes unless it is told otherwise."""
UNSENT_BYTES_HIGH: Final = 1 << 20
"""When more than this waits for the server to read it, calls wait before they send."""
LIMITS: Final = MqLimits(message_bytes_max=1 << 30, unsent_bytes_max=1 << 30)
"""A server may be asked for large pages, and many threads may send large commits at once."""


class MqTransport(NetworkTransport):
    """MqFrames over TCP."""

    def __init__(self, url: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(url)
        self._host = host
        self._port = port
        self._tls = tls

    async def connect(self) -> Link:
        """A session with the server."""
        link = MqLink(self)
        link.session = await MqClient.connect(
            self._host, self._port, on_message=link.received, on_close=link.lost, limits=LIMITS, tls=self._tls
        )
        return link


class MqLink(Link):
    """One session."""

    session: MqClient

    def __init__(self, transport: MqTransport) -> None:
        super().__init__(transport.url)
        self._transport = transport
        self._mistake: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether neither side has ended it."""
        return self.session.ended is None

    async def room(self) -> None:
        """Wait while the server does not read."""
        if self.session.unsent_bytes > UNSENT_BYTES_HIGH:
            await self.session.drain()

    def send(self, fields: Frames) -> None:
        """In frames if they fit, and the answer is sure to; in one long string otherwise."""
        if fields[0] in SMALL:
            try:
                self.session.send([OWN_TAG, *fields])
            except FrameTooLong:
                pass
            else:
                return
        content = join_fields(fields)
        if len(content) > MESSAGE_BYTES_MAX:
            raise LimitExceeded("mq_message_bytes_max", len(content), MESSAGE_BYTES_MAX)
        self.session.send([OWN_LARGE_TAG, *cut(content, self.session.frame_bytes_max)])

    async def close(self) -> None:
        """Say goodbye."""
        self.session.close()
        await self.session.gone()

    # -- told by the session

    def received(self, session: MqSession, message: Message) -> None:
        """An answer. If it cannot be read, nothing that follows can be trusted."""
        try:
            number, *payload = _fields(message)
        except (InvalidRequest, LimitExceeded, ValueError) as error:
            self._mistake = str(error)
            session.close(Reason.PROTOCOL_ERROR)
            self._transport.lost(self)
        else:
            self.waiting.answered(number, payload)

    def lost(self, _session: MqSession, _ending: Ending) -> None:
        """The connection is gone."""
        self._transport.gone(self)

    def ended(self) -> PenstockError:
        """What the end of the session means for those who wait."""
        ending = self.session.ending
        if self._mistake is not None:
            return AnswerMalformed(self._mistake)
        if ending is None or ending.reason is Reason.CLIENT_CLOSING:
            return super().ended()
        if ending.reason is Reason.CONNECTION_REFUSED:
            return CannotConnect(self.url, f"{ending}: it has too many connections, or too many from this address")
        if ending.reason is not Reason.PROTOCOL_ERROR:
            return ConnectionLost(self.url, str(ending))
        if not ending.by_peer:
            return AnswerMalformed(ending.why)
        return Refused(MALFORMED, "the server ended the connection: it takes no such message, or none so large")


def _fields(message: Message) -> Frames:
    """The RequestId and what follows it."""
    tag, *rest = message
    if tag == OWN_LARGE_TAG:
        return split_fields(b"".join(rest))
    if tag != OWN_TAG:
        raise InvalidRequest("protocol", f"is {tag[:16]!r}, not {OWN_TAG.decode()}")
    return rest
