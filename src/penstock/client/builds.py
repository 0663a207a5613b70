"""Builds: the output of an indexed iterator that is computed elsewhere, staged by many tasks, and installed in one go.

A task stages chunks (`penstock.store.outputs.pack_items`) under its part and attempt. Whoever leads the build installs
the attempts that count, whose units are their chunks. The server may build the same iterator meanwhile.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.client.calls import Calls
from penstock.model import (
    BeginBuild,
    BuildStart,
    Done,
    DropOutput,
    FindMessage,
    Found,
    Installed,
    InstallOutput,
    MessagePage,
    ReadMessages,
    StageOutput,
    Winner,
)

INSTALL_S: Final = 600.0
"""How long it may take to install an output: it is one transaction, however large the output is."""


class AsyncBuild:
    """A build of an indexed iterator."""

    def __init__(self, calls: Calls, iterator: str) -> None:
        self._calls = calls
        self.iterator = iterator

    async def begin(self) -> BuildStart:
        """Where the index is now, and what is needed to go on from there."""
        return await self._calls.ask(BeginBuild(self.iterator), BuildStart)

    async def messages(self, id: int, ordinal: int, count: int) -> list[bytes | None]:
        """Up to `count` messages that the iterator reads, from an ordinal on, as CBOR. Empty: there are no more now.

        None was erased, and an empty one is what the iterator above failed at. Raises IteratorNotFound if the iterator
        of this name is not that of the `id` any more.
        """
        page = await self._calls.ask(ReadMessages(self.iterator, id, ordinal, count), MessagePage)
        return page.messages

    async def position(self, id: int, ordinal: int) -> int | None:
        """Where in the history the event of a message is; None if it is erased, or an item of another iterator."""
        return (await self._calls.ask(FindMessage(self.iterator, id, ordinal), Found)).position

    async def stage(self, id: int, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        """Stage chunks of an attempt, the first of which is its chunk `number`, from 0. The same again does nothing."""
        await self._calls.ask(StageOutput(id, part, attempt, number, tuple(chunks)), Done)

    async def install(
        self,
        start: BuildStart,
        messages: int,
        winners: Iterable[Winner],
        state: bytes | None = None,
        *,
        timeout: float = INSTALL_S,
    ) -> Installed:
        """Make what the winners have staged the iterator's output, up to so many messages, and drop the rest.

        The same again adds nothing. Raises StageLost if something of it is not there any more, and IteratorNotFound if
        the iterator is gone or has begun anew; nothing is installed then.
        """
        place = (start.id, start.source, start.items)
        request = InstallOutput(self.iterator, *place, messages, tuple(winners), state)
        return await self._calls.ask(request, Installed, timeout)

    async def drop(self, id: int) -> None:
        """Drop what is staged for the iterator of an id."""
        await self._calls.ask(DropOutput(id), Done)
