"""The lags of queues and subscriptions as metrics. A scrape costs little, however many there are.

A worker process counts them, as for a list. One count serves all scrapes of some seconds, and has a limit in time and
in series. Health must not depend on it, so a scrape does not wait for long, and goes on without lags where none can be
had.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.engine import jobs
from penstock.engine.workers import WorkerPool
from penstock.errors import PenstockError
from penstock.model import ListQueues, ListSubscriptions, QueueInfo, SubscriptionInfo, View

LAGS_MAX: Final = 500
"""Queues that have metrics, by id, and as many subscriptions. Each queue has four series, each subscription three."""
KEPT_S: Final = 5.0
"""How long scrapes get the same lags."""
WAIT_S_MAX: Final = 2.0
"""How long a scrape waits for a count; then it gets the lags of the one before."""


class Lags(NamedTuple):
    """Queues and subscriptions with their lags; `is_complete`: these are all."""

    queues: Sequence[QueueInfo]
    subscriptions: Sequence[SubscriptionInfo]
    is_complete: bool


class LagCounter:
    """Counts the lags when they are needed."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._latest: Lags | None = None
        self._counting: asyncio.Task[None] | None = None
        self._due = 0.0

    async def latest(self) -> Lags | None:
        """The lags, some seconds old at most; None if they could not be counted."""
        if self._counting is None and time.monotonic() >= self._due:
            self._counting = asyncio.get_running_loop().create_task(self._count())
        if self._counting is not None:
            await asyncio.wait({self._counting}, timeout=WAIT_S_MAX)
        return self._latest

    async def _count(self) -> None:
        try:
            queues = await self._pool.run(jobs.list_queues, ListQueues(), LAGS_MAX, None)
            subscriptions = await self._pool.run(jobs.list_subscriptions, ListSubscriptions(), LAGS_MAX, None)
            self._latest = Lags(queues.items, subscriptions.items, queues.end and subscriptions.end)
        except PenstockError:
            # Other metrics say what is wrong with the workers or the store.
            self._latest = None
        finally:
            self._due = time.monotonic() + KEPT_S
            self._counting = None

    def stop(self) -> None:
        if self._counting is not None:
            self._counting.cancel()


class LagCollector(Collector):
    """The metrics of lags, as far as a principal may see their queues and subscriptions."""

    def __init__(self, lags: Lags | None, view: View | None) -> None:
        self._lags = lags
        self._view = view

    def collect(self) -> Iterator[Metric]:
        if self._lags is None:
            return
        queues = [((one.context, one.name), one) for one in self._lags.queues]
        subscriptions = [((one.subscriber, one.context or "*", one.filter), one) for one in self._lags.subscriptions]
        yield from self._families("queue", ("context", "queue"), queues)
        yield from self._families("subscription", ("subscriber", "context", "filter"), subscriptions)
        dead = GaugeMetricFamily("penstock_queue_dead_letters", "Dead letters of a queue", labels=("context", "queue"))
        for queue in self._lags.queues:
            if jobs.is_whole(self._view, queue):
                dead.add_metric((queue.context, queue.name), queue.dead)
        yield dead
        help = "1 if there are queues or subscriptions without metrics of their lags"
        yield GaugeMetricFamily("penstock_lags_left_out", help, float(not self._lags.is_complete))

    def _families(
        self,
        kind: str,
        labels: Sequence[str],
        found: Iterable[tuple[tuple[str, ...], QueueInfo | SubscriptionInfo]],
    ) -> Iterator[Metric]:
        events = GaugeMetricFamily(f"penstock_{kind}_lag_events", f"Events that a {kind} has to deliver", labels=labels)
        seconds = GaugeMetricFamily(f"penstock_{kind}_lag_seconds", "Age of the oldest of these events", labels=labels)
        exact = GaugeMetricFamily(f"penstock_{kind}_lag_exact", "0 if there may be more of these events", labels=labels)
        for values, one in found:
            # A principal's own subscription to all contexts counts only in metrics that may show all of it.
            is_counted = one.context is not None or self._view is None or self._view.has_filter(None, one.filter)
            if is_counted and jobs.is_whole(self._view, one):
                events.add_metric(values, one.behind)
                seconds.add_metric(values, one.behind_ms / 1000)
                exact.add_metric(values, one.behind_is_exact)
        yield from (events, seconds, exact)
