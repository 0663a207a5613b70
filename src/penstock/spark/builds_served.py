"""Builds with a server."""

from collections.abc import Sequence
from typing import Final

from penstock.client.sync import connect
from penstock.model import BuildStart, Installed, Winner
from penstock.store.contract import ReadLimits

ANSWER_S_MAX: Final = 60.0
"""How long one request may take, attempts to connect again included: the server may be busy with other tasks."""


class ServedBuilds:
    """Builds with a server, through a client."""

    def __init__(self, url: str, name: str) -> None:
        self._client = connect(url, timeout=ANSWER_S_MAX)
        self._build = self._client.build(name)

    def begin(self) -> BuildStart:
        """See Builds."""
        return self._build.begin()

    def read(self, start: BuildStart, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
        """See Builds. How many bytes come at once is the server's affair."""
        return self._build.messages(start.id, ordinal, limits.events_max)

    def stage(self, start: BuildStart, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        """See Builds."""
        self._build.stage(start.id, part, attempt, number, chunks)

    def install(self, start: BuildStart, messages: int, winners: Sequence[Winner], state: bytes | None) -> Installed:
        """See Builds."""
        return self._build.install(start, messages, winners, state)

    def drop(self, start: BuildStart) -> None:
        """See Builds."""
        self._build.drop(start.id)

    def position(self, start: BuildStart, ordinal: int) -> int | None:
        """See Builds."""
        return self._build.position(start.id, ordinal)

    def close(self) -> None:
        """See Builds."""
        self._client.close()
