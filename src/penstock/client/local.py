"""To an engine in this process: `sqlite:///DIR`, `postgresql://…`. No server, the same calls."""

import asyncio
from functools import partial
from pathlib import Path

from penstock.client.transport import Answer, Transport, abandon, settle
from penstock.engine import Engine
from penstock.errors import CannotConnect, ClientClosed
from penstock.files import is_shared
from penstock.model import ANONYMOUS, Request
from penstock.settings import Settings


class LocalTransport(Transport):
    """Owns the store, or shares it, as a server would, from the first call until it is closed."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine: Engine | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def ready(self, seconds: float) -> None:  # noqa: ARG002 - a store is there at once, or not at all
        """Open the store unless it is open."""
        if self._closed:
            raise ClientClosed
        if self._engine is None:
            async with self._opening:
                await self._open()

    async def _open(self) -> None:
        if self._closed:
            raise ClientClosed
        if self._engine is not None:
            return
        # Who may use the store is for its server to say; here a directory that is its group's stays so.
        shared = is_shared(Path(self.url.removeprefix("sqlite:///")))
        engine = Engine(self.url, Settings(workers=1, group_access=shared))
        try:
            await engine.start()
        except OSError as error:
            raise CannotConnect(self.url, f"{error.filename or 'its directory'}: {error.strerror}") from None
        self._engine = engine

    def start(self, request: Request) -> Answer:
        """Hand a request to the engine."""
        if self._closed:
            raise ClientClosed
        if self._engine is None:
            raise CannotConnect(self.url, "it is not open yet")
        answer: Answer = asyncio.get_running_loop().create_future()
        withdraw = self._engine.submit(ANONYMOUS, request, partial(settle, answer))
        answer.add_done_callback(lambda done: withdraw() if done.cancelled() else None)
        return answer

    def give_up(self, answer: Answer) -> None:
        """What only reads or waits goes no further."""
        abandon(answer)

    async def close(self) -> None:
        """Finish what was taken and close the store."""
        self._closed = True
        async with self._opening:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.stop()
