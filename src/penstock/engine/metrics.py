"""The engine's metrics for Prometheus. Each engine has its own registry.

Every append counts, so counting is plain addition; a scrape builds the families.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from platform import python_version
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.store.watermarks import Watermark

COMMIT_S_BOUNDS: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
DELAY_S_BOUNDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
PRINCIPALS_MAX: Final = 200
"""Principals with separate series, the first ones that this server has seen; all others share one series."""
OTHERS: Final = "(others)"
"""Stands for all principals beyond PRINCIPALS_MAX. No principal can have this name."""


class Distribution:
    """A histogram. One thread adds to it."""

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: each counts all values up to its bound."""
        return list(zip([*map(str, self._bounds), "+Inf"], accumulate(self._counts), strict=True))

    def family(self) -> Metric:
        return HistogramMetricFamily(self._name, self._help, buckets=self.buckets(), sum_value=self._sum)

    def add_to(self, family: HistogramMetricFamily, label: str) -> None:
        family.add_metric([label], self.buckets(), self._sum)


@dataclass(slots=True)
class PoolCounts:
    """A pool's counts: jobs done, jobs refused, and workers that died and were replaced."""

    jobs: int = 0
    refused: int = 0
    replaced: int = 0


class Lag(NamedTuple):
    """How many indexed iterators are behind their sources, and by how many messages in sum."""

    iterators: int = 0
    messages: int = 0


