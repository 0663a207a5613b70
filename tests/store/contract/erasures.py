"""Erasures of streams and of events by position: hidden at once, gone in steps, and the ledger that says so."""

from dataclasses import replace

import pytest

from penstock.errors import InvalidRequest, OutputMoved
from penstock.model import LOG_CONTEXT, EventFilter
from penstock.store import Store
from penstock.store.contract import (
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    Erase,
    Erasure,
    Hid,
    HideEvents,
    HideStream,
    IteratorState,
    Operation,
    ReadLimits,
    WriteOutput,
)
from tests.store.contract.case import StoreCase
from tests.store.contract.iterators import add_iterator
from tests.store.contract.logs import erase_all
from tests.store.contract.reads import LIMITS
from tests.store.kit import Clock, append, attempt, commit, do, do_one, everything, find, some, stream_of


def hide(store: Store, operation: Operation) -> Hid:
    """The answer of an operation that hides."""
    hid = do_one(store, operation)
    assert isinstance(hid, Hid)
    return hid


def positions(store: Store, wanted: EventFilter | None = None) -> list[int]:
    return [one.position for one in everything(store, wanted or EventFilter())]


class ErasureContract(StoreCase):
    # -- streams

    def test_a_stream_is_hidden_at_once_and_erased_in_steps(self, store: Store, reader: Store) -> None:
        for ticks in range(5):
            append(store, "a", some(3, ticks=ticks))
            append(store, "ab", some(1, ticks=ticks))
            append(store, "a", some(1, ticks=ticks), context="other")
        assert hide(store, HideStream("shop", "a")) == Hid(15, [])
        while True:
            for one in (store, reader):
                for back in (False, True):
                    assert one.read_stream("shop", "a", 0, None, ReadLimits(), back).events == []
                for limits in LIMITS:
                    assert len(everything(one, EventFilter(), limits)) == 10
                assert positions(one, EventFilter("shop")) == positions(one, EventFilter("shop", "ab"))
                assert find(one, EventFilter("shop"), 0) == 4
                span = one.read_records(1, EventFilter(), ReadLimits())
                assert sum(len(record.events()) for record in span.records) == 10
                assert sum(record.count for record in span.records) == 25
            if not do_one(store, Erase(2)):
                break
        assert store.stream_head("shop", "a") == 15
        assert [info.name for info in store.streams("shop", "", "", 9)] == ["a", "ab"]

    def test_a_stream_that_is_not_there_is_not_entered(self, store: Store) -> None:
        append(store, "a", some(1))
        for place in (("shop", "b"), ("other", "a")):
            assert hide(store, HideStream(*place)) == Hid(0, [])
        assert store.erasures(0, 9) == []
        assert store.open_erasures() == 0

    @pytest.mark.parametrize("last", [0, 1, 2, 3, 4, 5, 9])
    def test_a_stream_is_erased_up_to_a_sequence_also_inside_a_commit(self, store: Store, last: int) -> None:
        for size in (2, 3):
            append(store, "a", some(size))
        events = stream_of(store, "a")
        assert hide(store, HideStream("shop", "a", last)) == Hid(min(last, 5), [])
        # The same again, after more has come, finds nothing more to do.
        append(store, "a", some(1))
        assert hide(store, HideStream("shop", "a", min(last, 5))) == Hid(0, [])
        for _ in range(2):
            assert [one.id for one in stream_of(store, "a")][:-1] == [one.id for one in events[last:]]
            erase_all(store)
        assert hide(store, HideStream("shop", "a")) == Hid(6 - min(last, 5), [])
        erase_all(store)
        assert stream_of(store, "a") == []

    @pytest.mark.parametrize("place", [("", "a"), ("shop", ""), ("shop", "x" * 2000)])
    def test_what_can_be_no_stream_is_refused(self, store: Store, place: tuple[str, str]) -> None:
        assert isinstance(attempt(store, HideStream(*place)), InvalidRequest)

    def test_the_stream_of_a_log_is_refused(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        append(store, "log", some(1), context=LOG_CONTEXT)
        refused = attempt(store, HideStream(LOG_CONTEXT, "log"))
        assert isinstance(refused, InvalidRequest)
        assert "delete the log" in str(refused)
        assert len(stream_of(store, "log", LOG_CONTEXT)) == 1

    def test_only_what_a_stream_has_now_is_erased(self, store: Store) -> None:
        append(store, "a", some(3))
        hide(store, HideStream("shop", "a"))
        append(store, "a", some(2), 4)
        assert [one.sequence for one in stream_of(store, "a")] == [4, 5]
        erase_all(store)
        assert [one.sequence for one in stream_of(store, "a")] == [4, 5]
        assert hide(store, HideStream("shop", "a")).events == 2, "the others are erased already"
        assert hide(store, HideStream("shop", "a")) == Hid(0, [])
        erase_all(store)
        assert stream_of(store, "a") == []
        assert [one.events for one in store.erasures(0, 9)] == [3, 2]

    def test_a_stream_is_hidden_in_the_batch_of_its_events(self, store: Store) -> None:
        _, hid, _ = do(store, commit("a", some(2)), HideStream("shop", "a"), commit("a", some(1)))
        assert hid == Hid(2, [])
        assert [one.sequence for one in stream_of(store, "a")] == [3]

    def test_an_erasure_whose_transaction_fails_is_none(self, store: Store) -> None:
        append(store, "a", some(2))
        made = add_iterator(store, "it", "shop/a")
        conflict = commit("a", some(1), 9)
        assert not isinstance(attempt(store, HideStream("shop", "a"), conflict), list)
        assert not isinstance(attempt(store, HideEvents(((1, 1),), (("shop", "a"),)), conflict), list)
        assert positions(store) == [1, 2]
        assert store.erasures(0, 9) == []
        assert store.iterator("it") == made

    def test_a_repeat_is_known_although_it_was_erased(self, store: Store) -> None:
        events = some(2)
        first = append(store, "a", events, 1)
        hide(store, HideStream("shop", "a"))
        assert append(store, "a", events, 1) == replace(first, repeated=True)
        erase_all(store)
        assert append(store, "a", events, 1) == replace(first, repeated=True)

    # -- events by position

    @pytest.mark.parametrize("records_max", [1, 2, 100])
    def test_events_are_erased_by_position(self, store: Store, reader: Store, records_max: int) -> None:
        for number in range(6):
            append(store, "ab"[number % 2], some(5, ticks=number))
        gone = {*range(2, 4), 7, *range(10, 23), 30}
        left = [position for position in range(1, 31) if position not in gone]
        ranges = ((2, 3), (7, 7), (10, 22), (30, 30))
        assert hide(store, HideEvents(ranges, (("shop", "a"), ("shop", "b")))) == Hid(17, [])
        while True:
            for one in (store, reader):
                for limits in LIMITS:
                    assert [found.position for found in everything(one, EventFilter(), limits)] == left
                mine = [found.position for stream in "ab" for found in stream_of(one, stream)]
                assert sorted(mine) == left
                assert find(one, EventFilter("shop"), 2) == 23
            if not do_one(store, Erase(records_max)):
                break
        assert store.head() == 30
        assert (store.stream_head("shop", "a"), store.stream_head("shop", "b")) == (15, 15)

    def test_one_range_may_be_longer_than_a_step(self, store: Store) -> None:
        for _ in range(50):
            append(store, "a", some(2))
        hide(store, HideEvents(((2, 99),), (("shop", "a"),)))
        steps = erase_all(store, 3)
        assert steps >= 50 // 3
        assert positions(store) == [1, 100]

    def test_erasures_by_position_and_of_streams_overlap(self, store: Store) -> None:
        for number in range(20):
            append(store, "ab"[number % 2], some(2))
        hide(store, HideEvents(((3, 30),), (("shop", "a"), ("shop", "b"))))
        hide(store, HideEvents(((1, 5), (7, 7), (29, 33)), (("shop", "a"), ("shop", "b"))))
        hide(store, HideStream("shop", "a"))
        left = [position for position in range(34, 41) if (position - 1) // 2 % 2]
        assert positions(store) == left
        while do_one(store, Erase(1)):
            assert positions(store) == left
        assert positions(store) == left

    def test_no_events_are_no_erasure(self, store: Store) -> None:
        append(store, "a", some(1))
        assert hide(store, HideEvents((), ())) == Hid(0, [])
        assert store.erasures(0, 9) == []

    @pytest.mark.parametrize("ranges", [((0, 1),), ((2, 1),), ((1, 3),), ((1, 1), (1, 2)), ((2, 2), (1, 1)), ((3, 3),)])
    def test_ranges_that_cannot_be_are_refused(self, store: Store, ranges: tuple[tuple[int, int], ...]) -> None:
        append(store, "a", some(2))
        assert isinstance(attempt(store, HideEvents(ranges, (("shop", "a"),))), InvalidRequest)
        assert len(everything(store)) == 2

    # -- iterators

    def test_iterators_that_saw_a_stream_begin_anew_and_others_do_not(self, store: Store) -> None:
        append(store, "a", some(3))
        first = add_iterator(store, "first", "shop/a")
        second = add_iterator(store, "second", "first")
        plain = do_one(store, AddIterator("plain", "second", "reduce", "return acc", False))
        assert isinstance(plain, IteratorState)
        other = add_iterator(store, "other", "shop/ab")
        for one in (first, second, other):
            do_one(store, WriteOutput(one.id, 0, 2, (b"x", b"y"), b"state"))
        _, rebuilt = hide(store, HideStream("shop", "a"))
        for before, after in zip((first, second, plain), rebuilt, strict=True):
            assert after.id > max(first.id, second.id, plain.id, other.id)
            assert after == replace(before, id=after.id)
            assert store.iterator(before.name) == after
            assert store.read_output(before.id, 0, ReadLimits()) == []
            assert store.output_count(before.id) is None
            assert store.output_count(after.id) == 0
            assert isinstance(attempt(store, WriteOutput(before.id, 2, 3, (b"z",))), OutputMoved)
        assert store.read_output(other.id, 0, ReadLimits()) == [b"x", b"y"]
        do_one(store, WriteOutput(rebuilt[0].id, 0, 3, (b"new",), b"newer"))
        erase_all(store)
        assert store.read_output(rebuilt[0].id, 0, ReadLimits()) == [b"new"]
        again = store.iterator("first")
        assert again is not None
        assert (again.state, again.outputs) == (b"newer", 1)
        assert [one.iterator for one in store.erasures(0, 9)] == [None, first.id, second.id]

    def test_iterators_begin_anew_when_events_of_theirs_are_erased_by_position(self, store: Store) -> None:
        append(store, "log", some(2), context=LOG_CONTEXT)
        do_one(store, AddLog("log"))
        append(store, "log", some(3), context=LOG_CONTEXT)
        append(store, "a", some(1))
        append(store, "b", some(1))
        iterators = [add_iterator(store, "over the log"), add_iterator(store, "over a", "shop/a")]
        untouched = add_iterator(store, "over b", "shop/b")
        do_one(store, WriteOutput(iterators[0].id, 2, 5, (b"x",), b"state"))
        streams = ((LOG_CONTEXT, "log"), ("shop", "a"), ("shop", "a"))
        _, rebuilt = hide(store, HideEvents(((4, 4), (6, 6)), streams))
        assert [one.name for one in rebuilt] == ["over the log", "over a"]
        assert (rebuilt[0].base, rebuilt[0].source, rebuilt[0].outputs, rebuilt[0].state) == (2, 2, 0, None)
        assert store.iterator("over b") == untouched
        erase_all(store)
        assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT)] == [1, 2, 3, 5]
        do_one(store, DeleteIterator("log", "over the log"))
        assert store.iterator("over the log") is None

    # -- the ledger

    def test_the_ledger_says_what_was_erased_and_when_it_was_finished(self, store: Store, clock: Clock) -> None:
        append(store, "a", some(3))
        append(store, "b", some(2))
        do_one(store, AddLog("log"))
        append(store, "log", some(4), context=LOG_CONTEXT)
        over = add_iterator(store, "over the log")
        do_one(store, WriteOutput(over.id, 0, 4, (b"x",)))
        requested = clock.ticks
        do(store, HideStream("shop", "a"), HideEvents(((4, 4),), (("shop", "b"),)), DeleteLog("log"))
        entries = [
            Erasure(1, "shop", "a", 3, (), None, 1, 3, requested, None, 0),
            Erasure(2, None, None, 4, ((4, 4),), None, 1, 1, requested, None, 0),
            Erasure(3, LOG_CONTEXT, "log", 4, (), None, 1, 4, requested, None, 0),
            Erasure(4, None, None, 1, (), over.id, 1, 0, requested, None, 0),
        ]
        assert store.erasures(0, 9) == entries
        assert store.open_erasures() == 4
        clock.advance(1000)
        erase_all(store)
        assert store.erasures(0, 9) == [replace(one, finished=clock.ticks) for one in entries]
        assert [one.id for one in store.erasures(1, 2)] == [2, 3]
        assert store.erasures(4, 9) == []

    def test_many_erasures_of_one_stream_come_to_an_end(self, store: Store) -> None:
        for _ in range(12):
            append(store, "a", some(2))
            append(store, "b", some(1))
            hide(store, HideStream("shop", "a"))
        assert store.open_erasures() == 12
        assert len(everything(store)) == 12
        erase_all(store, 5)
        assert len(everything(store)) == 12
        assert store.open_erasures() == 0
