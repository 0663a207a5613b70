"""Stores with everything in them, and what it means that two of them hold the same."""

import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import cbor2

from penstock import model
from penstock.backup import Restored, Written, back_up, open_place, restore_backup
from penstock.model import (
    LOG_CONTEXT,
    Buried,
    Credential,
    CredentialKind,
    Event,
    Limits,
    ProducerMark,
    Rest,
    Retried,
    Selection,
)
from penstock.model.times import TICKS_PER_SECOND, datetime_of
from penstock.store import Store, open_reader, store_url
from penstock.store.contract import (
    MESSAGE_TYPE,
    Acknowledge,
    AddIterator,
    AddLog,
    ChangeQueue,
    DeleteLog,
    Erase,
    HideEvents,
    HideStream,
    IteratorState,
    Progressed,
    Register,
    RemovePrincipal,
    SetBookmark,
    SetDeadRule,
    StoreCredential,
    StorePrincipal,
    StoreState,
    WriteOutput,
)
from penstock.store.postgres import PostgresStore
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.postgres import Schemas
from tests.store.contract.consumers import made, settle, take
from tests.store.contract.queues import declare, given
from tests.store.kit import Clock, append, commit, do, do_one, event, everything, findings, some, stream_of

ERASING_S_MAX: Final = 60.0
DAY_TICKS: Final = 86_400 * TICKS_PER_SECOND


def seal_all(store: Store) -> None:
    while (seal := next_seal(store)) is not None:
        do_one(store, seal)


def erase_all(store: Store) -> None:
    # The last of it waits for a checkpoint in another thread, which a busy disk holds up.
    deadline = time.monotonic() + ERASING_S_MAX
    while do_one(store, Erase(64)):
        assert time.monotonic() < deadline, "the erasures came to no end"


def say(store: Store, log: str, *values: object) -> None:
    """Messages of a log."""
    append(store, log, [event(type=MESSAGE_TYPE, body=cbor2.dumps(value)) for value in values], context=LOG_CONTEXT)


def fill(store: Store, commits: int, seed: int = 1) -> None:
    """Commits of one to three events in several contexts and streams, in a few batches."""
    random_ = random.Random(seed)
    for start in range(0, commits, 500):
        operations = []
        for number in range(start, min(start + 500, commits)):
            stream, context = f"order-{random_.randrange(40)}", random_.choice(["shop", "shop", "bank", "Ω"])
            made = [
                event(random_.randrange(10**12), f"t{number % 5}", random_.choice([None, "{}"]), b"%d" % number)
                for _ in range(random_.choice([1, 1, 1, 3]))
            ]
            operations.append(commit(stream, made, context=context))
        do(store, *operations)


def ones(store: Store, commits: int) -> None:
    """Commits of one event, which make the smallest records."""
    do(store, *(commit(f"s{number % 7}", some(1)) for number in range(commits)))


def furnish(store: Store, clock: Clock, commits: int = 300) -> None:
    """One of everything that a store can hold."""
    fill(store, commits)
    seal_all(store)
    do_one(store, Register("ann", "shop", "order-", 7))
    do_one(store, Register("bob", "bank", "", 1))
    do_one(store, SetBookmark("bob", "bank", "", 5))
    queue = declare(store)
    done = given(store, queue, "one")
    do_one(store, Acknowledge(queue.id, "one", done.first, done.last))
    given(store, queue, "one", ttl_ms=10)
    clock.advance(20)
    given(store, queue, "two")
    do_one(store, SetDeadRule(queue.id, 3))
    declare(store, "other", "bank", "order-1")
    work_by_key(store, clock)
    for number in (1, 4):
        append(store, "marked", some(2), mark=ProducerMark("producer", number))
    keep_logs(store)
    let_in(store)
    do_one(store, HideStream("shop", "order-1"))
    do_one(store, HideEvents(((3, 5), (9, 9)), (("shop", "order-2"),)))
    erase_all(store)
    do_one(store, HideStream("shop", "order-3"))
    fill(store, 5, seed=2)


def work_by_key(store: Store, clock: Clock) -> None:
    """An ordered queue with what is held, waits, is due later or is dead; a paused one; selecting subscriptions."""
    selection = Selection(("t1", "t2", "happened"), ("order-", "key-")).text
    append(store, "key-1", [*some(2), model.event("t1", b"", due=datetime_of(clock.ticks + DAY_TICKS)), *some(1)])
    append(store, "key-2", some(3))
    queue = made(store, "stream", "by key", 1, selection=selection, retry='{"delay":2.0}', dead_after=4)
    batch = take(store, queue, "Ω", 40)
    buries = [Buried(position, "no Ω") for position in batch.positions[-2:]]
    settle(store, queue, batch, Rest.BACK, retries=[Retried(batch.positions[0], 5000, "later")], buries=buries)
    take(store, queue, "two", 5)
    take(store, queue, "three", 5)
    do_one(store, ChangeQueue(made(store, "prefix:-", "paused").id, paused=1))
    do_one(store, Register("of all", None, "", 3))
    do_one(store, Register("ann", "shop", "", 4, selection))


