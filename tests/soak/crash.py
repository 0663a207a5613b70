"""Servers killed under load: `python -m tests.soak.crash --cycles 1000 --seed 1`.

A child process (`tests.soak.crash_load`) serves a heavy load on a real engine and tells what was acknowledged. It is
killed with SIGKILL at a random moment, and the store is looked at: what was acknowledged is there, once, in order and
unchanged; what was in flight is there wholly or not at all; progress and acknowledgements are kept. The next child
goes on with the same store. What a child does depends on the seed and the cycle, the moment of its death on the clock.

`--directory` keeps the store and what is known of it, and with `--start-cycle` a later run goes on from there.
"""

import argparse
import json
import os
import pickle
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from penstock.cli.maintenance import findings
from penstock.model import Event, EventFilter
from penstock.store import Store, open_store, store_url
from penstock.store.contract import ReadLimits, Transaction
from tests.soak.crash_load import (
    CONTEXT,
    OUTPUTS,
    PARTS,
    QUEUE,
    SUBSCRIBER,
    WATCHED,
    Orders,
    body_of,
    id_of,
)

STARTING_S_MAX: Final = 60.0
GONE_S_MAX: Final = 20.0
"""Workers end when their server is gone; a job they are at takes a second or two at most."""
PAGE: Final = ReadLimits(events_max=20_000, bytes_max=64 << 20, scan_ms_max=10_000)
VERIFY_EVERY: Final = 50
MARK: Final = "CRASH_TEST_MARK"
STREAMS: Final = 10_000
WAL_BYTES: Final = 64 << 20


class Violation(Exception):
    """A promise was broken."""


class Commit(NamedTuple):
    """Where a commit is."""

    stream: str
    position: int
    sequence: int
    length: int
    commit: str


@dataclass(slots=True)
class Ledger:
    """What is known of the store: all that was acknowledged or found."""

    head: int = 0
    streams: dict[str, int] = field(default_factory=dict)
    watched: list[int] = field(default_factory=list)
    """Positions of events that the queue and the subscription want, from the subscription's position on."""
    produced: dict[str, int] = field(default_factory=dict)
    """The last number of each producer that is in the store."""
    acknowledged: dict[str, int] = field(default_factory=dict)
    results: dict[str, list[Commit]] = field(default_factory=dict)
    """Where the transaction of that number is."""
    subscription: int = 1
    done: set[int] = field(default_factory=set)
    """First positions of acknowledged allocations."""
    outputs: set[int] = field(default_factory=set)
    """First positions of allocations that have an output."""


# --- the child ------------------------------------------------------------------------------------------------


def _load_s_max(url: str) -> float:
    """How long a server lives under load at most. On a database between processes all goes more slowly."""
    return 0.5 if url.startswith("sqlite:") else 5.0


