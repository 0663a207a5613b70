"""Iterators: named functions over logs, whose items clients read page by page.

A request runs a plain iterator, from the nearest point that an earlier run reached. An indexed iterator has its output
on disk. A request first waits until it has read what its log holds at that time: the next request sees an acknowledged
message. Lua runs in separate worker processes, never in those that serve reads.

The engine knows all iterators, and reads them again when other servers that share the store have changed them. Before
it answers that an iterator does not exist, it looks in the store.
"""

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Final, get_origin

from penstock import model
from penstock.engine import iterator_jobs, jobs
from penstock.engine.audit import Audit
from penstock.engine.background import Eraser
from penstock.engine.context import Caller, EngineContext, KeyedLocks, check_names
from penstock.engine.index_builder import RETRY_S, Builder, passed_on
from penstock.engine.iterator_jobs import LAST, ItemEncoder, KeptPage, Paged, PageRequest, Point, StepLimits
from penstock.engine.worker_protocol import returned_by
from penstock.engine.workers import WorkerPool
from penstock.errors import (
    Closed,
    FunctionFailed,
    FunctionTimedOut,
    InvalidRequest,
    IteratorNotFound,
    LogNotFound,
    PenstockError,
    WorkerDied,
)
from penstock.lua import LuaLimits
from penstock.model import ItemPage, IteratorKind, Over
from penstock.settings import Settings
from penstock.store.contract import AddIterator, DeleteIterator, IteratorState, ReadLimits, Transaction

PAGE_STEP_S_MAX: Final = 1.0
"""How long a Lua worker works on one page before other jobs get their turn."""
BUILD_STEP_S_MAX: Final = 0.25
BUILD_STEP_ITEMS_MAX: Final = 4096
BUILD_STEP_BYTES_MAX: Final = 4 << 20
TIMED_OUT_MAX: Final = 1000
"""Recent timeouts of plain iterators that the engine remembers."""
RELOAD_AGAIN_S: Final = 0.5
"""Until the next attempt to read what other servers have changed."""
ORDINAL_MAX: Final = (1 << 63) - 1


