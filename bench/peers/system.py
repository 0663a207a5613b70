"""What a system under test offers, and what all of them share: loads, callers, checksums and server processes."""

import asyncio
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Protocol
from zlib import crc32

from bench.usage import members

TYPE: Final = "OrderPlaced"
STREAMS: Final = 64
SINGLES: Final = 256
BULKS: Final = 16
"""Commits of one event, or of more, that are built before the clock starts and then sent in turn."""
QUEUE_BATCH: Final = 100
START_S_MAX: Final = 60.0
FOLLOWER_READY_S: Final = 0.2
POSTGRES: Final = ("max_wal_size=1GB", "min_wal_size=80MB")
"""PostgreSQL's own defaults, which the PostgreSQL of the tests has made smaller."""


class Load(NamedTuple):
    """Writers that each append commits of a number of events, with so many commits in flight, for some seconds."""

    writers: int
    events: int
    body_bytes: int
    seconds: float
    in_flight: int = 1

    @property
    def callers(self) -> int:
        return self.writers * self.in_flight

    def bundled(self) -> "Load":
        """The same for clients that send what is in flight together, and then wait for all answers."""
        return self._replace(events=self.events * self.in_flight, in_flight=1)


class Commit(NamedTuple):
    """Events as the system takes them, and the sum of the checksums of their bodies."""

    stream: str
    events: list[Any]
    check: int


class Done(NamedTuple):
    """Work that was done: how many events in how long, and what all of them were."""

    events: int
    seconds: float
    core_s: float
    """Of the client's processes."""
    stored: int = 0
    """Acknowledged events: those above, and one commit of each caller before the clock started."""
    check: int = 0
    """The sum of the checksums of the bodies that were stored or read."""


class System:
    """One system. Its methods run in a process of their own, and import its client when they are called."""

    name: ClassVar[str]
    durable: ClassVar = True
    main: ClassVar = False
    """Takes part in every round; the others in every second one."""
    callers_max: ClassVar = 1 << 14
    streams: ClassVar = True
    queue: ClassVar = False
    arrow: ClassVar = False
    follows: ClassVar = False
    recovers: ClassVar = False

    @contextmanager
    def server(self, directory: Path) -> Iterator["Server"]:
        """A running server whose files are below an empty directory."""
        raise NotImplementedError

    def append(self, url: str, load: Load) -> Done:
        raise NotImplementedError

    def read_all(self, url: str) -> Done:
        """Everything, as events."""
        raise NotImplementedError

    def read_arrow(self, url: str) -> Done:
        """Everything, as Arrow; `check` is the number of bytes in bodies."""
        raise NotImplementedError

    def read_stream(self, url: str, stream: str) -> Done:
        """One stream, as events."""
        raise NotImplementedError

    def consume(self, url: str, consumers: int, seconds: float) -> Done:
        """Take and acknowledge batches of QUEUE_BATCH events; each acknowledgement is confirmed."""
        raise NotImplementedError

    def follow(self, url: str, events: int) -> list[float]:
        """Seconds from the call of an append to the event in a follower's hands, one by one."""
        raise NotImplementedError

    def count(self, url: str) -> int:
        """The number of events, by the quickest way to ask."""
        raise NotImplementedError


# --- servers ----------------------------------------------------------------------------------------------------


class Startable(Protocol):
    """A server program that can be killed and started again on its files."""

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...


class Server(NamedTuple):
    """How a system is reached, and its programs in the order in which they start; none in the caller's process."""

    url: str
    programs: tuple[Startable, ...] = ()

    def pids(self) -> list[int]:
        return [program.pid for program in self.programs]

    def kill(self) -> None:
        """SIGKILL to every process."""
        for program in reversed(self.programs):
            program.kill()

    def restart(self) -> None:
        for program in self.programs:
            program.start()


