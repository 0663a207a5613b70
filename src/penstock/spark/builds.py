"""Where a build of an iterator reads, stages and installs: with a server, in a store that several write, or in files.

As for events (`penstock.spark.stages`): a server does all of it, PostgreSQL is opened by every task, and beside an
embedded store tasks write files that the driver, when it installs, brings into the store.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Final, Protocol

from penstock.engine import sources
from penstock.engine.running import find
from penstock.errors import BadUrl, InvalidRequest, StoreInUse
from penstock.history.histories import SERVED
from penstock.lua import LuaLimits
from penstock.model import BuildStart, Installed, Winner
from penstock.spark.stages import FileStages, StoreStages
from penstock.store import Store, open_reader
from penstock.store.contract import Install, ReadLimits
from penstock.store.outputs import make_output_unit, output_job
from penstock.store.urls import POSTGRES, SQLITE

USUAL: Final = LuaLimits()


class Builds(Protocol):
    """Builds of one iterator."""

    def begin(self) -> BuildStart:
        """Where its index is now, and what is needed to go on from there."""

    def read(self, start: BuildStart, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
        """Messages from an ordinal on, as `penstock.engine.sources` has them."""

    def stage(self, start: BuildStart, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        """Stage chunks of an attempt, the first of which has a number."""

    def install(self, start: BuildStart, messages: int, winners: Sequence[Winner], state: bytes | None) -> Installed:
        """Make what has won the index, up to so many messages."""

    def drop(self, start: BuildStart) -> None:
        """Drop what was staged."""

    def position(self, start: BuildStart, ordinal: int) -> int | None:
        """Where in the history the event of a message is, if that can be seen."""

    def close(self) -> None:
        """Release everything."""


def open_builds(url: str, name: str, lua: LuaLimits = USUAL) -> Builds:
    """Builds of an iterator, where a URL says. A server has limits for functions of its own; otherwise these count."""
    if url.startswith(SERVED):
        # A client takes a while to import, and is not always needed.
        from penstock.spark.builds_served import ServedBuilds  # noqa: PLC0415

        return ServedBuilds(url, name)
    if not url.startswith((SQLITE, *POSTGRES)) or url == SQLITE:
        from penstock.client.transport import WAYS  # noqa: PLC0415

        raise BadUrl(url, WAYS)
    return StoredBuilds(url, name, lua)


class StoredBuilds:
    """Builds in a store that is opened here. What is not needed is not opened."""

    def __init__(self, url: str, name: str, lua: LuaLimits) -> None:
        self._url = url
        self._name = name
        self._lua = lua
        self._id = 0
        self._stages: StoreStages | FileStages | None = None

    @cached_property
    def _store(self) -> Store:
        return open_reader(self._url)

    def begin(self) -> BuildStart:
        """See Builds."""
        # The engine takes a while to import, and tasks do not begin.
        from penstock.engine.builds import start_of  # noqa: PLC0415

        start = start_of(self._store, self._name, self._lua)
        stages = self._staging(start)
        if isinstance(stages, FileStages):
            with _in_use():
                stages.check_owner()
        return start

    def read(self, start: BuildStart, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
        """See Builds."""
        return sources.read(self._store, find(self._store, start.iterator, start.id), ordinal, limits)

    def stage(self, start: BuildStart, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        """See Builds."""
        self._staging(start).stage(part, attempt, number, list(map(make_output_unit, chunks)))

    def install(self, start: BuildStart, messages: int, winners: Sequence[Winner], state: bytes | None) -> Installed:
        """See Builds."""
        op = Install(start.id, start.source, start.items, messages, tuple(winners), state)
        with _in_use():
            return self._staging(start).install(op)

    def drop(self, start: BuildStart) -> None:
        """See Builds."""
        self._staging(start).drop()

    def position(self, start: BuildStart, ordinal: int) -> int | None:
        """See Builds."""
        return sources.position(self._store, find(self._store, start.iterator, start.id), ordinal)

    def close(self) -> None:
        """See Builds."""
        self._close_stages()
        if "_store" in self.__dict__:
            self._store.close()

    def _staging(self, start: BuildStart) -> StoreStages | FileStages:
        """Where it is staged; another iterator of the same name has other stages."""
        if self._stages is None or self._id != start.id:
            self._close_stages()
            kind = FileStages if self._url.startswith(SQLITE) else StoreStages
            self._id, self._stages = start.id, kind(self._url, output_job(start.id))
        return self._stages

    def _close_stages(self) -> None:
        if self._stages is not None:
            self._stages.close()
            self._stages = None


@contextmanager
def _in_use() -> Iterator[None]:
    """Whoever stages events names an option of Spark's where somebody else owns the store. Here it is the store."""
    try:
        yield
    except InvalidRequest as error:
        raise error.__cause__ if isinstance(error.__cause__, StoreInUse) else error from None
