"""The shared store: the contract, and what only PostgreSQL brings with it."""

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from penstock.errors import (
    InvalidRequest,
    LimitExceeded,
    StorageFull,
)
from penstock.model import ANY, LOG_CONTEXT, Allocation, EventFilter, ProducerMark
from penstock.model.columns import columns_of
from penstock.store import Store
from penstock.store.contract import (
    Acknowledge,
    AddIterator,
    AddLog,
    Allocate,
    Commit,
    DeleteLog,
    Erase,
    Outcome,
    Progress,
    Proposal,
    ReadLimits,
    Register,
    RequireLog,
    Transaction,
)
from penstock.store.postgres import PostgresReader, PostgresStore
from penstock.store.postgres.connection import Target
from penstock.store.tables import consumers
from tests.postgres import Postgres, Schemas
from tests.store.contract import LookingContract, ReadingContract, RememberingContract, StoreContract
from tests.store.contract.case import StoreCase
from tests.store.contract.queues import declare, marker_of, take
from tests.store.kit import Clock, append, attempt, commit, do, do_one, everything, findings, some, stream_of


class Alternating:
    """Two store objects on one database, of which each writes every other batch: as two servers would."""

    def __init__(self, *stores: PostgresStore) -> None:
        self._stores = list(stores)

    def write(self, transactions: Sequence[Transaction]) -> list[Outcome]:
        self._stores.reverse()
        return self._stores[0].write(transactions)

    def recover(self) -> None:
        for store in self._stores:
            store.recover()

    def close(self) -> None:
        for store in self._stores:
            store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stores[1], name)


class OnPostgres(StoreCase):
    """One server alone."""

    @pytest.fixture(autouse=True)
    def _schemas(self, schemas: Schemas) -> None:
        self.schemas = schemas

    def open(self, path: Path, clock: Clock) -> Store:
        return PostgresStore(self.schemas.url(path), clock=clock)

    def open_reader(self, path: Path, clock: Clock) -> Store:
        return PostgresReader(self.schemas.url(path), clock=clock)


class TwoOnPostgres(OnPostgres):
    """Two servers, of which neither may trust what it remembers."""

    def open(self, path: Path, clock: Clock) -> Store:
        url = self.schemas.url(path)
        return cast("Store", Alternating(PostgresStore(url, clock=clock), PostgresStore(url, clock=clock)))


class TestPostgres(OnPostgres, StoreContract):
    """Every promise, by one server."""


class TestTwoOnPostgres(TwoOnPostgres, RememberingContract):
    """What either writes is right whatever the other has written meanwhile."""


@pytest.mark.long
class TestTwoOnPostgresAndAllElse(TwoOnPostgres, LookingContract, ReadingContract):
    """What both have written is found as if one had."""


# --- what it cannot hold --------------------------------------------------------------------------------------


def test_a_nul_character_is_invalid_and_disturbs_nobody(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        outcomes = store.write(
            [
                Transaction((commit("orders", some(1)),)),
                Transaction((Register("a\0b", "shop", "", 1),)),
                Transaction((Register("me", "shop", "", 1), Register("me", "shop", "a\0b", 1))),
                Transaction((Register("you", "shop", "", 1 << 70),)),
                Transaction((commit("orders", some(1)),), ProducerMark("a\0b", 1)),
                Transaction((commit("orders", some(1)),)),
            ]
        )
        assert [isinstance(outcome, InvalidRequest) for outcome in outcomes] == [False, True, True, True, True, False]
        assert store.subscriptions(0, 10) == []
        assert store.head() == 2
        with pytest.raises(InvalidRequest):
            store.find_queues("a\0b")


def test_a_full_disk_is_told_and_nothing_is_written(server: Postgres, url: str) -> None:
    schema = Target.of(url).schema
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(1))
        server.execute(
            f"CREATE FUNCTION {schema}.full() RETURNS trigger LANGUAGE plpgsql AS "
            "$$BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END$$;"
            f"CREATE TRIGGER is_full BEFORE INSERT ON {schema}.records EXECUTE FUNCTION {schema}.full()"
        )
        with pytest.raises(StorageFull, match="could not extend file"):
            append(store, "orders", some(1))
        server.execute(f"DROP FUNCTION {schema}.full() CASCADE")
        store.recover()
        assert append(store, "orders", some(1), 2).position == 2


# --- batches --------------------------------------------------------------------------------------------------


