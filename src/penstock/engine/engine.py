"""The engine: a principal and a request in, one reply out. Every gate talks to it.

It checks rights and limits, hands writes to the writer and reads to the workers, and knows nothing of wires. All of it
runs on one event loop; only the writer's thread and the worker processes are elsewhere.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from penstock.engine import iterator_jobs, jobs
from penstock.engine.appends import AppendRequests, Checks
from penstock.engine.background import DiskWatch, Eraser, Sealer, SpaceKeeper
from penstock.engine.context import Attempt, EngineContext, Handler, Handlers, check_names, plain
from penstock.engine.coordination import coordination
from penstock.engine.erasures import ErasureRequests
from penstock.engine.iterators import IteratorRequests
from penstock.engine.jobs import Presenter
from penstock.engine.logs import LogRequests
from penstock.engine.metrics import Metrics, PoolCounts
from penstock.engine.queues import QueueRequests, ReplayRequests
from penstock.engine.staging import BuildRequests, StagingRequests, start_of
from penstock.engine.subscriptions import SubscriptionRequests
from penstock.engine.wakeups import Wakeups, resolve
from penstock.engine.workers import LuaPool, SealerPool, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import (
    Busy,
    Closed,
    InvalidRequest,
    NotAllowed,
    PenstockError,
    ReaderBusy,
    StoreError,
    Unexpected,
    WriterBusy,
)
from penstock.model import (
    AcknowledgeQueue,
    AddMessages,
    Append,
    BeginBuild,
    CreateIterator,
    CreateLog,
    DropIterator,
    DropLog,
    DropOutput,
    DropStages,
    EraseStream,
    EraseSubject,
    EventFilter,
    EventPage,
    FetchSubscription,
    FindMessage,
    FindPosition,
    Found,
    GetStats,
    InstallOutput,
    ListContexts,
    ListDeadLetters,
    ListErasures,
    ListIterators,
    ListLogs,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    NextItems,
    Principal,
    ProgressSubscription,
    PublishStages,
    PutBack,
    ReadAll,
    ReadEvent,
    ReadMessages,
    ReadRecords,
    ReadStream,
    RecordPage,
    RegisterSubscriptions,
    ReleaseQueue,
    ReplayQueue,
    Reply,
    Request,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    ShowIterator,
    ShowLog,
    StageEvents,
    StageOutput,
    SubscribeQueue,
    Transact,
    now_ticks,
)
from penstock.model.requests import Repeat
from penstock.model.times import TICKS_PER_MS
from penstock.settings import Settings
from penstock.store import Store, open_store
from penstock.store.contract import ExpireProducers, Notice, ReadLimits, Transaction

log = logging.getLogger(__name__)

CONNECTIONS_MIN: Final = 16
"""The gate stops reading from a connection that has more than this part of the budget. It still takes the request that
exceeds the limit, so a client can send any request."""
FIELD_BYTES: Final = 64
"""Overhead of a field of a message, and of a message of a log: a request may have many short or empty ones."""

UNDER_WAY_MAX: Final = 20_000
"""Requests in flight, other than appends."""
RECORD_PAGE_EVENTS_MAX: Final = 16_384
"""Events in one page of stored records."""
EXPIRE_MAX: Final = 1000
"""Idle producers forgotten in one transaction, so that other writers do not wait long."""
HOUSEKEEPING_S: Final = 600.0
"""How often the engine looks for idle producers and stages, and for free space."""
HOUSEKEEPING_MS: Final = 500_000
"""The lease of the server that does it: not quite until the next time."""

OnReply = Callable[[Reply | PenstockError], None]
Abandon = Callable[[], bool]
"""Abandons a request; True if it did, and there will be no answer. Writes cannot be abandoned."""
AnyPresenter = Callable[[list[Any]], Any]
"""A codec's function (of a module, so it can be pickled) that turns events or items into what its wire sends."""


