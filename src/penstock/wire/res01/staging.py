"""Commands that stage events and publish them together. In the text dialect only."""

from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Done, DropStages, Published, PublishStages, StagedUnit, StageEvents, StagesTaken, Winner
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, one, texts
from penstock.wire.res01.extensions import producer_mark
from penstock.wire.res01.fields import Fields

UNIT_FRAMES: Final = 5
WINNER_FRAMES: Final = 3


def stage_events(fields: Fields, _dialect: Dialect) -> Asked:
    """ZS."""
    job, part, attempt = fields.text("Job"), fields.number("Part"), fields.text("Attempt")
    number = fields.number("Number")
    units = tuple(_unit(fields) for _ in range(fields.count_to_end("UnitCount", UNIT_FRAMES)))
    return (StageEvents(job, part, attempt, number, units),), _TAKEN


def _unit(fields: Fields) -> StagedUnit:
    context, stream, expected = fields.text("Context"), fields.text("Stream"), fields.number("ExpectedVersion")
    return StagedUnit(context, stream, expected, fields.frame("Record"), fields.frame("Keys"))


def publish_stages(fields: Fields, _dialect: Dialect) -> Asked:
    """ZP."""
    mark, job, origin = producer_mark(fields), fields.text("Job"), fields.text("Origin")
    if mark is None:
        raise InvalidRequest("Producer", "is empty; whatever is published has a mark")
    return (PublishStages(job, winners(fields), mark, origin),), _PUBLISHED


def winners(fields: Fields) -> tuple[Winner, ...]:
    """The attempts that count, to the end of the message."""
    return tuple(
        Winner(fields.number("Part"), fields.text("Attempt"), fields.number("Units"))
        for _ in range(fields.count_to_end("WinnerCount", WINNER_FRAMES))
    )


def drop_stages(fields: Fields, _dialect: Dialect) -> Asked:
    """ZD."""
    return (DropStages(fields.text("Job")),), _DONE


_DONE: Final = one(Done, lambda _done: [b"OK"])
_TAKEN: Final = one(StagesTaken, lambda taken: [b"ZT", *texts(taken.event_bytes_max)])
_PUBLISHED: Final = one(Published, lambda p: [b"ZR", *texts(p.position, p.commits, p.events, p.repeated)])

STAGING: Final[dict[bytes, Command]] = {
    b"ZS": Command(stage_events, b"ZT"),
    b"ZP": Command(publish_stages, b"ZR"),
    b"ZD": Command(drop_stages, b"OK"),
}
