"""Power cuts under the store: `python -m tests.soak.power --cuts 1000 --seed 1`.

Each cut runs a random load on a store whose disk forgets what was not synced (`tests.faults.powercut`), cuts it at a
random step, and opens what is left with a plain store. All that was answered must be there, and nothing else but,
wholly or not at all, the batch that was being written. Among the steps are seals, erasures and giving back: they change
nothing that can be read but what is erased, and what the store said is gone from its files does not come back. Some
runs have failing syncs before the cut, after which the store is recovered as the engine does it. A run depends on its
seed alone, but for the checkpointer's thread.
"""

import argparse
import logging
import random
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.cli.maintenance import findings
from penstock.errors import PenstockError
from penstock.model import ANY, LOG_CONTEXT, EventFilter, NewEvent, ProducerMark, stamp_of
from penstock.model.columns import columns_of
from penstock.store import contract
from penstock.store.contract import Operation, Proposal, ReadLimits, Transaction
from penstock.store.seals import checked, merge
from penstock.store.sqlite import SqliteStore
from tests.faults.powercut import Disk

WAL_BYTES: Final = 64 * 4096
"""The shortest WAL there is, so that checkpoints come often."""
BATCHES_MAX: Final = 60
SUBSCRIBER: Final = "reader"
QUEUE: Final = "work"
CONTEXT: Final = "orders"
EVERYTHING: Final = ReadLimits(events_max=1 << 30, bytes_max=1 << 40, scan_ms_max=60_000)
SECRET_BYTES_MIN: Final = 16
TTL_MS: Final = 3_600_000
UNREADABLE: Final = (PenstockError, TypeError, ValueError)
"""What reading a damaged file may raise: it can hold any value in any column."""


class Written(NamedTuple):
    """An event as it must be found."""

    context: str
    stream: str
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Model:
    """What the store holds."""

    history: tuple[Written, ...] = ()
    head: int = 0
    subscription: int = 0
    marker: int = 0
    allocations: frozenset[tuple[int, int]] = frozenset()
    producer: int = 0
    logs: frozenset[str] = frozenset()
    hidden: frozenset[int] = frozenset()

    def bodies(self) -> list[bytes]:
        """Of what is hidden, all bodies that cannot be anywhere by chance."""
        return [self.history[position - 1].body for position in self.hidden if self.is_secret(position)]

    def is_secret(self, position: int) -> bool:
        return len(self.history[position - 1].body) >= SECRET_BYTES_MIN


