"""Logs: adding to them, deleting them, and erasing what they held."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import (
    LogNotFound,
    VersionConflict,
)
from penstock.model import LOG_CONTEXT, NEW, Appended, EventFilter
from penstock.store import Store
from penstock.store.contract import AddLog, DeleteLog, Erase, LogInfo, Operation, ReadLimits, RequireLog, Transaction
from tests.store.contract.case import StoreCase
from tests.store.kit import Clock, append, attempt, commit, do, do_one, everything, find, some, stream_of


def erase_all(store: Store, records_max: int = 3) -> int:
    """Erase step by step; how many steps it took."""
    steps = 0
    while do_one(store, Erase(records_max)) != 0:
        steps += 1
        assert steps < 100_000, "an erasure must come to its end"
    return steps


def made_at(store: Store, name: str) -> int:
    """Make a log; its time."""
    assert do_one(store, AddLog(name)) is True
    made = store.log(name)
    assert made is not None
    return made.created


class LogContract(StoreCase):
    # -- logs

    def test_a_log_is_made_once(self, store: Store, clock: Clock) -> None:
        assert do_one(store, AddLog("lög")) is True
        made = store.log("lög")
        assert made == LogInfo("lög", clock.ticks, 0, 0)
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

    def test_a_strict_deletion_of_a_log_that_is_not_there_fails_with_all_that_belongs_to_it(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        log = store.log("log")
        assert log is not None
        for op in (DeleteLog("none", strict=True), DeleteLog("log", log.created + 1, strict=True)):
            outcome = attempt(store, op, commit("s", some(1)))
            assert isinstance(outcome, LogNotFound)
            assert outcome.log == op.name
        assert (store.head(), store.log("log")) == (0, log)
        do(store, DeleteLog("log", strict=True), commit("s", some(1)))
        assert (store.head(), store.log("log")) == (1, None)

    def test_a_log_is_deleted_only_if_it_is_the_one_that_was_meant(self, store: Store, clock: Clock) -> None:
        do_one(store, AddLog("log"))
        first = store.log("log")
        assert first is not None
        assert do_one(store, DeleteLog("log", first.created)) is True
        assert do_one(store, DeleteLog("log", first.created)) is False
        clock.advance(1)
        do_one(store, AddLog("log"))
        append(store, "log", some(2), context=LOG_CONTEXT)
        assert do_one(store, DeleteLog("log", first.created)) is False
        second = store.log("log")
        assert second is not None
        assert len(stream_of(store, "log", LOG_CONTEXT)) == 2
        assert do_one(store, DeleteLog("log", second.created)) is True
        assert stream_of(store, "log", LOG_CONTEXT) == []

    def test_no_two_logs_are_made_at_the_same_time_though_the_clock_stands_still_or_is_set_back(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        start = clock.ticks
        with closing(self.open(tmp_path, clock)) as store:
            times = [made_at(store, "log")]
            for _ in range(3):
                assert do_one(store, DeleteLog("log", times[-1])) is True
                times.append(made_at(store, "log"))
                assert do_one(store, DeleteLog("log", times[-2])) is False, "a deletion of the one before, sent again"
            do_one(store, DeleteLog("log"))
        clock.advance(-3_600_000)
        with closing(self.open(tmp_path, clock)) as store:
            times.append(made_at(store, "log"))
            clock.advance(2 * 3_600_000)
            times.append(made_at(store, "other"))
        assert times == [start, start + 1, start + 2, start + 3, start + 4, clock.ticks]

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
        assert store.open_erasures() == 1
        steps = erase_all(store, records_max)
        assert steps >= 5 // records_max
        assert store.open_erasures() == 0
        assert stream_of(store, "log", LOG_CONTEXT) == []
        assert do_one(store, Erase(records_max)) == 0

    def test_nobody_sees_a_deleted_log_from_the_moment_it_is_deleted(self, store: Store, reader: Store) -> None:
        do(store, AddLog("log"), AddLog("log2"))
        for ticks in range(5):
            append(store, "log", some(3, ticks=ticks), context=LOG_CONTEXT)
            append(store, "log2", some(1, ticks=ticks), context=LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        while True:
            for one in (store, reader):
                for backward in (False, True):
                    assert one.read_stream(LOG_CONTEXT, "log", 0, None, ReadLimits(), backward).events == []
                assert len(everything(one)) == len(everything(one, EventFilter(LOG_CONTEXT, "log"))) == 5
                assert find(one, EventFilter(LOG_CONTEXT, "log"), 0) == 4
                span = one.read_records(1, EventFilter(), ReadLimits())
                assert sum(len(record.events()) for record in span.records) == 5
                assert sum(record.count for record in span.records) == 20
            if not do_one(store, Erase(2)):
                break

    def test_a_log_counts_the_bytes_of_its_messages(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        append(store, "log", some(3, body=b"12345", headers="h"), context=LOG_CONTEXT)
        append(store, "log", some(1, body=b""), context=LOG_CONTEXT)
        append(store, "log", some(1, body=b"1"), context="other")
        assert isinstance(attempt(store, commit("log", some(1), context=LOG_CONTEXT), RequireLog("x")), LogNotFound)
        found = store.log("log")
        assert found is not None
        assert found.bytes == 15
        do(store, commit("log", some(1), context=LOG_CONTEXT), DeleteLog("log"), AddLog("log"))
        assert [one.bytes for one in store.logs("", 9)] == [0]

    # -- a log that is required

    def test_what_requires_a_log_fails_without_it(self, store: Store) -> None:
        message = commit("log", some(1), context=LOG_CONTEXT)
        missing = attempt(store, RequireLog("log"), message)
        assert isinstance(missing, LogNotFound)
        assert missing.log == "log"
        assert store.head() == 0
        do_one(store, AddLog("log"))
        for _ in range(2):
            required, appended = do(store, RequireLog("log"), commit("log", some(1), context=LOG_CONTEXT))
            assert required is True
            assert isinstance(appended, Appended)
        assert do_one(store, RequireLog("log")) is True
        do_one(store, DeleteLog("log"))
        assert isinstance(attempt(store, RequireLog("log"), message), LogNotFound)
        assert isinstance(attempt(store, RequireLog("log")), LogNotFound)

    def test_a_log_is_required_in_the_order_of_the_batch(self, store: Store) -> None:
        def message() -> Transaction:
            return Transaction((RequireLog("log"), commit("log", some(1), context=LOG_CONTEXT)))

        def one(operation: Operation) -> Transaction:
            return Transaction((operation,))

        batch = [message(), one(AddLog("log")), message(), one(DeleteLog("log")), message(), one(AddLog("log"))]
        outcomes = store.write([*batch, message()])
        kinds = [isinstance(outcome, list) for outcome in outcomes]
        assert kinds == [False, True, True, True, False, True, True]
        assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT)] == [2]

    def test_a_log_that_was_taken_back_is_not_there(self, store: Store) -> None:
        conflict = commit("other", some(1), 9)
        taken_back = attempt(store, AddLog("log"), RequireLog("log"), conflict)
        assert isinstance(taken_back, VersionConflict)
        assert isinstance(attempt(store, RequireLog("log")), LogNotFound)
        do(store, AddLog("log"), RequireLog("log"))
        assert isinstance(attempt(store, DeleteLog("log"), conflict), VersionConflict)
        assert do_one(store, RequireLog("log")) is True
        do_one(store, DeleteLog("log"))
        store.recover()
        assert isinstance(attempt(store, RequireLog("log")), LogNotFound)

    def test_that_a_log_is_gone_comes_before_repeats_and_conflicts(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        message, other = commit("log", some(1), NEW, LOG_CONTEXT), commit("log", some(1), NEW, LOG_CONTEXT)
        _, first = do(store, RequireLog("log"), message)
        _, again = do(store, RequireLog("log"), message)
        assert isinstance(first, Appended)
        assert again == replace(first, repeated=True)
        assert isinstance(attempt(store, RequireLog("log"), other), VersionConflict)
        do_one(store, DeleteLog("log"))
        for one in (message, other):
            assert isinstance(attempt(store, RequireLog("log"), one), LogNotFound)
            assert isinstance(attempt(store, RequireLog("log"), one, one), LogNotFound)

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
