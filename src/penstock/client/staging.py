"""Staging: many tasks bring the events of a large job, or the output of a build, and publish them together.

Tasks stage units (`penstock.store.stages.make_unit`) under their part and attempt. The job's driver publishes the
winning attempts, under a producer mark: publishing the same mark again adds nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock import model
from penstock.client.calls import Calls
from penstock.model import Done, Winner

PUBLISH_S: Final = 600.0
"""How long it may take to publish a job or to install an output: each is one transaction, however large."""


class AsyncStaging:
    """The staged events of one job."""

    def __init__(self, calls: Calls, job: str) -> None:
        self._calls = calls
        self.job = job

    async def stage(self, part: int, attempt: str, number: int, units: Sequence[model.StagedUnit]) -> model.StagesTaken:
        """Stage units of an attempt, the first of which is its unit `number`, from 0. A repeat does nothing.

        The answer says how large an event may be; it comes for no units as well.
        """
        request = model.StageEvents(self.job, part, attempt, number, tuple(units))
        return await self._calls.ask(request, model.StagesTaken)

    async def publish(
        self, winners: Iterable[Winner], producer: str, number: int, *, origin: str = "", timeout: float = PUBLISH_S
    ) -> model.Published:
        """Publish what the winners have staged, once for each number of a producer, and drop the rest.

        With an `origin`, the same number from another origin is InvalidRequest instead of a repeat. Raises StageLost if
        staged units are missing, and VersionConflict if a stream is at another version; then nothing is published.
        """
        request = model.PublishStages(self.job, tuple(winners), model.ProducerMark(producer, number), origin)
        published = await self._calls.ask(request, model.Published, timeout)
        if published.repeated:
            await self.drop()
        return published

    async def drop(self) -> None:
        await self._calls.ask(model.DropStages(self.job), Done)


class AsyncBuild:
    """A build of an indexed iterator's output outside the server. The server may build the same output meanwhile.

    A task stages chunks (`penstock.store.outputs.pack_items`) under its part and attempt. The driver of the build
    installs the winning attempts, whose units are their chunks.
    """

    def __init__(self, calls: Calls, iterator: str) -> None:
        self._calls = calls
        self.iterator = iterator

    async def begin(self) -> model.BuildStart:
        """Where the index is now, and what a build needs to continue from there."""
        return await self._calls.ask(model.BeginBuild(self.iterator), model.BuildStart)

    async def messages(self, id: int, ordinal: int, count: int) -> list[bytes | None]:
        """Up to `count` messages that the iterator reads, from an ordinal on, as CBOR. Empty: there are no more now.

        None is an erased message; an empty one is where the iterator above failed. Raises IteratorNotFound if the
        iterator of this name has another id now.
        """
        page = await self._calls.ask(model.ReadMessages(self.iterator, id, ordinal, count), model.MessagePage)
        return page.messages

    async def position(self, id: int, ordinal: int) -> int | None:
        """The position of a message's event; None if it is erased, or an item of another iterator."""
        return (await self._calls.ask(model.FindMessage(self.iterator, id, ordinal), model.Found)).position

    async def stage(self, id: int, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        """Stage chunks of an attempt, the first of which is its chunk `number`, from 0. A repeat does nothing."""
        await self._calls.ask(model.StageOutput(id, part, attempt, number, tuple(chunks)), Done)

    async def install(
        self,
        start: model.BuildStart,
        messages: int,
        winners: Iterable[Winner],
        state: bytes | None = None,
        *,
        timeout: float = PUBLISH_S,
    ) -> model.Installed:
        """Install what the winners have staged as the iterator's output, up to so many messages, and drop the rest.

        A repeat adds nothing. Raises StageLost if staged chunks are missing, and IteratorNotFound if the iterator was
        deleted or replaced; then nothing is installed.
        """
        place = (start.id, start.source, start.items)
        request = model.InstallOutput(self.iterator, *place, messages, tuple(winners), state)
        return await self._calls.ask(request, model.Installed, timeout)

    async def drop(self, id: int) -> None:
        """Drop what is staged for the iterator of an id."""
        await self._calls.ask(model.DropOutput(id), Done)
