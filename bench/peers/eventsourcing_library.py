"""The `eventsourcing` library: its recorders on SQLite and on PostgreSQL."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit
from uuid import NAMESPACE_URL, UUID, uuid5

from eventsourcing.persistence import StoredEvent
from eventsourcing.postgres import PostgresApplicationRecorder, PostgresDatastore
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from bench.peers.system import POSTGRES, TYPE, Commit, Done, Load, Server, System, commits_of, touch, with_threads
from tests.postgres import postgres

PAGE: Final = 1000
CONNECTIONS: Final = 64


class Eventsourcing(System):
    """The recorder of the `eventsourcing` library on SQLite, in the process of its caller."""

    name = "eventsourcing on SQLite"
    callers_max = 64

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        yield Server(str(directory / "events.db"))

    def _recorder(self, url: str) -> Any:
        return SQLiteApplicationRecorder(SQLiteDatastore(url))

    def append(self, url: str, load: Load) -> Done:
        recorder = self._recorder(url)
        recorder.create_table()

        def connect(caller: int) -> Callable[[Commit], object]:
            # A version can be used once, so the library's events cannot be built beforehand.
            versions, aggregate = count(time.time_ns()), _aggregate(f"order-{caller}")
            return lambda commit: recorder.insert_events(
                [StoredEvent(aggregate, next(versions), TYPE, body) for body in commit.events]
            )

        return with_threads(load, commits_of(load, lambda _stream, body: body), connect)

    def read_all(self, url: str) -> Done:
        recorder = self._recorder(url)
        return touch(lambda: self._rows(recorder))

    @staticmethod
    def _rows(recorder: Any) -> Iterator[tuple[UUID, str, int, bytes]]:
        fields, position = attrgetter("originator_id", "topic", "id", "state"), 0
        while page := recorder.select_notifications(position + 1, PAGE):
            yield from map(fields, page)
            position = page[-1].id

    def read_stream(self, url: str, stream: str) -> Done:
        fields = attrgetter("originator_id", "topic", "originator_version", "state")
        recorder = self._recorder(url)
        return touch(lambda: map(fields, recorder.select_events(_aggregate(stream))))


def _aggregate(stream: str) -> UUID:
    return uuid5(NAMESPACE_URL, stream)


class EventsourcingPostgres(Eventsourcing):
    name = "eventsourcing on PostgreSQL"

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        with postgres(*POSTGRES, place=directory) as database:
            yield Server(database.url(port=database.port), (database,))

    def _recorder(self, url: str) -> Any:
        parts = urlsplit(url)
        place = {name: values[0] for name, values in parse_qs(parts.query).items()}
        store = PostgresDatastore(
            parts.path.lstrip("/"),
            place["host"],
            place["port"],
            parts.username or "",
            "",
            pool_size=CONNECTIONS,
        )
        return PostgresApplicationRecorder(store, events_table_name="events")
