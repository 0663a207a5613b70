"""Staging: what tasks of a job bring, and publishing it; and builds of indexed iterators elsewhere, such as by Spark.

A worker checks units before the server stages them: they are stored as they are.

A build stages output of an iterator, as units of the iterator's job (see `penstock.store.outputs`), and installs it in
one transaction. The server goes on building meanwhile: if the output moved, its own step continues from there.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from penstock import model
from penstock.engine import iterator_jobs
from penstock.engine.context import Caller, EngineContext, check_names
from penstock.engine.iterators import IteratorRequests
from penstock.engine.jobs import visible_iterator
from penstock.errors import InvalidRequest, IteratorNotFound, LimitExceeded, NotCbor, StageLost
from penstock.lua import LuaLimits
from penstock.model import View
from penstock.store import Store, contract
from penstock.store.contract import ReadLimits, Transaction
from penstock.store.outputs import make_output_unit, output_job, unpack_items
from penstock.store.stages import UNIT_EVENTS_MAX, check_unit, jobs_of, size_of
from penstock.wire.remits.cbor import NotAnItem, end_of, first_invalid

REQUEST_UNITS_MAX: Final = 10_000
"""Units in one request to stage."""
REQUEST_BYTES_MAX: Final = 8 << 20
"""Bytes of these units, plus one event of any size. The limits of commits are for clients that append."""
WINNERS_MAX: Final = 50_000
"""Parts of one job."""
GRANTS_DIGITS: Final = 16
"""How much of a digest of the grants is part of the name of a job."""


class StagingRequests:
    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def stage(self, request: model.StageEvents, caller: Caller) -> model.StagesTaken:
        check_names(job=request.job)
        check_stage(self._context, request, len(request.units))
        size, settings = sum(map(size_of, request.units)), self._context.settings
        if request.units:
            if size > (largest := REQUEST_BYTES_MAX + settings.event_bytes_max):
                raise LimitExceeded("request_bytes_max", size, largest)
            await self._context.pool.run(check_units, request.units, settings.event_bytes_max)
            who = (job_of(request.job, caller), request.part, request.attempt, request.number)
            limits = (settings.stage_bytes_max, settings.stage_units_max)
            owned = (caller.principal.name, caller.principal.limits.staged_bytes_max)
            await self._context.apply(contract.Stage(*who, request.units, *limits, *owned), size)
        return model.StagesTaken(settings.event_bytes_max)

    async def publish(self, request: model.PublishStages, caller: Caller) -> model.Published:
        """Append what the winners have staged to the history."""
        check_names(job=request.job)
        check_winners(request.winners)
        if request.origin:
            check_names(origin=request.origin)
        publish = contract.Publish(job_of(request.job, caller), request.winners, request.origin)
        try:
            (placed,) = await self._context.write(Transaction((publish,), request.mark, self._context.disk.refusal()))
        except StageLost as error:
            # The client does not know the store's name of its job.
            raise StageLost(request.job, error.part, error.units, error.found) from None
        assert isinstance(placed, contract.Placed)
        return placed.published

    async def drop(self, request: model.DropStages, caller: Caller) -> model.Done:
        check_names(job=request.job)
        await self._context.apply(contract.Unstage(job_of(request.job, caller)))
        return model.Done()


def job_of(job: str, caller: Caller) -> str:
    """The store's name of a job; in an open store it is as its client chose.

    A principal has its own jobs, and none of what it staged with other grants.
    """
    principal = caller.principal
    if principal is model.ANONYMOUS:
        return job
    grants = sha256(" ".join(map(str, principal.grants)).encode()).hexdigest()
    return f"{jobs_of(principal.name)}{grants[:GRANTS_DIGITS]}/{job}"


def check_stage(context: EngineContext, request: model.StageEvents | model.StageOutput, units: int) -> None:
    """Raise an error if the disk is full, or for an invalid part, attempt or number, or too many units."""
    context.disk.check()
    check_names(attempt=request.attempt)
    if request.part < 0 or request.number < 0:
        raise InvalidRequest("part and number", "are never below 0")
    if units > REQUEST_UNITS_MAX:
        raise LimitExceeded("request_units_max", units, REQUEST_UNITS_MAX)


def check_winners(winners: Sequence[model.Winner]) -> None:
    if len(winners) > WINNERS_MAX:
        raise LimitExceeded("winners_max", len(winners), WINNERS_MAX)


def check_units(_store: Store, units: Sequence[model.StagedUnit], event_bytes_max: int) -> None:
    """Raise InvalidRequest or LimitExceeded if units cannot become history."""
    for unit in units:
        check_names(context=unit.context)
        if reason := model.check_stream(unit.stream):
            raise InvalidRequest("stream", reason)
        if unit.context == model.AUDIT_CONTEXT:
            raise InvalidRequest("context", f"{unit.context} is that of the audit, which only the server writes")
        if unit.context == model.LOG_CONTEXT:
            raise InvalidRequest("context", f"{unit.context} is that of logs, which take messages and no staged events")
        if unit.expected != model.ANY and unit.expected < 1:
            raise InvalidRequest("expected version", f"is {unit.expected}; it must be -1 or at least 1")
        columns = check_unit(unit)
        if columns.length > UNIT_EVENTS_MAX:
            raise LimitExceeded("unit_events_max", columns.length, UNIT_EVENTS_MAX)
        if columns.size > event_bytes_max and (largest := max(columns.sizes())) > event_bytes_max:
            raise LimitExceeded("event_bytes_max", largest, event_bytes_max)


class BuildRequests:
    def __init__(self, context: EngineContext, iterators: IteratorRequests) -> None:
        self._context = context
        self._iterators = iterators

    async def begin(self, request: model.BeginBuild, caller: Caller) -> model.BuildStart:
        asked = (request.iterator, self._iterators.limits, caller.view)
        start: model.BuildStart = await self._context.pool.run(start_of, *asked)
        return start

    async def messages(self, request: model.ReadMessages, caller: Caller) -> model.MessagePage:
        if request.ordinal < 0 or request.count < 1:
            raise InvalidRequest("ordinal and count", "must be at least 0 and 1")
        limits = self._context.limits
        limits = limits._replace(events_max=min(request.count, limits.events_max))
        place = (request.iterator, request.id, request.ordinal)
        return model.MessagePage(await self._context.pool.run(read_messages, *place, limits, caller.view))

    async def position(self, request: model.FindMessage, caller: Caller) -> model.Found:
        if request.ordinal < 0:
            raise InvalidRequest("ordinal", "must be at least 0")
        place = (request.iterator, request.id, request.ordinal)
        return model.Found(await self._context.pool.run(find_message, *place, caller.view))

    async def stage(self, request: model.StageOutput, caller: Caller) -> model.Done:
        await self._iterators.check_number(request.id, caller)
        job, settings = _job(request.id), self._context.settings
        check_stage(self._context, request, len(request.chunks))
        if (size := sum(map(len, request.chunks))) > settings.commit_bytes_max:
            raise LimitExceeded("commit_bytes_max", size, settings.commit_bytes_max)
        units: tuple[model.StagedUnit, ...] = await self._context.pool.run(units_of, request.chunks)
        who = (job, request.part, request.attempt, request.number)
        # The output of an iterator is a job that several may stage, so the limit of a principal is that of the job.
        bytes_max = min(settings.stage_bytes_max, caller.principal.limits.staged_bytes_max or settings.stage_bytes_max)
        stage = contract.Stage(*who, units, bytes_max, settings.stage_units_max)
        await self._context.apply(stage, sum(map(size_of, units)))
        return model.Done()

    async def install(self, request: model.InstallOutput, caller: Caller) -> model.Installed:
        self._context.disk.check()
        check_names(iterator=request.iterator)
        check_winners(request.winners)
        await self._context.pool.run(check_install, request, self._iterators.limits.result_bytes_max, caller.view)
        place = (request.source, request.items, request.messages)
        install = contract.Install(request.id, *place, request.winners, request.state)
        installed: model.Installed = await self._context.apply(install, len(request.state or b""))
        self._context.metrics.installed_items += installed.added
        self._iterators.builder.installed(request.iterator, request.id)
        return installed

    async def drop(self, request: model.DropOutput, caller: Caller) -> model.Done:
        await self._iterators.check_number(request.id, caller)
        await self._context.apply(contract.Unstage(_job(request.id)))
        return model.Done()


def _job(number: int) -> str:
    """The job of an iterator's output; IteratorNotFound if no iterator can have this number."""
    if number < 1:
        raise IteratorNotFound(f"of number {number}")
    return output_job(number)


