"""The engine: a principal and a request in, one reply out. Every gate talks to it.

It checks rights and limits, hands writes to the writer and reads to the workers, and knows nothing of wires. All of it
runs on one event loop; only the writer's thread and the worker processes are elsewhere.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, Self

from penstock import model
from penstock.engine import iterator_jobs, jobs, queue_jobs
from penstock.engine.access import Access, AccessRequests, Login, authorize, own_mark
from penstock.engine.appends import AppendRequests, Checks, LogRequests, OnReply
from penstock.engine.audit import Audit, audit_entry
from penstock.engine.background import Eraser, Sealer, SpaceKeeper
from penstock.engine.context import Attempt, Caller, EngineContext, Handler, Handlers, called, check_names, plain
from penstock.engine.coordination import coordination
from penstock.engine.disk_watch import DiskWatch
from penstock.engine.erasures import ErasureRequests
from penstock.engine.iterators import IteratorRequests
from penstock.engine.jobs import EventEncoder
from penstock.engine.lags import LagCounter
from penstock.engine.metrics import Metrics, PoolCounts
from penstock.engine.queues import QueueRequests, ReplayRequests
from penstock.engine.staging import BuildRequests, StagingRequests
from penstock.engine.subscriptions import SubscriptionRequests
from penstock.engine.wakeups import Wakeups, resolve
from penstock.engine.watches import LoopWatch, WatermarkWatch
from penstock.engine.workers import SEALER_NICENESS, LatePool, LuaPool, WorkerPool
from penstock.engine.writer import Writer
from penstock.errors import (
    Busy,
    Closed,
    InvalidRequest,
    PenstockError,
    ReaderBusy,
    StoreError,
    Unexpected,
    WriterBusy,
)
from penstock.model import AddMessages, Append, EventFilter, Principal, Reply, Request, Right, View, now_ticks
from penstock.model.requests import Reach, Repeat
from penstock.model.times import TICKS_PER_MS
from penstock.settings import Settings
from penstock.store import Store, open_store
from penstock.store.contract import (
    Arrival,
    ExpireProducers,
    ExpireStages,
    ForgetArrival,
    Notice,
    ReadLimits,
    Transaction,
)

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
EXPIRED_PRODUCERS_MAX: Final = 1000
EXPIRED_STAGES_MAX: Final = 10
"""Idle producers, and attempts to stage, forgotten in one transaction, so that other writers do not wait long."""
HOUSEKEEPING_S: Final = 600.0
"""How often the engine looks for idle producers and stages, and for free space."""
HOUSEKEEPING_MS: Final = 500_000
"""The lease of the server that does it: not quite until the next time."""

BUSY_REASONS: Final[dict[type[PenstockError], str]] = {WriterBusy: "writer_busy", ReaderBusy: "reader_busy"}
"""Reasons of answers *busy*, for metrics. Limits of principals are counted where they are checked."""

Abandon = Callable[[], bool]
"""Abandons a request; True if it did, and there will be no answer. Writes cannot be abandoned."""
AnyEncoder = Callable[[list[Any]], Any]
"""A codec's function (of a module, so it can be pickled) that turns events or items into what its wire sends."""


