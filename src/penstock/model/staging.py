"""Staging: events of a large job that are brought by many tasks, and become history together or not at all.

A job has parts, a part has attempts. Whoever leads the job says which attempts have won; their events are published in
one transaction under a producer's mark, so that publishing again adds nothing.
"""

from dataclasses import dataclass

from penstock.model.replies import Reply
from penstock.model.requests import ProducerMark, Repeat, Request, Right


@dataclass(frozen=True, slots=True)
class StagedUnit:
    """Some events of one stream, in order: a record as `penstock.store.staging` makes it.

    `expected` is the sequence that the first event of the whole job in this stream must get, or ANY. `keys` are those
    by which the events of a stream are put in order, or empty: then parts follow one another as they are numbered.
    """

    context: str
    stream: str
    expected: int
    data: bytes
    keys: bytes = b""


@dataclass(frozen=True, slots=True)
class Winner:
    """The attempt of a part that counts, and how many units it has staged."""

    part: int
    attempt: str
    units: int


@dataclass(frozen=True, slots=True)
class StageEvents(Request):
    """Stage units of one attempt, the first of which is its unit `number` (from 0). Answered with StagesTaken.

    The same again does nothing, and so do no units, which is how one asks. Nobody reads them before they are published.
    """

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    job: str
    part: int
    attempt: str
    number: int
    units: tuple[StagedUnit, ...]


@dataclass(frozen=True, slots=True)
class PublishStages(Request):
    """Make history of what the winners have staged, all or nothing, and drop the job. Answered with Published.

    `origin` says who it is that gives the mark its number, such as a query, or is empty: of two that say different ones
    under the same mark the second is refused, because it is no repetition of the first.
    """

    right = Right.APPEND
    repeat = Repeat.MARKED
    job: str
    winners: tuple[Winner, ...]
    mark: ProducerMark
    origin: str = ""

    def is_marked(self) -> bool:
        """Always: it has a mark."""
        return True


@dataclass(frozen=True, slots=True)
class DropStages(Request):
    """Drop what a job has staged. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    job: str


@dataclass(frozen=True, slots=True)
class StagesTaken(Reply):
    """Units are staged. `event_bytes_max`: bytes of type, headers and body that one event may have."""

    event_bytes_max: int


@dataclass(frozen=True, slots=True)
class Published(Reply):
    """A job that is history: its first position (0 if it has no events), how many commits and events it has.

    `repeated`: it was published before, and nothing was written now.
    """

    position: int
    commits: int
    events: int
    repeated: bool = False
