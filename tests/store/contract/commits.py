"""Appending: expected versions, conflicts, repeats, dense positions and sequences, recorded time."""

import pytest

from penstock.errors import InvalidRequest, VersionConflict
from penstock.model import ANY, NEW, Appended, NewEvent, ProducerMark
from penstock.model.columns import columns_of
from penstock.store import Store
from penstock.store.contract import Commit, Transaction
from tests.store.contract.case import StoreCase
from tests.store.kit import Clock, append, attempt, commit, event, everything, new_part, some, stream_of

BAD_NAMES = ["", "a\0b", "\ud800", "x" * 513, "ü" * 257]


class CommitContract(StoreCase):
    def test_a_new_store_is_empty(self, store: Store) -> None:
        assert store.head() == 0
        assert store.stream_head("shop", "orders") == 0
        assert everything(store) == []

    def test_an_event_comes_back_as_it_was_sent(self, store: Store, clock: Clock) -> None:
        sent = NewEvent(bytes(range(16)), 3 << 62 | 12345, "größer", "{“a”: 1}", bytes(range(256)))
        done = append(store, "ström", [sent], NEW, context="käufer")
        assert done == Appended(done.commit, 1, 1, 1, repeated=False)
        (found,) = everything(store)
        assert new_part(found) == sent
        assert (found.position, found.context, found.stream, found.sequence) == (1, "käufer", "ström", 1)
        assert (found.recorded, found.commit) == (clock.ticks, done.commit)

    def test_null_and_empty_headers_are_the_same(self, store: Store) -> None:
        append(store, "orders", [event(headers=None), event(headers=""), event(headers="h")])
        assert [found.headers for found in everything(store)] == [None, None, "h"]

    @pytest.mark.parametrize("size", [0, 1, 4096, 3_000_000])
    def test_a_body_of_any_size_comes_back(self, store: Store, size: int) -> None:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        append(store, "orders", [event(body=body), event(body=b"after")])
        assert [found.body for found in everything(store)] == [body, b"after"]

    def test_the_expected_version_is_the_sequence_of_the_first_event(self, store: Store) -> None:
        assert append(store, "orders", some(3), NEW).sequence == 1
        assert append(store, "orders", some(2), 4).sequence == 4
        assert append(store, "orders", some(1), ANY).sequence == 6
        assert append(store, "others", some(1), ANY).sequence == 1
        assert append(store, "orders", some(1), 7).sequence == 7
        assert store.stream_head("shop", "orders") == 7

    @pytest.mark.parametrize("expected", [1, 2, 3, 5, 1000, (1 << 63) - 1, 1 << 80])
    def test_a_conflict_says_where_the_stream_is_and_writes_nothing(self, store: Store, expected: int) -> None:
        append(store, "orders", some(3))
        before = everything(store)
        conflict = attempt(store, commit("orders", some(2), expected))
        assert isinstance(conflict, VersionConflict)
        assert (conflict.context, conflict.stream) == ("shop", "orders")
        assert (conflict.expected, conflict.actual) == (expected, 3)
        assert everything(store) == before
        assert append(store, "orders", some(1), 4).position == 4

    def test_a_conflict_with_a_stream_that_does_not_exist_makes_no_stream(self, store: Store) -> None:
        conflict = attempt(store, commit("orders", some(1), 2))
        assert isinstance(conflict, VersionConflict)
        assert conflict.actual == 0
        assert store.streams("shop", "", "", 10) == []
        assert store.contexts("", 10) == []
        assert append(store, "orders", some(1), NEW).position == 1

    @pytest.mark.parametrize("expected", [0, -2, -(1 << 70)])
    @pytest.mark.parametrize("existing", [0, 3])
    def test_an_impossible_expected_version_is_invalid(self, store: Store, expected: int, existing: int) -> None:
        if existing:
            append(store, "orders", some(existing))
        assert isinstance(attempt(store, commit("orders", some(1), expected)), InvalidRequest)
        assert store.head() == existing

    @pytest.mark.parametrize("name", BAD_NAMES)
    def test_a_bad_name_is_refused_and_disturbs_nobody(self, store: Store, name: str) -> None:
        columns = columns_of(some(1))
        good, bad_stream, bad_context, last = store.write(
            [
                Transaction((Commit("shop", "orders", NEW, columns),)),
                Transaction((Commit("shop", name, ANY, columns),)),
                Transaction((Commit(name, "orders", ANY, columns),)),
                Transaction((Commit("shop", "orders", 2, columns),)),
            ]
        )
        assert isinstance(good, list)
        assert isinstance(last, list)
        assert isinstance(bad_stream, InvalidRequest)
        assert isinstance(bad_context, InvalidRequest)
        assert store.head() == 2

    def test_the_longest_names_fit(self, store: Store) -> None:
        append(store, "s" * 512, some(1, type="t" * 1024), context="c" * 255)
        assert isinstance(attempt(store, commit("orders", some(1), context="c" * 256)), InvalidRequest)
        (found,) = everything(store)
        assert (len(found.context), len(found.stream), len(found.type)) == (255, 512, 1024)

    # -- repeats

    def test_the_same_commit_again_answers_the_first_one(self, store: Store) -> None:
        events = some(3)
        first = append(store, "orders", events, NEW)
        append(store, "orders", some(2))
        again = append(store, "orders", events, NEW)
        assert again == Appended(first.commit, 1, 1, 3, repeated=True)
        assert store.head() == 5

    def test_a_repeat_is_known_by_its_ids_alone(self, store: Store) -> None:
        events = some(2)
        first = append(store, "orders", events, NEW)
        other = [sent._replace(body=b"other", type="other", stamp=7) for sent in events]
        assert append(store, "orders", other, NEW).commit == first.commit

    def test_a_repeat_after_opening_again_is_known(self, store: Store, reader: Store) -> None:
        events = some(2)
        first = append(store, "orders", events, NEW)
        store.recover()
        assert append(store, "orders", events, NEW) == Appended(first.commit, 1, 1, 2, repeated=True)

    @pytest.mark.parametrize("change", ["other id", "longer", "swapped", "shifted"])
    def test_what_is_not_quite_the_same_is_a_conflict(self, store: Store, change: str) -> None:
        events = some(4)
        append(store, "orders", events, NEW)
        sent, expected = {
            "other id": ([*events[:3], event()], 1),
            "longer": ([*events, event()], 1),
            "swapped": ([events[1], events[0], *events[2:]], 1),
            "shifted": (events[:3], 2),
        }[change]
        assert isinstance(attempt(store, commit("orders", sent, expected)), VersionConflict)
        assert store.head() == 4

    def test_a_part_of_an_earlier_commit_is_a_repeat_of_it(self, store: Store) -> None:
        events = some(4)
        first = append(store, "orders", events, NEW)
        again = append(store, "orders", events[1:3], 2)
        assert again == Appended(first.commit, 2, 2, 2, repeated=True)

    def test_a_repeat_may_span_several_commits(self, store: Store) -> None:
        events = some(6)
        append(store, "orders", events[:2], NEW)
        append(store, "others", some(1))
        second = append(store, "orders", events[2:4])
        append(store, "orders", events[4:])
        again = append(store, "orders", events[3:6], 4)
        assert (again.commit, again.sequence, again.count, again.repeated) == (second.commit, 4, 3, True)
        assert again.position == 5
        assert append(store, "orders", events, NEW).repeated
        assert store.head() == 7

    def test_a_repeat_inside_one_batch_is_known(self, store: Store) -> None:
        again = commit("orders", some(2), NEW)
        first, second = store.write([Transaction((again,)), Transaction((again,))])
        assert isinstance(first, list)
        assert isinstance(second, list)
        (a,), (b,) = first, second
        assert isinstance(a, Appended)
        assert b == Appended(a.commit, 1, 1, 2, repeated=True)
        assert store.head() == 2

    def test_without_a_version_a_repeat_is_a_new_commit(self, store: Store) -> None:
        events = some(2)
        first = append(store, "orders", events)
        second = append(store, "orders", events)
        assert (second.position, second.repeated) == (3, False)
        assert second.commit != first.commit
        assert [found.id for found in stream_of(store, "orders")] == [sent.id for sent in events] * 2

    def test_a_repeat_of_a_very_large_commit_is_known(self, store: Store) -> None:
        events = some(5000, body=b"x" * 2000)
        first = append(store, "orders", events, NEW)
        assert append(store, "orders", events, NEW).commit == first.commit

    # -- positions, sequences, time

    def test_positions_and_sequences_are_dense(self, store: Store) -> None:
        for number in range(1, 30):
            stream = f"s{number % 4}"
            store.write(
                [
                    Transaction((commit(stream, some(number % 3 + 1)),)),
                    Transaction((commit(stream, some(1), 999),)),
                    Transaction((commit("s0", some(2), context=f"c{number % 3}"),)),
                ]
            )
        found = everything(store)
        assert [one.position for one in found] == list(range(1, store.head() + 1))
        heads: dict[tuple[str, str], int] = {}
        for one in found:
            key = (one.context, one.stream)
            assert one.sequence == heads.get(key, 0) + 1
            heads[key] = one.sequence
        assert all(store.stream_head(*key) == head for key, head in heads.items())

    def test_every_commit_has_an_id_of_its_own(self, store: Store) -> None:
        ids = {append(store, "orders", some(2)).commit for _ in range(50)}
        assert len(ids) == 50
        assert all(len(number) == 16 for number in ids)
        assert {found.commit for found in everything(store)} == ids

    def test_recorded_time_never_goes_backwards(self, store: Store, clock: Clock) -> None:
        append(store, "orders", some(1))
        start = clock.ticks
        clock.advance(-3_600_000)
        append(store, "orders", some(1))
        assert store.now() == clock.ticks
        store.recover()
        append(store, "orders", some(1))
        clock.advance(3_600_001)
        append(store, "orders", some(1))
        assert store.now() == clock.ticks
        assert [found.recorded for found in everything(store)] == [start, start, start, clock.ticks]

    def test_an_empty_batch_is_no_work(self, store: Store) -> None:
        assert store.write([]) == []
        assert store.write([Transaction(())]) == [[]]
        mark = ProducerMark("p", 1)
        assert store.write([Transaction((), mark), Transaction((), mark)]) == [[], []]