class IteratorRequests:
    def __init__(self, context: EngineContext, lua: WorkerPool, eraser: Eraser, audit: Audit) -> None:
        settings = self._settings = context.settings
        self._audit = audit
        self._context = context
        self._lua = lua
        self._metrics = context.metrics
        self._eraser = eraser
        self.limits = lua_limits(settings)
        build = StepLimits(BUILD_STEP_S_MAX, BUILD_STEP_ITEMS_MAX, BUILD_STEP_BYTES_MAX, self.limits)
        self.builder = Builder(context, lua, build)
        self._points = Points(settings.iterator_points_max, settings.iterator_points_bytes_max)
        self._known: dict[str, IteratorState] = {}
        self._over: dict[tuple[str, str], set[str]] = {}
        # One step of an iterator at a time: one that is slow and much asked for must not keep all workers busy.
        self._turns = KeyedLocks(settings.reader_wait_ms_max)
        self._timed_out: dict[tuple[int, int], tuple[float, FunctionFailed]] = {}
        self._closing = False
        self._changes = 0
        self._is_stale = False
        self._reloading: asyncio.Task[None] | None = None

    def start(self, iterators: Iterable[IteratorState]) -> None:
        for iterator in iterators:
            self._add(iterator)
        self.builder.start(self._settings.lua_workers)

    def stop(self) -> None:
        self._closing = True
        if self._reloading is not None:
            self._reloading.cancel()
        self.builder.stop()

    # -- what other servers do

    def changed_elsewhere(self) -> None:
        """Another server has added, deleted or restarted iterators: read them again."""
        if not self._closing:
            self._is_stale = True
            if self._reloading is None or self._reloading.done():
                self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        while self._is_stale:
            self._is_stale = False
            changes = self._changes
            try:
                found = await self._context.pool.run(jobs.all_iterators)
            except PenstockError:
                # Requests get right answers meanwhile; see `_look`.
                self._is_stale = True
                await asyncio.sleep(RELOAD_AGAIN_S)
                continue
            if changes != self._changes:
                # What was read may be older than what was changed here meanwhile.
                self._is_stale = True
                continue
            ids = {iterator.id for iterator in found}
            for known in list(self._known.values()):
                if known.id not in ids:
                    self._forget(known)
            for iterator in found:
                self._add(iterator)

    async def _look(self, name: str) -> bool:
        """Look a name up in the store; True if that changed what is known here."""
        if not self._context.others.is_shared:
            return False
        chain: list[IteratorState] = await self._context.pool.run(jobs.chain_of, name)
        before = self._changes
        if not chain:
            self._remove(name)
        for iterator in reversed(chain):
            self._add(iterator)
        return self._changes != before

    # -- which there are

    async def check(self, name: str, caller: Caller) -> None:
        """Raise IteratorNotFound for an iterator that reads what the caller may not use."""
        if caller.view is not None:
            if name not in self._known:
                await self._look(name)
            self._check_known(name, caller)

    def _check_known(self, name: str, caller: Caller) -> None:
        if caller.view is not None and not jobs.is_readable(self._known, name, caller.view):
            raise IteratorNotFound(name)

    async def check_number(self, number: int, caller: Caller) -> None:
        """The same for an iterator by its id; the error does not tell its name."""
        if caller.view is None:
            return
        names = [iterator.name for iterator in self._known.values() if iterator.id == number]
        if not names or not jobs.is_readable(self._known, names[0], caller.view):
            raise IteratorNotFound(f"of number {number}")

    async def show(self, request: model.ShowIterator, caller: Caller) -> model.IteratorSummary:
        asked = (request.name, caller.view)
        shown: model.IteratorSummary = await self._context.pool.run(iterator_jobs.show_iterator, *asked)
        return shown

    async def create(self, request: model.CreateIterator, caller: Caller) -> model.Done:
        check_names(iterator=request.name)
        is_seen = True
        if caller.view is not None:
            # A log, then an iterator, then a stream: as the store looks the name up.
            is_log: bool = await self._context.pool.run(jobs.has_log, request.log)
            context, slash, stream = request.log.partition("/")
            if is_log or (not slash and request.log not in self._known):
                is_seen = caller.view.has_stream(model.LOG_CONTEXT, request.log)
            elif request.log in self._known:
                is_seen = jobs.is_readable(self._known, request.log, caller.view)
            else:
                is_seen = caller.view.has_stream(context, stream)
        await self._lua.run(iterator_jobs.check_function, request.kind, request.function, self.limits)
        # After the function, as the store does: a wrong one must not tell whether the log exists.
        if not is_seen:
            raise LogNotFound(request.log)
        definition = (request.name, request.log, request.kind.value, request.function, request.indexed)
        operation = AddIterator(*definition, iterators_max=self._settings.iterators_max)
        self._add(await self._context.apply(operation, len(request.function)))
        return model.Done()

    def _add(self, iterator: IteratorState) -> None:
        known = self._known.get(iterator.name)
        if known is not None and known.id == iterator.id:
            return
        if known is not None:
            self._forget(known)
        self._changes += 1
        # Functions stay in the store; there may be many, and long ones.
        self._known[iterator.name] = replace(iterator, function="", state=None)
        self._over.setdefault((iterator.over, iterator.log), set()).add(iterator.name)
        if iterator.indexed:
            self.builder.add(iterator)

    async def drop(self, request: model.DropIterator, caller: Caller) -> model.Done:
        await self.check(request.name, caller)
        facts = {"log": request.log, "iterator": request.name}
        entry = self._audit.entry(caller.principal, "logs", "iterator-deleted", facts)
        await self._context.write(Transaction((DeleteIterator(request.log, request.name), *entry)))
        self._remove(request.name)
        self._eraser.wake()
        return model.Done()

    def rebuilt(self, iterators: Iterable[IteratorState]) -> None:
        """These restart, under new ids, because an event that they had read was erased."""
        for iterator in iterators:
            self._add(iterator)

    def remove_over(self, over: Over, log: str) -> None:
        """A log or an iterator was deleted, and with it those that read it."""
        for name in list(self._over.get((over, log), ())):
            self._remove(name)

    def _remove(self, name: str) -> None:
        iterator = self._known.get(name)
        if iterator is not None:
            self._forget(iterator)
            self.remove_over(Over.ITERATOR, name)

    def _forget(self, iterator: IteratorState) -> None:
        """Remove an iterator, but not those over it."""
        self._changes += 1
        del self._known[iterator.name]
        together = self._over[iterator.over, iterator.log]
        together.discard(iterator.name)
        if not together:
            del self._over[iterator.over, iterator.log]
        self.builder.remove(iterator.name)
        self._points.forget(iterator.id)

    # -- their items

    async def next(self, request: model.NextItems, present: ItemEncoder | None, caller: Caller) -> ItemPage:
        if not LAST <= request.ordinal <= ORDINAL_MAX:
            raise InvalidRequest("message id", f"is {request.ordinal}; it must be -1 or an ordinal")
        if request.count < 0:
            raise InvalidRequest("count", f"is {request.count}; it cannot be negative")
        if request.iterator not in self._known:
            await self._look(request.iterator)
        await self.check(request.iterator, caller)
        iterator = self._find(request.iterator)
        if not request.count:
            return ItemPage([], None if present is None else model.Encoded(0, present([])))
        wanted = PageRequest(request.ordinal, None, present)
        count = min(request.count, self._settings.page_events_max)
        while True:
            try:
                return await (self._kept if iterator.indexed else self._plain)(iterator, wanted, count)
            except IteratorNotFound:
                # An iterator that restarted has another id. A page comes from one of them, never from both.
                iterator = await self._anew(iterator)
                self._check_known(iterator.name, caller)

    def _find(self, name: str) -> IteratorState:
        iterator = self._known.get(name)
        if iterator is None:
            raise IteratorNotFound(name)
        return iterator

    async def _anew(self, gone: IteratorState) -> IteratorState:
        """The iterator that has replaced one that is gone, or IteratorNotFound."""
        # A worker may see a change before this thread does. After a turn of the writer both do.
        await self._context.write(Transaction(()))
        is_news = await self._look(gone.name)
        iterator = self._find(gone.name)
        if iterator.id == gone.id and not is_news:
            raise IteratorNotFound(gone.name)
        return iterator

    async def _kept(self, iterator: IteratorState, wanted: PageRequest, count: int) -> ItemPage:
        """A page of an indexed iterator."""
        asked = (iterator.name, iterator.id, wanted, ReadLimits(count, self._settings.page_bytes_max))
        error: FunctionFailed | None = None
        kept: KeptPage | None = None
        if wanted.ordinal != LAST and not self.builder.is_current(iterator.name):
            # Stored output never changes: if it is enough, the request need not wait for the rest.
            kept = await self._context.pool.run(iterator_jobs.read_kept, *asked)
        if kept is None or kept.end:
            error = await self.builder.bring_up(iterator.name)
            if error is not None and wanted.ordinal == LAST:
                raise error
            kept = await self._context.pool.run(iterator_jobs.read_kept, *asked)
        assert kept is not None
        # If the page would begin with a message at which a map failed, run that again for the error.
        page = await self._plain(iterator, wanted, 1) if kept.page is None else kept.page
        if error is not None and not _length(page):
            raise error
        return page

    async def _plain(self, iterator: IteratorState, wanted: PageRequest, count: int) -> ItemPage:
        """A page by running the function, step by step, each from where the last one ended."""
        above = await self.builder.bring_up(iterator.log) if iterator.over == Over.ITERATOR else None
        if above is not None and wanted.ordinal == LAST:
            raise passed_on(iterator.log, above)
        step = StepLimits(PAGE_STEP_S_MAX, count, self._settings.page_bytes_max, self.limits)
        if iterator.kind == IteratorKind.MAP and wanted.ordinal == LAST:
            wanted = await self._context.pool.run(iterator_jobs.last_of_map, iterator.name, iterator.id, wanted)
        start: Point | None = None
        page: ItemPage | None = None
        while page is None:
            async with self._turns.turn(iterator.id):
                if start is None and iterator.kind == IteratorKind.MAP:
                    start = Point(wanted.ordinal, wanted.ordinal)
                elif start is None:
                    start = self._points.best(iterator.id, None if wanted.ordinal == LAST else wanted.ordinal)
                paged = await self._step(iterator, start, wanted, step)
            if paged.error is not None:
                raise paged.error
            if (page := paged.page) is None:
                start, wanted = paged.points[-1], wanted._replace(target=paged.target)
        if above is not None and not _length(page):
            raise passed_on(iterator.log, above)
        return page

    async def _step(self, iterator: IteratorState, start: Point, wanted: PageRequest, step: StepLimits) -> Paged:
        if self._closing:
            raise Closed
        loop = asyncio.get_running_loop()
        until, timeout = self._timed_out.get((iterator.id, start.source), (0.0, None))
        if timeout is not None and loop.time() < until:
            # Do not run a message again at once that timed out: others wait for the same workers.
            raise copy(timeout)
        paged: Paged = await self._lua.run(iterator_jobs.run_page, iterator.name, iterator.id, start, wanted, step)
        if paged.page is not None and not _is_presented(paged.page, wanted.present):
            raise WorkerDied("answered in another form than the request's")
        self._metrics.lua_messages += paged.messages
        if iterator.kind != IteratorKind.MAP and self._find(iterator.name).id == iterator.id:
            self._points.add(iterator.id, paged.points)
        error = paged.error
        self._metrics.lua_errors += error is not None
        if isinstance(error, FunctionTimedOut) and error.message is not None:
            self._timed_out[iterator.id, error.message] = (loop.time() + RETRY_S, copy(error))
            while len(self._timed_out) > TIMED_OUT_MAX:
                del self._timed_out[next(iter(self._timed_out))]
        return paged


