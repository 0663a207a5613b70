"""A client of MqFrames: one connection, with pings while it is silent."""

import asyncio
import ssl
from collections import deque
from types import TracebackType
from typing import Self

from penstock.mq.session import Ending, Handlers, MqLimits, MqSession, OnClose, OnMessage
from penstock.tcp import Hold
from penstock.wire.mqframe import PING, Message, Reason


class MqClient(MqSession):
    """Made by `connect`. Without a handler, messages are received one by one, or by `async for`."""

    def __init__(self, limits: MqLimits, on_message: OnMessage | None, on_close: OnClose | None) -> None:
        super().__init__(limits, Handlers(on_message or self._put, None, on_close), answers_pings=False)
        self._mq_limits = limits
        self._inbox: deque[Message] = deque()
        self._news = asyncio.Event()
        self._written_before = 0
        self._alarm: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        on_message: OnMessage | None = None,
        on_close: OnClose | None = None,
        limits: MqLimits | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Connect to a server. Raises OSError if that cannot be."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(
            lambda: cls(limits or MqLimits(), on_message, on_close), host, port, ssl=tls
        )
        client._tick_later()
        return client

    async def receive(self) -> Message | None:
        """The next message; None when the connection has ended and there are no more."""
        while not self._inbox:
            if self.ended is not None:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._inbox.popleft()
        if len(self._inbox) <= self._mq_limits.inbox_messages_max // 2:
            self.release(Hold.BUSY)
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        message = await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    def close(self, reason: Reason = Reason.CLIENT_CLOSING) -> None:
        """Say why and close. What was sent before still arrives, if the peer takes it."""
        super().close(reason)

    async def closed(self) -> Ending:
        """Wait until the connection is gone; how it ended."""
        await self.gone()
        assert self.ending is not None
        return self.ending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.gone()

    # -- called by the connection

    def _put(self, _session: MqSession, message: Message) -> None:
        self._inbox.append(message)
        self._news.set()
        if len(self._inbox) >= self._mq_limits.inbox_messages_max:
            self.hold(Hold.BUSY)

    def _tick(self) -> None:
        """Ping when nothing was sent for a while, and see whether the server is still there."""
        written = self._bytes_written
        if written == self._written_before:
            self.ping()
            # It is written later; by itself it must not look as if something had been said.
            written += len(PING)
        self._written_before = written
        self.check(self._loop.time())
        self._tick_later()

    def _tick_later(self) -> None:
        if self.ended is None:
            self._alarm = self._loop.call_later(self._mq_limits.ping_ms / 1000, self._tick)

    def lost(self) -> None:
        """Wake whoever waits for a message."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._news.set()
        super().lost()
