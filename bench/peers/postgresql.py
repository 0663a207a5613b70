"""PostgreSQL alone: a table, and psycopg."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg
import uvloop

from bench.peers.system import POSTGRES, TYPE, Commit, Done, Load, Server, System, commits_of, touch, with_tasks
from tests.postgres import postgres

PAGE: Final = 10_000
CONNECTIONS: Final = 64
"""More callers share these: PostgreSQL allows 100 by default, and each has a process."""


class PlainPostgres(System):
    """A table with a bigserial: an INSERT for one event, a COPY for a commit of more."""

    name = "PostgreSQL table"
    callers_max = 1024
    recovers = True

    @contextmanager
    def server(self, directory: Path) -> Iterator[Server]:
        with postgres(*POSTGRES, place=directory) as database:
            url = database.url(port=database.port)
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(
                    "CREATE TABLE events (position bigserial PRIMARY KEY, stream text NOT NULL, type text NOT NULL,"
                    " body bytea NOT NULL)"
                )
                connection.execute("CREATE INDEX ON events (stream, position)")
            yield Server(url, (database,))

    def append(self, url: str, load: Load) -> Done:
        commits = commits_of(load, lambda stream, body: (stream, TYPE, body))

        async def single(connection: Any, commit: Commit) -> None:
            await connection.execute(
                "INSERT INTO events (stream, type, body) VALUES (%s, %s, %b)", commit.events[0], prepare=True
            )

        async def copy(connection: Any, commit: Commit) -> None:
            async with connection.cursor().copy("COPY events (stream, type, body) FROM STDIN (FORMAT BINARY)") as rows:
                rows.set_types(["text", "text", "bytea"])
                for event in commit.events:
                    await rows.write_row(event)

        work: Callable[[Any, Commit], Awaitable[None]] = single if load.events == 1 else copy

        async def write() -> Done:
            free: asyncio.LifoQueue[Any] = asyncio.LifoQueue()
            async with AsyncExitStack() as stack:
                for _ in range(min(load.callers, CONNECTIONS)):
                    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
                    free.put_nowait(await stack.enter_async_context(connection))

                async def append(_: int, commit: Commit) -> None:
                    connection = await free.get()
                    await work(connection, commit)
                    free.put_nowait(connection)

                return await with_tasks(load, commits, append)

        return uvloop.run(write())

    def read_all(self, url: str) -> Done:
        return self._read(url, "SELECT stream, type, position, body FROM events ORDER BY position", ())

    def read_stream(self, url: str, stream: str) -> Done:
        statement = "SELECT stream, type, position, body FROM events WHERE stream = %s ORDER BY position"
        return self._read(url, statement, (stream,))

    def _read(self, url: str, statement: str, values: tuple[str, ...]) -> Done:
        with psycopg.connect(url) as connection, connection.cursor("all", binary=True) as cursor:
            cursor.itersize = PAGE
            return touch(lambda: cursor.execute(statement.encode(), values))

    def count(self, url: str) -> int:
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT max(position) FROM events").fetchone()
            assert row is not None
            return int(row[0] or 0)