def lua_limits(settings: Settings) -> LuaLimits:
    return LuaLimits(
        call_ms_max=settings.iterator_call_ms_max,
        memory_bytes_max=settings.iterator_memory_bytes_max,
        result_bytes_max=settings.iterator_result_bytes_max,
        outputs_bytes_max=BUILD_STEP_BYTES_MAX,
    )


def _is_presented(page: ItemPage, present: ItemEncoder | None) -> bool:
    """Whether a page has the form of the request's wire. A process that runs Lua may answer anything."""
    if present is None or page.encoded is None:
        return present is None and page.encoded is None
    function = present.func if isinstance(present, partial) else present
    made = returned_by(function)
    return type(page.encoded.content) is (get_origin(made) or made)


def _length(page: ItemPage) -> int:
    return page.encoded.count if page.encoded else len(page.items)


POINT_BYTES: Final = 256
"""The size of a point without its accumulator."""
START: Final = Point()


class Points:
    def __init__(self, points_max: int, bytes_max: int) -> None:
        self._points_max = points_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._outputs: dict[int, list[int]] = {}
        self._points: OrderedDict[tuple[int, int], Point] = OrderedDict()

    def __len__(self) -> int:
        return len(self._points)

    def add(self, iterator: int, points: Iterable[Point]) -> None:
        """Add points. Of two with as many items, keep the one that has read further."""
        for point in points:
            key = (iterator, point.output)
            known = self._points.get(key)
            if known is not None and known.source >= point.source:
                self._points.move_to_end(key)
                continue
            if known is None:
                insort(self._outputs.setdefault(iterator, []), point.output)
            else:
                self._bytes -= _size(known)
            self._points[key] = point
            self._points.move_to_end(key)
            self._bytes += _size(point)
        self._shrink()

    def best(self, iterator: int, ordinal: int | None) -> Point:
        """Where to begin for an item, or for the last one (None): the nearest point before it."""
        outputs = self._outputs.get(iterator, [])
        index = len(outputs) if ordinal is None else bisect_right(outputs, ordinal)
        if not index:
            return START
        key = (iterator, outputs[index - 1])
        self._points.move_to_end(key)
        return self._points[key]

    def forget(self, iterator: int) -> None:
        for output in self._outputs.pop(iterator, []):
            self._bytes -= _size(self._points.pop((iterator, output)))

    def _shrink(self) -> None:
        while len(self._points) > self._points_max or self._bytes > self._bytes_max:
            (iterator, output), point = self._points.popitem(last=False)
            self._bytes -= _size(point)
            outputs = self._outputs[iterator]
            del outputs[bisect_right(outputs, output) - 1]
            if not outputs:
                del self._outputs[iterator]


def _size(point: Point) -> int:
    return POINT_BYTES + len(point.state or b"")