def round_trips(store: PostgresStore, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How often the client waits for the database in the course of something."""
    waits = 0
    cursor = psycopg.Cursor
    fetch, leave, sync = cursor.fetchall, store.db._leave_pipeline, store.db.sync

    def fetched(self: Any) -> Any:
        nonlocal waits
        waits += self.pgresult is None
        return fetch(self)

    def left() -> None:
        nonlocal waits
        waits += 1
        leave()

    def synced() -> None:
        nonlocal waits
        waits += 1
        sync()

    with monkeypatch.context() as patch:
        patch.setattr(cursor, "fetchall", fetched)
        patch.setattr(store.db, "sync", synced)
        patch.setattr(store.db, "_leave_pipeline", left)
        work()
    return waits


@pytest.mark.parametrize("is_alone", [True, False])
def test_a_batch_costs_few_round_trips_however_large_it_is(
    url: str, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    with closing(PostgresStore(url)) as store, closing(PostgresStore(url)) as other:
        (store if is_alone else other).write([Transaction((commit("s0", some(1)),))])
        mark = ProducerMark("p", 1)
        batch = [Transaction((commit(f"s{n}", some(1)),), mark if n == 3 else None) for n in range(64)]
        assert round_trips(store, monkeypatch, lambda: store.write(batch)) <= 5
        large = [Transaction((commit("large", some(1000)),))]
        assert round_trips(store, monkeypatch, lambda: store.write(large)) <= 5


def test_a_batch_of_consumers_costs_few_round_trips(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(100))
        queue = declare(store)
        do_one(store, Register("me", "shop", "", 1))
        batch = [
            Transaction(
                (
                    Acknowledge(queue.id, f"s{n - 1}", n - 1, n - 1),
                    Allocate(queue.id, f"s{n}", 1000, Proposal(Proposal.FRESH, n, n + 1, n, n, 1)),
                )
            )
            for n in range(1, 41)
        ]
        batch += [Transaction((Progress(1, n, n + 1),)) for n in range(1, 41)]
        assert round_trips(store, monkeypatch, lambda: store.write(batch)) <= 6
        assert [one.first for one in store.allocations(queue.id, 0, 100)] == [40]
        found = store.subscription(1)
        assert found is not None
        assert found.position == 41


def test_a_transaction_that_fails_late_takes_all_of_itself_back_and_nothing_else(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(5))
        do(store, Register("me", "shop", "", 1), AddLog("log"))
        outcomes = store.write(
            [
                Transaction((commit("a", some(1)), Progress(1, 1, 2, strict=True))),
                Transaction((Progress(1, 2, 3), commit("a", some(1)), Progress(1, 99, 100, strict=True))),
                Transaction((Progress(1, 2, 4), commit("b", some(1), 7))),
                Transaction((RequireLog("log"), commit("log", some(1), context=LOG_CONTEXT))),
                Transaction((Progress(1, 2, 5), commit("a", some(1), 2)), ProducerMark("p", 1)),
                Transaction((Progress(1, 2, 6, strict=True),), ProducerMark("q", 1)),
                Transaction((commit("a", some(1), 3),), ProducerMark("q", 1)),
            ]
        )
        assert [isinstance(outcome, list) for outcome in outcomes] == [True, False, False, True, True, False, True]
        assert [one.sequence for one in stream_of(store, "a")] == [1, 2, 3]
        found = store.subscription(1)
        assert found is not None
        assert found.position == 5
        assert findings(store) == []


def test_a_queue_has_a_limit_of_allocations(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "QUEUE_ALLOCATIONS_MAX", 64)
    with closing(PostgresStore(url)) as store:
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


def test_a_stream_of_large_records_is_read_in_pieces(url: str) -> None:
    with closing(PostgresStore(url)) as store:
        for _ in range(12):
            append(store, "large", some(1, body=b"x" * (1 << 20)))
        for limits in (ReadLimits(), ReadLimits(bytes_max=1 << 30)):
            assert [one.sequence for one in stream_of(store, "large", limits=limits)] == list(range(1, 13))
        # On a busy machine the time of a scan must not end a page.
        patient = ReadLimits(bytes_max=1 << 30, scan_ms_max=60_000)
        page = store.read_stream("shop", "large", 0, None, patient, backward=True)
        assert [one.sequence for one in page.events] == list(range(12, 0, -1))
        records = store.read_records(1, EventFilter(), ReadLimits(scan_ms_max=60_000)).records
        assert 8 <= len(records) < 12


# --- erasing --------------------------------------------------------------------------------------------------


def holders(server: Postgres, secret: bytes) -> list[str]:
    """The files of the tables in which some bytes are."""
    server.execute("CHECKPOINT")
    files = [path for path in (server.data / "base").rglob("*") if path.is_file()]
    return [path.name for path in files if secret in path.read_bytes()]


def test_erased_contents_are_in_no_row_and_after_a_full_vacuum_in_no_table(server: Postgres, url: str) -> None:
    schema = Target.of(url).schema
    with closing(PostgresStore(url)) as store:
        do(store, AddLog("log"), AddIterator("it", "log", "map", "return msg", True))
        for size in (1, 300, 3000):
            append(store, "log", some(3, body=b"top-secret" * size), context=LOG_CONTEXT)
            append(store, "other", some(1))
        assert holders(server, b"top-secret") != []
        do_one(store, DeleteLog("log"))
        while do_one(store, Erase(3)):
            pass
        dead = f"SELECT sum(n_dead_tup) FROM pg_stat_user_tables WHERE schemaname = '{schema}' AND relname = 'records'"
        assert server.execute(dead) == [(0,)]
        server.execute(f"VACUUM FULL {schema}.records")
        assert holders(server, b"top-secret") == []
        assert len(everything(store)) == 3
        assert findings(store) == []


def test_an_erasure_is_open_while_somebody_reads_from_before_it(url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(PostgresReader(url)) as reader:
        do_one(store, AddLog("log"))
        append(store, "log", some(3), context=LOG_CONTEXT)
        with reader.db.snapshot():
            assert reader.head() == 3
            do_one(store, DeleteLog("log"))
            assert [do_one(store, Erase(100)) for _ in range(20)] == [1] * 20
            assert len(everything(reader)) == 3, "a snapshot is as it was"
        while do_one(store, Erase(100)):
            pass
        assert everything(reader) == []


# --- at once --------------------------------------------------------------------------------------------------


def test_allocations_marks_and_versions_are_safe_under_concurrency(url: str) -> None:
    """Four servers take from one queue, repeat each other's marks and append to one stream, all at once."""
    rounds = 25
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(PostgresStore(url))) for _ in range(4)]
        append(stores[0], "orders", some(60))
        queue = declare(stores[0])
        taken: list[tuple[int, int]] = []
        appended: list[int] = []
        marked: list[bytes] = []

        def work(number: int) -> None:
            store = stores[number]
            for turn in range(rounds):
                given = take(store, queue, f"s{number}")
                if isinstance(given, Allocation):
                    taken.append((given.first, given.last))
                    do_one(store, Acknowledge(queue.id, f"s{number}", given.first, given.last, strict=True))
                head = store.stream_head("shop", "raced")
                outcome = attempt(store, Commit("shop", "raced", head + 1, columns_of(some(1))))
                if isinstance(outcome, list):
                    appended.append(head + 1)
                marked.append(append(store, "marked", some(1), ANY, mark=ProducerMark(f"p{turn}", 1)).commit)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == len(set(taken)), "nothing was handed out twice"
        assert sorted(appended) == list(range(1, stores[0].stream_head("shop", "raced") + 1))
        assert len(marked) == 4 * rounds
        assert len(set(marked)) == rounds == stores[0].stream_head("shop", "marked")
        assert findings(stores[0]) == []


