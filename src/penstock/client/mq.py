"""To a server's MQ gate: `penstock://host:port`."""

import asyncio
import ssl

from penstock.client.transport import Answer, Transport
from penstock.client.waiting import Waiting
from penstock.errors import CannotConnect, ClientClosed, ConnectionLost
from penstock.model import Append, Request, Transact
from penstock.mq import Ending, FrameTooLong, Message, MqClient, MqSession
from penstock.wire.mqframe import cut
from penstock.wire.res01.asking import fields_of
from penstock.wire.res01.decoding import TEXT_TAG
from penstock.wire.res01.framed import LARGE_TAG, join_fields, split_fields

SMALL = (Append, Transact)
"""Requests whose answers fit into frames, whatever the store holds."""


class MqTransport(Transport):
    """One connection at a time."""

    def __init__(self, url: str, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._host = host
        self._port = port
        self._tls = tls
        self._waiting = Waiting(url)
        self._session: MqClient | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def ready(self, seconds: float) -> None:
        """Connect unless there is a connection."""
        if self._closed:
            raise ClientClosed
        async with self._connecting:
            if self._session is None:
                await self._connect(seconds)

    async def _connect(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                self._session = await MqClient.connect(
                    self._host, self._port, on_message=self._received, on_close=self._lost, tls=self._tls
                )
        except TimeoutError:
            raise CannotConnect(self.url, "nobody answers") from None
        except OSError as error:
            raise CannotConnect(self.url, (error.strerror or str(error)).lower()) from None

    def start(self, request: Request) -> Answer:
        """Send a request with those that are under way."""
        session = self._session
        if self._closed:
            raise ClientClosed
        if session is None or session.ended is not None:
            raise ConnectionLost(self.url, "there is no connection")
        number, answer = self._waiting.add(request)
        command, *rest = fields_of(request)
        self._send(session, [command, number, *rest], isinstance(request, SMALL))
        return answer

    def _send(self, session: MqClient, fields: list[bytes], small: bool) -> None:
        if small:
            try:
                session.send([TEXT_TAG, *fields])
            except FrameTooLong:
                pass
            else:
                return
        session.send([LARGE_TAG, *cut(join_fields(fields), session.frame_bytes_max)])

    async def close(self) -> None:
        """Say goodbye."""
        self._closed = True
        session = self._session
        if session is not None:
            session.close()
            await session.gone()

    # -- told by the connection

    def _received(self, _session: MqSession, message: Message) -> None:
        tag, *rest = message
        number, *payload = split_fields(b"".join(rest)) if tag == LARGE_TAG else rest
        self._waiting.answered(number, payload)

    def _lost(self, session: MqSession, ending: Ending) -> None:
        if session is self._session:
            self._session = None
        self._waiting.lost(str(ending))