class Engine:
    """One open store. Use as `async with Engine(url, settings) as engine`."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.budget = Budget(settings.requests_bytes_max, self.metrics.refused)
        self.metrics.requests_bytes = lambda: self.budget.taken
        self.url = url
        self._closing = False
        self._tasks: set[asyncio.Future[Reply]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and start the writer and the workers. After an error nothing is left running."""
        settings, metrics = self.settings, self.metrics
        self._store = await self._open()
        loop = asyncio.get_running_loop()
        self._wakeups = Wakeups(settings.waiters_max, metrics)
        self._writer = Writer(self._store, loop, settings, metrics, self._wakeups)
        self.pool = WorkerPool(self.url, settings, settings.workers, metrics.readers)
        self.lua = LuaPool(self.url, settings, metrics.lua)
        self._others = coordination(self._store)
        context = self._context = EngineContext(settings, self._writer, self.pool, self._wakeups, self._others)
        self._subscriptions = SubscriptionRequests(context)
        self._queues = QueueRequests(context)
        self._checks = Checks(context)
        self._disk = DiskWatch(self._store, settings, metrics)
        self._appends = AppendRequests(context, self._disk, self._checks, self._subscriptions, self._queues)
        self._space = SpaceKeeper(context)
        self._eraser = Eraser(context, self._space)
        self._sealer_pool = SealerPool(self.url, settings, PoolCounts())
        self._sealer = Sealer(context, self._sealer_pool, metrics, self._disk)
        self._iterators = IteratorRequests(context, self.lua, metrics, self._eraser)
        self._logs = LogRequests(context, self._disk, self._checks, self._iterators, self._eraser)
        self._staging = StagingRequests(context, self._disk)
        self._builds = BuildRequests(context, self._disk, metrics, self._iterators)
        self._erasures = ErasureRequests(context, self._iterators, self._eraser)
        self._handlers = self._table()
        try:
            # Before the writer starts: from then on only the writer uses the store.
            self.identity = self._store.identity()
            open_erasures = self._store.open_erasures()
            head, sealed = self._store.head(), self._store.sealed()
            self._iterators.start(jobs.all_iterators(self._store))
        except BaseException as error:
            await self._others.stop()
            self._store.close()
            if isinstance(error, TypeError | ValueError | AttributeError):
                # A damaged file can hold any value in any column.
                raise StoreError(f"the store holds a value that cannot be: {error}; run penstock verify") from error
            raise
        self._writer.start()
        self._housekeeper = loop.create_task(self._keep_house())
        self._space.begin()
        self._eraser.start(open_erasures)
        self._sealer.start(head, sealed)
        self._others.start(self._changed_elsewhere)
        try:
            await self._disk.start()
            await self.pool.start()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> Store:
        """Open the store in a thread: it may recover or migrate, which would block the loop."""
        names = ("stream_cache_max", "wal_bytes_max", "group_access")
        chosen = {name: getattr(self.settings, name) for name in names}
        opening = asyncio.ensure_future(asyncio.to_thread(open_store, self.url, **chosen))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped, so close what it opens.
            with suppress(PenstockError):
                (await opening).close()
            raise

    async def stop(self) -> None:
        """Refuse new requests, finish those in flight, close the store."""
        if self._closing:
            return
        self._closing = True
        self._housekeeper.cancel()
        self._disk.stop()
        self._sealer.stop()
        self._eraser.stop()
        self._space.stop()
        self._iterators.stop()
        self._wakeups.close()
        under_way: list[asyncio.Future[Any]] = [*self._tasks, *self._checks.under_way]
        if under_way:
            await asyncio.wait(under_way, timeout=self.settings.shutdown_ms_max / 1000)
        await self._writer.close()
        await self.pool.close()
        await self.lua.close()
        await self._sealer_pool.close()
        await self._others.stop()
        # In a thread: closing can wait for the disk.
        await asyncio.to_thread(self._store.close)

    @property
    def is_healthy(self) -> bool:
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why appends cannot succeed now, as a sentence for operators; None if they can."""
        if self._closing:
            return "the server is stopping"
        if (trouble := self._writer.trouble) is not None:
            return f"the store cannot be written to at present: {trouble}"
        refusal = self._disk.refusal()
        return None if refusal is None else f"appends are refused: {refusal.reason}"

    async def execute(self, principal: Principal, request: Request, present: AnyPresenter | None = None) -> Reply:
        """Carry out a request; its reply, or an exception. See `submit`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        abandon = self.submit(principal, request, partial(resolve, answer), present)
        try:
            return await answer
        except asyncio.CancelledError:
            abandon()
            raise

    def submit(
        self, principal: Principal, request: Request, answer: OnReply, present: AnyPresenter | None = None
    ) -> Abandon:
        """Carry out a request; `answer` is called exactly once, perhaps before this returns.

        `present` is called in a worker and turns the events or items of the reply into what a wire sends. The function
        that is returned abandons a request that only reads or waits: then there is no answer.
        """
        try:
            if self._closing:
                raise Closed
            if not principal.may(needed := request.needs()):
                raise NotAllowed(principal.name, str(needed.name))
            if isinstance(request, Append):
                self._appends.append(request, answer)
            elif isinstance(request, AddMessages):
                self._logs.add(request, answer)
            elif len(self._tasks) >= UNDER_WAY_MAX:
                raise ReaderBusy(len(self._tasks))
            else:
                return self._begin(self._handlers[type(request)](request, present), answer)
        except PenstockError as error:
            answer(error)
        except Exception as error:
            log.exception("a request could not be begun")
            answer(Unexpected(repr(error)))
        return _nothing_to_abandon

    def _changed_elsewhere(self, notice: Notice) -> None:
        """Another server has changed the store: wake the requests and tasks here that wait for such a change."""
        if notice.streams is None or notice.queues is None:
            self._wakeups.wake_all()
        else:
            self._queues.changed_elsewhere(notice.queues)
        # None stands for any stream: wake all indexed iterators then.
        streams = self._wakeups.followed.copy() if notice.streams is None else notice.streams
        self._wakeups.committed(streams, notice.head)
        if notice.has_changed_logs:
            self._iterators.changed_elsewhere()
            # The server that deleted something erases it; if that server dies, this one does.
            self._eraser.wake()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._space.wake()
            if not await self._others.may("house", HOUSEKEEPING_MS):
                continue
            before = now_ticks() - self.settings.producer_idle_ms_max * TICKS_PER_MS
            expire = Transaction((ExpireProducers(before, EXPIRE_MAX),))
            try:
                while await self._context.write(expire) == [EXPIRE_MAX]:
                    pass
                await self._staging.expire(now_ticks() - self.settings.stage_idle_ms_max * TICKS_PER_MS)
            except PenstockError as error:
                log.warning("idle producers and stages were not forgotten: %s", error)

    # -- everything else

    def _begin(self, work: Awaitable[Reply], answer: OnReply) -> Abandon:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, answer))
        return task.cancel

    def _finish(self, answer: OnReply, task: asyncio.Future[Reply]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            answer(task.result())
        elif isinstance(error, PenstockError):
            answer(error)
        else:
            log.error("a request failed", exc_info=error)
            answer(Unexpected(repr(error)))

    def _table(self) -> Handlers:
        run, limits = self._context.pool.run, self._context.limits
        subscriptions, queues, iterators = self._subscriptions, self._queues, self._iterators
        return {
            Transact: plain(self._appends.transact),
            ReadStream: lambda request, present: run(jobs.read_stream, request, self._limits(request.limit), present),
            ReadEvent: lambda request, present: run(jobs.read_event, request, limits, present),
            ReadAll: self._read_all,
            ReadRecords: self._read_records,
            FindPosition: plain(self._find_position),
            ListContexts: self._listing(jobs.list_contexts),
            ListStreams: self._listing(jobs.list_streams),
            ListSubscriptions: self._listing(jobs.list_subscriptions),
            ListQueues: self._listing(jobs.list_queues),
            ListDeadLetters: self._listing(jobs.list_dead_letters),
            ListErasures: self._listing(jobs.list_erasures),
            GetStats: plain(lambda _request: run(jobs.get_stats)),
            RegisterSubscriptions: plain(subscriptions.register),
            FetchSubscription: subscriptions.fetch,
            ProgressSubscription: plain(subscriptions.progress),
            SetSubscription: plain(subscriptions.set),
            SubscribeQueue: queues.subscribe,
            AcknowledgeQueue: queues.acknowledge,
            ReleaseQueue: plain(queues.release),
            ResetQueue: plain(queues.reset),
            SetDeadLetterRule: plain(queues.set_dead_rule),
            PutBack: plain(queues.put_back),
            ReplayQueue: plain(ReplayRequests(self._context).replay),
            CreateLog: plain(self._logs.create),
            DropLog: plain(self._logs.drop),
            ShowLog: plain(lambda request: run(iterator_jobs.show_log, request.log)),
            ListLogs: plain(self._logs.names),
            CreateIterator: plain(iterators.create),
            DropIterator: plain(iterators.drop),
            ShowIterator: plain(lambda request: run(iterator_jobs.show_iterator, request.name)),
            ListIterators: plain(iterators.names),
            NextItems: iterators.next,
            BeginBuild: plain(lambda request: run(start_of, request.iterator, iterators.limits)),
            ReadMessages: plain(self._builds.messages),
            FindMessage: plain(self._builds.position),
            StageOutput: plain(self._builds.stage),
            InstallOutput: plain(self._builds.install),
            DropOutput: plain(self._builds.drop),
            EraseStream: plain(self._erasures.erase_stream),
            EraseSubject: plain(self._erasures.erase_subject),
            StageEvents: plain(self._staging.stage),
            PublishStages: plain(self._staging.publish),
            DropStages: plain(self._staging.drop),
        }

    def _listing(self, job: Callable[..., Any]) -> Handler:
        return plain(lambda request: self._context.pool.run(job, request, self._page_limit(request.limit)))

    def _page_limit(self, limit: int | None) -> int:
        if limit is not None and limit < 1:
            raise InvalidRequest("limit", f"is {limit}; it must be at least 1")
        return min(limit or self.settings.page_events_max, self.settings.page_events_max)

    def _limits(self, limit: int | None) -> ReadLimits:
        return self._context.limits._replace(events_max=self._page_limit(limit))

    async def _read_all(self, request: ReadAll, present: Presenter | None) -> EventPage:
        wanted = EventFilter(request.context, request.filter, request.types)
        page: EventPage = await self._read_on(jobs.read_all, request, wanted, self._limits(request.limit), present)
        return page

    async def _read_records(self, request: ReadRecords, present: Presenter | None) -> RecordPage:
        wanted = EventFilter(request.context, request.filter)
        # The server does not decode them, so their number does not matter.
        limits = self._context.limits._replace(events_max=RECORD_PAGE_EVENTS_MAX)
        page: RecordPage = await self._read_on(jobs.read_records, request, wanted, limits, present)
        return page

    async def _read_on(
        self,
        job: Callable[..., Any],
        request: ReadAll | ReadRecords,
        wanted: EventFilter,
        limits: ReadLimits,
        present: Presenter | None,
    ) -> Any:
        """A page; if it is empty and the request waits, the first page that is not."""

        async def attempt() -> Attempt[Any]:
            nonlocal request
            page = await self._context.pool.run(job, request, limits, present)
            request = replace(request, position=page.next)
            return Attempt(page, not page.end or _has_events(page), wanted)

        return await self._context.long_poll(request.wait_ms, attempt)

    async def _find_position(self, request: FindPosition) -> Found:
        check_names(context=request.context, filter=request.filter)
        wanted = EventFilter(request.context, request.filter)
        return Found((await self._context.find_position(wanted, request.ticks)).position)


def _has_events(page: EventPage | RecordPage) -> bool:
    if isinstance(page, RecordPage):
        return bool(page.records)
    return bool(page.encoded.count if page.encoded else page.events)


def _nothing_to_abandon() -> bool:
    """An accepted append is written."""
    return False


# --- the limit on requests in flight --------------------------------------------------------------------------


class Budget:
    """A limit, in bytes, for the requests that are in flight in the whole server.

    A gate takes the bytes of a message from the budget when it has read the message. It gives them back when the last
    answer is ready, or when the client is gone and the engine has dropped the request. In between the request may wait
    in the gate, for a worker or for the writer: one sum covers all these queues.

    A gate answers *busy* to a message that finds no room. Each connection also has a limit, far below the sum, at which
    its gate stops reading.
    """

    __slots__ = ("_bytes_max", "_refused", "_requests", "connection_bytes_max", "taken")

    def __init__(self, bytes_max: int, refused: Counter[str]) -> None:
        self.taken = 0
        self.connection_bytes_max = bytes_max // CONNECTIONS_MIN
        self._bytes_max = bytes_max
        self._requests = 0
        self._refused = refused

    def take(self, size: int) -> bool:
        """Count these bytes; False if there is no room for them.

        While at most half of the budget is taken there is room for any request, even for one that exceeds the budget.
        """
        taken = self.taken + size
        if taken > self._bytes_max and 2 * self.taken > self._bytes_max:
            return False
        self.taken = taken
        self._requests += 1
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size
        self._requests -= 1

    def busy(self, request: Request) -> Busy:
        """The error for a request that found no room."""
        self._refused["requests_busy"] += 1
        return (ReaderBusy if request.repeat is Repeat.READS else WriterBusy)(self._requests)
