"""Watches the clock that events are recorded by.

Recorded times never go backwards. If the clock jumps forward and is set back, events keep the time of the jump until
the clock has caught up. The order of events is not affected. The watch logs the jump, and a metric counts the seconds
by which recorded times are ahead; `penstock doctor` and docs/operations.md say what to do.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from penstock.engine.metrics import Metrics
from penstock.model.events import TICKS_PER_SECOND
from penstock.store.contract import BatchTimes

log = logging.getLogger(__name__)

JUMP_S: Final = 10.0
"""By how much the clock may differ from the time that has passed, and recorded times from the clock."""


def _elapsed_s() -> float:
    """Seconds of a clock that nobody can set and that goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class ClockWatch:
    """Compares the clock of each batch with the time that has passed since the batch before."""

    def __init__(self, metrics: Metrics, elapsed_s: Callable[[], float] = _elapsed_s) -> None:
        self._metrics = metrics
        self._elapsed_s = elapsed_s
        self._offset: float | None = None
        self._is_ahead = False

    def look(self, times: BatchTimes) -> None:
        """Log what the last batch shows, once for each jump."""
        offset = times.now / TICKS_PER_SECOND - self._elapsed_s()
        if self._offset is not None and abs(jump := offset - self._offset) > JUMP_S:
            log.warning("the clock jumped by %+.0f s; see 'The clock' in docs/operations.md", jump)
        self._offset = offset
        ahead = (times.recorded - times.now) / TICKS_PER_SECOND
        self._metrics.recorded_ahead_seconds = ahead
        if (ahead > JUMP_S) is self._is_ahead:
            return
        self._is_ahead = not self._is_ahead
        if self._is_ahead:
            log.warning("events are recorded %.0f s ahead of the clock until it has caught up", ahead)
        else:
            log.warning("the clock has caught up with recorded times")