class Engine:
    """One open store. Use as `async with Engine(url, settings) as engine`."""

    def __init__(self, url: str, settings: Settings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.budget = Budget(settings.requests_bytes_max, self.metrics.refused, self.metrics.busy)
        self.access = Access(settings)
        self.audit = Audit(lambda: self.access.is_closed)
        self.metrics.usage = self.access.usage
        self.metrics.requests_bytes = lambda: self.budget.taken
        self.url = url
        self._closing = self._is_draining = False
        self._tasks: set[asyncio.Future[Reply]] = set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and start the writer and the workers. After an error nothing is left running."""
        settings, metrics = self.settings, self.metrics
        self._store = await self._open()
        loop = asyncio.get_running_loop()
        self._wakeups = Wakeups(settings.waiters_max, metrics)
        self._writer = Writer(self._store, loop, settings, metrics, self._wakeups)
        self._disk = DiskWatch(self._store, settings, metrics)
        self._loop_watch, self._watermarks = LoopWatch(metrics), WatermarkWatch(metrics)
        metrics.backend = shown_backend(self.url)
        metrics.head = lambda: self._wakeups.head
        self.pool = WorkerPool(self.url, settings, settings.workers, metrics.readers)
        self.lua = LuaPool(self.url, settings, metrics.lua)
        self._sealer_pool = LatePool(self.url, settings, 1, PoolCounts(), SEALER_NICENESS)
        self._others = coordination(self._store)
        context = self._context = EngineContext(
            settings, metrics, self._writer, self._disk, self.pool, self._wakeups, self._others
        )
        self._space = SpaceKeeper(context)
        self._eraser = Eraser(context, self._space)
        self._sealer = Sealer(context, self._sealer_pool)
        self._checks = Checks(context)
        self._subscriptions = SubscriptionRequests(context, self.audit)
        self._queues = QueueRequests(context, self.audit)
        self._appends = AppendRequests(context, self._checks, self._subscriptions, self._queues)
        self._iterators = IteratorRequests(context, self.lua, self._eraser, self.audit)
        self._logs = LogRequests(context, self._checks, self._iterators, self._eraser, self.audit)
        self._handlers = self._table()
        # After the table, because an engine of tests replaces the pool there.
        self.lags = LagCounter(self.pool)
        try:
            # Before the writer starts: from then on only the writer uses the store.
            self.identity = self._store.identity()
            open_erasures = self._store.open_erasures()
            head, sealed = self._store.head(), self._store.sealed()
            self._iterators.start(jobs.all_iterators(self._store))
            self.access.start(context, self._store.access())
            arrival = self._store.arrival()
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
            self._loop_watch.start()
            await self._tell_arrival(arrival)
        except BaseException:
            await self.stop()
            raise

    async def _tell_arrival(self, arrival: Arrival | None) -> None:
        """Tell the audit that the owner of the store's files restored or moved it, without a server."""
        if arrival is None or not self.access.is_closed:
            return
        entry = audit_entry("files", "store", f"store-{arrival.what}", arrival.facts)
        try:
            await self._context.write(Transaction((ForgetArrival(), entry)))
        except PenstockError as error:
            # Another server has told, or the next start does.
            log.info("the audit was not told that the store was %s: %s", arrival.what, error)

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
        self._loop_watch.stop()
        self._watermarks.stop()
        self.access.stop()
        self.lags.stop()
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
    def head(self) -> int:
        """The last position that this server knows of."""
        return self._wakeups.head

    @property
    def trouble(self) -> str | None:
        """Why appends cannot succeed now, as a sentence for operators; None if they can."""
        if self._closing:
            return "the server is stopping"
        if (trouble := self._writer.trouble) is not None:
            return f"the store cannot be written to at present: {trouble}"
        refusal = self._disk.refusal()
        return None if refusal is None else f"appends are refused: {refusal.reason}"

    def drain(self) -> None:
        """Be no longer ready, so that load balancers send clients elsewhere. Everything goes on until `stop`."""
        self._is_draining = True

    @property
    def unready(self) -> list[str]:
        """Why clients should go elsewhere at present, as sentences for operators; empty if they are welcome."""
        reasons = ["the server is draining: it stops soon"] if self._is_draining and not self._closing else []
        reasons += filter(None, (self.trouble, self._others.trouble))
        return reasons

    async def refresh_metrics(self) -> None:
        """Look for what only metrics show. Collectors of metrics call this first."""
        if not self._closing:
            await self._watermarks.look(self.pool, self.identity)

    async def execute(
        self, principal: Principal, request: Request, present: AnyEncoder | None = None, sender: Login | None = None
    ) -> Reply:
        """Carry out a request; its reply, or an exception. See `submit`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        abandon = self.submit(principal, request, partial(resolve, answer), present, sender)
        try:
            return await answer
        except asyncio.CancelledError:
            abandon()
            raise

    async def record(self, principal: Principal, stream: str, what: str, **facts: object) -> None:
        """Write an entry of the audit about something that is not in the store."""
        if entry := self.audit.entry(principal, stream, what, facts):
            await self._context.write(Transaction(entry))

    def submit(
        self,
        principal: Principal,
        request: Request,
        answer: OnReply,
        present: AnyEncoder | None = None,
        sender: Login | None = None,
    ) -> Abandon:
        """Carry out a request; `answer` is called exactly once, perhaps before this returns.

        `present` is called in a worker and turns the events or items of the reply into what a wire sends. The function
        that is returned abandons a request that only reads or waits: then there is no answer.
        """
        try:
            if self._closing:
                raise Closed
            view = None
            if not principal.may_all:
                view = self.permitted(principal, request)
                if not principal.may(Right.APPEND):
                    request = own_mark(principal, request)
            if isinstance(request, Append):
                self._appends.append(request, answer)
            elif isinstance(request, AddMessages):
                self._logs.add(request, answer)
            elif len(self._tasks) >= UNDER_WAY_MAX:
                raise ReaderBusy(len(self._tasks))
            else:
                handler = self._handlers[type(request)]
                return self._begin(handler(request, present, Caller(principal, view, sender)), answer, principal)
        except PenstockError as error:
            self._count_busy(principal, error)
            answer(error)
        except Exception as error:
            log.exception("a request could not be begun")
            answer(Unexpected(repr(error)))
        return _nothing_to_abandon

    @staticmethod
    def permitted(principal: Principal, request: Request) -> View | None:
        """The part of the store that a request may use; None: all of it. Raises NotAllowed or NotAuthenticated."""
        needed = request.needs()
        if not principal.may(needed):
            return authorize(principal, request, needed)
        if request.reach is Reach.ITERATOR and not principal.may(Right.AUDIT):
            # Everything but the audit, and what reads it.
            return principal.views[needed]
        return None

    def _changed_elsewhere(self, notice: Notice) -> None:
        """Another server has changed the store: wake the requests and tasks here that wait for such a change."""
        if notice.streams is None or notice.queues is None:
            self._wakeups.wake_all()
        else:
            self._queues.changed_elsewhere(notice.queues)
        # None stands for any stream: wake all indexed iterators then.
        streams = self._wakeups.followed.copy() if notice.streams is None else notice.streams
        self._wakeups.committed(streams, notice.head)
        if notice.has_changed_access:
            self._begin_reload()
        if notice.has_changed_logs:
            self._iterators.changed_elsewhere()
            # The server that deleted something erases it; if that server dies, this one does.
            self._eraser.wake()

    def _begin_reload(self) -> None:
        self._reloading = asyncio.get_running_loop().create_task(self.access.reload())
        # It fails if the pool is busy or closes; the access looks again soon.
        self._reloading.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._space.wake()
            if not await self._others.may("house", HOUSEKEEPING_MS):
                continue
            try:
                await self._forget_idle(now_ticks())
            except PenstockError as error:
                log.warning("idle producers and stages were not forgotten: %s", error)

    async def _forget_idle(self, now: int) -> None:
        producers = now - self.settings.producer_idle_ms_max * TICKS_PER_MS
        keys = now - self.settings.idempotency_ms_max * TICKS_PER_MS
        stages = now - self.settings.stage_idle_ms_max * TICKS_PER_MS
        for expire in (
            ExpireProducers(producers, EXPIRED_PRODUCERS_MAX),
            ExpireProducers(keys, EXPIRED_PRODUCERS_MAX, keys=True),
            ExpireStages(stages, EXPIRED_STAGES_MAX),
        ):
            while await self._context.apply(expire) == expire.limit:
                pass

    def _count_busy(self, principal: Principal, error: PenstockError) -> None:
        if (reason := BUSY_REASONS.get(type(error))) is not None:
            self.metrics.busy[reason, principal.name] += 1

    def _begin(self, work: Awaitable[Reply], answer: OnReply, principal: Principal) -> Abandon:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._finish, answer, principal))
        return task.cancel

    def _finish(self, answer: OnReply, principal: Principal, task: asyncio.Future[Reply]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            reply = task.result()
            if isinstance(reply, model.EventPage | model.FetchedBatch | model.Delivery):
                self.metrics.delivered += len(reply.events) if reply.encoded is None else reply.encoded.count
            answer(reply)
        elif isinstance(error, PenstockError):
            self._count_busy(principal, error)
            answer(error)
        else:
            log.error("a request failed", exc_info=error)
            answer(Unexpected(repr(error)))

    def _table(self) -> Handlers:
        run, limits = self._context.pool.run, self._context.limits
        subscriptions, queues, iterators = self._subscriptions, self._queues, self._iterators
        staging = StagingRequests(self._context)
        builds = BuildRequests(self._context, iterators)
        erasures = ErasureRequests(self._context, iterators, self._eraser, self.audit)
        access = AccessRequests(self._context, self.access, self.audit)
        return {
            model.Transact: called(self._appends.transact),
            model.ReadStream: lambda request, present, _caller: run(
                jobs.read_stream, request, self._limits(request.limit), present
            ),
            model.ReadEvent: lambda request, present, _caller: run(jobs.read_event, request, limits, present),
            model.ReadAll: self._read_history,
            model.ReadRecords: self._read_history,
            model.FindPosition: called(self._find_position),
            model.ListContexts: self._listing(jobs.list_contexts),
            model.ListStreams: self._listing(jobs.list_streams),
            model.ListSubscriptions: self._listing(jobs.list_subscriptions),
            model.ListQueues: self._listing(jobs.list_queues),
            model.ListDeadLetters: self._listing(queue_jobs.list_dead_letters),
            model.PreviewQueue: called(queues.preview),
            model.ListLetters: called(queues.list_letters),
            model.ListErasures: self._listing(jobs.list_erasures),
            model.GetStats: called(lambda _request, caller: run(jobs.stats, caller.view)),
            model.RegisterSubscriptions: called(subscriptions.register),
            model.FetchSubscription: subscriptions.fetch,
            model.ProgressSubscription: called(subscriptions.progress),
            model.SetSubscription: called(subscriptions.set),
            model.DeleteSubscription: called(subscriptions.delete),
            model.SubscribeQueue: queues.subscribe,
            model.AcknowledgeQueue: queues.acknowledge,
            model.ReleaseQueue: called(queues.release),
            model.ResetQueue: called(queues.reset),
            model.SetDeadLetterRule: called(queues.set_dead_rule),
            model.PutBack: called(queues.put_back),
            model.SettleQueue: called(queues.settle),
            model.ExtendQueue: called(queues.extend),
            model.PauseQueue: called(queues.pause),
            model.DeleteQueue: called(queues.delete),
            model.RenameQueue: called(queues.rename),
            model.SetRetryPolicy: called(queues.set_retry),
            model.SetQueueFilter: called(queues.set_filter),
            model.PutBackLetters: called(queues.put_back_letters),
            model.ReplayQueue: called(ReplayRequests(self._context, self.audit).replay),
            model.CreateLog: plain(self._logs.create),
            model.DropLog: called(self._logs.drop),
            model.ShowLog: called(lambda request, caller: run(iterator_jobs.show_log, request.log, caller.view)),
            model.ListLogs: called(lambda _request, caller: run(jobs.list_logs, caller.view)),
            model.CreateIterator: called(iterators.create),
            model.DropIterator: called(iterators.drop),
            model.ShowIterator: called(iterators.show),
            model.ListIterators: called(lambda request, caller: run(jobs.list_iterators, request.log, caller.view)),
            model.NextItems: iterators.next,
            model.BeginBuild: called(builds.begin),
            model.ReadMessages: called(builds.messages),
            model.FindMessage: called(builds.position),
            model.StageOutput: called(builds.stage),
            model.InstallOutput: called(builds.install),
            model.DropOutput: called(builds.drop),
            model.EraseStream: called(erasures.erase_stream),
            model.EraseSubject: called(erasures.erase_subject),
            model.StageEvents: called(staging.stage),
            model.PublishStages: called(staging.publish),
            model.DropStages: called(staging.drop),
            model.WhoAmI: called(access.who_am_i),
            model.PutPrincipal: called(access.put),
            model.DropPrincipal: called(access.drop),
            model.IssueToken: called(access.issue),
            model.AddCredential: called(access.add),
            model.DropCredential: called(access.remove),
            model.ListPrincipals: plain(lambda request: access.principals(request, self._page_limit(request.limit))),
            model.ListCredentials: plain(lambda request: access.credentials(request, self._page_limit(request.limit))),
        }

    def _listing(self, job: Callable[..., Any]) -> Handler:
        """A handler that pages through what the caller may see of a list."""
        run = self._context.pool.run
        return called(lambda request, caller: run(job, request, self._page_limit(request.limit), caller.view))

    def _page_limit(self, limit: int | None) -> int:
        if limit is not None and limit < 1:
            raise InvalidRequest("limit", f"is {limit}; it must be at least 1")
        return min(limit or self.settings.page_events_max, self.settings.page_events_max)

    def _limits(self, limit: int | None) -> ReadLimits:
        return self._context.limits._replace(events_max=self._page_limit(limit))

    async def _read_history(
        self, request: model.ReadAll | model.ReadRecords, present: EventEncoder | None, caller: Caller
    ) -> model.EventPage | model.RecordPage:
        """A page; if it is empty and the request waits, the first page that is not."""
        types = request.types if isinstance(request, model.ReadAll) else None
        wanted = EventFilter(request.context, request.filter, types).seen_by(caller.view)
        if isinstance(request, model.ReadAll):
            asked: tuple[Any, ...] = (wanted, self._limits(request.limit), present)
            job: Callable[..., Any] = jobs.read_all
        else:
            # The server does not decode records, so their number does not matter.
            asked = (wanted, self._context.limits._replace(events_max=RECORD_PAGE_EVENTS_MAX), caller.view)
            job = jobs.read_records
        position = request.position

        async def attempt() -> Attempt[Any]:
            nonlocal position
            page = await self._context.pool.run(job, position, *asked)
            position = page.next
            if isinstance(page, model.RecordPage):
                found = bool(page.records)
            else:
                found = bool(page.encoded.count if page.encoded else page.events)
            # A poll goes on over events that are not wanted, or that the caller may not see.
            return Attempt(page, found, wanted, None if page.end else 0)

        return await self._context.long_poll(request.wait_ms, attempt)

    async def _find_position(self, request: model.FindPosition, caller: Caller) -> model.Found:
        check_names(context=request.context, filter=request.filter)
        wanted = EventFilter(request.context, request.filter).seen_by(caller.view)
        return model.Found((await self._context.find_position(wanted, request.ticks)).position)


def shown_backend(url: str) -> str:
    """The backend of a store by its URL: sqlite or postgresql."""
    return "sqlite" if url.startswith("sqlite:") else "postgresql"


def _nothing_to_abandon() -> bool:
    """An accepted append is written."""
    return False


class Budget:
    """A limit, in bytes, for the requests that are in flight in the whole server.

    A gate takes the bytes of a message from the budget when it has read the message. It gives them back when the last
    answer is ready, or when the client is gone and the engine has dropped the request. In between the request may wait
    in the gate, for a worker or for the writer: one sum covers all these queues.

    A gate answers *busy* to a message that finds no room. Each connection also has a limit, far below the sum, at which
    its gate stops reading.
    """

    __slots__ = ("_busy", "_bytes_max", "_refused", "_requests", "connection_bytes_max", "taken")

    def __init__(self, bytes_max: int, refused: Counter[str], busy: Counter[tuple[str, str]] | None = None) -> None:
        self.taken = 0
        self._busy = Counter() if busy is None else busy
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

    def busy(self, request: Request, principal: Principal) -> Busy:
        """The error for a principal's request that found no room."""
        self._refused["requests_busy"] += 1
        self._busy["requests_busy", principal.name] += 1
        return (ReaderBusy if request.repeat is Repeat.READS else WriterBusy)(self._requests)
