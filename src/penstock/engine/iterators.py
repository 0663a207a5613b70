"""Iterators: named functions over logs, whose items are asked for page by page.

A plain iterator is run when it is asked for, from the point nearest to what is wanted that an earlier run came to. An
indexed one has its output on disk, and is first brought up to what its log holds at the time of asking: an
acknowledged message is seen by the next request. Lua runs in worker processes of its own, never where reads are
served.

What there is is known here, and brought up to what the store has when other servers that share it have changed it. A
name that is not known, or is gone, is looked up there before anybody is told so.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final, get_origin

from penstock.engine import jobs, lookups, paging, running, summaries
from penstock.engine.answers import returned_by
from penstock.engine.eraser import Eraser
from penstock.engine.index_builder import RETRY_S, Builder, again, passed_on
from penstock.engine.keyed import KeyedLocks
from penstock.engine.metrics import Metrics
from penstock.engine.paging import LAST, ItemPresenter, Kept, Paged, Wanted
from penstock.engine.parts import Handlers, Parts, check_names, plain
from penstock.engine.points import Points
from penstock.engine.running import Point, Step
from penstock.engine.workers import WorkerPool
from penstock.errors import (
    Closed,
    FunctionFailed,
    FunctionTimedOut,
    InvalidRequest,
    IteratorNotFound,
    PenstockError,
    WorkerDied,
)
from penstock.lua import LuaLimits
from penstock.model import (
    CreateIterator,
    Done,
    DropIterator,
    Encoded,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    ListIterators,
    Names,
    NextItems,
    Over,
    ShowIterator,
)
from penstock.settings import Settings
from penstock.store.contract import (
    AddIterator,
    DeleteIterator,
    IteratorState,
    ReadLimits,
    Result,
    Transaction,
)

PAGE_STEP_S_MAX: Final = 1.0
"""How long a Lua worker goes on towards one page before others get their turn."""
BUILD_STEP_S_MAX: Final = 0.25
BUILD_STEP_ITEMS_MAX: Final = 4096
BUILD_STEP_BYTES_MAX: Final = 4 << 20
TIMED_OUT_MAX: Final = 1000
"""Messages remembered at which a plain iterator timed out lately."""
RELOAD_AGAIN_S: Final = 0.5
"""Until the next attempt to see what other servers have changed."""
ORDINAL_MAX: Final = (1 << 63) - 1


class Iterators:
    """What requests about iterators mean."""

    def __init__(self, parts: Parts, lua: WorkerPool, metrics: Metrics, eraser: Eraser) -> None:
        settings = self._settings = parts.settings
        self._parts = parts
        self._lua = lua
        self._metrics = metrics
        self._eraser = eraser
        self.limits = lua_limits(settings)
        build = Step(BUILD_STEP_S_MAX, BUILD_STEP_ITEMS_MAX, BUILD_STEP_BYTES_MAX, self.limits)
        self._builder = Builder(parts, lua, metrics, build)
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

    def handlers(self) -> Handlers:
        """What carries out which request."""
        return {
            CreateIterator: plain(self.create),
            DropIterator: plain(self.drop),
            ShowIterator: plain(self.show),
            ListIterators: plain(self.names),
            NextItems: self.next,
        }

    def start(self, iterators: Iterable[IteratorState]) -> None:
        """Begin with those that the store has."""
        for iterator in iterators:
            self._add(iterator)
        self._builder.start(self._settings.lua_workers)

    def stop(self) -> None:
        """Run no further."""
        self._closing = True
        if self._reloading is not None:
            self._reloading.cancel()
        self._builder.stop()

    def committed(self, streams: Iterable[tuple[str, str]]) -> None:
        """These streams (context, stream) have new events."""
        self._builder.committed(streams)

    def installed(self, name: str, number: int) -> None:
        """The output of an iterator was computed elsewhere, and is there."""
        self._builder.installed(name, number)

    # -- what other servers do

    def heard(self, streams: Iterable[tuple[str, str]] | None, *, has_changed: bool) -> None:
        """Streams have new events, all of them perhaps (None); iterators may have come, gone or begun anew."""
        self._builder.heard(streams)
        if has_changed and not self._closing:
            self._is_stale = True
            if self._reloading is None or self._reloading.done():
                self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        while self._is_stale:
            self._is_stale = False
            changes = self._changes
            try:
                found = await self._parts.run(lookups.all_iterators)
            except PenstockError:
                # Nobody is told anything wrong meanwhile; see `_look`.
                self._is_stale = True
                await asyncio.sleep(RELOAD_AGAIN_S)
                continue
            if changes == self._changes:
                self._reconcile({iterator.name: iterator for iterator in found})
            else:
                # What was read may be older than what was changed here meanwhile.
                self._is_stale = True

    def _reconcile(self, found: dict[str, IteratorState]) -> None:
        for known in list(self._known.values()):
            if known.name not in found or found[known.name].id != known.id:
                self._forget(known)
        for iterator in found.values():
            self._add(iterator)

    async def _look(self, name: str) -> bool:
        """See what the store has under a name; whether that is news."""
        if not self._parts.others.is_shared:
            return False
        chain: list[IteratorState] = await self._parts.run(lookups.chain_of, name)
        before = self._changes
        if not chain:
            self._remove(name)
        for iterator in reversed(chain):
            self._add(iterator)
        return self._changes != before

    # -- which there are

    async def create(self, request: CreateIterator) -> Done:
        """Make an iterator whose function compiles."""
        check_names(iterator=request.name)
        await self._lua.run(running.check, request.kind, request.function, self.limits)
        definition = (request.name, request.log, request.kind.value, request.function, request.indexed)
        operation = AddIterator(*definition, iterators_max=self._settings.iterators_max)
        await self._parts.write(Transaction((operation,)), len(request.function), self._made)
        return Done()

    def _made(self, results: list[Result]) -> None:
        (iterator,) = results
        assert isinstance(iterator, IteratorState)
        self._add(iterator)

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
            self._builder.add(iterator)

    async def drop(self, request: DropIterator) -> Done:
        """Delete an iterator of a log, and those over it."""

        def gone(_results: list[Result]) -> None:
            self._remove(request.name)
            self._eraser.ring()

        await self._parts.write(Transaction((DeleteIterator(request.log, request.name),)), written=gone)
        return Done()

    def log_dropped(self, log: str) -> None:
        """A log is gone, and with it what is made from it."""
        self._remove_over(Over.LOG, log)

    def rebuilt(self, iterators: Iterable[IteratorState]) -> None:
        """These begin anew, under new numbers, because something that they had seen was erased."""
        for iterator in iterators:
            self._add(iterator)

    def _remove_over(self, over: Over, log: str) -> None:
        for name in list(self._over.get((over, log), ())):
            self._remove(name)

    def _remove(self, name: str) -> None:
        iterator = self._known.get(name)
        if iterator is not None:
            self._forget(iterator)
            self._remove_over(Over.ITERATOR, name)

    def _forget(self, iterator: IteratorState) -> None:
        """An iterator is gone; of those over it nothing is said."""
        self._changes += 1
        del self._known[iterator.name]
        together = self._over[iterator.over, iterator.log]
        together.discard(iterator.name)
        if not together:
            del self._over[iterator.over, iterator.log]
        self._builder.remove(iterator.name)
        self._points.forget(iterator.id)

    async def show(self, request: ShowIterator) -> IteratorSummary:
        """What is known of an iterator, as the store has it."""
        summary: IteratorSummary = await self._parts.run(summaries.show_iterator, request.name)
        return summary

    async def names(self, request: ListIterators) -> Names:
        """The names of the iterators of a log, or of all."""
        return Names(await self._parts.run(jobs.list_iterators, request.log))

    # -- their items

    async def next(self, request: NextItems, present: ItemPresenter | None) -> ItemPage:
        """A page of items, or the last one."""
        if not LAST <= request.ordinal <= ORDINAL_MAX:
            raise InvalidRequest("message id", f"is {request.ordinal}; it must be -1 or an ordinal")
        if request.count < 0:
            raise InvalidRequest("count", f"is {request.count}; it cannot be negative")
        if request.iterator not in self._known:
            await self._look(request.iterator)
        iterator = self._find(request.iterator)
        if not request.count:
            return ItemPage([], None if present is None else Encoded(0, present([])))
        wanted = Wanted(request.ordinal, None, present)
        count = min(request.count, self._settings.page_events_max)
        while True:
            try:
                return await (self._kept if iterator.indexed else self._plain)(iterator, wanted, count)
            except IteratorNotFound:
                # One that began anew meanwhile has another number. A page is of one of them, never of both.
                iterator = await self._anew(iterator)

    def _find(self, name: str) -> IteratorState:
        iterator = self._known.get(name)
        if iterator is None:
            raise IteratorNotFound(name)
        return iterator

    async def _anew(self, gone: IteratorState) -> IteratorState:
        """The iterator that has taken the place of one that is gone, or IteratorNotFound."""
        # A worker may see what was written before it is told here. After a turn of the writer it is.
        await self._parts.write(Transaction(()))
        is_news = await self._look(gone.name)
        iterator = self._find(gone.name)
        if iterator.id == gone.id and not is_news:
            raise IteratorNotFound(gone.name)
        return iterator

    async def _kept(self, iterator: IteratorState, wanted: Wanted, count: int) -> ItemPage:
        """A page of an indexed iterator."""
        if wanted.ordinal != LAST and not self._builder.is_current(iterator.name):
            # What is kept never changes: if it is enough, nobody has to wait for what is not built yet.
            kept = await self._read(iterator, wanted, count)
            if not kept.end:
                return await self._said(iterator, wanted, kept)
        error = await self._builder.bring_up(iterator.name)
        if error is not None and wanted.ordinal == LAST:
            raise error
        kept = await self._read(iterator, wanted, count)
        page = await self._said(iterator, wanted, kept)
        if error is not None and not _length(page):
            raise error
        return page

    async def _read(self, iterator: IteratorState, wanted: Wanted, count: int) -> Kept:
        limits = ReadLimits(count, self._settings.page_bytes_max)
        kept: Kept = await self._parts.run(paging.kept, iterator.name, iterator.id, wanted, limits)
        return kept

    async def _said(self, iterator: IteratorState, wanted: Wanted, kept: Kept) -> ItemPage:
        """A kept page. If it would begin with a message that a map failed at, running it again says why."""
        return await self._plain(iterator, wanted, 1) if kept.page is None else kept.page

    async def _plain(self, iterator: IteratorState, wanted: Wanted, count: int) -> ItemPage:
        """A page by running the function."""
        above = await self._builder.bring_up(iterator.log) if iterator.over == Over.ITERATOR else None
        if above is not None and wanted.ordinal == LAST:
            raise passed_on(iterator.log, above)
        step = Step(PAGE_STEP_S_MAX, count, self._settings.page_bytes_max, self.limits)
        page = await self._run(iterator, wanted, step)
        if above is not None and not _length(page):
            raise passed_on(iterator.log, above)
        return page

    async def _run(self, iterator: IteratorState, wanted: Wanted, step: Step) -> ItemPage:
        """Run step by step until there is a page, each from where the last one ended."""
        if iterator.kind == IteratorKind.MAP and wanted.ordinal == LAST:
            wanted = await self._parts.run(paging.last_of_map, iterator.name, iterator.id, wanted)
        start: Point | None = None
        while True:
            async with self._turns.turn(iterator.id):
                paged = await self._step(iterator, start or self._best(iterator, wanted.ordinal), wanted, step)
            if paged.error is not None:
                raise paged.error
            if paged.page is not None:
                return paged.page
            start, wanted = paged.points[-1], wanted._replace(target=paged.target)

    def _best(self, iterator: IteratorState, ordinal: int) -> Point:
        """Where to begin for an item, from what others came to meanwhile."""
        if iterator.kind == IteratorKind.MAP:
            return Point(ordinal, ordinal)
        return self._points.best(iterator.id, None if ordinal == LAST else ordinal)

    async def _step(self, iterator: IteratorState, start: Point, wanted: Wanted, step: Step) -> Paged:
        if self._closing:
            raise Closed
        self._check_timed_out(iterator.id, start.source)
        paged: Paged = await self._lua.run(paging.page, iterator.name, iterator.id, start, wanted, step)
        if paged.page is not None and not _is_presented(paged.page, wanted.present):
            raise WorkerDied("answered in another form than was asked for")
        self._metrics.lua_messages += paged.messages
        if iterator.kind != IteratorKind.MAP and self._find(iterator.name).id == iterator.id:
            self._points.add(iterator.id, paged.points)
        if paged.error is not None:
            self._failed(iterator.id, paged.error)
        return paged

    def _failed(self, number: int, error: FunctionFailed) -> None:
        self._metrics.lua_errors += 1
        if isinstance(error, FunctionTimedOut) and error.message is not None:
            until = asyncio.get_running_loop().time() + RETRY_S
            self._timed_out[number, error.message] = (until, again(error))
            while len(self._timed_out) > TIMED_OUT_MAX:
                del self._timed_out[next(iter(self._timed_out))]

    def _check_timed_out(self, number: int, message: int) -> None:
        """A message that timed out is not run again at once: others wait for the same workers."""
        until, error = self._timed_out.get((number, message), (0.0, None))
        if error is not None and asyncio.get_running_loop().time() < until:
            raise again(error)


def lua_limits(settings: Settings) -> LuaLimits:
    """What one function may use."""
    return LuaLimits(
        call_ms_max=settings.iterator_call_ms_max,
        memory_bytes_max=settings.iterator_memory_bytes_max,
        result_bytes_max=settings.iterator_result_bytes_max,
        outputs_bytes_max=BUILD_STEP_BYTES_MAX,
    )


def _is_presented(page: ItemPage, present: ItemPresenter | None) -> bool:
    """Whether a page has the form that a wire wants. What runs Lua may answer anything."""
    if present is None or page.encoded is None:
        return present is None and page.encoded is None
    function = present.func if isinstance(present, partial) else present
    made = returned_by(function)
    return type(page.encoded.content) is (get_origin(made) or made)


def _length(page: ItemPage) -> int:
    return page.encoded.count if page.encoded else len(page.items)
