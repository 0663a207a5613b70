"""Samples for the charts: rates and delays of the last minutes, taken while a browser shows the console."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.engine.metrics import Metrics

SAMPLES_MAX: Final = 300
SAMPLE_S: Final = 1.0
REST_S: Final = 10.0
"""How often samples are taken while no browser watches."""
WATCHED_S: Final = 30.0
"""A browser watches for so long after it has loaded a page or a chart."""
KEPT_S: Final = 3600.0
"""After so long without a browser, no more samples are taken."""
BUSY_S: Final = 60.0
"""How long the overview mentions answers *busy*."""
DELAY_SAMPLES: Final = 10
"""Delays are those of so many samples: single seconds have too few commits."""

SERIES: Final = ("events", "commits", "delivered", "answers", "p50", "p99")
"""Per second: events and commits written, events delivered, messages answered. In milliseconds: how long half, and 99
of 100, group commits took at most."""


class Snapshot(NamedTuple):
    unix_s: float
    clock: float
    counts: tuple[int, ...]
    """Those of which the series are rates."""
    buckets: Sequence[tuple[str, float]]
    """Group commits by how long they took, as Prometheus has them."""
    busy: Mapping[str, int]
    """Answers busy so far, by reason."""


class Sampler:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._snapshots: deque[Snapshot] = deque(maxlen=max(DELAY_SAMPLES, round(BUSY_S / SAMPLE_S)) + 1)
        self._rows: deque[Sequence[float]] = deque(maxlen=SAMPLES_MAX)
        """Time and series, as in SERIES."""
        self._watched = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """A browser watches now."""
        was_watched = self._is_watched
        self._watched = time.monotonic()
        if self._timer is None or not was_watched:
            if self._timer is not None:
                self._timer.cancel()
            # Two samples a moment apart would say little about a second.
            age = self._watched - self._snapshots[-1].clock if self._snapshots else SAMPLE_S
            self._timer = asyncio.get_running_loop().call_later(max(0.0, SAMPLE_S - age), self._sample)

    @property
    def _is_watched(self) -> bool:
        return time.monotonic() - self._watched < WATCHED_S

    def _sample(self) -> None:
        counts = self._metrics
        now = Snapshot(
            time.time(),
            time.monotonic(),
            (counts.events, counts.commits, counts.delivered, sum(counts.gate_sent.values())),
            counts.batch_seconds.buckets(),
            _busy(counts),
        )
        if self._snapshots and now.clock > self._snapshots[-1].clock:
            self._rows.append(self._row(self._snapshots[-1], now))
        self._snapshots.append(now)
        self._timer = None
        if time.monotonic() - self._watched < KEPT_S:
            pause = SAMPLE_S if self._is_watched else REST_S
            self._timer = asyncio.get_running_loop().call_later(pause, self._sample)

    def _row(self, before: Snapshot, now: Snapshot) -> Sequence[float]:
        seconds = now.clock - before.clock
        rates = [round((one - other) / seconds, 1) for one, other in zip(now.counts, before.counts, strict=True)]
        since = self._snapshots[max(0, len(self._snapshots) - DELAY_SAMPLES)].buckets
        delays = [round(1000 * quantile(part, since, now.buckets), 3) for part in (0.5, 0.99)]
        return (round(now.unix_s, 3), *rates, *delays)

    def series(self, since: float = 0.0) -> dict[str, list[float]]:
        """By name, with the times (Unix, in seconds) as `time`: samples after a time. All have the same length."""
        rows = [row for row in self._rows if row[0] > since]
        return {name: [row[at] for row in rows] for at, name in enumerate(("time", *SERIES))}

    def busy(self) -> dict[str, int]:
        """How many answers were busy in the last BUSY_S seconds, by reason."""
        since = time.monotonic() - BUSY_S
        before = next((one.busy for one in self._snapshots if one.clock >= since), {})
        now = _busy(self._metrics)
        return {reason: more for reason, count in now.items() if (more := count - before.get(reason, 0)) > 0}


def _busy(metrics: Metrics) -> Counter[str]:
    found = Counter[str]()
    for (reason, _), count in metrics.busy.items():
        found[reason] += count
    for one in metrics.usage.values():
        found.update(one.over)
    return found


def quantile(part: float, since: Sequence[tuple[str, float]], now: Sequence[tuple[str, float]]) -> float:
    """How long this part of what came between two states of a distribution took at most; 0 if nothing came.

    It is as exact as the distribution's bounds.
    """
    counts = [(bound, count - before) for (bound, count), (_, before) in zip(now, since, strict=True)]
    wanted = part * counts[-1][1]
    below, lower = 0.0, 0.0
    for bound, count in counts:
        if count >= wanted and count > below:
            upper = lower if bound == "+Inf" else float(bound)
            return lower + (upper - lower) * (wanted - below) / (count - below)
        below, lower = max(below, count), lower if bound == "+Inf" else float(bound)
    return 0.0
