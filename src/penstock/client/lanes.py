"""Producer marks, so that what is sent twice is written once.

The store keeps each producer's highest number only. So one producer has one write under way at a time: a client is as
many producers as it has marked writes under way, each of them a lane. A lane whose last write has an unknown end is
never used again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from penstock.errors import PenstockError, Retry
from penstock.model import ProducerMark


class Lane:
    """One producer of a client."""

    __slots__ = ("_number", "_producer")

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._number = 0

    def mark(self) -> ProducerMark:
        """The mark of its next write."""
        self._number += 1
        return ProducerMark(self._producer, self._number)


class Lanes:
    """All lanes of a client; as many as were ever in use at once."""

    def __init__(self) -> None:
        self._client = f"client-{uuid4().hex}"
        self._made = 0
        self._free: list[Lane] = []

    def take(self) -> Lane:
        """A lane that nobody uses."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return Lane(f"{self._client}-{self._made}")

    def give_back(self, lane: Lane, error: PenstockError | None = None) -> None:
        """Its write has ended; perhaps in an error. If nobody knows how it ended, it is not used again."""
        if error is None or error.retry is not Retry.UNKNOWN:
            self._free.append(lane)

    @contextmanager
    def mark(self) -> Iterator[ProducerMark]:
        """A mark for one write."""
        lane = self.take()
        try:
            yield lane.mark()
        except PenstockError as error:
            self.give_back(lane, error)
            raise
        self.give_back(lane)
