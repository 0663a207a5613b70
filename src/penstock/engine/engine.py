"""The engine: (principal, request) in, one reply out. What every gate talks to.

It checks rights and limits, hands writes to the writer and reads to the workers, and knows nothing of wires. All of
it runs on one event loop; only the writer's thread and the worker processes are elsewhere.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from penstock.engine import jobs, lookups
from penstock.engine.appends import Appends
from penstock.engine.budget import Budget
from penstock.engine.builds import Builds
from penstock.engine.checks import Checks
from penstock.engine.disk import DiskWatch
from penstock.engine.eraser import Eraser
from penstock.engine.erasures import Erasures
from penstock.engine.iterators import Iterators
from penstock.engine.jobs import Presenter
from penstock.engine.logs import Logs
from penstock.engine.metrics import Metrics, PoolCounts
from penstock.engine.parts import Handler, Handlers, Parts, Tried, check_names, plain, settle
from penstock.engine.queues import Queues
from penstock.engine.replays import Replays
from penstock.engine.sealer import Sealer
from penstock.engine.sharing import sharing
from penstock.engine.space import SpaceKeeper
from penstock.engine.staging import Staging
from penstock.engine.subscriptions import Subscriptions
from penstock.engine.waiters import Waiters
from penstock.engine.workers import LuaPool, SealerPool, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import Closed, InvalidRequest, NotAllowed, PenstockError, ReaderBusy, StoreError, Unexpected
from penstock.model import (
    AcknowledgeQueue,
    AddMessages,
    Append,
    DropStages,
    EraseStream,
    EraseSubject,
    EventFilter,
    EventPage,
    FetchSubscription,
    FindPosition,
    Found,
    GetStats,
    ListContexts,
    ListDeadLetters,
    ListErasures,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    Principal,
    ProgressSubscription,
    PublishStages,
    PutBack,
    ReadAll,
    ReadEvent,
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
    StageEvents,
    SubscribeQueue,
    Transact,
    now_ticks,
)
from penstock.model.times import TICKS_PER_MS
from penstock.settings import Settings
from penstock.store import Store, open_store
from penstock.store.contract import ExpireProducers, Notice, ReadLimits, Transaction

log = logging.getLogger(__name__)

UNDER_WAY_MAX: Final = 20_000
"""Requests other than appends that have been taken and not been answered."""
RECORD_PAGE_EVENTS_MAX: Final = 16_384
"""Events in one page of stored records."""
EXPIRE_MAX: Final = 1000
"""Idle producers forgotten in one go, so that nobody waits for it."""
HOUSEKEEPING_S: Final = 600.0
"""How often idle producers and stages are looked for, and free space."""
HOUSEKEEPING_MS: Final = 500_000
"""How long only one of several servers does that: not quite until the next time."""

Answer = Callable[[Reply | PenstockError], None]
Abandon = Callable[[], bool]
"""Gives a request up; whether it did, so that no answer comes. What is to be written cannot be given up."""
AnyPresenter = Callable[[list[Any]], Any]
"""A codec's function of a module that turns the events or items of a reply into what its wire has."""


