"""The embedded store: the contract, and what only SQLite brings with it."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import LimitExceeded, NotAStore, StoreError, StoreInUse, StoreTooNew
from penstock.model import LOG_CONTEXT, Allocation, EventFilter
from penstock.store import Store, contract
from penstock.store.contract import (
    Acknowledge,
    AddIterator,
    AddLog,
    Allocate,
    DeleteLog,
    Erase,
    Operation,
    Proposal,
    ReadLimits,
    Transaction,
    WriteOutput,
)
from penstock.store.record import Record, Run
from penstock.store.sqlite import SqliteReader, SqliteStore, database
from penstock.store.sqlite.schema import SCHEMA_VERSION
from penstock.store.tables import consumers
from tests.seeds import rng
from tests.store.contract import RememberingContract, StoreContract
from tests.store.contract.queues import declare, marker_of, take
from tests.store.kit import Clock, append, attempt, commit, do, do_one, everything, findings, some, stream_of

FILE = "penstock.db"
WAL_BYTES_MAX = 1 << 20
HOLDER = """
import sys
from penstock.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


class TestSqlite(StoreContract):
    def open(self, path: Path, clock: Clock) -> Store:
        return SqliteStore(path, clock=clock)

    def open_reader(self, path: Path, clock: Clock) -> Store:
        return SqliteReader(path, clock=clock)


class TestSqliteThatForgets(RememberingContract):
    """Caches so small that almost nothing is remembered between two batches. Readers have none."""

    def open(self, path: Path, clock: Clock) -> Store:
        return SqliteStore(path, clock=clock, stream_cache_max=1)

    def open_reader(self, path: Path, clock: Clock) -> Store:
        return SqliteReader(path, clock=clock)


# --- what is opened -------------------------------------------------------------------------------------------


def test_a_store_is_made_with_all_folders_it_needs(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "a" / "b")) as store:
        assert store.stats().schema == SCHEMA_VERSION
        assert findings(store) == []


def test_an_empty_file_is_brought_to_the_present_schema(tmp_path: Path) -> None:
    (tmp_path / FILE).touch()
    with closing(SqliteStore(tmp_path)) as store:
        append(store, "orders", some(1))
        assert store.stats().schema == SCHEMA_VERSION
    with closing(SqliteReader(tmp_path)) as reader:
        assert reader.head() == 1


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        store.db.connection.pragma("user_version", SCHEMA_VERSION + 7)
    for kind in (SqliteStore, SqliteReader, SqliteStore):
        with pytest.raises(StoreTooNew) as caught:
            kind(tmp_path)
        assert (caught.value.found, caught.value.known) == (SCHEMA_VERSION + 7, SCHEMA_VERSION)


