"""Staging, as the reference says it: see `tests.store.reference`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.errors import InvalidRequest, LimitExceeded, OverLimit, StageLost, VersionConflict
from penstock.model import ANY, Appended, NewEvent, Published, StagedUnit, Winner
from penstock.model.columns import columns_of
from penstock.store import contract
from penstock.store.contract import Placed
from penstock.store.record import Record
from penstock.store.stages import decode_keys, size_of


@dataclass(frozen=True)
class Attempt:
    """What an attempt has staged, and when something was last added to it."""

    units: tuple[StagedUnit, ...]
    used: int


class AttemptKey(NamedTuple):
    """Whose it is."""

    job: str
    part: int
    attempt: str


class _Row(NamedTuple):
    """A staged event; rows are published in this order."""

    context: str
    stream: str
    key: bytes
    part: int
    number: int
    at: int
    is_keyed: bool
    event: NewEvent


class StagingReference:
    """The operations on stages."""

    recorded: int

    @property
    def stages(self) -> dict[AttemptKey, Attempt]:
        """All that is staged now."""
        raise NotImplementedError

    def stream(self, context: str, stream: str) -> list[Any]:
        """All events a stream ever had."""
        raise NotImplementedError

    def _do_commit(self, op: contract.Commit) -> Appended:
        raise NotImplementedError

    def _of_job(self, job: str) -> dict[AttemptKey, Attempt]:
        return {key: one for key, one in self.stages.items() if key.job == job}

    def _drop_stages(self, keys: list[AttemptKey]) -> int:
        for key in keys:
            del self.stages[key]
        return len(keys)

    def _do_stage(self, op: contract.Stage) -> bool:
        key = AttemptKey(op.job, op.part, op.attempt)
        before = self.stages.get(key, Attempt((), 0)).units
        if op.number + len(op.units) <= len(before):
            return False
        if op.number != len(before):
            raise InvalidRequest("number", "leaves a gap")
        everything = [unit for one in self._of_job(op.job).values() for unit in one.units] + list(op.units)
        if sum(map(size_of, everything)) > op.bytes_max or len(everything) > op.units_max:
            raise LimitExceeded("stage", len(everything), op.units_max)
        if op.owner_bytes_max is not None:
            owned = [one for place, one in self.stages.items() if place.job.startswith(f"~{op.owner}/")]
            if sum(size_of(unit) for one in owned for unit in one.units) + sum(map(size_of, op.units)) > (
                op.owner_bytes_max
            ):
                raise OverLimit(0, op.owner, "staged_bytes_max", op.owner_bytes_max, 1)
        self.stages[key] = Attempt(before + op.units, self.recorded)
        return True

    def _do_unstage(self, op: contract.Unstage) -> int:
        return self._drop_stages(list(self._of_job(op.job)))

    def _do_expirestages(self, op: contract.ExpireStages) -> int:
        return self._drop_stages([key for key, one in self.stages.items() if one.used < op.before])

    def _do_publish(self, op: contract.Publish) -> Placed:
        won = self._won(op.job, op.winners)
        self._check_expected([unit for one in won.values() for unit in one.units])
        placed = [self._do_commit(commit) for commit in _commits(sorted(_rows(won)))]
        self._drop_stages(list(self._of_job(op.job)))
        streams = frozenset((unit.context, unit.stream) for one in won.values() for unit in one.units)
        position = placed[0].position if placed else 0
        return Placed(Published(position, len(placed), sum(one.count for one in placed)), streams)

    def _won(self, job: str, winners: Sequence[Winner]) -> dict[AttemptKey, Attempt]:
        """What the winners of a job have staged."""
        staged = self._of_job(job)
        if len({winner.part for winner in winners}) != len(winners):
            raise InvalidRequest("winners", "name a part twice")
        won: dict[AttemptKey, Attempt] = {}
        for winner in winners:
            key = AttemptKey(job, winner.part, winner.attempt)
            one = staged.get(key, Attempt((), 0))
            if len(one.units) != winner.units:
                raise StageLost(job, winner.part, winner.units, len(one.units))
            won[key] = one
        return won

    def _check_expected(self, units: list[StagedUnit]) -> None:
        for context, stream in sorted({(unit.context, unit.stream) for unit in units}):
            mine = [unit.expected for unit in units if (unit.context, unit.stream) == (context, stream)]
            said = {expected for expected in mine if expected != ANY}
            head = len(self.stream(context, stream))
            if len(said) > 1:
                raise InvalidRequest("expected version", "is said in two ways")
            if said and said != {head + 1}:
                raise VersionConflict(context, stream, said.pop(), head)


def _rows(won: dict[AttemptKey, Attempt]) -> Iterator[_Row]:
    for key, one in won.items():
        for number, unit in enumerate(one.units):
            events = Record(unit.data, 1).events()
            keys = decode_keys(unit.keys, len(events)) if unit.keys else [b""] * len(events)
            for at, event in enumerate(events):
                sent = NewEvent(event.id, event.stamp, event.type, event.headers, event.body)
                place = (unit.context, unit.stream, keys[at], key.part, number, at)
                yield _Row(*place, bool(unit.keys), sent)


def _commits(rows: list[_Row]) -> Iterator[contract.Commit]:
    """One for each unit, or for each stream whose events have keys."""
    held: dict[tuple[Any, ...], list[_Row]] = {}
    for row in rows:
        of = (row.context, row.stream) if row.is_keyed else (row.context, row.stream, row.part, row.number)
        held.setdefault(of, []).append(row)
    for own in held.values():
        yield contract.Commit(own[0].context, own[0].stream, ANY, columns_of([row.event for row in own]))
