"""What the engine counts, for Prometheus. Each engine has its own registry."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """Counters, gauges and histograms of one engine."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.commits = Counter("penstock_commits", "Commits answered as written", registry=registry)
        self.events = Counter("penstock_events", "Events answered as written", registry=registry)
        self.refused = Counter("penstock_refused", "Requests refused, by reason", ["reason"], registry=registry)
        self.batch_seconds = Histogram(
            "penstock_batch_seconds",
            "Time of one group commit, fsync included",
            buckets=(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0),
            registry=registry,
        )
        self.batch_requests = Histogram(
            "penstock_batch_requests",
            "Transactions in one group commit",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
            registry=registry,
        )
        self.store_up = Gauge("penstock_store_up", "1 while the store can be written", registry=registry)
        self.store_up.set(1)
        self.reads = Counter("penstock_reads", "Jobs done by worker processes", registry=registry)
        self.workers_replaced = Counter("penstock_workers_replaced", "Worker processes that died", registry=registry)
        self.waiting_polls = Gauge("penstock_waiting_polls", "Long polls that wait for events", registry=registry)