def test_a_database_of_another_program_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as other:
        other.execute("CREATE TABLE theirs (x)")
        other.commit()
    before = (tmp_path / FILE).read_bytes()
    for kind in (SqliteStore, SqliteReader):
        with pytest.raises(NotAStore, match="other program"):
            kind(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert not (tmp_path / f"{FILE}-wal").exists()


@pytest.mark.parametrize("size", [100, 1000, 100_000])
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / FILE).write_bytes(b"something else " * (size // 15))
    for kind in (SqliteStore, SqliteReader):
        with pytest.raises(NotAStore, match="no SQLite database"):
            kind(tmp_path)


def test_a_reader_makes_no_store(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(NotAStore):
            SqliteReader(place)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / FILE).touch()
    with pytest.raises(StoreError):
        SqliteReader(tmp_path)


# --- who owns it ----------------------------------------------------------------------------------------------


def test_a_second_opener_is_refused_until_the_first_is_done(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for _ in range(2):
            with pytest.raises(StoreInUse):
                SqliteStore(tmp_path)
        append(store, "orders", some(1))
    with closing(SqliteStore(tmp_path)) as store:
        assert store.head() == 1


def test_an_opener_in_another_process_is_named_and_its_death_frees_the_store(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(StoreInUse, match=rf"process {holder.pid}\b"):
            SqliteStore(tmp_path)
        with closing(SqliteReader(tmp_path)) as reader:
            assert reader.head() == 0
        holder.kill()
    with closing(SqliteStore(tmp_path)) as store:
        append(store, "orders", some(1))


def test_a_store_that_cannot_be_opened_is_not_held(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"something else" * 100)
    with pytest.raises(NotAStore):
        SqliteStore(tmp_path)
    (tmp_path / FILE).unlink()
    with closing(SqliteStore(tmp_path)) as store:
        append(store, "orders", some(1))


# --- the WAL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reading", [False, True])
def test_the_wal_stays_within_its_limit(tmp_path: Path, reading: bool) -> None:
    with (
        closing(SqliteStore(tmp_path, wal_bytes_max=WAL_BYTES_MAX)) as store,
        closing(SqliteReader(tmp_path)) as reader,
    ):
        largest = position = 0
        for number in range(800):
            append(store, f"s{number % 10}", some(5, body=b"x" * 4000))
            if reading:
                page = reader.read_all(position + 1, EventFilter(), ReadLimits(events_max=50))
                position = page.events[-1].position
            largest = max(largest, (tmp_path / f"{FILE}-wal").stat().st_size)
        assert store.head() == 4000
        assert largest < 4 * WAL_BYTES_MAX
        assert (tmp_path / FILE).stat().st_size > 3 * largest, "the rest is in the file"


def test_the_wal_shrinks_to_its_use_again_after_a_reader_held_it(tmp_path: Path) -> None:
    wal = tmp_path / f"{FILE}-wal"
    with (
        closing(SqliteStore(tmp_path, wal_bytes_max=WAL_BYTES_MAX)) as store,
        closing(SqliteReader(tmp_path)) as reader,
    ):
        append(store, "orders", some(1))
        with reader.db.snapshot():
            reader.head()
            for _ in range(300):
                append(store, "orders", some(5, body=b"x" * 4000))
            assert reader.head() == 1
        grown = wal.stat().st_size
        assert grown > 4 * WAL_BYTES_MAX
        for _ in range(900):
            append(store, "orders", some(5, body=b"x" * 4000))
        assert wal.stat().st_size < grown + 4 * WAL_BYTES_MAX
        assert reader.head() == 6001
        assert len(everything(reader)) == 6001


def test_closing_while_the_wal_is_copied_comes_to_an_end(tmp_path: Path) -> None:
    for number in range(20):
        with closing(SqliteStore(tmp_path, wal_bytes_max=1)) as store:
            batch = [Transaction((commit(f"s{n}", some(1, body=b"x" * 4000)),)) for n in range(20 * number)]
            store.write(batch)
    with closing(SqliteStore(tmp_path)) as store:
        assert findings(store) == []


# --- erasing --------------------------------------------------------------------------------------------------


def holders(directory: Path, secret: bytes) -> list[str]:
    """The files of a store in which some bytes are."""
    return sorted(path.name for path in directory.iterdir() if secret in path.read_bytes())


@pytest.mark.parametrize("size", [1, 40, 2000])
def test_erased_bytes_are_in_no_file_of_the_store(tmp_path: Path, size: int) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        do_one(store, AddLog("log"))
        for _ in range(10):
            append(store, "log", some(3, headers="top-secret", body=b"top-secret" * size), context=LOG_CONTEXT)
            append(store, "other", some(1))
        store.recover()  # All of it is in the file now, as after a checkpoint.
        append(store, "log", some(3, body=b"top-secret" * size), context=LOG_CONTEXT)
        assert holders(tmp_path, b"top-secret") == [FILE, f"{FILE}-wal"]
        do_one(store, DeleteLog("log"))
        while do_one(store, Erase(3)):
            pass
        assert holders(tmp_path, b"top-secret") == []
        assert len(everything(store)) == 10
        assert findings(store) == []


@pytest.mark.parametrize("size", [20, 250, 1500, 6000])
def test_logs_deleted_in_any_order_leave_nothing_behind(tmp_path: Path, size: int) -> None:
    """Small rows share pages, and SQLite moves rows from page to page: none may leave a copy."""
    chance = rng(f"logs of {size}")
    with closing(SqliteStore(tmp_path)) as store:
        names = [f"log{number}" for number in range(6)]
        for name in names:
            do(store, AddLog(name), AddIterator(f"over {name}", name, "reduce", "return msg", True))
        numbers = {name: store.iterator(f"over {name}") for name in names}
        written: list[Operation] = []
        read = dict.fromkeys(names, 0)
        for _ in range(300):
            name = chance.choice(names)
            body = f"secret of {name};".encode() * (chance.randrange(size) // 15 + 1)
            iterator = numbers[name]
            assert iterator is not None
            written.append(commit(name, some(1, body=body), context=LOG_CONTEXT))
            written.append(
                WriteOutput(iterator.id, read[name], read[name] + 1, (body,), body[: chance.randrange(size)])
            )
            read[name] += 1
        store.write([Transaction((operation,)) for operation in written])
        chance.shuffle(names)
        for name in names:
            do_one(store, DeleteLog(name))
            while do_one(store, Erase(chance.randint(1, 10))):
                pass
            assert holders(tmp_path, f"secret of {name};".encode()) == []
        assert findings(store) == []


def test_an_erasure_is_open_while_somebody_reads_what_the_log_file_holds(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store, closing(SqliteReader(tmp_path)) as reader:
        do_one(store, AddLog("log"))
        append(store, "log", some(3, body=b"top-secret"), context=LOG_CONTEXT)
        with reader.db.snapshot():
            assert reader.head() == 3
            do_one(store, DeleteLog("log"))
            assert [do_one(store, Erase(100)) for _ in range(3)] == [1, 1, 1]
            assert len(everything(reader)) == 3, "a snapshot is as it was"
        while do_one(store, Erase(100)):
            pass
        assert holders(tmp_path, b"top-secret") == []
        assert everything(reader) == []


def test_a_long_log_file_is_copied_by_the_thread_before_it_is_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "EMPTIED_PAGES_MAX", 0)
    with closing(SqliteStore(tmp_path)) as store:
        do_one(store, AddLog("log"))
        append(store, "log", some(3, body=b"top-secret"), context=LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        while do_one(store, Erase(100)):
            pass
        assert holders(tmp_path, b"top-secret") == []


def test_an_erasure_that_was_not_finished_is_finished_after_opening_again(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        do(store, AddLog("log"), AddIterator("it", "log", "map", "return msg", True))
        for _ in range(5):
            append(store, "log", some(3, body=b"top-secret"), context=LOG_CONTEXT)
        do_one(store, WriteOutput(1, 0, 1, (b"top-secret",)))
        do_one(store, DeleteLog("log"))
        do_one(store, Erase(2))
    for _ in range(10):
        with closing(SqliteStore(tmp_path)) as store:
            assert everything(store) == []
            if not do_one(store, Erase(2)) or not do_one(store, Erase(2)):
                break
    assert holders(tmp_path, b"top-secret") == []


def unerased(store: SqliteStore) -> list[int]:
    """Of how many events each erasure still has records to rewrite."""
    return [last - done for *_, last, done in store.db.rows("unerased", {"limit": 1000})]


def test_one_step_takes_many_small_erasures_and_no_more_records_than_it_may(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for number in range(10):
            do_one(store, AddLog(f"log{number}"))
            for _ in range(3):
                append(store, f"log{number}", some(1), context=LOG_CONTEXT)
        do(store, *(DeleteLog(f"log{number}") for number in range(10)))
        do_one(store, Erase(7))
        assert unerased(store) == [2, *[3] * 7]
        do_one(store, Erase(100))
        assert unerased(store) == []


def test_what_is_rewritten_leaves_the_files_while_others_are_still_being_erased(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        do(store, AddLog("small"), AddLog("large"))
        append(store, "small", some(1, body=b"top-secret"), context=LOG_CONTEXT)
        for _ in range(50):
            append(store, "large", some(1), context=LOG_CONTEXT)
        do(store, DeleteLog("small"), DeleteLog("large"))
        assert [do_one(store, Erase(1)) for _ in range(2)] == [2, 1]
        assert unerased(store) == [49]
        assert holders(tmp_path, b"top-secret") == []


def test_a_page_takes_a_record_apart_once_however_many_erasures_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_apart: list[int] = []
    runs = Record.runs

    def counted(record: Record) -> list[Run]:
        taken_apart.append(record.position)
        return runs(record)

    with closing(SqliteStore(tmp_path)) as store:
        for number in range(40):
            do_one(store, AddLog(f"log{number}"))
            append(store, f"log{number}", some(1), context=LOG_CONTEXT)
        for _ in range(60):
            append(store, "orders", some(1))
        do(store, *(DeleteLog(f"log{number}") for number in range(40)))
        monkeypatch.setattr(Record, "runs", counted)
        assert len(everything(store)) == 60
        assert len(taken_apart) == 100
        taken_apart.clear()
        assert len(stream_of(store, "orders")) == 60
        assert taken_apart == [], "other streams do not matter"


def test_a_page_of_everything_ends_after_any_record_when_its_time_is_up(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for _ in range(5):
            append(store, "orders", some(2))
        for wanted in (EventFilter(), EventFilter("shop"), EventFilter("shop", "ord")):
            span = store.read_records(1, wanted, ReadLimits(scan_ms_max=0))
            assert ([record.position for record in span.records], span.next, span.end) == ([1], 3, False)


def test_there_is_a_limit_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "LOGS_MAX", 2)
    with closing(SqliteStore(tmp_path)) as store:
        assert do(store, AddLog("a"), AddLog("b")) == [True, True]
        refused = attempt(store, AddLog("c"))
        assert isinstance(refused, LimitExceeded)
        assert (refused.limit, refused.value, refused.maximum) == ("logs_max", 3, 2)
        assert do_one(store, AddLog("a")) is False, "one that is there is fine"
        do_one(store, DeleteLog("a"))
        assert do_one(store, AddLog("c")) is True


def test_a_queue_has_a_limit_of_allocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "QUEUE_ALLOCATIONS_MAX", 64)
    store = SqliteStore(tmp_path)
    append(store, "orders", some(100))
    queue = declare(store)
    steps = [Proposal(Proposal.FRESH, n, n + 1, n, n, 1) for n in range(1, 66)]
    outcomes = store.write([Transaction((Allocate(queue.id, f"s{p.first}", 9999, p),)) for p in steps])
    assert all(isinstance(outcome, list) for outcome in outcomes[:64])
    refused = outcomes[64]
    assert isinstance(refused, LimitExceeded)
    assert (refused.limit, refused.maximum) == ("queue_allocations_max", 64)
    assert marker_of(store, queue) == 65
    do_one(store, Acknowledge(queue.id, "s1", 1, 1))
    assert isinstance(take(store, queue, "late"), Allocation)
    found: list[int] = []
    while page := store.allocations(queue.id, found[-1] if found else 0, 1000):
        found += [one.first for one in page]
    assert found == list(range(2, 66))
    store.close()
