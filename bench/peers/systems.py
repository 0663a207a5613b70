"""The systems that are compared, in the order of the tables."""

import sys
from collections.abc import Collection, Iterator
from importlib import import_module
from typing import Final

from bench.peers.system import System

SYSTEMS: Final = {
    "Penstock": "ours:Penstock",
    "UmaDB": "uma:UmaDb",
    "Redis Streams": "redis_streams:RedisStreams",
    "JetStream": "jetstream:JetStream",
    "Penstock, ZeroMQ": "ours:PenstockZeroMq",
    "Penstock, Remits": "ours:PenstockRemits",
    "Penstock, embedded": "ours:PenstockEmbedded",
    "Penstock on PostgreSQL": "ours:PenstockPostgres",
    "PostgreSQL table": "postgresql:PlainPostgres",
    "eventsourcing on SQLite": "eventsourcing_library:Eventsourcing",
    "eventsourcing on PostgreSQL": "eventsourcing_library:EventsourcingPostgres",
    "Redis Streams, fsync each second": "redis_streams:RedisEverySecond",
    "JetStream, sync every 2 minutes": "jetstream:JetStreamDefault",
}
"""Where each system is. A module is imported when its system is wanted: what is not installed costs only itself."""


def installed(names: Collection[str]) -> Iterator[System]:
    """The systems that can run here; the others are named."""
    for name, place in SYSTEMS.items():
        if name in names:
            module, _, kind = place.partition(":")
            try:
                system: System = getattr(import_module(f"bench.peers.{module}"), kind)()
            except ImportError as error:
                print(f"{name} is left out: {error}; `make bench-peers` installs it", file=sys.stderr)
                continue
            yield system
