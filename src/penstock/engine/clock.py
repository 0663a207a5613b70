"""Watches the clock that events are recorded by.

Recorded times never go backwards. If the clock jumps forward and is set back, events keep the time of the jump until
the clock has caught up. The order of events is not affected. The watch logs the jump, and a metric tells by how many
seconds recorded times are ahead at the moment; `penstock doctor` and docs/operations.md say what to do.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from penstock.engine.metrics import Metrics
from penstock.model.times import TICKS_PER_SECOND, now_ticks
from penstock.store.contract import BatchTimes

log = logging.getLogger(__name__)

JUMP_S: Final = 10.0
"""By how much the clock may differ from the time that has passed, and recorded times from the clock."""


def _elapsed_s() -> float:
    """Seconds of a clock that nobody can set and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockWatch:
    """Compares the clock of each batch with the time that has passed since the batch before."""

    def __init__(
        self, metrics: Metrics, elapsed_s: Callable[[], float] = _elapsed_s, clock: Callable[[], int] = now_ticks
    ) -> None:
        self._elapsed_s = elapsed_s
        self._clock = clock
        self._last: tuple[BatchTimes, int] | None = None
        """The last batch, and what this machine's clock said then."""
        metrics.recorded_ahead_s = self.ahead_s
        self._offset: float | None = None
        self._is_ahead = False

    def look(self, times: BatchTimes) -> None:
        """Log what the last batch shows, or the store as it was opened; once for each jump."""
        self._last = times, self._clock()
        offset = times.now / TICKS_PER_SECOND - self._elapsed_s()
        if self._offset is not None and abs(jump := offset - self._offset) > JUMP_S:
            log.warning("the clock jumped by %+.0f s; see 'The clock' in docs/operations.md", jump)
        self._offset = offset
        ahead = (times.recorded - times.now) / TICKS_PER_SECOND
        if (ahead > JUMP_S) is self._is_ahead:
            return
        self._is_ahead = not self._is_ahead
        if self._is_ahead:
            log.warning("events are recorded %.0f s ahead of the clock until it has caught up", ahead)
        else:
            log.warning("the clock has caught up with recorded times")

    def ahead_s(self) -> float:
        """How far recorded times are ahead of the store's clock now, also where nothing has been written for long.

        The store's clock may be that of another machine; since the last batch it went on as this one's did.
        """
        if self._last is None:
            return 0.0
        times, then = self._last
        return max(0, times.recorded - times.now - (self._clock() - then)) / TICKS_PER_SECOND