def kill_one(
    url: str, seed: str, cycle: int, ledger: Ledger, after: str | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Start a child, kill it, and give what it told and when it died. It lives until it has told `after`, if given."""
    rng = random.Random(f"{seed}/{cycle}/death")
    early = after is None and rng.random() < 0.1
    delay_s = rng.uniform(0.05, 1.0) if early else rng.uniform(0.0, _load_s_max(url))
    again = {name: ledger.produced.get(name, 0) == number for name, number in ledger.acknowledged.items()}
    reading, writing = os.pipe()
    orders = Orders(url, seed, cycle, writing, ledger.acknowledged, again)
    mark = uuid4().hex
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.soak.crash_load", orders.as_json()],
        pass_fds=[writing],
        env={**os.environ, MARK: mark},
        stdin=subprocess.DEVNULL,
    )
    os.close(writing)
    told = _Lines(reading)
    try:
        if not early:
            told.read_until(time.monotonic() + STARTING_S_MAX, after or "ready")
        told.read_until(time.monotonic() + delay_s)
    finally:
        ended = child.poll()
        child.send_signal(signal.SIGKILL)
        child.wait()
    told.read_to_end()
    os.close(reading)
    _expect_nobody(mark)
    if ended is not None:
        raise Violation(f"the server ended by itself with {ended}; it told {told.lines[-3:]}")
    return told.lines, f"{'start' if early else 'load'} +{delay_s * 1000:.0f} ms"


class _Lines:
    """What comes out of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self.lines: list[dict[str, Any]] = []

    def read_until(self, deadline: float, wanted: str | None = None) -> None:
        """Read until a time, or only until the child has told what is wanted, which must come by then."""
        while (left := deadline - time.monotonic()) > 0:
            if wanted is not None and any(line["k"] == wanted for line in self.lines):
                return
            if select.select([self._descriptor], [], [], left)[0] and not self._read():
                return
        if wanted is not None:
            raise Violation(f"the server did not tell {wanted!r} within {STARTING_S_MAX} s")

    def read_to_end(self) -> None:
        while self._read():
            pass
        if self._rest:
            raise Violation(f"the pipe ends within a line: {self._rest!r}")

    def _read(self) -> bool:
        data = os.read(self._descriptor, 1 << 16)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self.lines += map(json.loads, whole)
        return bool(data)


def _expect_nobody(mark: str) -> None:
    """Wait until the child's workers have ended by themselves."""
    deadline = time.monotonic() + GONE_S_MAX
    while left := list(_marked(mark)):
        if time.monotonic() > deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Violation(f"the worker processes {left} outlived their server")
        time.sleep(0.01)


def _marked(mark: str) -> Iterator[int]:
    wanted = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes():
                    yield int(entry.name)
            except OSError:
                continue  # It has just ended, or is not ours to look at.


# --- looking at the store -------------------------------------------------------------------------------------


class Inspection:
    """One look at the store after a crash, against the ledger and what the child told."""

    def __init__(self, store: Store, ledger: Ledger, cycle: int) -> None:
        self._store = store
        self._ledger = ledger
        self._cycle = cycle
        self.found: dict[str, Commit] = {}
        self._before = dict(ledger.produced)

    def scan(self) -> None:
        """All events since the last look: dense, whole, unchanged, each commit once."""
        before = self._ledger.head
        group: list[Event] = []
        while True:
            page = self._store.read_all(self._ledger.head + 1, EventFilter(), PAGE)
            for event in page.events:
                self._place(event)
                group.append(event)
                if len(group) == _count(event):
                    self._commit(group)
                    group = []
            if page.end:
                break
        if group:
            raise Violation(f"only {len(group)} of {_count(group[0])} events of the commit at {group[0].position}")
        if self._ledger.head != self._store.head():
            raise Violation(f"the head is {self._store.head()}, the events end at {self._ledger.head}")
        for name, number in self._ledger.produced.items():
            parts = sum(f"t/{name}/{number}/{part}" in self.found for part in range(PARTS))
            if parts not in (0, PARTS):
                raise Violation(f"only {parts} of {PARTS} commits of transaction {number} of {name}")
        self.events = self._ledger.head - before

    def _place(self, event: Event) -> None:
        ledger = self._ledger
        if event.position != ledger.head + 1:
            raise Violation(f"position {ledger.head + 1} is missing: the next event is at {event.position}")
        if event.sequence != ledger.streams.get(event.stream, 0) + 1:
            raise Violation(f"stream {event.stream} has {event.sequence} after {ledger.streams.get(event.stream)}")
        ledger.head = event.position
        ledger.streams[event.stream] = event.sequence
        if event.stream.startswith(WATCHED):
            ledger.watched.append(event.position)

    def _commit(self, group: list[Event]) -> None:
        first = group[0]
        label = first.body.split(b" ", 1)[0].decode()
        for index, event in enumerate(group):
            same = (event.commit, event.stream) == (first.commit, first.stream)
            if not same or (event.id, event.body) != (id_of(label, index), body_of(label, index, len(group))):
                raise Violation(f"the event at {event.position} is not number {index} of {label}")
        if label in self.found:
            raise Violation(f"{label} is there twice, at {self.found[label].position} and at {first.position}")
        self._expect_new(label)
        self.found[label] = Commit(first.stream, first.position, first.sequence, len(group), first.commit.hex())

    def _expect_new(self, label: str) -> None:
        ledger = self._ledger
        kind, *rest = label.split("/")
        if kind == "t":
            name, number, part = rest[0], int(rest[1]), int(rest[2])
            last = ledger.produced.get(name, 0)
            if number != last + (part == 0):
                raise Violation(f"{label} comes after number {last}")
            ledger.produced[name] = number
        elif kind == "out":
            if int(rest[0]) in ledger.outputs:
                raise Violation(f"{label} is there twice")
            ledger.outputs.add(int(rest[0]))
        elif int(kind) != self._cycle or label.endswith("/conflict"):
            raise Violation(f"{label} was written in cycle {self._cycle}")

    def compare(self, told: list[dict[str, Any]]) -> None:
        """Every line that the child told."""
        lines = {
            "ready": lambda line: None,
            "commit": self._told_commit,
            "transact": self._told_transact,
            "progress": self._told_progress,
            "given": self._told_given,
            "acked": lambda line: self._ledger.done.add(line["first"]),
            "error": self._told_error,
        }
        for line in told:
            lines[line["k"]](line)

    def _told_error(self, line: dict[str, Any]) -> None:
        raise Violation(f"the server answered {line['what']}")

    def _told_commit(self, line: dict[str, Any]) -> None:
        if self.found.get(line["label"]) != _told(line["stream"], line):
            raise Violation(f"acknowledged: {line}; found: {self.found.get(line['label'])}")

    def _told_transact(self, line: dict[str, Any]) -> None:
        name, number, ledger = line["producer"], line["number"], self._ledger
        commits = [_told(f"t/{name}/{part}", commit) for part, commit in enumerate(line["commits"])]
        if number <= self._before.get(name, 0):
            # It was there before this child lived: it must have been answered, not written.
            if not all(commit["repeated"] for commit in line["commits"]):
                raise Violation(f"number {number} of {name} was there and was not answered as repeated")
            found = ledger.results[name] if ledger.acknowledged.get(name) == number else commits
        else:
            found = [self.found[f"t/{name}/{number}/{part}"] for part in range(PARTS)]
        if commits != found:
            raise Violation(f"transaction {number} of {name} was acknowledged at {commits} and found at {found}")
        ledger.acknowledged[name], ledger.results[name] = number, commits

    def _told_progress(self, line: dict[str, Any]) -> None:
        watched = self._ledger.watched
        index = bisect_left(watched, self._ledger.subscription)
        if line["first"] != watched[index]:
            raise Violation(f"the subscription was at {self._ledger.subscription} and gave {line['first']}")
        self._ledger.subscription = line["next"]

    def _told_given(self, line: dict[str, Any]) -> None:
        if line["first"] in self._ledger.done:
            raise Violation(f"the queue gave {line['first']} to {line['last']}, which was acknowledged")
        watched = self._ledger.watched
        index = bisect_left(watched, line["first"])
        if line["first"] >= watched[0] and line["events"] != watched[index : index + len(line["events"])]:
            raise Violation(f"the queue gave {line['events']} for {line['first']} to {line['last']}")

    def consumers(self) -> None:
        """Progress and acknowledgements are kept."""
        ledger, store = self._ledger, self._store
        subscription = store.find_subscription(SUBSCRIBER, CONTEXT, WATCHED)
        position = subscription.position if subscription else 1
        if position < ledger.subscription:
            raise Violation(f"the subscription was progressed to {ledger.subscription} and is at {position}")
        ledger.subscription = position
        del ledger.watched[: max(0, bisect_left(ledger.watched, position) - 10_000)]
        for queue in store.find_queues(QUEUE, CONTEXT):
            for given in store.allocations(queue.id, 0, 1 << 20):
                if given.first in ledger.done:
                    raise Violation(f"{given} was acknowledged")
                if given.first in ledger.outputs:
                    raise Violation(f"{given} has its output in {OUTPUTS} and was not acknowledged with it")
        for first in ledger.outputs:
            ledger.done.add(first)


def _count(event: Event) -> int:
    return int(event.body.split(b" ", 3)[2])


def _told(stream: str, line: dict[str, Any]) -> Commit:
    return Commit(stream, line["position"], line["sequence"], line["count"], line["commit"])


# --- cycles ---------------------------------------------------------------------------------------------------


def run_cycle(url: str, seed: str, cycle: int, ledger: Ledger, *, verify: bool, after: str | None = None) -> str:
    """One life and death of a server; what happened, in a line. Raises Violation."""
    told, death = kill_one(url, seed, cycle, ledger, after)
    store = open_store(url, stream_cache_max=STREAMS, wal_bytes_max=WAL_BYTES)
    try:
        # A database may still be at the last commit that the killed server sent. After a turn of one's own it is not.
        store.write([Transaction(())])
        inspection = Inspection(store, ledger, cycle)
        inspection.scan()
        inspection.compare(told)
        inspection.consumers()
        wrong = list(findings(store, lambda done, total: None)) if verify else []
    finally:
        store.close()
    if wrong:
        raise Violation(f"verify: {wrong}")
    kinds = Counter(line["k"] for line in told)
    acknowledged = {line["label"] for line in told if line["k"] == "commit"}
    in_flight = sum(label not in acknowledged and not label.startswith("t/") for label in inspection.found)
    return (
        f"cycle {cycle}: killed at {death}; acknowledged {kinds['commit']} commits, {kinds['transact']} transactions, "
        f"{kinds['progress']} progresses, {kinds['acked']} batches; {inspection.events} new events, "
        f"{in_flight} commits more than were acknowledged, head {ledger.head}{', verified' if verify else ''}"
    )


def main() -> int:
    """Kill as many servers as asked, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--start-cycle", type=int, default=1)
    parser.add_argument(
        "--directory", type=Path, help="where the store is kept; a new one that is removed if all is well"
    )
    parser.add_argument("--store", help="the URL of another store, which is kept as well; a new one to begin with")
    options = parser.parse_args()
    home = options.directory or Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    memory = home / "ledger.pickle"
    ledger = pickle.loads(memory.read_bytes()) if memory.exists() else Ledger()
    last = options.start_cycle + options.cycles - 1
    started = time.monotonic()
    for cycle in range(options.start_cycle, last + 1):
        try:
            verify = cycle % VERIFY_EVERY == 0 or cycle == last
            print(
                run_cycle(options.store or store_url(home / "store"), options.seed, cycle, ledger, verify=verify),
                flush=True,
            )
        except Violation as violation:
            print(
                f"cycle {cycle}: VIOLATION: {violation}\nseed {options.seed}; the store is kept in {home}", flush=True
            )
            return 1
        memory.write_bytes(pickle.dumps(ledger))
    took = time.monotonic() - started
    print(f"crash: {options.cycles} servers killed in {took:.0f} s, {ledger.head} events, no promise broken")
    if options.directory is None:
        shutil.rmtree(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
