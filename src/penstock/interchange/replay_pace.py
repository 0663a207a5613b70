"""How fast a replay goes: so many events in a second, evenly."""

import time
from collections.abc import Callable
from typing import Final

STEP_S: Final = 0.1
"""What goes out together is what may go out in so long: a rate is kept in small steps, not in bursts."""


class Pace:
    """A bucket that fills with time, up to what one step has, and that each batch takes its events from.

    A batch may take more than there is: then the next one waits until that is made up for.
    """

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._due = clock()

    def batch(self, events_max: int) -> int:
        """How many events may go out together, of so many at most."""
        return events_max if self._rate is None else max(1, min(events_max, int(self._rate * STEP_S)))

    def wait_s(self) -> float:
        """How long it is until the next batch may go out."""
        return max(0.0, self._due - self._clock())

    def took(self, events: int) -> None:
        """So many have gone out."""
        if self._rate is not None:
            # Who was slower than the rate for a while does not make up for all of it at once.
            self._due = max(self._due, self._clock() - STEP_S) + events / self._rate