def test_plans_of_what_is_asked_often_use_an_index_for_all_they_look_for(url: str) -> None:
    """A plan without one is fast in tests and slow with a history."""
    from penstock.store.postgres.connection import QUERIES

    often = (
        *("batch_streams", "batch_contexts", "batch_logs", "batch_producers", "first_page", "first_page_of_context"),
        *("first_page_of_stream", "commits_forward", "commits_backward", "records_holding", "record_at", "claim"),
        *("allocate", "acknowledge", "release", "progress_subscription", "stream_head", "find_stream", "streams"),
        *("page_of_records", "page_of_context", "page_of_streams", "next_blocks", "block_before_ticks", "outputs_from"),
        *("next_expiry", "dead_letters", "find_subscription", "queue", "iterator", "page_start", "unsealed_rows"),
    )
    with closing(PostgresStore(url)) as store:
        for name in often:
            text = re.sub(r"%\((\w+)\)s", _placeholder({}), QUERIES[name])
            plan = store.db.connection.execute(f"EXPLAIN (GENERIC_PLAN) {text}".encode()).fetchall()
            lines = "\n".join(line for (line,) in plan)
            seen = set(re.findall(r"Seq Scan on (\w+)", lines)) - {"state"}
            assert seen == set(), f"{name}\n{lines}"
            assert "Filter: (name = " not in lines, f"{name}\n{lines}"


def _placeholder(numbers: dict[str, int]) -> Callable[[re.Match[str]], str]:
    return lambda found: f"${numbers.setdefault(found[1], len(numbers) + 1)}"