class Engine:
    """One store, open for everyone. Use as `async with Engine(url, settings) as engine`."""

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
        """Open the store and start the writer and the workers. If that fails, nothing stays behind."""
        settings = self.settings
        self._store = await self._open()
        self._waiters = Waiters(settings.waiters_max, self.metrics)
        loop = asyncio.get_running_loop()
        self._writer = Writer(self._store, loop, settings, self.metrics, self._committed)
        self.pool = WorkerPool(self.url, settings, settings.workers, self.metrics.readers)
        self.lua = LuaPool(self.url, settings, self.metrics.lua)
        self._others = sharing(self._store)
        parts = self._parts = Parts(settings, self._writer, self.pool, self._waiters, self._others)
        self._subscriptions = Subscriptions(parts)
        self._queues = Queues(parts)
        self._checks = Checks(parts)
        self._disk = DiskWatch(self._store, settings, self.metrics)
        self._appends = Appends(parts, self._disk, self._checks, self._subscriptions, self._queues)
        self._space = SpaceKeeper(parts)
        self._eraser = Eraser(parts, self._space)
        self._sealer_pool = SealerPool(self.url, settings, PoolCounts())
        self._sealer = Sealer(parts, self._sealer_pool, self.metrics, self._disk)
        self._iterators = Iterators(parts, self.lua, self.metrics, self._eraser)
        self._logs = Logs(parts, self._disk, self._checks, self._iterators, self._eraser)
        self._staging = Staging(parts, self._disk)
        self._builds = Builds(parts, self._disk, self.metrics, self._iterators)
        self._erasures = Erasures(parts, self._iterators, self._eraser)
        self._handlers: dict[type[Request], Handler] = self._table()
        try:
            # Before the writer starts: from then on the store is its own.
            self.identity = self._store.identity()
            open_erasures = self._store.open_erasures()
            head, sealed = self._store.head(), self._store.sealed()
            self._iterators.start(lookups.all_iterators(self._store))
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
        self._others.start(self._heard)
        try:
            await self._disk.start()
            await self.pool.start()
        except BaseException:
            await self.stop()
            raise

    async def _open(self) -> Store:
        """Open the store in a thread: it may recover or migrate, and the loop belongs to others as well."""
        names = ("stream_cache_max", "wal_bytes_max", "group_access")
        chosen = {name: getattr(self.settings, name) for name in names}
        opening = asyncio.ensure_future(asyncio.to_thread(open_store, self.url, **chosen))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread cannot be stopped: what it opens is closed.
            with suppress(PenstockError):
                (await opening).close()
            raise

    async def stop(self) -> None:
        """Take nothing more, finish what was taken, close the store."""
        if self._closing:
            return
        self._closing = True
        self._housekeeper.cancel()
        self._disk.stop()
        self._sealer.stop()
        self._eraser.stop()
        self._space.stop()
        self._iterators.stop()
        self._waiters.close()
        under_way: list[asyncio.Future[Any]] = [*self._tasks, *self._checks.under_way]
        if under_way:
            await asyncio.wait(under_way, timeout=self.settings.shutdown_ms_max / 1000)
        await self._writer.close()
        await self.pool.close()
        await self.lua.close()
        await self._sealer_pool.close()
        await self._others.stop()
        # It may wait for a disk; the loop must not.
        await asyncio.to_thread(self._store.close)

    @property
    def is_healthy(self) -> bool:
        """Whether appends can succeed."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why appends cannot succeed at present, in a sentence for those who watch the server; None if they can."""
        if self._closing:
            return "the server is stopping"
        if (trouble := self._writer.trouble) is not None:
            return f"the store cannot be written to at present: {trouble}"
        refusal = self._disk.refusal()
        return None if refusal is None else f"appends are refused: {refusal.reason}"

    async def execute(self, principal: Principal, request: Request, present: AnyPresenter | None = None) -> Reply:
        """Carry out a request; its reply, or an exception. See `submit`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        abandon = self.submit(principal, request, partial(settle, answer), present)
        try:
            return await answer
        except asyncio.CancelledError:
            abandon()
            raise

    def submit(
        self, principal: Principal, request: Request, answer: Answer, present: AnyPresenter | None = None
    ) -> Abandon:
        """Carry out a request; `answer` is called exactly once, at the earliest before this returns.

        With `present`, events or items of the reply come as what it makes of them in a worker. What is
        returned gives the request up: one that only reads or waits goes no further, and there is no answer then.
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

    def _committed(self, streams: set[tuple[str, str]], head: int) -> None:
        self._waiters.committed(streams)
        self._iterators.committed(streams)
        self._sealer.committed(head)

    def _heard(self, notice: Notice) -> None:
        """Another server has changed something: whoever waits here for such a thing looks again."""
        if notice.streams is None or notice.queues is None:
            self._waiters.ring_all()
        else:
            self._waiters.committed(notice.streams)
            self._queues.heard(notice.queues)
        self._iterators.heard(notice.streams, has_changed=notice.has_changed_logs)
        self._sealer.committed(notice.head)
        if notice.has_changed_logs:
            # Whoever deleted something erases it; if that server dies, this one does.
            self._eraser.ring()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._space.ring()
            if not await self._others.may("house", HOUSEKEEPING_MS):
                continue
            before = now_ticks() - self.settings.producer_idle_ms_max * TICKS_PER_MS
            expire = Transaction((ExpireProducers(before, EXPIRE_MAX),))
            try:
                while await self._parts.write(expire) == [EXPIRE_MAX]:
                    pass
                await self._staging.expire(now_ticks() - self.settings.stage_idle_ms_max * TICKS_PER_MS)
            except PenstockError as error:
                log.warning("idle producers and stages were not forgotten: %s", error)

    # -- everything else

    def _begin(self, work: Awaitable[Reply], answer: Answer) -> Abandon:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, answer))
        return task.cancel

    def _finish(self, answer: Answer, task: asyncio.Future[Reply]) -> None:
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
        subscriptions, queues = self._subscriptions, self._queues
        return {
            Transact: plain(self._appends.transact),
            ReadStream: self._read_stream,
            ReadEvent: lambda request, present: self._parts.run(jobs.read_event, request, self._parts.limits, present),
            ReadAll: self._read_all,
            ReadRecords: self._read_records,
            FindPosition: plain(self._find_position),
            ListContexts: self._listing(jobs.list_contexts),
            ListStreams: self._listing(jobs.list_streams),
            ListSubscriptions: self._listing(jobs.list_subscriptions),
            ListQueues: self._listing(jobs.list_queues),
            ListDeadLetters: self._listing(jobs.list_dead_letters),
            GetStats: plain(lambda _request: self._parts.run(jobs.get_stats)),
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
            ReplayQueue: plain(Replays(self._parts).replay),
            **self._logs.handlers(),
            **self._iterators.handlers(),
            **self._builds.handlers(),
            EraseStream: plain(self._erasures.erase_stream),
            EraseSubject: plain(self._erasures.erase_subject),
            StageEvents: plain(self._staging.stage),
            PublishStages: plain(self._staging.publish),
            DropStages: plain(self._staging.drop),
            ListErasures: self._listing(jobs.list_erasures),
        }

    def _listing(self, job: Callable[..., Any]) -> Handler:
        return plain(lambda request: self._parts.run(job, request, self._page_limit(request.limit)))

    def _page_limit(self, limit: int | None) -> int:
        if limit is not None and limit < 1:
            raise InvalidRequest("limit", f"is {limit}; it must be at least 1")
        return min(limit or self.settings.page_events_max, self.settings.page_events_max)

    def _limits(self, limit: int | None) -> ReadLimits:
        return self._parts.limits._replace(events_max=self._page_limit(limit))

    def _read_stream(self, request: ReadStream, present: Presenter | None) -> Awaitable[EventPage]:
        return self._parts.run(jobs.read_stream, request, self._limits(request.limit), present)

    async def _read_all(self, request: ReadAll, present: Presenter | None) -> EventPage:
        limits = self._limits(request.limit)
        wanted = EventFilter(request.context, request.filter, request.types)
        page: EventPage = await self._read_on(jobs.read_all, request, wanted, limits, present)
        return page

    async def _read_records(self, request: ReadRecords, present: Presenter | None) -> RecordPage:
        wanted = EventFilter(request.context, request.filter)
        # Nobody takes them apart on the way, so their number does not matter.
        limits = self._parts.limits._replace(events_max=RECORD_PAGE_EVENTS_MAX)
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

        async def attempt() -> Tried[Any]:
            nonlocal request
            page = await self._parts.run(job, request, limits, present)
            request = replace(request, position=page.next)
            return Tried(page, not page.end or _holds(page), wanted)

        return await self._parts.patiently(request.wait_ms, attempt)

    async def _find_position(self, request: FindPosition) -> Found:
        check_names(context=request.context, filter=request.filter)
        wanted = EventFilter(request.context, request.filter)
        return Found((await self._parts.find_position(wanted, request.ticks)).position)


def _holds(page: EventPage | RecordPage) -> bool:
    if isinstance(page, RecordPage):
        return bool(page.records)
    return bool(page.encoded.count if page.encoded else page.events)


def _nothing_to_abandon() -> bool:
    """An append that was taken will be written."""
    return False
