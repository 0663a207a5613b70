"""What stays: identity, counts, everything after opening again, and what a reader beside the writer sees."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, StoreError
from penstock.model import LOG_CONTEXT, Allocation, EventFilter, ProducerMark, QueueInfo, StoreStats, SubscriptionInfo
from penstock.store import Store
from penstock.store.contract import (
    AddIterator,
    AddLog,
    Allocate,
    DeclareQueue,
    DeleteLog,
    Erase,
    Progress,
    Proposal,
    ReadLimits,
    Register,
    Transaction,
    WriteOutput,
)
from tests.store.contract.case import StoreCase
from tests.store.contract.transactions import picture
from tests.store.kit import Clock, append, attempt, commit, do, do_one, event, everything, findings, some


def furnish(store: Store, lease_ms: int = 1000) -> None:
    """Some of everything."""
    for number in range(5):
        append(store, f"s{number}", some(3, ticks=number))
        append(store, "log", some(1), context=LOG_CONTEXT)
    append(store, "s0", some(1), mark=ProducerMark("p", 1))
    do(store, Register("me", "shop", "s", 1), DeclareQueue("shop", "work", "", 1), AddLog("log"))
    do(store, Progress(1, 1, 4, 2), Allocate(1, "me", lease_ms, Proposal(Proposal.FRESH, 1, 5, 1, 4, 3)))
    do_one(store, AddIterator("it", "log", "map", "return msg", True))
    do_one(store, WriteOutput(1, 5, 7, (b"a", b"b"), b"state"))


class KeepingContract(StoreCase):
    def test_a_store_has_an_identity_of_its_own_that_stays(self, tmp_path: Path, clock: Clock) -> None:
        with closing(self.open(tmp_path / "a", clock)) as first, closing(self.open(tmp_path / "b", clock)) as second:
            one, two = first.identity(), second.identity()
        assert one.id != two.id
        assert one.timeline == 1
        with closing(self.open(tmp_path / "a", clock)) as again:
            assert again.identity() == one

    def test_opening_again_keeps_everything(self, tmp_path: Path, clock: Clock) -> None:
        with closing(self.open(tmp_path, clock)) as store:
            furnish(store)
            before, stats = picture(store), store.stats()
            output = store.read_output(1, 0, ReadLimits())
        clock.advance(-5000)
        with closing(self.open(tmp_path, clock)) as store:
            assert picture(store) == before
            assert store.read_output(1, 0, ReadLimits()) == output == [b"a", b"b"]
            assert store.stats().head == stats.head
            assert append(store, "s0", some(1), 5).position == stats.head + 1
            assert append(store, "s0", some(1), mark=ProducerMark("p", 1)).repeated
            assert append(store, "new", some(1), 1, "new").position == stats.head + 2
            made = do_one(store, Register("you", "shop", "", 1))
            assert isinstance(made, SubscriptionInfo)
            assert made.id > 1
            assert findings(store) == []

    def test_recovering_keeps_everything(self, store: Store) -> None:
        furnish(store)
        before = picture(store)
        store.recover()
        assert picture(store) == before
        assert append(store, "s0", some(1), 5).sequence == 5

    def test_stats_count_everything(self, store: Store) -> None:
        empty = store.stats()
        assert (empty.head, empty.commits, empty.contexts, empty.streams) == (0, 0, 0, 0)
        furnish(store)
        stats = store.stats()
        assert stats == StoreStats(
            store.identity().id,
            1,
            stats.schema,
            head=21,
            commits=11,
            contexts=2,
            streams=6,
            subscriptions=1,
            queues=1,
            logs=1,
            iterators=1,
            body_bytes=stats.body_bytes,
            file_bytes=stats.file_bytes,
        )
        assert stats.body_bytes >= 21 * len(b"body")
        assert stats.file_bytes > 0

    def test_verify_finds_nothing_in_a_healthy_store_and_tells_how_far_it_is(self, store: Store) -> None:
        told: list[tuple[int, int]] = []
        assert list(store.verify(lambda done, total: told.append((done, total)))) == []
        furnish(store)
        for _ in range(700):
            store.write([Transaction((commit("many", [event()]),))])
        do_one(store, DeleteLog("log"))
        assert findings(store) == []
        while do_one(store, Erase(2)):
            assert findings(store) == []
        told.clear()
        assert list(store.verify(lambda done, total: told.append((done, total)))) == []
        assert told[-1] == (721, 721)
        assert told == sorted(told)

    def test_verify_finds_a_bookmark_and_a_marker_that_lie_outside(self, tmp_path: Path, clock: Clock) -> None:
        with closing(self.open(tmp_path, clock)) as store:
            append(store, "orders", some(3))
            do(store, Register("mine", "shop", "", 99), DeclareQueue("shop", "work", "", 77))
            found = findings(store)
        assert len(found) == 2
        assert re.search("mine.*99", "\n".join(found))
        assert re.search("work.*77", "\n".join(found))

    # -- a reader beside the writer

    def test_a_reader_sees_every_commit_at_once(self, store: Store, reader: Store) -> None:
        for number in range(1, 20):
            append(store, "orders", some(2))
            assert reader.head() == 2 * number
            assert len(everything(reader)) == 2 * number
            assert reader.stream_head("shop", "orders") == 2 * number

    def test_a_reader_sees_all_that_the_writer_sees(self, store: Store, reader: Store) -> None:
        furnish(store)
        assert picture(reader) == picture(store)
        assert reader.identity() == store.identity()
        assert reader.stats() == store.stats()
        assert reader.read_output(1, 0, ReadLimits()) == [b"a", b"b"]
        assert reader.claim(1, "me", None) == store.claim(1, "me", None)
        assert findings(reader) == []

    def test_a_reader_writes_nothing(self, store: Store, reader: Store) -> None:
        with pytest.raises(StoreError):
            reader.write([Transaction((commit("orders", some(1)),))])
        assert store.head() == 0

    def test_a_reader_knows_when_an_allocation_expires(self, store: Store, reader: Store, clock: Clock) -> None:
        append(store, "orders", some(2))
        do_one(store, DeclareQueue("shop", "work", "", 1))
        given = do_one(store, Allocate(1, "me", 1000, Proposal(Proposal.FRESH, 1, 3, 1, 2, 2)))
        assert isinstance(given, Allocation)
        assert reader.claim(1, "you", None) is None
        clock.advance(1000)
        assert reader.claim(1, "you", None) == given
        assert reader.queues(0, 10) == [QueueInfo(1, "shop", "work", "", 3, 2, 0, 1, 1, 0, None)]

    # -- questions that no store can answer

    def test_a_question_with_an_impossible_number_or_name_is_invalid(self, store: Store) -> None:
        append(store, "orders", some(1))
        huge, torn = 1 << 70, "\ud800"
        questions = (
            lambda: store.read_stream("shop", "orders", huge, None, ReadLimits()),
            lambda: store.read_stream("shop", torn, 1, None, ReadLimits()),
            lambda: store.read_all(1, EventFilter("shop", torn), ReadLimits()),
            lambda: store.read_all(1, EventFilter(None, torn), ReadLimits()),
            lambda: store.streams("shop", torn, "", 10),
            lambda: store.contexts(torn, 10),
            lambda: store.subscription(huge),
            lambda: store.find_queues(torn),
            lambda: store.log(torn),
            lambda: store.read_output(huge, 0, ReadLimits()),
        )
        for question in questions:
            with pytest.raises(InvalidRequest):
                question()
        assert isinstance(attempt(store, commit("orders", some(1), 2)), list)
