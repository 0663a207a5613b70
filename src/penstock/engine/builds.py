"""Builds of indexed iterators elsewhere, by Spark for instance: where they begin, what they read, what they bring.

What they bring is staged as units whose job is the iterator's (see `penstock.store.outputs`), and installed in one
transaction. The server does not stop building meanwhile. A step of its own that was under way then finds that the
output has moved, and goes on from where it is.
"""

from collections.abc import Sequence

from penstock.engine import running, sources
from penstock.engine.disk import DiskWatch
from penstock.engine.iterators import Iterators
from penstock.engine.metrics import Metrics
from penstock.engine.parts import Handlers, Parts, check_names, plain
from penstock.engine.staging import REQUEST_UNITS_MAX, check_attempt, check_winners
from penstock.errors import InvalidRequest, IteratorNotFound, LimitExceeded, NotCbor
from penstock.lua import LuaLimits
from penstock.model import (
    BeginBuild,
    BuildStart,
    Done,
    DropOutput,
    FindMessage,
    Found,
    Installed,
    InstallOutput,
    IteratorKind,
    MessagePage,
    Over,
    ReadMessages,
    StagedUnit,
    StageOutput,
)
from penstock.store import Store
from penstock.store.contract import Install, ReadLimits, Result, Stage, Transaction, Unstage
from penstock.store.outputs import make_output_unit, output_job, unpack_items
from penstock.store.staging import size_of
from penstock.wire.remits import first_invalid
from penstock.wire.remits.cbor import NotAnItem, end_of


class Builds:
    """What requests of builds mean."""

    def __init__(self, parts: Parts, disk: DiskWatch, metrics: Metrics, iterators: Iterators) -> None:
        self._parts = parts
        self._disk = disk
        self._metrics = metrics
        self._iterators = iterators

    def handlers(self) -> Handlers:
        """What carries out which request."""
        return {
            BeginBuild: plain(self.begin),
            ReadMessages: plain(self.messages),
            FindMessage: plain(self.position),
            StageOutput: plain(self.stage),
            InstallOutput: plain(self.install),
            DropOutput: plain(self.drop),
        }

    async def begin(self, request: BeginBuild) -> BuildStart:
        """Where a build begins."""
        start: BuildStart = await self._parts.run(start_of, request.iterator, self._iterators.limits)
        return start

    async def messages(self, request: ReadMessages) -> MessagePage:
        """A page of what an iterator reads."""
        if request.ordinal < 0 or request.count < 1:
            raise InvalidRequest("ordinal and count", "must be at least 0 and 1")
        limits = self._parts.limits
        limits = limits._replace(events_max=min(request.count, limits.events_max))
        place = (request.iterator, request.id, request.ordinal)
        return MessagePage(await self._parts.run(read_messages, *place, limits))

    async def position(self, request: FindMessage) -> Found:
        """Where the event of a message is."""
        if request.ordinal < 0:
            raise InvalidRequest("ordinal", "must be at least 0")
        return Found(await self._parts.run(find_message, request.iterator, request.id, request.ordinal))

    async def stage(self, request: StageOutput) -> Done:
        """Look at chunks, and stage them."""
        self._disk.check()
        job, settings = _job(request.id), self._parts.settings
        check_attempt(request.part, request.attempt, request.number)
        if len(request.chunks) > REQUEST_UNITS_MAX:
            raise LimitExceeded("request_units_max", len(request.chunks), REQUEST_UNITS_MAX)
        if (size := sum(map(len, request.chunks))) > settings.commit_bytes_max:
            raise LimitExceeded("commit_bytes_max", size, settings.commit_bytes_max)
        units: tuple[StagedUnit, ...] = await self._parts.run(units_of, request.chunks)
        who = (job, request.part, request.attempt, request.number)
        stage = Stage(*who, units, settings.stage_bytes_max, settings.stage_units_max)
        await self._parts.write(Transaction((stage,)), sum(map(size_of, units)))
        return Done()

    async def install(self, request: InstallOutput) -> Installed:
        """Make what was staged the iterator's output."""
        self._disk.check()
        check_names(iterator=request.iterator)
        check_winners(request.winners)
        await self._parts.run(check_install, request, self._iterators.limits.result_bytes_max)
        place = (request.source, request.items, request.messages)
        install = Install(request.id, *place, request.winners, request.state)

        def written(results: list[Result]) -> None:
            (installed,) = results
            assert isinstance(installed, Installed)
            self._metrics.installed_items += installed.added
            self._iterators.installed(request.iterator, request.id)

        (installed,) = await self._parts.write(Transaction((install,)), len(request.state or b""), written)
        assert isinstance(installed, Installed)
        return installed

    async def drop(self, request: DropOutput) -> Done:
        """Drop what was staged."""
        await self._parts.write(Transaction((Unstage(_job(request.id)),)))
        return Done()


