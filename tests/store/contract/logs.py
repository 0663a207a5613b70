"""Logs and their erasure, iterators and their output."""

import pytest

from penstock.errors import IteratorExists, IteratorNotFound, OutputMoved
from penstock.model import NEW, Event, EventFilter
from penstock.store.contract import (
    LOG_CONTEXT,
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    Erase,
    IteratorState,
    LogInfo,
    ReadLimits,
    Store,
    WriteOutput,
)
from tests.store.contract.case import StoreCase
from tests.store.kit import Clock, append, attempt, commit, do, do_one, everything, find, some, stream_of


def erase_all(store: Store, records_max: int = 3) -> int:
    """Erase step by step; how many steps it took."""
    steps = 0
    while do_one(store, Erase(records_max)) != 0:
        steps += 1
        assert steps < 1000, "an erasure must come to its end"
    return steps


def add_iterator(store: Store, name: str = "it", log: str = "log") -> IteratorState:
    made = do_one(store, AddIterator(name, log, "map", "return msg", True))
    assert isinstance(made, IteratorState)
    return made


class LogContract(StoreCase):
    # -- logs

    def test_a_log_is_made_once(self, store: Store, clock: Clock) -> None:
        assert do_one(store, AddLog("lög")) is True
        made = store.log("lög")
        assert made == LogInfo("lög", clock.ticks, 0)
        clock.advance(5)
        assert do_one(store, AddLog("lög")) is False
        assert store.log("lög") == made
        assert store.log("other") is None

    def test_logs_are_listed_by_name_in_pages(self, store: Store) -> None:
        names = ["b", "a", "Ω", "c", "B"]
        for name in names:
            do_one(store, AddLog(name))
        found: list[str] = []
        while page := store.logs(found[-1] if found else "", 2):
            found += [one.name for one in page]
        assert found == sorted(names)

    def test_deleting_a_log_that_is_not_there_does_nothing(self, store: Store) -> None:
        assert do_one(store, DeleteLog("log")) is False
        do_one(store, AddLog("log"))
        assert do_one(store, DeleteLog("log")) is True
        assert do_one(store, DeleteLog("log")) is False
        assert do_one(store, Erase(10)) == 0

    def test_a_log_added_again_starts_at_ordinal_0(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        append(store, "log", some(3), context=LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        do_one(store, AddLog("log"))
        again = store.log("log")
        assert again is not None
        assert again.base == 3
        sent = some(2)
        append(store, "log", sent, context=LOG_CONTEXT)
        page = store.read_stream(LOG_CONTEXT, "log", again.base + 1, None, ReadLimits())
        assert [one.id for one in page.events] == [one.id for one in sent]
        erase_all(store)
        page = store.read_stream(LOG_CONTEXT, "log", 1, None, ReadLimits())
        assert [one.sequence for one in page.events] == [4, 5]

    def test_a_log_made_and_deleted_in_the_batch_of_its_messages_is_erased(self, store: Store) -> None:
        do(store, AddLog("log"), commit("log", some(2), context=LOG_CONTEXT), DeleteLog("log"), AddLog("log"))
        again = store.log("log")
        assert again is not None
        assert again.base == 2
        erase_all(store)
        assert everything(store) == []

    def test_only_events_of_the_log_are_erased(self, store: Store) -> None:
        do(store, AddLog("log"), AddLog("log2"))
        for _ in range(4):
            for stream in ("log", "log2", "lo"):
                append(store, stream, some(2), context=LOG_CONTEXT)
            append(store, "log", some(1))
        before = everything(store)
        do_one(store, DeleteLog("log"))
        erase_all(store)
        kept = [one for one in before if (one.context, one.stream) != (LOG_CONTEXT, "log")]
        assert everything(store) == kept
        assert store.stream_head(LOG_CONTEXT, "log") == 8
        assert store.head() == len(before)

    @pytest.mark.parametrize("records_max", [1, 2, 100])
    def test_erasing_goes_in_steps_and_comes_to_an_end(self, store: Store, records_max: int) -> None:
        do_one(store, AddLog("log"))
        for _ in range(5):
            append(store, "log", some(3), context=LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        assert len(stream_of(store, "log", LOG_CONTEXT)) == 15
        left: list[Event] = []
        steps = 0
        while do_one(store, Erase(records_max)) != 0:
            steps += 1
            left = stream_of(store, "log", LOG_CONTEXT)
            assert len(left) >= 15 - 3 * records_max * steps
        assert (records_max == 100) == (steps == 0)
        assert stream_of(store, "log", LOG_CONTEXT) == []
        assert do_one(store, Erase(records_max)) == 0

    def test_what_comes_after_an_erased_log_is_read_in_every_way(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        for number in range(6):
            append(store, "log", some(2, ticks=100 * number), context=LOG_CONTEXT)
        do(store, DeleteLog("log"), AddLog("log"))
        append(store, "log", some(2, ticks=50), 13, LOG_CONTEXT)
        erase_all(store)
        wanted = EventFilter(LOG_CONTEXT)
        for limits in (ReadLimits(), ReadLimits(events_max=1), ReadLimits(bytes_max=1)):
            assert [one.position for one in everything(store, wanted, limits)] == [13, 14]
            assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT, limits)] == [13, 14]
            assert find(store, wanted, 10, limits) == 13
            assert find(store, wanted, 51, limits) is None
        page = store.read_stream(LOG_CONTEXT, "log", 0, None, ReadLimits(), backward=True)
        assert [one.sequence for one in page.events] == [14, 13]
        assert page.end

    def test_a_repeat_of_a_commit_is_known_although_it_was_erased(self, store: Store) -> None:
        # Ids outlive contents: whoever sends the same again must not be told that somebody else was faster.
        do_one(store, AddLog("log"))
        events = some(2)
        first = append(store, "log", events, NEW, LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        assert append(store, "log", events, NEW, LOG_CONTEXT).commit == first.commit
        erase_all(store)
        again = append(store, "log", events, NEW, LOG_CONTEXT)
        assert (again.commit, again.repeated) == (first.commit, True)

    # -- iterators

    def test_an_iterator_is_made_and_the_same_again_is_fine(self, store: Store, clock: Clock) -> None:
        made = do_one(store, AddIterator("ït", "log", "reduce", "return acc", False))
        assert isinstance(made, IteratorState)
        assert made == IteratorState(made.id, "ït", "log", "reduce", "return acc", False, clock.ticks, 0, 0, None)
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
        made = add_iterator(store)
        outcome = attempt(store, other)
        assert isinstance(outcome, IteratorExists)
        assert outcome.iterator == "it"
        assert store.iterator("it") == made

    def test_iterators_are_listed_by_name_of_one_log_or_of_all(self, store: Store) -> None:
        for name, log in (("c", "x"), ("a", "x"), ("b", "y"), ("d", "x")):
            add_iterator(store, name, log)
        assert [one.name for one in store.iterators(None, "", 10)] == ["a", "b", "c", "d"]
        assert [one.name for one in store.iterators("x", "", 10)] == ["a", "c", "d"]
        assert [one.name for one in store.iterators("x", "a", 1)] == ["c"]
        assert [one.name for one in store.iterators(None, "b", 1)] == ["c"]
        assert store.iterators("z", "", 10) == []

    def test_an_iterator_is_deleted_with_its_output_and_only_by_its_log(self, store: Store) -> None:
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
        do_one(store, AddLog("log"))
        mine = [add_iterator(store, f"i{number}") for number in range(3)]
        other = add_iterator(store, "other", "other")
        for one in (*mine, other):
            do_one(store, WriteOutput(one.id, 0, 1, (b"a",)))
        do_one(store, DeleteLog("log"))
        assert [one.name for one in store.iterators(None, "", 10)] == ["other"]
        assert [store.read_output(one.id, 0, ReadLimits()) for one in (*mine, other)] == [[], [], [], [b"a"]]

    def test_output_is_written_from_where_the_iterator_is(self, store: Store) -> None:
        made = add_iterator(store)
        assert do_one(store, WriteOutput(made.id, 0, 3, (b"a", b"", b"c"), b"state")) == 3
        assert do_one(store, WriteOutput(made.id, 3, 9, ())) == 3
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
