"""The shared store when connections break, commits are left in the air, and PostgreSQL dies or moves elsewhere."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from itertools import count
from typing import Final

import psycopg
import pytest

from penstock.errors import PenstockError, StorageFailure, StoreError
from penstock.model import EventFilter
from penstock.store.contract import AddLog, DeclareQueue, ReadLimits, Register, Transaction
from penstock.store.postgres import PostgresReader, PostgresStore, connection, database
from penstock.store.postgres.connection import Target
from tests.postgres import Postgres, Schemas, postgres
from tests.proxy import ANSWERED, ASKED, Proxy
from tests.seeds import rng
from tests.store.kit import append, commit, do_one, everything, findings, some, stream_of

PATIENCE_S: Final = 30.0
EVERY_BYTES: Final = int(os.environ.get("PENSTOCK_CUT_EVERY", "41"))
"""How many bytes lie between two places where a commit's conversation is cut; 1 in the soak."""
INTERLEAVINGS: Final = int(os.environ.get("PENSTOCK_INTERLEAVINGS", "50"))


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def recovered(store: PostgresStore) -> bool:
    try:
        store.recover()
    except StoreError:
        return False
    return True


def readable(reader: PostgresReader) -> bool:
    try:
        reader.head()
    except StoreError:
        return False
    return True


# --- no position is skipped -----------------------------------------------------------------------------------


class Held:
    """A store whose next commit waits until it is let go."""

    def __init__(self, store: PostgresStore) -> None:
        self.reached, self.let_go = threading.Event(), threading.Event()

        def held() -> None:
            del store.db.commit
            self.reached.set()
            assert self.let_go.wait(PATIENCE_S)
            store.db.commit()

        store.db.commit = held  # type: ignore[method-assign]


def test_a_follower_skips_nothing_while_a_commit_is_held_open(schemas: Schemas) -> None:
    """Random interleavings of three who write and one who follows; one of the three is stopped before its commit."""
    url = schemas.url()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(PostgresStore(url))) for _ in range(3)]
        follower = stack.enter_context(closing(PostgresReader(url)))
        followed: list[int] = []

        def follow() -> None:
            page = follower.read_all(len(followed) + 1, EventFilter(), ReadLimits())
            followed.extend(one.position for one in page.events)
            assert followed == list(range(1, len(followed) + 1))

        written = 0
        for number in range(INTERLEAVINGS):
            chance = rng(f"interleaving {number}")
            chance.shuffle(stores)
            sizes = [chance.randint(1, 4) for _ in stores]
            held = Held(stores[0])
            threads = [
                threading.Thread(target=append, args=(store, f"s{chance.randrange(3)}", some(size)))
                for store, size in zip(stores, sizes, strict=True)
            ]
            threads[0].start()
            assert held.reached.wait(PATIENCE_S)
            for thread in threads[1:]:
                thread.start()
                for _ in range(chance.randrange(3)):
                    follow()
            assert len(followed) == written, "what is not committed is not seen, nor what comes after it"
            held.let_go.set()
            while any(thread.is_alive() for thread in threads):
                follow()
            follow()
            written += sum(sizes)
            assert len(followed) == written
        assert findings(stores[0]) == []


def test_a_follower_skips_nothing_under_load(schemas: Schemas) -> None:
    url = schemas.url()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(PostgresStore(url))) for _ in range(3)]
        follower = stack.enter_context(closing(PostgresReader(url)))

        def work(store: PostgresStore, number: int) -> None:
            for turn in range(30):
                store.write([Transaction((commit(f"s{number}", some(1 + turn % 3)),)) for _ in range(1 + turn % 4)])

        threads = [threading.Thread(target=work, args=(store, number)) for number, store in enumerate(stores)]
        for thread in threads:
            thread.start()
        followed: list[int] = []
        while any(thread.is_alive() for thread in threads) or len(followed) < stores[0].head():
            page = follower.read_all(len(followed) + 1, EventFilter(), ReadLimits())
            followed += [one.position for one in page.events]
            assert followed == list(range(1, len(followed) + 1))
        for thread in threads:
            thread.join()
        assert findings(stores[0]) == []


