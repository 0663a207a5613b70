"""A server in a thread of this process: started, killed, started again and closed, with nothing left behind.

Threads, not worker processes, read from the store: a worker takes a third of a second to start. Its purpose is to keep
long reads from delaying appends, and a test has no long reads.
"""

import asyncio
import pickle
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Self
from urllib.parse import quote

from penstock.client.sync import Portal
from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.engine.appends import OnReply
from penstock.engine.context import Handlers
from penstock.engine.engine import Abandon, AnyEncoder
from penstock.engine.metrics import PoolCounts
from penstock.engine.workers import Job, WorkerPool
from penstock.errors import Closed, PenstockError, ReaderBusy, StoreError
from penstock.files import read_secret
from penstock.gates import Gate, HttpGate, MqGate, RemitsGate, ServerTls, ZeromqGate
from penstock.model import Principal, Reply, Request
from penstock.server import http_gate, start, stop
from penstock.settings import Settings, load
from penstock.store import Store, open_reader, store_url
from penstock.wire.curve import key_of, key_text, public_key

ANY_PORT: Final = "127.0.0.1:0"


class ThreadPool(WorkerPool):
    """Runs jobs in threads, each with its own connection to the store."""

    def __init__(self, url: str, settings: Settings, size: int, counts: PoolCounts) -> None:
        super().__init__(url, settings, size, counts)
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="penstock-reader")
        self._readers: SimpleQueue[Store] = SimpleQueue()
        self._under_way = 0

    async def start(self) -> None:
        """Start nothing: threads start with the first job."""

    def run(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        if self._closing:
            raise Closed
        if self._under_way >= self._size + self._settings.reader_queue_max:
            self._counts.refused += 1
            raise ReaderBusy(self._under_way)
        self._under_way += 1
        answer = asyncio.wrap_future(self._threads.submit(self._do, job, arguments))
        answer.add_done_callback(self._done)
        return answer

    def run_first(self, job: Job, *arguments: Any) -> asyncio.Future[Any]:
        return self.run(job, *arguments)

    def _done(self, _answer: asyncio.Future[Any]) -> None:
        self._under_way -= 1
        self._counts.jobs += 1

    def _do(self, job: Job, arguments: tuple[Any, ...]) -> Any:
        try:
            reader = self._readers.get_nowait()
        except Empty:
            reader = open_reader(self._url)
        try:
            result = job(reader, *arguments)
        except BaseException as error:
            # The connection may be in an unknown state; the next job gets a new one.
            if isinstance(error, PenstockError) and not isinstance(error, StoreError):
                self._readers.put(reader)
            else:
                reader.close()
            raise
        self._readers.put(reader)
        # Long records are PickleBuffers, as a worker sends them: a pickle makes bytes of them.
        return pickle.loads(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))  # noqa: S301 - our own

    async def close(self) -> None:
        self._closing = True
        await asyncio.to_thread(self._threads.shutdown)
        with suppress(Empty):
            while True:
                self._readers.get_nowait().close()


class ThreadedEngine(Engine):
    """An engine that starts at once, and that can stop answering like one that was killed."""

    def __init__(self, url: str, settings: Settings) -> None:
        super().__init__(url, settings)
        self.is_silent = False
        """Whether it answers no request any more; those in flight finish, or not."""

    def _table(self) -> Handlers:
        # The engine has created its components and started none of them.
        pool = ThreadPool(self.url, self.settings, self.settings.workers, self.metrics.readers)
        self.pool = self._context.pool = pool
        return super()._table()

    def submit(
        self,
        principal: Principal,
        request: Request,
        answer: OnReply,
        present: AnyEncoder | None = None,
        sender: Login | None = None,
    ) -> Abandon:
        """Run a request, and answer it unless the engine was killed."""
        return super().submit(principal, request, partial(self._answer, answer), present, sender)

    def _answer(self, answer: Callable[[Reply | PenstockError], None], outcome: Reply | PenstockError) -> None:
        if not self.is_silent:
            answer(outcome)