class Metrics(Collector):
    """The counts of one engine. Each is changed by one thread only."""

    def __init__(self) -> None:
        self.commits = 0
        self.events = 0
        self.delivered = 0
        self.readers = PoolCounts()
        self.lua = PoolCounts()
        self.lua_messages = 0
        self.lua_errors = 0
        self.installed_items = 0
        self.lag: Callable[[], Lag] = Lag
        self.seals = 0
        self.sealed_events = 0
        self.seal_lag: Callable[[], int] = int
        self.disk_free_bytes: int | None = None
        self.disk_refusing = False
        self.waiting_polls = 0
        self.requests_bytes: Callable[[], int] = int
        self.store_up = True
        self.recorded_ahead_s: Callable[[], float] = float
        self.refused: Counter[str] = Counter()
        self.busy: Counter[tuple[str, str]] = Counter()
        """Answers *busy*, by reason and principal."""
        self.in_flight: dict[str, Callable[[], int]] = {}
        """How many messages are in flight, by gate."""
        self.observers: list[Callable[[Any], None]] = []
        """They get each message that a gate has answered; see `penstock.engine.traffic`."""
        self.head: Callable[[], int] = int
        self.backend = ""
        self.watermarks: Sequence[Watermark] = ()
        self.http_sessions: Callable[[], int] | None = None
        self.usage: Mapping[str, Any] = {}
        """What each principal has done; see `penstock.engine.access`."""
        self.gate_received: Counter[str] = Counter()
        self.gate_sent: Counter[str] = Counter()
        self.commands: Counter[str] = Counter()
        self.gate_dropped: Counter[tuple[str, str]] = Counter()
        self.gate_closed: Counter[tuple[str, str]] = Counter()
        self.gate_sessions: Counter[str] = Counter()
        self.batch_seconds = Distribution(
            "penstock_batch_seconds",
            "Time of one group commit, fsync included",
            COMMIT_S_BOUNDS,
        )
        self.commit_seconds = Distribution(
            "penstock_commit_seconds", "Time of the database's COMMIT, fsync included", COMMIT_S_BOUNDS
        )
        self.writer_wait_seconds = Distribution(
            "penstock_writer_wait_seconds",
            "How long the first request of a group commit waited for the writer",
            DELAY_S_BOUNDS,
        )
        self.loop_lag_seconds = Distribution(
            "penstock_event_loop_lag_seconds", "How late the event loop was, twice a second", DELAY_S_BOUNDS
        )
        self.request_seconds: dict[str, Distribution] = {}
        """How long the server took for messages, by gate."""
        self.batch_requests = Distribution(
            "penstock_batch_requests", "Transactions in one group commit", [1 << n for n in range(11)]
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def requests_of(self, gate: str) -> Distribution:
        """The times of a gate's messages."""
        return self.request_seconds.setdefault(gate, Distribution("", "", DELAY_S_BOUNDS))

    def collect(self) -> Iterator[Metric]:
        lag = self.lag()
        if self.http_sessions is not None:
            self.gate_sessions["http"] = self.http_sessions()
        counters = {
            "commits": ("Commits answered as written", self.commits),
            "events": ("Events answered as written", self.events),
            "delivered_events": ("Events in answers to reads and consumers", self.delivered),
            "reads": ("Jobs done by worker processes", self.readers.jobs),
            "workers_replaced": ("Worker processes that died", self.readers.replaced),
            "lua_jobs": ("Jobs done by Lua worker processes", self.lua.jobs),
            "lua_workers_replaced": ("Lua workers that died", self.lua.replaced),
            "lua_messages": ("Messages run through iterators", self.lua_messages),
            "lua_errors": ("Messages that an iterator failed at", self.lua_errors),
            "installed_items": ("Items of iterators that were computed elsewhere", self.installed_items),
            "seals": ("Records made of many small ones", self.seals),
            "sealed_events": ("Events in records made of many", self.sealed_events),
        }
        gauges = {
            "index_lag_iterators": ("Indexed iterators behind their logs", lag.iterators),
            "index_lag_messages": ("Messages not yet in their indices", lag.messages),
            "seal_lag_events": ("Closed events that are not sealed yet", self.seal_lag()),
            "disk_free_bytes": ("Free space for the store", self.disk_free_bytes),
            "disk_refusing": ("1 while appends are refused for space", self.disk_refusing),
            "requests_bytes": ("Bytes of requests that are not answered yet", self.requests_bytes()),
            "head_position": ("Position of the last event that this server knows of", self.head()),
            "waiting_polls": ("Long polls that wait for events", self.waiting_polls),
            "store_up": ("1 while the store can be written", self.store_up),
            "recorded_ahead_seconds": (
                "How far recorded times are ahead of the clock, after it was set back",
                self.recorded_ahead_s(),
            ),
        }
        pools = Counter({"reader_busy": self.readers.refused, "lua_busy": self.lua.refused})
        in_flight = Counter({gate: count() for gate, count in self.in_flight.items()})
        counter, gauge = CounterMetricFamily, GaugeMetricFamily
        labelled: dict[str, tuple[type[Any], str, tuple[str, ...], Counter[Any]]] = {
            # A sum of counters leaves out what is 0.
            "refused": (counter, "Requests refused, by reason", ("reason",), self.refused + pools),
            "gate_received": (counter, "Messages received, by gate", ("gate",), self.gate_received),
            "gate_sent": (counter, "Messages sent, by gate", ("gate",), self.gate_sent),
            "commands": (counter, "Res01 messages received, by command", ("command",), self.commands),
            "gate_dropped": (counter, "Messages dropped", ("gate", "reason"), self.gate_dropped),
            "gate_closed": (counter, "Sessions that have ended", ("gate", "reason"), self.gate_closed),
            "gate_sessions": (gauge, "Open sessions, by gate", ("gate",), self.gate_sessions),
            "requests_in_flight": (gauge, "Messages that are not answered yet, by gate", ("gate",), in_flight),
            "busy": (counter, "Answers busy, by reason and principal", ("reason", "principal"), self._busy()),
        }
        usage = dict(self.usage)
        by_principal = {
            "requests": (counter, "Requests, by principal", {name: one.requests for name, one in usage.items()}),
            "request_bytes": (counter, "Bytes of requests, by principal", {n: one.bytes for n, one in usage.items()}),
            "busy": (counter, "Requests over a limit of their principal", {n: one.busy for n, one in usage.items()}),
            "connections": (gauge, "Senders logged in, by principal", {n: one.connections for n, one in usage.items()}),
        }
        for name, (kind, help, counts) in by_principal.items():
            labelled[f"principal_{name}"] = (kind, help, ("principal",), self._bounded(counts))
        for name, (help, value) in counters.items():
            yield CounterMetricFamily(f"penstock_{name}", help, value)
        for name, (help, number) in gauges.items():
            if number is not None:
                yield GaugeMetricFamily(f"penstock_{name}", help, number)
        for name, (kind, help, labels, counts) in labelled.items():
            family = kind(f"penstock_{name}", help, labels=labels)
            for values, times in list(counts.items()):
                family.add_metric([values] if isinstance(values, str) else values, times)
            yield family
        yield from self._watermark_families()
        build = {"version": __version__, "python": python_version(), "backend": self.backend}
        family = GaugeMetricFamily("penstock_build_info", "1, with what this server is", labels=tuple(build))
        family.add_metric(tuple(build.values()), 1)
        yield family
        for one in (self.batch_seconds, self.batch_requests, self.commit_seconds):
            yield one.family()
        for one in (self.writer_wait_seconds, self.loop_lag_seconds):
            yield one.family()
        help = "Time the server took for a message, without waits for events or for earlier messages, by gate"
        by_gate = HistogramMetricFamily("penstock_request_seconds", help, labels=("gate",))
        for gate, one in self.request_seconds.items():
            one.add_to(by_gate, gate)
        yield by_gate

    def _watermark_families(self) -> Iterator[Metric]:
        position = GaugeMetricFamily(
            "penstock_watermark_position", "Position up to which the last backup or archive has all", labels=("kind",)
        )
        moment = GaugeMetricFamily(
            "penstock_watermark_timestamp_seconds", "When the last backup or archive was complete", labels=("kind",)
        )
        for mark in self.watermarks:
            position.add_metric((mark.kind,), mark.position)
            moment.add_metric((mark.kind,), mark.unix_ms / 1000)
        yield from (position, moment)

    def _named(self) -> frozenset[str]:
        """The principals with separate series. A principal never loses them."""
        return frozenset(islice(self.usage, PRINCIPALS_MAX))

    def _bounded(self, counts: Mapping[str, int]) -> Counter[str]:
        named, found = self._named(), Counter[str]()
        for name, number in counts.items():
            found[name if name in named else OTHERS] += number
        return found

    def _busy(self) -> Counter[tuple[str, str]]:
        named, found = self._named(), Counter[tuple[str, str]]()
        over = [((limit, name), times) for name, one in self.usage.items() for limit, times in one.over.items()]
        for (reason, name), number in [*list(self.busy.items()), *over]:
            found[reason, name if name in named else OTHERS] += number
        return found
