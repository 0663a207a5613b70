"""Interleaved rounds of all work with every system, each on an empty directory, and the check of what was stored."""

import multiprocessing
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.peers.figures import BODIES, MAIN, Figure
from bench.peers.system import Done, Load, Server, System
from bench.usage import Meter

FOLLOWED: Final = 2000
CONSUMERS: Final = 4
RECOVERY_EVENTS: Final = 5_000_000
RECOVERY_S_MAX: Final = 300.0
READ_EVENTS: Final = 200_000
"""How many events there should be to read, if a system can write them in so many fills."""
FILLS_MAX: Final = 3
IDLE_S: Final = 10.0
SETTLED: Final = 0.02
SETTLE_S_MAX: Final = 30.0
"""A server is settled when it takes less than this part of a core, or after so many seconds."""
MIB: Final = 1 << 20
LOADS: Final = ((1, 1, 1), (64, 1, 1), (1024, 1, 1), (1, 1000, 1), (64, 1, 16), (1024, 1, 16))
"""Writers, events in a commit, and commits in flight for each writer."""
COSTS: Final = frozenset({"disk", "memory", "idle"})
READ_WORK: Final = frozenset({"read", "arrow", "stream", "queue"})
LARGE_WORK: Final = frozenset({"1x1", "64x1", "1x1000", "read"})
"""What is also done with large bodies."""
LOOK_S: Final = 0.5

Record = Callable[[str, Figure], None]


class Failed(Exception):
    """A system could not do its work, or has lost or changed events."""


class Plan(NamedTuple):
    work: frozenset[str]
    seconds: float
    place: Path
    recovery_events: int

    def wants(self, key: str) -> bool:
        return key in self.work


def measure(systems: list[System], rounds: int, plan: Plan) -> dict[str, dict[str, list[Figure]]]:
    """By work, then by system. A system that fails is removed from the list, with what it has done so far."""
    multiprocessing.set_forkserver_preload(sorted({__name__, *(type(system).__module__ for system in systems)}))
    figures: dict[str, dict[str, list[Figure]]] = defaultdict(dict)
    for number in range(rounds):
        for system in list(systems):
            if number % 2 and not system.main:
                continue

            def record(work: str, figure: Figure, name: str = system.name) -> None:
                figures[work].setdefault(name, []).append(figure)

            part = plan if system.main else plan._replace(seconds=plan.seconds / 2)
            begun = time.monotonic()
            try:
                Round(system, part, "", record).run(costs=number == 0)
                if plan.wants("2k") and number % 2 == 0 and system.durable:
                    Round(system, part._replace(seconds=plan.seconds / 2), " 2k", record).run()
                if plan.wants("recovery") and number == 0 and system.recovers:
                    recovery(system, plan, record)
            except Failed as error:
                print(f"{system.name} FAILED and is left out: {error}", file=sys.stderr)
                if system.name == MAIN:
                    raise
                systems.remove(system)
            took = time.monotonic() - begun
            print(f"round {number + 1} of {rounds}: {system.name}, {took:.0f} s", file=sys.stderr, flush=True)
    return figures


