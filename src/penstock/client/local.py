"""An engine in this process: `sqlite:///DIR`, `postgresql://…`. The same calls without a server."""

import asyncio
from functools import partial
from pathlib import Path

from penstock.client.transport import PendingReply, Transport, abandon
from penstock.engine import Engine
from penstock.engine.wakeups import resolve
from penstock.errors import CannotConnect, ClientClosed
from penstock.files import is_shared
from penstock.model import ANONYMOUS, Request
from penstock.settings import Settings


class LocalTransport(Transport):
    """Opens the store at the first call, as a server would, and keeps it until it is closed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    def is_ready(self) -> bool:
        return self._engine is not None and not self._closed

    async def ready(self, seconds: float) -> None:  # noqa: ARG002 - a store opens at once, or not at all
        if self._engine is not None and not self._closed:
            return
        async with self._opening:
            if self._closed:
                raise ClientClosed
            if self._engine is None:
                self._engine = await self._opened()

    async def _opened(self) -> Engine:
        # The settings of a server decide who may use the store. Here a directory keeps the group access that it has.
        shared = is_shared(Path(self.url.removeprefix("sqlite:///")))
        engine = Engine(self.url, Settings(workers=1, group_access=shared))
        try:
            await engine.start()
        except OSError as error:
            raise CannotConnect(self.url, f"{error.filename or 'its directory'}: {error.strerror}") from None
        return engine

    def start(self, request: Request) -> PendingReply:
        if self._closed:
            raise ClientClosed
        if self._engine is None:
            raise CannotConnect(self.url, "it is not open yet")
        answer: PendingReply = asyncio.get_running_loop().create_future()
        give_up = self._engine.submit(ANONYMOUS, request, partial(resolve, answer))
        # Done without a reply: the caller has given up.
        answer.add_done_callback(lambda _: give_up())
        return answer

    def give_up(self, answer: PendingReply) -> None:
        abandon(answer)

    async def close(self) -> None:
        self._closed = True
        self.end_pauses()
        async with self._opening:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.stop()