def _job(number: int) -> str:
    """The job of an iterator's output; IteratorNotFound if no iterator can have this number."""
    if number < 1:
        raise IteratorNotFound(f"of number {number}")
    return output_job(number)


# --- what workers do ------------------------------------------------------------------------------------------


def start_of(store: Store, name: str, lua: LuaLimits) -> BuildStart:
    """Where the build of an iterator begins, or IteratorNotFound."""
    found = store.iterator(name)
    if found is None:
        raise IteratorNotFound(name)
    if not found.indexed:
        raise InvalidRequest("iterator", f"{name} is not indexed, so it has no index to build; make it with --indexed")
    return BuildStart(
        iterator=name,
        id=found.id,
        log=found.log,
        over=Over(found.over),
        kind=IteratorKind(found.kind),
        function=found.function,
        source=found.source - found.base,
        items=found.outputs,
        state=found.state,
        head=sources.count(store, found),
        call_ms_max=lua.call_ms_max,
        memory_bytes_max=lua.memory_bytes_max,
        result_bytes_max=lua.result_bytes_max,
    )


def read_messages(store: Store, name: str, number: int, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
    """What an iterator reads, from an ordinal on."""
    found = running.find(store, name, number)
    return sources.read(store, found, ordinal, limits) if ordinal < sources.count(store, found) else []


def find_message(store: Store, name: str, number: int, ordinal: int) -> int | None:
    """Where in the history the event of a message is, if it has one."""
    found = running.find(store, name, number)
    return sources.position(store, found, ordinal) if ordinal < sources.count(store, found) else None


def units_of(_store: Store, chunks: Sequence[bytes]) -> tuple[StagedUnit, ...]:
    """The units that chunks are staged as; InvalidRequest or NotCbor if they are no output."""
    for chunk in chunks:
        check_items(unpack_items(chunk))
    return tuple(map(make_output_unit, chunks))


def check_items(items: Sequence[bytes]) -> None:
    """Raise NotCbor if an item is neither empty nor one of CBOR. Unlike a message it may have any number of values."""
    there = [(index, item) for index, item in enumerate(items) if item]
    if first_invalid([item for _, item in there]) is None:
        return
    for index, item in there:
        try:
            end = end_of(item, 0, len(item))
        except NotAnItem as error:
            raise NotCbor(index, str(error)) from None
        if end != len(item):
            raise NotCbor(index, f"{len(item) - end} bytes follow the item")


def check_install(store: Store, request: InstallOutput, state_bytes_max: int) -> None:
    """Raise why this cannot be installed, as far as that can be seen before it is tried."""
    found = running.find(store, request.iterator, request.id)
    if request.messages > (head := sources.count(store, found)):
        raise InvalidRequest("messages", f"are {request.messages}, and the iterator has only {head} to read")
    if request.messages < request.source:
        raise InvalidRequest("messages", f"are {request.messages}, fewer than the {request.source} it began with")
    if request.state is None:
        return
    if found.kind != IteratorKind.REDUCE:
        raise InvalidRequest("state", f"is given, and a {found.kind} has none")
    if len(request.state) > state_bytes_max:
        raise LimitExceeded("iterator_result_bytes_max", len(request.state), state_bytes_max)
    check_items([request.state])
