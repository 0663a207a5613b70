"""Staging: what tasks of a job bring, and publishing it. See `penstock.model.staging`.

Units are looked at by a worker before they are taken: they come ready to be stored, and nobody looks at them again.
"""

from collections.abc import Sequence
from typing import Final

from penstock.engine.disk import DiskWatch
from penstock.engine.parts import Parts, check_names
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.model import (
    ANY,
    Done,
    DropStages,
    Published,
    PublishStages,
    StagedUnit,
    StageEvents,
    StagesTaken,
    Winner,
    check_stream,
)
from penstock.store import Store
from penstock.store.contract import LOG_CONTEXT, ExpireStages, Placed, Publish, Stage, Transaction, Unstage
from penstock.store.staging import UNIT_EVENTS_MAX, check_unit, largest_event, size_of

REQUEST_UNITS_MAX: Final = 10_000
"""Units in one request to stage."""
REQUEST_BYTES_MAX: Final = 8 << 20
"""Bytes of these units, besides one event of any size. A job is no commit, whose limits are for clients that append."""
WINNERS_MAX: Final = 50_000
"""Parts of one job."""
EXPIRE_MAX: Final = 10
"""Attempts dropped in one go, so that nobody waits for it."""


class Staging:
    """What requests to stage and to publish mean."""

    def __init__(self, parts: Parts, disk: DiskWatch) -> None:
        self._parts = parts
        self._disk = disk

    async def stage(self, request: StageEvents) -> StagesTaken:
        """Look at units, and stage them."""
        self._disk.check()
        check_names(job=request.job)
        check_attempt(request.part, request.attempt, request.number)
        if len(request.units) > REQUEST_UNITS_MAX:
            raise LimitExceeded("request_units_max", len(request.units), REQUEST_UNITS_MAX)
        size, settings = sum(map(size_of, request.units)), self._parts.settings
        if request.units:
            if size > (largest := REQUEST_BYTES_MAX + settings.event_bytes_max):
                raise LimitExceeded("request_bytes_max", size, largest)
            await self._parts.run(check_units, request.units, settings.event_bytes_max)
            who = (request.job, request.part, request.attempt, request.number)
            stage = Stage(*who, request.units, settings.stage_bytes_max, settings.stage_units_max)
            await self._parts.write(Transaction((stage,)), size)
        return StagesTaken(settings.event_bytes_max)

    async def publish(self, request: PublishStages) -> Published:
        """Make history of what the winners have staged."""
        check_names(job=request.job)
        check_winners(request.winners)
        if request.origin:
            check_names(origin=request.origin)
        publish = Publish(request.job, request.winners, request.origin)
        (placed,) = await self._parts.write(Transaction((publish,), request.mark, self._disk.refusal()))
        assert isinstance(placed, Placed)
        return placed.published

    async def drop(self, request: DropStages) -> Done:
        """Drop what a job has staged."""
        check_names(job=request.job)
        await self._parts.write(Transaction((Unstage(request.job),)))
        return Done()

    async def expire(self, before: int) -> None:
        """Drop what nobody has added to since a time."""
        expire = Transaction((ExpireStages(before, EXPIRE_MAX),))
        while await self._parts.write(expire) == [EXPIRE_MAX]:
            pass


def check_attempt(part: int, attempt: str, number: int) -> None:
    """Refuse a part, an attempt and a unit's number that cannot be."""
    check_names(attempt=attempt)
    if part < 0 or number < 0:
        raise InvalidRequest("part and number", "are never below 0")


def check_winners(winners: Sequence[Winner]) -> None:
    """Refuse a job of too many parts."""
    if len(winners) > WINNERS_MAX:
        raise LimitExceeded("winners_max", len(winners), WINNERS_MAX)


def check_units(_store: Store, units: Sequence[StagedUnit], event_bytes_max: int) -> None:
    """Raise InvalidRequest or LimitExceeded if units cannot become history."""
    for unit in units:
        check_names(context=unit.context)
        if reason := check_stream(unit.stream):
            raise InvalidRequest("stream", reason)
        if unit.context == LOG_CONTEXT:
            raise InvalidRequest("context", f"{LOG_CONTEXT} is that of logs, which take messages and no staged events")
        if unit.expected != ANY and unit.expected < 1:
            raise InvalidRequest("expected version", f"is {unit.expected}; it must be -1 or at least 1")
        columns = check_unit(unit)
        if columns.length > UNIT_EVENTS_MAX:
            raise LimitExceeded("unit_events_max", columns.length, UNIT_EVENTS_MAX)
        if columns.size > event_bytes_max and (largest := largest_event(unit)) > event_bytes_max:
            raise LimitExceeded("event_bytes_max", largest, event_bytes_max)