def start_of(store: Store, name: str, lua: LuaLimits, view: View | None = None) -> model.BuildStart:
    """Where the build of an iterator begins, or IteratorNotFound."""
    found = visible_iterator(store, name, view)
    if not found.indexed:
        raise InvalidRequest("iterator", f"{name} is not indexed, so it has no index to build; make it with --indexed")
    return model.BuildStart(
        iterator=name,
        id=found.id,
        log=found.log,
        over=model.Over(found.over),
        kind=model.IteratorKind(found.kind),
        function=found.function,
        source=found.source - found.base,
        items=found.outputs,
        state=found.state,
        head=iterator_jobs.count_messages(store, found),
        call_ms_max=lua.call_ms_max,
        memory_bytes_max=lua.memory_bytes_max,
        result_bytes_max=lua.result_bytes_max,
    )


def read_messages(
    store: Store, name: str, number: int, ordinal: int, limits: ReadLimits, view: View | None
) -> list[bytes | None]:
    found = iterator_jobs.find_iterator(store, name, number, view)
    is_there = ordinal < iterator_jobs.count_messages(store, found)
    return iterator_jobs.read_source(store, found, ordinal, limits) if is_there else []


def find_message(store: Store, name: str, number: int, ordinal: int, view: View | None) -> int | None:
    """Where in the history the event of a message is, if it has one."""
    found = iterator_jobs.find_iterator(store, name, number, view)
    is_there = ordinal < iterator_jobs.count_messages(store, found)
    return iterator_jobs.message_position(store, found, ordinal) if is_there else None


def units_of(_store: Store, chunks: Sequence[bytes]) -> tuple[model.StagedUnit, ...]:
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


def check_install(store: Store, request: model.InstallOutput, state_bytes_max: int, view: View | None) -> None:
    """Raise an error if this cannot be installed, as far as a read shows it."""
    found = iterator_jobs.find_iterator(store, request.iterator, request.id, view)
    if request.messages > (head := iterator_jobs.count_messages(store, found)):
        raise InvalidRequest("messages", f"are {request.messages}, and the iterator has only {head} to read")
    if request.messages < request.source:
        raise InvalidRequest("messages", f"are {request.messages}, fewer than the {request.source} it began with")
    if request.state is None:
        return
    if found.kind != model.IteratorKind.REDUCE:
        raise InvalidRequest("state", f"is given, and a {found.kind} has none")
    if len(request.state) > state_bytes_max:
        raise LimitExceeded("iterator_result_bytes_max", len(request.state), state_bytes_max)
    check_items([request.state])