def keep_logs(store: Store) -> None:
    """Logs, one of them deleted and made again, with iterators over them, over one another and over a stream."""
    for name in ("log", "gone", "again"):
        do_one(store, AddLog(name))
        say(store, name, 1, 2, 3)
    do_one(store, DeleteLog("gone"))
    do_one(store, DeleteLog("again"))
    do_one(store, AddLog("again"))
    say(store, "again", 4, 5)
    made = do_one(store, AddIterator("twice", "log", "map", "return msg * 2", True))
    assert isinstance(made, IteratorState)
    do_one(store, WriteOutput(made.id, made.source, made.source + 2, (b"\x02", b"\x04"), None))
    do_one(store, AddIterator("sums", "twice", "reduce", "return (acc or 0) + msg", True))
    do_one(store, AddIterator("plain", "again", "filter", "return true", False))
    do_one(store, AddIterator("over", "shop/order-4", "map", "return 1", True))


def let_in(store: Store) -> None:
    """Principals with and without limits and an end; one of them is gone again."""
    for name in ("ann", "bob", "gone"):
        do_one(store, StorePrincipal(name, ("read,append:shop/order-%2A*", "all:*"), Limits(polls_max=3)))
        do_one(store, StoreCredential(Credential(f"of {name}", name, CredentialKind.TOKEN, "0" * 64, "Ω", 1)))
    do_one(store, StorePrincipal("bob", (), Limits()))
    do_one(store, StoreCredential(Credential("curve:Ω", "ann", CredentialKind.CURVE, "", "", 1, 1 << 60)))
    do_one(store, RemovePrincipal("gone"))


@contextmanager
def writing(directory: Path, clock: Clock | None = None) -> Iterator[SqliteStore]:
    with closing(SqliteStore(directory, clock=clock or Clock())) as store:
        yield store


@contextmanager
def reading(directory: Path) -> Iterator[SqliteReader]:
    with closing(SqliteReader(directory)) as store:
        yield store


class Stores:
    """Stores by name, in directories."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, name: str) -> str:
        return store_url(self.root / name)

    @contextmanager
    def writing(self, name: str, clock: Clock | None = None) -> Iterator[Store]:
        with closing(SqliteStore(self.root / name, clock=clock or Clock())) as store:
            yield store

    @contextmanager
    def reading(self, name: str) -> Iterator[Store]:
        with closing(open_reader(self.url(name))) as store:
            yield store


class PostgresStores(Stores):
    """Stores by name, in schemas of one database."""

    def __init__(self, root: Path, schemas: Schemas) -> None:
        super().__init__(root)
        self._schemas = schemas

    def url(self, name: str) -> str:
        # Each has its own name, so that tests can share a database.
        return f"{self._schemas.url(self.root / name)}&application_name={name}"

    @contextmanager
    def writing(self, name: str, clock: Clock | None = None) -> Iterator[Store]:
        with closing(PostgresStore(self.url(name), clock=clock or Clock())) as store:
            yield store


@contextmanager
def no_stage(_what: str) -> Iterator[Progressed]:
    yield lambda done, total: None


def backed_up(store: Store, path: Path) -> Written:
    with open_place(path, write=True) as place:
        return back_up(store, place, lambda done, total: None)


def back_up_directory(directory: Path, path: Path) -> Written:
    with reading(directory) as store:
        return backed_up(store, path)


def restored(path: Path, target: Path | str, **options: Any) -> Restored:
    """Restore into a directory, or to a URL."""
    with open_place(path, write=False) as place:
        return restore_backup(place, target if isinstance(target, str) else store_url(target), no_stage, **options)


def check_same(original: Store, copy: Store, *, timelines: int = 1) -> None:
    """Event by event, stream by stream, and in all else; but for the new timelines."""
    events = everything(original)
    assert everything(copy) == events
    check_streams(copy, events)
    check_state(original.state(), copy.state(), timelines=timelines)
    assert findings(copy) == []


def check_streams(store: Store, events: list[Event]) -> None:
    by_stream: dict[tuple[str, str], list[Event]] = {}
    for found in events:
        by_stream.setdefault((found.context, found.stream), []).append(found)
    for (context, stream), wanted in by_stream.items():
        assert stream_of(store, stream, context) == wanted


def check_state(original: StoreState, copy: StoreState, *, timelines: int = 1) -> None:
    assert copy.identity.id == original.identity.id
    assert copy.identity.timeline == original.identity.timeline + timelines
    assert copy.head == original.head
    for name, rows in original.tables.items():
        if name == "timelines":
            assert copy.tables[name][: len(rows)] == rows
            new = [row[:2] for row in copy.tables[name][len(rows) :]]
            assert new == [(copy.identity.timeline, copy.head)][:timelines]
        elif name == "erasures":
            assert [row[:8] for row in copy.tables[name]] == [row[:8] for row in rows]
            assert all(row[8] is not None for row in copy.tables[name])
        else:
            assert copy.tables[name] == rows, name


def files_of(path: Path) -> dict[str, bytes]:
    """All files below a path, or it itself."""
    if path.is_file():
        return {path.name: path.read_bytes()}
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}


def holds(directory: Path, wanted: bytes) -> list[str]:
    """The files that have some bytes in them."""
    return [name for name, data in files_of(directory).items() if wanted in data]