class Round:
    """All work with one system, on an empty directory, with bodies of one size."""

    def __init__(self, system: System, plan: Plan, suffix: str, record: Record) -> None:
        self._system, self._plan, self._suffix, self._record = system, plan, suffix, record
        self._body_bytes = BODIES[suffix]
        self._stored = self._check = 0
        self._meter: Meter | None = None

    def run(self, *, costs: bool = False) -> None:
        system = self._system
        with directory(self._plan.place) as place, system.server(place) as server, ExitStack() as stack:
            empty = size_on_disk(place)
            if server.programs:
                self._meter = Meter(*server.pids(), look_s=LOOK_S)
                stack.callback(self._meter.stop)
            if costs and system.main:
                self._idle("idle", "idle memory")
            for writers, events, in_flight in LOADS:
                key = f"{writers}x{events}" + (f"x{in_flight}" if in_flight > 1 else "")
                if self._wants(key) and writers * in_flight <= system.callers_max:
                    seconds = self._plan.seconds / (2 if in_flight > 1 else 1)
                    self._append(key, server, Load(writers, events, self._body_bytes, seconds, in_flight))
            self._read(server)
            if costs and self._plan.work & COSTS:
                settle(self._meter)
                if self._plan.wants("disk"):
                    self._record("disk", Figure((size_on_disk(place) - empty) / self._stored))
                if self._meter is not None and self._plan.wants("memory"):
                    self._record("memory", Figure(self._meter.proportional_bytes() / MIB))
                if system.main:
                    self._idle("idle later")
            if system.follows and not self._suffix and self._plan.wants("follow"):
                waits = sorted(self._measured(system.follow, server.url, FOLLOWED)[0])
                for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)):
                    self._record(f"follow {name}", Figure(1000 * waits[int(share * len(waits))]))

    def _wants(self, key: str) -> bool:
        return self._plan.wants(key) and (not self._suffix or key in LARGE_WORK)

    def _append(self, key: str, server: Server, load: Load) -> None:
        done, server_s = self._measured(self._system.append, server.url, load)
        self._stored += done.stored
        self._check += done.check
        if key:
            self._rate(key, done, server_s)

    def _read(self, server: Server) -> None:
        """Read all back in each way, and compare it with what was acknowledged."""
        system, url = self._system, server.url
        wanted = READ_EVENTS * BODIES[""] // self._body_bytes if READ_WORK & self._plan.work else 1
        for _ in range(FILLS_MAX):
            if self._stored < wanted:
                self._append("", server, Load(1, 1000, self._body_bytes, self._plan.seconds))
        # Not a choice: it is the check of what was measured.
        read, server_s = self._measured(system.read_all, url)
        if (read.events, read.check) != (self._stored, self._check):
            raise Failed(
                f"{read.events} events with checksum {read.check} came back of {self._stored} with {self._check}"
            )
        if self._wants("read"):
            self._rate("read", read, server_s)
        if system.arrow and self._wants("arrow"):
            read, server_s = self._measured(system.read_arrow, url)
            if (read.events, read.check) != (self._stored, self._stored * self._body_bytes):
                raise Failed(f"{read.events} events with {read.check} bytes came back as Arrow")
            self._rate("arrow", read, server_s)
        if system.streams and self._wants("stream"):
            self._rate("stream", *self._measured(system.read_stream, url, "order-0"))
        if system.queue and self._wants("queue"):
            self._rate("queue", *self._measured(system.consume, url, CONSUMERS, self._plan.seconds))

    def _rate(self, key: str, done: Done, server_s: float | None) -> None:
        if not done.events:
            raise Failed(f"it did nothing of {key}")
        server_us = None if server_s is None else 1e6 * server_s / (done.stored or done.events)
        figure = Figure(done.events / done.seconds, server_us, 1e6 * done.core_s / done.events)
        self._record(f"{key}{self._suffix}", figure)

    def _measured(self, work: Callable[..., Any], *arguments: Any) -> tuple[Any, float | None]:
        """What a function returns in a process of its own, and the server's core-seconds meanwhile."""
        before = self._meter.used() if self._meter is not None else None
        result = in_a_process(work, *arguments)
        return result, None if self._meter is None or before is None else self._meter.used().since(before).core_s

    def _idle(self, key: str, memory_key: str | None = None) -> None:
        """What a server takes that has nothing to do."""
        if self._meter is None or not self._plan.wants("idle"):
            return
        settle(self._meter)
        before = self._meter.used().core_s
        seconds = min(IDLE_S, 4 * self._plan.seconds)
        time.sleep(seconds)
        self._record(key, Figure(100 * (self._meter.used().core_s - before) / seconds))
        if memory_key is not None:
            self._record(memory_key, Figure(self._meter.proportional_bytes() / MIB))


def recovery(system: System, plan: Plan, record: Record) -> None:
    """Seconds from the start of a server that was killed with many events to its first answer."""
    with directory(plan.place) as place, system.server(place) as server:
        stored = 0
        while stored < plan.recovery_events:
            stored += in_a_process(system.append, server.url, Load(1, 1000, BODIES[""], plan.seconds)).stored
        server.kill()
        begun = time.perf_counter()
        server.restart()
        found = answered(system, server.url)
        record("recovery", Figure(time.perf_counter() - begun))
        if found < stored:
            raise Failed(f"it lost {stored - found} of {stored} acknowledged events")


def answered(system: System, url: str) -> int:
    """The first answer of a server that may still be loading."""
    deadline = time.monotonic() + RECOVERY_S_MAX
    while True:
        try:
            return system.count(url)
        except Exception as error:
            if time.monotonic() > deadline:
                raise Failed(f"it does not answer after a kill: {error}") from error
            time.sleep(0.01)


def settle(meter: Meter | None) -> None:
    """Wait until a server has done what it does behind its answers."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while meter is not None and time.monotonic() < deadline:
        before = meter.used().core_s
        time.sleep(1)
        if meter.used().core_s - before < SETTLED:
            return


# --- processes and files ----------------------------------------------------------------------------------------


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own."""
    ours, theirs = multiprocessing.Pipe()
    # A process that has imported everything is forked for each, which takes milliseconds.
    process = multiprocessing.get_context("forkserver").Process(target=call, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError:
        raise Failed(f"{work.__qualname__}{arguments[1:]} failed") from None
    finally:
        process.join()


def call(connection: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(work(*arguments))


@contextmanager
def directory(place: Path) -> Iterator[Path]:
    """An empty directory that PostgreSQL's user can reach, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="bench-peers-", dir=place)).absolute()
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def size_on_disk(place: Path) -> int:
    """Bytes in blocks that files really have."""
    total = 0
    for file in place.rglob("*"):
        try:
            total += file.stat().st_blocks * 512 if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total
