"""Iterators: what they read, their output, and what goes with them when they are deleted."""

from dataclasses import replace

import pytest

from penstock.errors import (
    IteratorCycle,
    IteratorExists,
    IteratorNotFound,
    LimitExceeded,
    LogNotFound,
    OutputMoved,
)
from penstock.model import LOG_CONTEXT, Over
from penstock.store import Store
from penstock.store.contract import (
    ITERATOR_CHAIN_MAX,
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    IteratorState,
    ReadLimits,
    WriteOutput,
)
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.kit import Clock, append, attempt, do, do_one, some


def add_iterator(store: Store, name: str = "it", log: str = "log") -> IteratorState:
    made = do_one(store, AddIterator(name, log, "map", "return msg", True))
    assert isinstance(made, IteratorState)
    return made


class IteratorContract(StoreCase):
    def test_an_iterator_is_made_and_the_same_again_is_fine(self, store: Store, clock: Clock) -> None:
        do_one(store, AddLog("log"))
        made = do_one(store, AddIterator("ït", "log", "reduce", "return acc", False))
        assert isinstance(made, IteratorState)
        definition = ("ït", "log", Over.LOG, "reduce", "return acc", False)
        assert made == IteratorState(made.id, *definition, clock.ticks, 0, 0, 0, None)
        clock.advance(5)
        assert do_one(store, AddIterator("ït", "log", "reduce", "return acc", False)) == made
        assert store.iterator("ït") == made
        assert store.iterator("it") is None

    @pytest.mark.parametrize(
        "other",
        [
            AddIterator("it", "other", "map", "return msg", True),
            AddIterator("it", "log", "filter", "return msg", True),
            AddIterator("it", "log", "map", "return 1", True),
            AddIterator("it", "log", "map", "return msg", False),
        ],
    )
    def test_another_definition_under_the_same_name_is_refused(self, store: Store, other: AddIterator) -> None:
        do_one(store, AddLog("log"))
        made = add_iterator(store)
        outcome = attempt(store, other)
        assert isinstance(outcome, IteratorExists)
        assert outcome.iterator == "it"
        assert store.iterator("it") == made

    def test_iterators_are_listed_by_name_of_one_log_or_of_all(self, store: Store) -> None:
        do(store, AddLog("x"), AddLog("y"))
        for name, log in (("c", "x"), ("a", "x"), ("b", "y"), ("d", "x")):
            add_iterator(store, name, log)
        assert [one.name for one in store.iterators(None, "", 10)] == ["a", "b", "c", "d"]
        assert [one.name for one in store.iterators("x", "", 10)] == ["a", "c", "d"]
        assert [one.name for one in store.iterators("x", "a", 1)] == ["c"]
        assert [one.name for one in store.iterators(None, "b", 1)] == ["c"]
        assert store.iterators("z", "", 10) == []

    def test_functions_are_not_read_where_iterators_are_listed(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        made = add_iterator(store)
        assert made.function
        assert store.iterators(None, "", 10) == store.iterators("log", "", 10) == [replace(made, function="")]

    def test_an_iterator_is_deleted_with_its_output_and_only_by_its_log(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        made = add_iterator(store)
        do_one(store, WriteOutput(made.id, 0, 1, (b"a",)))
        for wrong in (DeleteIterator("other", "it"), DeleteIterator("log", "other")):
            assert isinstance(attempt(store, wrong), IteratorNotFound)
        do_one(store, DeleteIterator("log", "it"))
        assert store.iterator("it") is None
        assert store.read_output(made.id, 0, ReadLimits()) == []
        again = add_iterator(store)
        assert again.id != made.id
        assert (again.source, again.outputs) == (0, 0)

    def test_a_deleted_log_takes_its_iterators_and_their_output_along(self, store: Store) -> None:
        do(store, AddLog("log"), AddLog("other"))
        mine = [add_iterator(store, f"i{number}") for number in range(3)]
        other = add_iterator(store, "other", "other")
        for one in (*mine, other):
            do_one(store, WriteOutput(one.id, 0, 1, (b"a",)))
        do_one(store, DeleteLog("log"))
        assert [one.name for one in store.iterators(None, "", 10)] == ["other"]
        assert [store.read_output(one.id, 0, ReadLimits()) for one in (*mine, other)] == [[], [], [], [b"a"]]

    def test_output_is_written_from_where_the_iterator_is(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        made = add_iterator(store)
        assert do_one(store, WriteOutput(made.id, 0, 3, (b"a", b"", b"c"), b"state")) == 3
        assert do_one(store, WriteOutput(made.id, 3, 9, ())) == 3
        unchanged = store.iterator("it")
        assert unchanged is not None
        assert unchanged.state == b"state", "without items the accumulator stays"
        assert [one.state for one in store.iterators(None, "", 9)] == [None]
        assert do_one(store, WriteOutput(made.id, 9, 10, (b"d",), b"more")) == 4
        for source in (0, 3, 11):
            moved = attempt(store, WriteOutput(made.id, source, 12, (b"x",)))
            assert isinstance(moved, OutputMoved)
            assert moved.iterator == made.id
        assert isinstance(attempt(store, WriteOutput(made.id + 1, 0, 1, (b"x",))), OutputMoved)
        found = store.iterator("it")
        assert found is not None
        assert (found.source, found.outputs, found.state) == (10, 4, b"more")
        assert store.read_output(made.id, 0, ReadLimits()) == [b"a", b"", b"c", b"d"]

    def test_output_is_read_from_any_ordinal_with_any_limits(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        made = add_iterator(store)
        items = [bytes([number]) * (number % 7) for number in range(50)]
        source = 0
        for size in (1, 0, 9, 20, 1, 19):
            chunk = tuple(items[source : source + size])
            do_one(store, WriteOutput(made.id, source, source + size, chunk))
            source += size
        for ordinal in range(52):
            assert store.read_output(made.id, ordinal, ReadLimits()) == items[ordinal:]
            assert store.read_output(made.id, ordinal, ReadLimits(events_max=4)) == items[ordinal : ordinal + 4]
            page = store.read_output(made.id, ordinal, ReadLimits(bytes_max=5))
            assert page == items[ordinal : ordinal + len(page)]
            assert bool(page) == (ordinal < 50), "an empty page is the end"
            assert len(page) == 1 or sum(map(len, page)) <= 5

    # -- what an iterator reads

    def test_a_name_is_a_log_then_an_indexed_iterator_then_a_stream_and_stays_that(self, store: Store) -> None:
        name = "shop/orders"
        assert add_iterator(store, "over a stream", name).over == Over.STREAM
        add_iterator(store, name, "other/stream")
        assert add_iterator(store, "over an iterator", name).over == Over.ITERATOR
        append(store, name, some(2), context=LOG_CONTEXT)
        do_one(store, AddLog(name))
        over_a_log = add_iterator(store, "over a log", name)
        assert (over_a_log.over, over_a_log.base, over_a_log.source) == (Over.LOG, 2, 2)
        for kind in ("a stream", "an iterator", "a log"):
            again = add_iterator(store, f"over {kind}", name)
            assert again.over == kind.split()[-1]
        do_one(store, DeleteLog(name))
        assert [one.name for one in store.iterators(name, "", 9)] == ["over a stream", "over an iterator"]

    @pytest.mark.parametrize("log", ["log", "/", "shop/", "/orders", "remits/log", "", "s" * 256 + "/x"])
    def test_what_can_be_no_source_is_no_log(self, store: Store, log: str) -> None:
        outcome = attempt(store, AddIterator("it", log, "map", "return msg", True))
        assert isinstance(outcome, LogNotFound)
        assert store.iterator("it") is None

    def test_a_plain_iterator_cannot_be_read_by_another(self, store: Store) -> None:
        do(store, AddLog("log"), AddIterator("plain", "log", "map", "return msg", False))
        assert isinstance(attempt(store, AddIterator("it", "plain", "map", "return msg", True)), LogNotFound)

    def test_iterators_over_a_deleted_one_go_with_it(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        chain = [add_iterator(store, "a", "log"), add_iterator(store, "b", "a"), add_iterator(store, "c", "b")]
        add_iterator(store, "other", "log")
        for one in chain:
            do_one(store, WriteOutput(one.id, 0, 1, (b"x",)))
        do_one(store, DeleteIterator("a", "b"))
        assert [one.name for one in store.iterators(None, "", 9)] == ["a", "other"]
        assert [store.output_count(one.id) for one in chain] == [1, None, None]
        assert [store.read_output(one.id, 0, ReadLimits()) for one in chain] == [[b"x"], [], []]
        add_iterator(store, "b", "a")
        do_one(store, DeleteLog("log"))
        assert store.iterators(None, "", 9) == []
        erase_all(store)

    def test_a_cycle_is_refused(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        assert isinstance(attempt(store, AddIterator("x", "x", "map", "return msg", True)), IteratorCycle)
        for name, log in (("a", "log"), ("b", "a"), ("c", "b")):
            add_iterator(store, name, log)
        for log in ("a", "b", "c"):
            cycle = attempt(store, AddIterator("a", log, "map", "return msg", True))
            assert isinstance(cycle, IteratorCycle)
            assert cycle.iterator == "a"
        assert add_iterator(store, "log", "log").over == Over.LOG, "a log may have the name of an iterator"

    def test_a_chain_has_a_limit_and_so_has_the_number_of_iterators(self, store: Store) -> None:
        do_one(store, AddLog("i0"))
        for number in range(ITERATOR_CHAIN_MAX):
            add_iterator(store, f"i{number + 1}", f"i{number}")
        limit = attempt(store, AddIterator("more", f"i{ITERATOR_CHAIN_MAX}", "map", "return msg", True))
        assert isinstance(limit, LimitExceeded)
        assert limit.limit == "iterator_chain_max"
        full = attempt(store, AddIterator("more", "i0", "map", "return msg", True, iterators_max=ITERATOR_CHAIN_MAX))
        assert isinstance(full, LimitExceeded)
        assert (full.limit, full.maximum) == ("iterators_max", ITERATOR_CHAIN_MAX)
        assert len(store.iterators(None, "", 99)) == ITERATOR_CHAIN_MAX