@dataclass(slots=True)
class Load:
    """Makes batches at random and says what the store must hold after each."""

    rng: random.Random
    model: Model = field(default_factory=Model)
    after: Model = field(default_factory=Model)
    gone: list[bytes] = field(default_factory=list)
    seals: int = 0

    def batch(self) -> list[Transaction]:
        """The next batch; `after` is what it leads to."""
        self.after = self.model
        # A batch always has a commit, so that its presence can be seen.
        made = [Transaction((self._commit(),))]
        made += [self._transaction() for _ in range(self.rng.choice((0, 0, 1, 3, 8)))]
        return made

    def answered(self) -> None:
        """The batch is on disk, says the store."""
        self.model = self.after

    def erased(self) -> None:
        """All that was hidden is in no file any more, says the store."""
        self.gone = self.model.bodies()

    def upkeep(self, store: SqliteStore) -> list[Transaction]:
        """What is to be done beside the batch; it comes last."""
        steps: list[Operation] = []
        if self.rng.random() < 0.3 and (seal := _next_seal(store, self.rng.choice((2, 10, 300)))):
            steps.append(seal)
        if self.rng.random() < 0.2:
            steps.append(contract.GiveBack(1 << 20))
        if self.rng.random() < 0.5:
            steps.append(contract.Erase(self.rng.choice((1, 20, 1000))))
        return [Transaction((step,)) for step in steps]

    def _transaction(self) -> Transaction:
        kinds = (self._plain, self._plain, self._marked, self._progress, self._queue, self._log, self._conflict)
        return self.rng.choice((*kinds, self._hide))()

    def _plain(self) -> Transaction:
        return Transaction((self._commit(),))

    def _conflict(self) -> Transaction:
        return Transaction((contract.Commit(CONTEXT, "s0", 1 << 40, columns_of(self._events(1))),))

    def _commit(self, context: str | None = None, stream: str | None = None) -> contract.Commit:
        rng, after = self.rng, self.after
        context = context or rng.choice((CONTEXT, CONTEXT, "people", "things"))
        stream = stream or f"s{rng.randrange(30)}"
        events = self._events(rng.choice((1, 1, 1, 10, 10, 200)))
        head = sum(1 for written in after.history if written.stream == stream and written.context == context)
        written = tuple(Written(context, stream, event.id, event.body) for event in events)
        self.after = replace(after, history=after.history + written, head=after.head + len(events))
        # How many events a log's stream has had is not counted here.
        expected = head + 1 if rng.random() < 0.5 and context != LOG_CONTEXT else ANY
        return contract.Commit(context, stream, expected, columns_of(events))

    def _events(self, count: int) -> list[NewEvent]:
        rng = self.rng
        return [
            NewEvent(
                rng.randbytes(16), stamp_of(rng.randrange(10**17)), "made", None, rng.randbytes(rng.randrange(300))
            )
            for _ in range(count)
        ]

    def _marked(self) -> Transaction:
        operations: list[Operation] = [self._commit(), self._commit()]
        operations += self._progress().operations
        self.after = replace(self.after, producer=self.after.producer + 1)
        return Transaction(tuple(operations), ProducerMark("producer", self.after.producer))

    def _progress(self) -> Transaction:
        after = self.after
        if not after.subscription:
            self.after = replace(after, subscription=1)
            return Transaction((contract.Register(SUBSCRIBER, CONTEXT, "", 1),))
        following = self.rng.randint(after.subscription, after.head + 1)
        self.after = replace(after, subscription=following)
        return Transaction((contract.Progress(1, after.subscription, following, 1, strict=True),))

    def _queue(self) -> Transaction:
        after = self.after
        if not after.marker:
            self.after = replace(after, marker=1)
            return Transaction((contract.DeclareQueue(CONTEXT, QUEUE, "", 1),))
        if after.allocations and self.rng.random() < 0.5:
            first, last = self.rng.choice(sorted(after.allocations))
            self.after = replace(after, allocations=after.allocations - {(first, last)})
            return Transaction((contract.Acknowledge(1, f"consumer {first}", first, last, strict=True),))
        first = after.marker
        last = min(first + self.rng.randrange(20), after.head)
        if last < first:
            return self._plain()
        self.after = replace(after, marker=last + 1, allocations=after.allocations | {(first, last)})
        proposal = Proposal(Proposal.FRESH, first, last + 1, first, last, last - first + 1)
        return Transaction((contract.Allocate(1, f"consumer {first}", TTL_MS, proposal),))

    def _log(self) -> Transaction:
        name = f"log {self.rng.randrange(3)}"
        if name not in self.after.logs:
            self.after = replace(self.after, logs=self.after.logs | {name})
            return Transaction((contract.AddLog(name),))
        if self.rng.random() < 0.3:
            self.after = replace(self.after, logs=self.after.logs - {name})
            return Transaction((contract.DeleteLog(name), contract.Erase(20)))
        return Transaction((self._commit(LOG_CONTEXT, name),))

    def _hide(self) -> Transaction:
        context, stream = self.rng.choice((CONTEXT, "people")), f"s{self.rng.randrange(30)}"
        events = enumerate(self.after.history, start=1)
        mine = [position for position, one in events if (one.context, one.stream) == (context, stream)]
        if self.rng.random() < 0.5:
            mine = [position for position in mine if self.rng.random() < 0.3]
            ranges = tuple((position, position) for position in mine)
            hide: Operation = contract.HideEvents(ranges, ((context, stream),))
        else:
            hide = contract.HideStream(context, stream)
        self.after = replace(self.after, hidden=self.after.hidden | set(mine))
        return Transaction((hide,))


def _next_seal(store: SqliteStore, number: int) -> contract.Seal | None:
    """A seal of so many records, whether their block is closed or not: few runs last long enough to close one."""
    mark = store.sealed()
    rows = store.db.rows("unsealed_records", {"low": mark, "high": mark + 4095})[:number]
    records = checked(rows)
    if len(records) < 2:
        return None
    _, erasures, rewrites = store.db.row("ledger")
    ledger = erasures, int(rewrites)
    last = records[-1].last
    return contract.Seal(mark, last, merge(records), last + 1, ledger)


class Cut(NamedTuple):
    """What happened in one run."""

    batches: int
    steps: int
    failed_syncs: int
    survived: bool
    seals: int
    erased: int
    violations: list[str]


def power_cut(seed: int, directory: Path, *, synchronous: str = "full") -> Cut:
    """One run: load, cut, look."""
    rng = random.Random(f"{seed}/run")
    failing = frozenset(rng.sample(range(10, 90), rng.choice((0, 0, 2, 8))))
    disk = Disk(seed, int(2 ** rng.uniform(0, 12)), failing)
    load = Load(random.Random(f"{seed}/load"))
    with disk:
        batches, in_flight = _until_cut(disk, load, directory / "before", synchronous)
        disk.leave(directory / "after")
    back = _holders(directory / "after", load.gone)
    violations, survived = check(directory / "after", load.model, load.after if in_flight else None)
    return Cut(batches, disk.steps, disk.failed_syncs, survived, load.seals, len(load.gone), back + violations)