class Running:
    """One run of a server, on its event loop."""

    def __init__(self, data: Path, settings: Settings) -> None:
        self.engine = ThreadedEngine(store_url(data), settings)
        self._tls = ServerTls.of(settings)
        self.mq = MqGate(self.engine, settings.mq or ANY_PORT, self._tls)
        self.remits = RemitsGate(self.engine, settings.remits or ANY_PORT, self._tls)
        self.res = ZeromqGate(self.engine, settings.res or f"tcp://{ANY_PORT}")
        self.http: HttpGate | None = None

    async def serve_http(self) -> str:
        """Start serving health and metrics, only when needed: this gate takes longest to stop. Returns its address."""
        if self.http is None:
            gate = http_gate(self.engine, [self.mq, self.remits, self.res], self._tls)
            await gate.start()
            self.http = gate
        return self.http.address

    async def die(self) -> None:
        """Close without an answer to any request in flight."""
        self.engine.is_silent = True
        for server in (self.mq, self.remits, self.res):
            server.cut()
        await asyncio.gather(*(gate.stop() for gate in self.gates()))
        await self.engine.stop()

    def gates(self) -> list[Gate]:
        return [self.mq, self.remits, self.res, *([] if self.http is None else [self.http])]


class Server:
    """A server for a test: `with penstock.testing.server() as server`. It runs at once; `with` closes it at the end.

    Its store is in a temporary directory, or in `data`, which stays. Settings are those of `penstock serve`, by name:
    `server(event_bytes_max="1KiB")`. Raises BadSetting.
    """

    def __init__(self, data: Path | str | None = None, **settings: Any) -> None:
        # One worker for iterators is enough, and it starts with the first iterator.
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
        return f"penstock://{self._settings.mq}{self._tls}"

    @property
    def _tls(self) -> str:
        return "" if self._settings.tls_cert is None else f"?tls&tls_ca={quote(str(self._settings.tls_cert))}"

    @property
    def zmq_url(self) -> str:
        """For `penstock.connect`: over ZeroMQ."""
        path = self._settings.curve_secret_key
        if path is None:
            return f"zmq+{self._settings.res}"
        public = public_key(key_of(read_secret(path).strip()))
        return f"zmq+{self._settings.res}?curve_server_key={quote(key_text(public), safe='')}"

    @property
    def remits(self) -> str:
        """`HOST:PORT` of the Remits gate."""
        return str(self._settings.remits)

    @property
    def http(self) -> str:
        """`http://HOST:PORT` of health and metrics; the gate starts when this is first read."""
        if self._running is None:
            raise Closed("this server")
        address = self._portal.run(self._running.serve_http())
        self._settings = replace(self._settings, http=address)
        return f"http{'s' if self._tls else ''}://{address}"

    # -- its life

    @property
    def is_running(self) -> bool:
        return self._running is not None

    def kill(self) -> None:
        """End it as if its process was killed: requests get no answer, and connections are cut.

        Writes in flight may have been stored or not. Everything acknowledged is in the store.
        """
        running, self._running = self._running, None
        if running is not None:
            self._portal.run(running.die())

    def restart(self) -> None:
        """Start it again, with the same store and addresses. If it runs, it answers requests in flight and stops."""
        self._stop()
        self._start()

    def close(self) -> None:
        """Stop it. Its store is removed too, unless `data` named the directory."""
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._running = self._portal.run(self._started())

    async def _started(self) -> Running:
        running = Running(self.data, self._settings)
        await start(running.engine, running.gates())
        # It keeps these addresses when it is started again.
        self._settings = replace(
            self._settings, mq=running.mq.address, remits=running.remits.address, res=running.res.address
        )
        if self._settings.http != ANY_PORT:
            await running.serve_http()
        return running

    def _stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._portal.run(stop(running.engine, running.gates()))


server = Server
