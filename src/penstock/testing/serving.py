"""A server in a thread of this process: started, killed, started again, closed, with nothing left behind."""

import asyncio
import shutil
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.client.sync import Portal
from penstock.errors import Closed
from penstock.gates import Gate, HttpGate, MqGate, RemitsGate, ZeromqGate
from penstock.settings import Settings, load
from penstock.store import store_url
from penstock.tcp import TcpServer, Why
from penstock.testing.threads import ThreadedEngine

ANY_PORT: Final = "127.0.0.1:0"


class Running:
    """One run of a server, on the event loop that it lives on."""

    def __init__(self, data: Path, settings: Settings) -> None:
        self.engine = ThreadedEngine(store_url(data), settings)
        self.mq = MqGate(self.engine, settings.mq or ANY_PORT)
        self.remits = RemitsGate(self.engine, settings.remits or ANY_PORT)
        self.res = ZeromqGate(self.engine, settings.res or f"tcp://{ANY_PORT}")
        self.http: HttpGate | None = None

    async def start(self) -> None:
        """Open the store and listen; or raise, and hold nothing."""
        async with AsyncExitStack() as undo:
            for part in (self.engine, self.mq, self.remits, self.res):
                await part.start()
                undo.push_async_callback(part.stop)
            undo.pop_all()

    async def serve_http(self) -> str:
        """Where health and metrics are served, from now on: it takes longer to stop than all the rest."""
        if self.http is None:
            gate = HttpGate(self.engine, [self.mq, self.remits, self.res])
            await gate.start()
            self.http = gate
        return self.http.address

    async def stop(self) -> None:
        """Accept nothing more, answer what was accepted, close."""
        for gate in self._gates():
            gate.refuse()
        await self.engine.stop()
        await self._stop_gates()

    async def die(self) -> None:
        """Close without another word to anybody."""
        self.engine.fall_silent()
        for server in (self.mq, self.remits, self.res):
            _cut(server)
        await self._stop_gates()
        await self.engine.stop()

    def _gates(self) -> list[Gate]:
        return [self.mq, self.remits, self.res, *([] if self.http is None else [self.http])]

    async def _stop_gates(self) -> None:
        await asyncio.gather(*(gate.stop() for gate in self._gates()))


def _cut(server: TcpServer[Any]) -> None:
    """Take no more connections, and end those that are there as they end when a process is killed."""
    server.refuse()
    for info in server.sessions():
        session = server.session(info.id)
        if session is not None:
            session.cut(Why.SHUTDOWN)


class Server:
    """A Penstock of one's own, made by `server`. It runs when it is made; `with` closes it at the end."""

    def __init__(self, data: Path | str | None = None, **settings: Any) -> None:
        # One worker for iterators is enough here, and none is started before there is an iterator.
        usual = {"http": ANY_PORT, "mq": ANY_PORT, "remits": ANY_PORT, "res": f"tcp://{ANY_PORT}", "lua_workers": 1}
        self._settings = load({**usual, **settings}, environ={})
        self._is_temporary = data is None
        self.data = Path(tempfile.mkdtemp(prefix="penstock-") if data is None else data)
        """The directory of its store."""
        self._portal = Portal()
        self._running: Running | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    # -- where it is

    @property
    def url(self) -> str:
        """For `penstock.connect`: over TCP."""
        return f"penstock://{self._settings.mq}"

    @property
    def zmq_url(self) -> str:
        """For `penstock.connect`: over ZeroMQ."""
        return f"zmq+{self._settings.res}"

    @property
    def remits(self) -> str:
        """`HOST:PORT` of the Remits gate."""
        return str(self._settings.remits)

    @property
    def http(self) -> str:
        """`http://HOST:PORT` of health and metrics, which are served from when this is first asked for."""
        if self._running is None:
            raise Closed("this server")
        address = self._portal.run(self._running.serve_http())
        self._settings = replace(self._settings, http=address)
        return f"http://{address}"

    # -- its life

    @property
    def is_running(self) -> bool:
        """Whether it answers."""
        return self._running is not None

    def kill(self) -> None:
        """End it as if its process was killed: nobody gets an answer, and connections are cut.

        What was under way may have been written or not. What was acknowledged is in the store.
        """
        running, self._running = self._running, None
        if running is not None:
            self._portal.run(running.die())

    def restart(self) -> None:
        """Start it again, with the same store and addresses. One that runs is stopped first, and answers before."""
        self._stop()
        self._start()

    def close(self) -> None:
        """Stop it, and leave nothing behind; not even its store, if that was in a place of its own choice."""
        if self._portal.is_closed:
            return
        try:
            self._stop()
        finally:
            self._portal.close()
            if self._is_temporary:
                shutil.rmtree(self.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        self._running = self._portal.run(self._started())

    async def _started(self) -> Running:
        running = Running(self.data, self._settings)
        await running.start()
        # From now on it has these addresses, however often it is started.
        self._settings = replace(
            self._settings, mq=running.mq.address, remits=running.remits.address, res=running.res.address
        )
        if self._settings.http != ANY_PORT:
            await running.serve_http()
        return running

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._portal.run(running.stop())


def server(data: Path | str | None = None, **settings: Any) -> Server:
    """A server of one's own: `with penstock.testing.server() as server`.

    Its store is in a directory that is removed in the end, or in `data`, which stays. Settings are those of
    `penstock serve`, by name: `server(event_bytes_max="1KiB")`. Raises BadSetting.
    """
    return Server(data, **settings)