def _holders(directory: Path, gone: list[bytes]) -> list[str]:
    """Which files have what was said to be gone."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    return sorted({f"{name} has something that was erased" for name in files for body in gone if body in files[name]})


def _until_cut(disk: Disk, load: Load, directory: Path, synchronous: str) -> tuple[int, bool]:
    """Write batches until the power is cut: how many were answered, and whether one was being written."""
    try:
        store = SqliteStore(directory, vfs=disk.vfs, wal_bytes_max=WAL_BYTES)
    except PenstockError:
        disk.cut()
        return 0, False
    answered = 0
    in_flight = False
    try:
        store.db.connection.pragma("synchronous", synchronous)
        while answered < BATCHES_MAX and not in_flight:
            transactions = load.batch()
            try:
                transactions += load.upkeep(store)
                outcomes = store.write(transactions)
            except PenstockError:
                in_flight = not _recovered(disk, store, load)
                continue
            _check_outcomes(transactions, outcomes)
            load.answered()
            _note_upkeep(load, transactions, outcomes)
            answered += 1
    finally:
        disk.cut()
        _close(store)
    return answered, in_flight


def _recovered(disk: Disk, store: SqliteStore, load: Load) -> bool:
    """After a failed write: bring the store back, and look whether the batch is there. False if the power is cut."""
    while not disk.is_cut:
        try:
            store.recover()
        except PenstockError:
            continue
        if store.head() == load.after.head:
            # Whoever waits is told that it is not known. From now on it is, because it is read.
            load.answered()
        return True
    return False


def _check_outcomes(transactions: list[Transaction], outcomes: list[contract.Outcome]) -> None:
    for transaction, outcome in zip(transactions, outcomes, strict=True):
        first = transaction.operations[0]
        is_conflict = isinstance(first, contract.Commit) and first.expected == 1 << 40
        if isinstance(outcome, PenstockError) is not is_conflict:
            raise AssertionError(f"{transaction} was answered with {outcome}")


def _note_upkeep(load: Load, transactions: list[Transaction], outcomes: list[contract.Outcome]) -> None:
    load.seals += sum(
        isinstance(transaction.operations[0], contract.Seal) and outcome == [True]
        for transaction, outcome in zip(transactions, outcomes, strict=True)
    )
    if isinstance(transactions[-1].operations[-1], contract.Erase) and outcomes[-1] == [0]:
        load.erased()


def _close(store: SqliteStore) -> None:
    with suppress(PenstockError):  # The power is cut.
        store.close()


def check(directory: Path, answered: Model, in_flight: Model | None) -> tuple[list[str], bool]:
    """What is wrong with the store after the cut, and whether the batch in flight is there."""
    try:
        store = SqliteStore(directory)
    except UNREADABLE as error:
        return [f"the store cannot be opened: {error}"], False
    try:
        survived = in_flight is not None and store.head() == in_flight.head
        model = in_flight if survived and in_flight is not None else answered
        return list(_violations(store, model)), survived
    except UNREADABLE as error:
        return [f"the store cannot be read: {error}"], False
    finally:
        store.close()


def _violations(store: SqliteStore, model: Model) -> list[str]:
    wrong = [f"verify: {finding.where}: {finding.what}" for finding in findings(store, lambda done, total: None)]
    events = store.read_all(1, EventFilter(), EVERYTHING).events
    found = [Written(e.context, e.stream, e.id, e.body) for e in events if e.context != LOG_CONTEXT]
    visible = [one for position, one in enumerate(model.history, start=1) if position not in model.hidden]
    wanted = [written for written in visible if written.context != LOG_CONTEXT]
    subscription = store.find_subscription(SUBSCRIBER, CONTEXT, "")
    queues = store.find_queues(QUEUE)
    allocations = frozenset((a.first, a.last) for a in store.allocations(1, 0, 1 << 20))
    producer = store.db.row("producer", {"name": "producer"})
    pairs = {
        "the head": (store.head(), model.head),
        "the number of events": (len(found), len(wanted)),
        "the subscription": (subscription.position if subscription else 0, model.subscription),
        "the queue's marker": (queues[0].position if queues else 0, model.marker),
        "the allocations": (allocations, model.allocations),
        "the producer's number": (producer[0] if producer else 0, model.producer),
        "the logs": (frozenset(info.name for info in store.logs("", 100)), model.logs),
    }
    wrong += [f"{what}: {is_} and should be {should}" for what, (is_, should) in pairs.items() if is_ != should]
    if found != wanted:
        wrong.append("the events are not those that were answered")
    return wrong


def main() -> int:
    """Cut the power as often as asked, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000, help="how many cuts (default 1000)")
    parser.add_argument("--seed", type=int, default=1, help="the first cut's seed; the next ones count up")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.monotonic()
    batches = survived = failed_syncs = seals = erased = broken = 0
    for seed in range(options.seed, options.seed + options.cuts):
        with tempfile.TemporaryDirectory(prefix="penstock-power-") as directory:
            result = power_cut(seed, Path(directory))
        batches += result.batches
        survived += result.survived
        failed_syncs += result.failed_syncs
        seals += result.seals
        erased += result.erased
        if result.violations:
            broken += 1
            print(f"seed {seed}: {'; '.join(result.violations)}", flush=True)
        if (seed - options.seed + 1) % 100 == 0:
            print(f"{seed - options.seed + 1} cuts, {batches} batches, {broken} broken", flush=True)
    print(
        f"power: {options.cuts} cuts from seed {options.seed} in {time.monotonic() - started:.0f} s: {batches} batches "
        f"answered, {seals} seals, {erased} events erased, {failed_syncs} failed syncs, {survived} batches in flight "
        f"survived whole, {broken} cuts broke a promise"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