def test_a_server_that_stands_still_in_its_turn_loses_it(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "IDLE_MS_MAX", 1000)
    monkeypatch.setattr(connection, "LOCK_MS_MAX", 1500)
    url = schemas.url()
    with closing(PostgresStore(url)) as still, closing(PostgresStore(url)) as other:
        held = Held(still)
        failures: list[PenstockError] = []

        def stand_still() -> None:
            try:
                append(still, "orders", some(1))
            except PenstockError as error:
                failures.append(error)

        thread = threading.Thread(target=stand_still)
        thread.start()
        assert held.reached.wait(PATIENCE_S)
        with pytest.raises(StorageFailure, match="writing for too long"):
            append(other, "orders", some(1))
        until(lambda: recovered(other))
        assert append(other, "orders", some(1)).position == 1
        held.let_go.set()
        thread.join()
        (failure,) = failures
        assert isinstance(failure, StorageFailure)
        still.recover()
        assert append(still, "orders", some(1)).position == 2


# --- the conversation is cut ----------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: Postgres) -> Iterator[Proxy]:
    with Proxy(server.port) as started:
        yield started


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", [ASKED, ANSWERED])
def test_a_commit_whose_conversation_is_cut_anywhere_is_answered_truly(
    server: Postgres, schemas: Schemas, proxy: Proxy, way: str
) -> None:
    """All of it or nothing of it, and whoever is told that it is there, or is not, was told the truth."""
    schema = Target.of(schemas.url()).schema
    with (
        closing(PostgresStore(server.url(schema, port=proxy.port))) as store,
        closing(PostgresReader(server.url(schema))) as reader,
    ):
        do_one(store, Register("me", "shop", "", 1))
        expected, answers = 1, set[tuple[bool, bool]]()
        for offset in count(0, EVERY_BYTES):
            batch = [
                Transaction((commit("orders", some(2), expected),)),
                Transaction((commit("others", some(1), expected // 2 + 1),)),
            ]
            proxy.arm(way, offset)
            try:
                outcomes = store.write(batch)
                is_told = all(isinstance(outcome, list) for outcome in outcomes)
                assert is_told
            except StorageFailure:
                is_told = False
            is_over = proxy.disarm()
            there = reader.stream_head("shop", "orders") - expected + 1, reader.stream_head("shop", "others")
            is_there = there == (2, expected // 2 + 1)
            assert is_there or there == (0, expected // 2), "all or nothing"
            assert is_there == is_told
            answers.add((is_over, is_told))
            expected += 2 * is_there
            if not is_told:
                store.recover()
            if is_over:
                break
        # Nothing is written unless all of it arrived; what the answer to that was is known although it did not come.
        assert answers >= {(True, True), (False, False)}
        assert way == ASKED or (False, True) in answers
        assert findings(reader) == []
        assert [one.position for one in everything(reader)] == list(range(1, reader.head() + 1))


def test_a_commit_of_which_nobody_can_tell_fails_and_is_whole_or_not_there(
    server: Postgres, schemas: Schemas, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOOKUP_S_MAX", 0.3)
    schema = Target.of(schemas.url()).schema
    with closing(PostgresStore(server.url(schema, port=proxy.port))) as store:
        append(store, "orders", some(1))
        commit_ = store.db.commit

        def cut_off() -> None:
            proxy.is_refusing = True
            proxy.arm(ANSWERED, 0)
            commit_()

        with monkeypatch.context() as patch:
            patch.setattr(store.db, "commit", cut_off)
            with pytest.raises(StorageFailure, match="cannot be found out"):
                append(store, "orders", some(3), 2)
        assert not recovered(store)
        proxy.is_refusing = False
        store.recover()
        assert store.head() in (1, 4)
        events = some(1)
        head = store.head()
        append(store, "orders", events, head + 1)
        assert append(store, "orders", events, head + 1).repeated


def test_a_transaction_of_another_line_of_history_says_nothing(
    schemas: Schemas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover the numbers of transactions that were lost are given out again."""
    with closing(PostgresStore(schemas.url())) as store:
        append(store, "orders", some(1))
        commit_ = store.db.commit

        def lost() -> None:
            commit_()
            store.db.timeline = "00000000"
            store.db.connection.close()
            raise StorageFailure("gone")

        monkeypatch.setattr(store.db, "commit", lost)
        with pytest.raises(StorageFailure, match="cannot be found out"):
            append(store, "orders", some(1))


def test_a_reader_goes_on_when_its_connection_was_ended(server: Postgres, schemas: Schemas) -> None:
    url = schemas.url()
    with closing(PostgresStore(url)) as store, closing(PostgresReader(url)) as reader:
        append(store, "orders", some(3))
        do_one(store, DeclareQueue("shop", "work", "", 1))
        do_one(store, AddLog("log"))
        reads: list[Callable[[], object]] = [
            reader.head,
            reader.now,
            reader.identity,
            reader.stats,
            reader.state,
            reader.unsealed,
            lambda: len(everything(reader)),
            lambda: len(everything(reader, EventFilter("shop", "ord"))),
            lambda: len(stream_of(reader, "orders")),
            lambda: reader.read_stream("shop", "orders", 0, None, ReadLimits(), backward=True),
            lambda: reader.queues(0, 10),
            lambda: reader.logs("", 10),
            lambda: reader.read_output(1, 0, ReadLimits()),
            lambda: findings(reader),
        ]
        for read in reads:
            before = read() if read != reader.now else None
            server.execute(f"SELECT pg_terminate_backend({reader.db.connection.info.backend_pid}, 5000)")
            assert before is None or read() == before
        server.execute(f"SELECT pg_terminate_backend({store.db.connection.info.backend_pid}, 5000)")
        with pytest.raises(StorageFailure):
            append(store, "orders", some(1))
        store.recover()
        assert append(store, "orders", some(1), 4).position == 4


# --- PostgreSQL itself ----------------------------------------------------------------------------------------


def test_what_was_acknowledged_outlives_the_death_of_postgres() -> None:
    """Killed twice in the middle of a load, and started again."""
    with (
        postgres() as mortal,
        closing(PostgresStore(mortal.url())) as store,
        closing(PostgresReader(mortal.url())) as reader,
    ):
        acknowledged: list[int] = []
        unknown: list[int] = []
        is_over = threading.Event()

        def work() -> None:
            while not is_over.is_set():
                head = 0
                try:
                    head = store.stream_head("shop", "orders")
                    append(store, "orders", some(2), head + 1)
                    acknowledged.append(head + 1)
                except PenstockError:
                    unknown.append(head + 1)
                    until(lambda: recovered(store) or is_over.is_set())

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(2):
            enough = len(acknowledged) + 20
            until(lambda: len(acknowledged) >= enough)  # noqa: B023
            mortal.kill()
            until(lambda: not readable(reader))
            mortal.start()
            until(lambda: readable(reader))
        enough = len(acknowledged) + 20
        until(lambda: len(acknowledged) >= enough)
        is_over.set()
        thread.join()
        sequences = [one.sequence for one in stream_of(reader, "orders")]
        assert sequences == list(range(1, len(sequences) + 1))
        assert set(acknowledged) <= set(sequences)
        assert len(acknowledged) <= len(sequences) // 2 <= len(acknowledged) + len(unknown)
        assert findings(reader) == []


def test_a_store_follows_its_database_to_another_address() -> None:
    with postgres() as first, first.standby() as second:
        first.set("synchronous_standby_names", "*")
        until(lambda: first.execute("SELECT sync_state FROM pg_stat_replication") == [("sync",)])
        hosts = f"postgresql://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres"
        with closing(PostgresStore(hosts)) as store, closing(PostgresReader(hosts)) as reader:
            for number in range(5):
                append(store, "orders", some(1), number + 1)
            with pytest.raises(StoreError, match="read-only"):
                PostgresStore(second.url())
            with closing(PostgresReader(second.url())) as beside:
                until(lambda: beside.head() == 5)
                assert len(everything(beside)) == 5
            standby_first = f"postgresql://postgres@127.0.0.1:{second.port},127.0.0.1:{first.port}/postgres"
            with closing(PostgresReader(standby_first)) as careful:
                assert careful.db.connection.info.port == first.port
            first.kill()
            with pytest.raises(StorageFailure):
                append(store, "orders", some(1), 6)
            assert not recovered(store)
            second.execute("SELECT pg_promote()")
            until(lambda: recovered(store))
            assert store.head() == 5
            assert append(store, "orders", some(1), 6).position == 6
            assert len(everything(reader)) == 6


def test_a_database_without_a_connection_left_is_told_and_comes_back(schemas: Schemas) -> None:
    with postgres("max_connections=8", "superuser_reserved_connections=0") as small, ExitStack() as stack:
        with closing(PostgresStore(small.url())) as store:
            append(store, "orders", some(1))
        others = []
        with suppress(psycopg.OperationalError):
            while True:
                others.append(stack.enter_context(psycopg.connect(small.url())))
        with pytest.raises(StorageFailure, match="too many clients"):
            PostgresStore(small.url())
        others[0].close()
        others[1].close()

        def opened() -> bool:
            try:
                PostgresStore(small.url()).close()
            except StorageFailure:
                return False
            return True

        until(opened)
