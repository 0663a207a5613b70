"""UmaDB: its server, and its client for Python."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import umadb

from bench.peers.system import (
    TYPE,
    Done,
    Load,
    Server,
    System,
    commits_of,
    free_port,
    latencies,
    program,
    touch,
    with_threads,
)


class UmaDb(System):
    """Its client for Python blocks; threads share one client, and it multiplexes them over one connection."""

    name = "UmaDB"
    main = True
    callers_max = 1024
    follows = True
    recovers = True

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        port = free_port()
        umadb_server = Path(sys.executable).parent / "umadb"
        command = [str(umadb_server), "--listen", f"127.0.0.1:{port}", "--db-path", str(directory / "uma.db")]
        with program(command, port) as started:
            yield Server(f"http://127.0.0.1:{port}", (started,))

    def append(self, url: str, load: Load) -> Done:
        client = umadb.Client(url)
        commits = commits_of(load, lambda stream, body: umadb.Event(TYPE, body, [stream]))
        return with_threads(load, commits, lambda _: lambda commit: client.append(commit.events))

    def read_all(self, url: str) -> Done:
        return self._read(url, None)

    def read_stream(self, url: str, stream: str) -> Done:
        return self._read(url, umadb.Query([umadb.QueryItem(tags=[stream])]))

    def _read(self, url: str, query: Any) -> Done:
        # A client that is not kept cancels its reads.
        client = umadb.Client(url)
        return touch(
            lambda: (
                ((event := found.event).tags[0], event.event_type, found.position, event.data)
                for found in client.read(query)
            )
        )

    def follow(self, url: str, events: int) -> list[float]:
        writer, reader = umadb.Client(url), umadb.Client(url)
        source = reader.subscribe(after=writer.head())
        event = [umadb.Event(TYPE, b"x", ["followed"])]
        return latencies(events, lambda: writer.append(event), lambda: next(source))

    def count(self, url: str) -> int:
        return umadb.Client(url).head() or 0
