"""Stages with a server."""

from collections.abc import Sequence

from penstock.client.sync import connect
from penstock.model import ProducerMark, Published, StagedUnit, Winner


class ServedStages:
    """Stages with a server, through a client."""

    def __init__(self, url: str, job: str) -> None:
        self._client = connect(url)
        self._staging = self._client.staging(job)

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """See Stages."""
        self._staging.stage(part, attempt, number, units)

    def event_bytes_max(self) -> int:
        """See Stages."""
        return self._staging.stage(0, "asks", 0, ()).event_bytes_max

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        """See Stages."""
        return self._staging.publish(winners, mark.producer, mark.number, origin=origin)

    def drop(self) -> None:
        """See Stages."""
        self._staging.drop()

    def close(self) -> None:
        """See Stages."""
        self._client.close()