class Program:
    """A server program that is ready when its port accepts connections."""

    def __init__(self, command: list[str], port: int) -> None:
        self._command, self._port = command, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(self._command, stdout=quiet, stderr=quiet, start_new_session=True)
        deadline = time.monotonic() + START_S_MAX
        while not accepts(self._port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._command[0]} did not start")
            time.sleep(0.005)

    def kill(self) -> None:
        assert self._process is not None
        for pid in members([self._process.pid]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()


@contextmanager
def program(command: list[str], port: int) -> Iterator[Program]:
    """A program for as long as the block lasts."""
    started = Program(command, port)
    started.start()
    try:
        yield started
    finally:
        started.stop()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# --- appends ----------------------------------------------------------------------------------------------------


def commits_of(
    load: Load, make: Callable[[str, bytes], Any], finish: Callable[[Commit], Commit] | None = None
) -> Iterator[Commit]:
    """Commits, built beforehand, again and again. `make(stream, body)` returns what the system calls an event."""
    commits = []
    for number in range(SINGLES if load.events == 1 else BULKS):
        stream = f"order-{number % STREAMS}"
        bodies = [os.urandom(load.body_bytes) for _ in range(load.events)]
        commit = Commit(stream, [make(stream, body) for body in bodies], sum(map(crc32, bodies)))
        commits.append(commit if finish is None else finish(commit))
    return cycle(commits)


class Clock:
    """Wall clock and CPU of this process and of its children that have ended."""

    def __init__(self) -> None:
        self.began, self._core_s = time.perf_counter(), self._used()

    @staticmethod
    def _used() -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + ended.ru_utime + ended.ru_stime

    def done(self, events: int, stored: int = 0, check: int = 0) -> Done:
        return Done(events, time.perf_counter() - self.began, self._used() - self._core_s, stored, check)


def with_threads(load: Load, commits: Iterator[Commit], connect: Callable[[int], Callable[[Commit], object]]) -> Done:
    """Blocking callers, a thread each. `connect(caller)` returns the function that appends a commit."""
    appends = [connect(number) for number in range(load.callers)]
    done, checks = [0] * load.callers, [0] * load.callers
    clock: list[Clock] = []
    ready = threading.Barrier(load.callers, action=lambda: clock.append(Clock()))

    def write(number: int) -> None:
        append, commit = appends[number], next(commits)
        append(commit)
        checks[number] += commit.check
        ready.wait()
        stop = clock[0].began + load.seconds
        while True:
            commit = next(commits)
            append(commit)
            done[number] += load.events
            checks[number] += commit.check
            if time.perf_counter() > stop:
                return

    if load.callers == 1:
        write(0)
    else:
        in_threads(load.callers, write)
    return clock[0].done(sum(done), sum(done) + load.callers * load.events, sum(checks))


async def with_tasks(load: Load, commits: Iterator[Commit], append: Callable[[int, Commit], Awaitable[object]]) -> Done:
    """Callers that are tasks of one event loop. `append(caller, commit)` appends a commit."""
    done = check = 0

    async def one(number: int) -> None:
        nonlocal check
        commit = next(commits)
        await append(number, commit)
        check += commit.check

    async def write(number: int) -> None:
        nonlocal done
        while True:
            await one(number)
            done += load.events
            if time.perf_counter() > stop:
                return

    await asyncio.gather(*map(one, range(load.callers)))
    clock = Clock()
    stop = clock.began + load.seconds
    await asyncio.gather(*map(write, range(load.callers)))
    return clock.done(done, done + load.callers * load.events, check)


def in_threads(number: int, work: Callable[[int], None]) -> None:
    """Call a function in so many threads at once, each with its number. Raises what one of them raised."""
    errors: list[BaseException] = []

    def guarded(one: int) -> None:
        try:
            work(one)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(one,), daemon=True) for one in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.1)
            if errors:
                raise errors[0]


# --- reads, queues, followers -----------------------------------------------------------------------------------


def touch(read: Callable[[], Iterable[tuple[Any, Any, Any, bytes]]]) -> Done:
    """Go through rows of stream, type, position and body."""
    clock = Clock()
    number = check = 0
    for _stream, _type, _position, body in read():
        number += 1
        check += crc32(body)
    return clock.done(number, number, check)


def consume_in_threads(consumers: int, seconds: float, connect: Callable[[int], Callable[[], list[Any]]]) -> Done:
    """`connect(consumer)` returns a function that takes a batch, acknowledges it and returns its positions."""
    taken: list[set[Any]] = [set() for _ in range(consumers)]
    batches = [connect(number) for number in range(consumers)]
    clock = Clock()

    def work(number: int) -> None:
        while time.perf_counter() < clock.began + seconds and (batch := batches[number]()):
            taken[number].update(batch)

    in_threads(consumers, work)
    return clock.done(len(set[Any]().union(*taken)))


def latencies(events: int, append: Callable[[], object], wait: Callable[[], object]) -> list[float]:
    """Appends one event at a time and waits until another thread, which follows, has it."""
    seen: list[float] = []
    arrived = threading.Semaphore(0)

    def run() -> None:
        for _ in range(events):
            wait()
            seen.append(time.perf_counter())
            arrived.release()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    time.sleep(FOLLOWER_READY_S)
    begun = []
    for _ in range(events):
        begun.append(time.perf_counter())
        append()
        arrived.acquire()
    thread.join()
    return [came - start for came, start in zip(seen, begun, strict=True)]
