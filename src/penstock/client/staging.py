"""Staging: events of a large job that many tasks bring, and that are published together. For programs such as a sink.

Tasks stage units (`penstock.store.staging.make_unit`) under their part and attempt. Whoever leads the job publishes the
attempts that have won, under a producer's mark: publishing the same mark again adds nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.client.calls import Calls
from penstock.model import (
    Done,
    DropStages,
    ProducerMark,
    Published,
    PublishStages,
    StagedUnit,
    StageEvents,
    StagesTaken,
    Winner,
)

PUBLISH_S: Final = 600.0
"""How long a publication may take: it is one transaction, however large the job is."""


class AsyncStaging:
    """What one job stages."""

    def __init__(self, calls: Calls, job: str) -> None:
        self._calls = calls
        self.job = job

    async def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> StagesTaken:
        """Stage units of an attempt, the first of which is its unit `number`, from 0. The same again does nothing.

        The answer says how large an event may be; it comes for no units, too.
        """
        return await self._calls.ask(StageEvents(self.job, part, attempt, number, tuple(units)), StagesTaken)

    async def publish(
        self, winners: Iterable[Winner], producer: str, number: int, *, origin: str = "", timeout: float = PUBLISH_S
    ) -> Published:
        """Make history of what the winners have staged, once for each number of a producer, and drop the rest.

        Where an `origin` is given, the same number of somebody else's is no repetition but refused: InvalidRequest.
        Raises StageLost if something of it is not there any more, and VersionConflict if a stream is not where it was
        expected; nothing is published then.
        """
        request = PublishStages(self.job, tuple(winners), ProducerMark(producer, number), origin)
        published = await self._calls.ask(request, Published, timeout)
        if published.repeated:
            await self.drop()
        return published

    async def drop(self) -> None:
        """Drop what the job has staged."""
        await self._calls.ask(DropStages(self.job), Done)
