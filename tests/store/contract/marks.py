"""Producer marks and idempotency keys: the same one again is answered, not written again."""

from dataclasses import replace
from typing import Final

import pytest

from penstock.errors import (
    InvalidRequest,
    KeyReused,
    MarkSuperseded,
    PartlyRepeated,
    PenstockError,
    StorageFull,
    VersionConflict,
)
from penstock.model import ANY, NEW, Appended, IdempotencyKey, ProducerMark
from penstock.store import Store
from penstock.store.contract import ExpireProducers, Progress, Register, RequireLog, Transaction
from tests.store.contract.case import StoreCase
from tests.store.kit import Clock, append, attempt, commit, do, do_one, event, some

FULL: Final = StorageFull("no room")


def keyed(
    store: Store,
    *names: str,
    events: int = 1,
    fingerprint: int = 7,
    expected: int = ANY,
    refusal: PenstockError | None = None,
) -> Appended | PenstockError:
    """Append events with idempotency keys."""
    keys = tuple(IdempotencyKey(name, fingerprint).mark("shop") for name in names)
    transaction = Transaction((commit("orders", some(events), expected),), refusal=refusal, keys=keys)
    (outcome,) = store.write([transaction])
    if isinstance(outcome, PenstockError):
        return outcome
    (result,) = outcome
    assert isinstance(result, Appended)
    return result


class MarkContract(StoreCase):
    def test_a_mark_used_again_answers_the_first_result(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        first = append(store, "orders", some(2), mark=mark)
        again = append(store, "orders", some(2), mark=mark)
        assert again == Appended(first.commit, first.position, first.sequence, 2, repeated=True)
        assert store.head() == 2

    def test_a_mark_answers_every_commit_of_its_transaction(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        operations = (commit("a", some(2)), Register("me", "shop", "", 1), commit("b", some(1)))
        first = do(store, *operations, mark=mark)
        again = do(store, *operations, mark=mark)
        assert [type(result) for result in again[::2]] == [Appended, Appended]
        assert [result.commit for result in again[::2] if isinstance(result, Appended)] == [
            result.commit for result in first[::2] if isinstance(result, Appended)
        ]
        assert store.head() == 3

    def test_a_mark_used_again_does_nothing_else_either(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        append(store, "orders", some(1), mark=mark)
        do_one(store, Register("me", "shop", "", 1))
        do(store, commit("orders", some(1)), Progress(1, 1, 2, strict=True), mark=mark)
        found = store.find_subscription("me", "shop", "")
        assert found is not None
        assert found.position == 1

    def test_a_higher_number_is_new_and_gaps_are_fine(self, store: Store) -> None:
        for number in (1, 2, 10, (1 << 63) - 1):
            assert not append(store, "orders", some(1), mark=ProducerMark("p", number)).repeated
        assert store.head() == 4

    def test_a_lower_number_is_superseded(self, store: Store) -> None:
        append(store, "orders", some(1), mark=ProducerMark("p", 5))
        outcome = attempt(store, commit("orders", some(1)), mark=ProducerMark("p", 4))
        assert isinstance(outcome, MarkSuperseded)
        assert (outcome.producer, outcome.number, outcome.highest) == ("p", 4, 5)
        assert store.head() == 1

    def test_producers_do_not_share_numbers(self, store: Store) -> None:
        for producer in ("p", "q", "Ω", "p" * 512):
            assert not append(store, "orders", some(1), mark=ProducerMark(producer, 1)).repeated
        assert store.head() == 4

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_conflict_does_not_use_up_the_mark(self, store: Store, more: int) -> None:
        mark = ProducerMark("p", 1)
        extra = [commit("b", some(1))] * more
        assert isinstance(attempt(store, *extra, commit("orders", some(1), 7), mark=mark), VersionConflict)
        assert not append(store, "orders", some(1), mark=mark).repeated
        assert store.head() == 1

    def test_a_repeat_under_a_new_mark_uses_the_mark(self, store: Store) -> None:
        events = some(2)
        first = append(store, "orders", events, NEW)
        mark = ProducerMark("p", 1)
        assert append(store, "orders", events, NEW, mark=mark).commit == first.commit
        assert append(store, "orders", some(1), mark=mark).commit == first.commit
        assert store.head() == 2

    def test_a_mark_twice_in_one_batch_is_written_once(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        outcomes = store.write([Transaction((commit("orders", [event()]),), mark) for _ in range(3)])
        results = [outcome[0] for outcome in outcomes if isinstance(outcome, list)]
        assert [result.repeated for result in results if isinstance(result, Appended)] == [False, True, True]
        assert store.head() == 1

    def test_marks_outlive_opening_again(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        first = append(store, "orders", some(1), mark=mark)
        store.recover()
        assert append(store, "orders", some(1), mark=mark).commit == first.commit

    def test_idle_producers_expire(self, store: Store, clock: Clock) -> None:
        append(store, "orders", some(1), mark=ProducerMark("idle", 1))
        clock.advance(1000)
        limit = clock.ticks
        append(store, "orders", some(1), mark=ProducerMark("busy", 1))
        assert do_one(store, ExpireProducers(limit, 10)) == 1
        assert do_one(store, ExpireProducers(limit, 10)) == 0
        assert append(store, "orders", some(1), mark=ProducerMark("busy", 1)).repeated
        assert not append(store, "orders", some(1), mark=ProducerMark("idle", 1)).repeated

    @pytest.mark.parametrize(
        "mark", [ProducerMark("", 1), ProducerMark("\ud800", 1), ProducerMark("p" * 513, 1), ProducerMark("p", 1 << 63)]
    )
    def test_an_impossible_mark_is_refused_and_nothing_written(self, store: Store, mark: ProducerMark) -> None:
        bad, good = store.write(
            [Transaction((commit("orders", some(1)),), mark), Transaction((commit("orders", some(1)),))]
        )
        assert isinstance(bad, InvalidRequest)
        assert isinstance(good, list)
        assert store.head() == 1

    # -- transactions that are refused unless they were written before

    def test_a_refused_transaction_is_answered_if_its_mark_was_used(self, store: Store) -> None:
        mark = ProducerMark("p", 1)
        operations = (commit("orders", some(2)), commit("mails", some(1)))
        first = do(store, *operations, mark=mark)
        (again,) = store.write([Transaction(operations, mark, FULL)])
        assert isinstance(again, list)
        assert again == [replace(one, repeated=True) for one in first if isinstance(one, Appended)]
        assert store.head() == 3

    @pytest.mark.parametrize("more", [0, 1])
    def test_a_refused_transaction_is_answered_if_its_commits_are_there(self, store: Store, more: int) -> None:
        operations = (commit("orders", some(2), NEW), *([commit("mails", some(1), NEW)] * more))
        first = do(store, *operations)
        (again,) = store.write([Transaction(operations, ProducerMark("p", 1), FULL)])
        assert again == [replace(one, repeated=True) for one in first if isinstance(one, Appended)]
        assert not append(store, "orders", some(1), mark=ProducerMark("p", 1)).repeated

    @pytest.mark.parametrize("mark", [None, ProducerMark("p", 1)])
    @pytest.mark.parametrize("expected", [ANY, 2, 3])
    def test_a_refused_transaction_that_is_new_is_refused_and_writes_nothing(
        self, store: Store, mark: ProducerMark | None, expected: int
    ) -> None:
        append(store, "orders", some(1))
        operations = (commit("orders", some(1), expected), commit("mails", some(1)))
        refused, taken = store.write([Transaction(operations, mark, FULL), Transaction((commit("b", some(1)),))])
        assert refused is FULL
        assert isinstance(taken, list)
        assert store.head() == 2
        assert not append(store, "orders", some(1), mark=mark).repeated

    def test_a_refused_transaction_whose_place_is_taken_is_a_conflict(self, store: Store) -> None:
        append(store, "orders", some(1))
        (outcome,) = store.write([Transaction((commit("orders", some(1), NEW),), None, FULL)])
        assert isinstance(outcome, VersionConflict)

    def test_a_refused_transaction_below_the_highest_number_is_superseded(self, store: Store) -> None:
        append(store, "orders", some(1), mark=ProducerMark("p", 2))
        (outcome,) = store.write([Transaction((commit("orders", some(1)),), ProducerMark("p", 1), FULL)])
        assert isinstance(outcome, MarkSuperseded)

    def test_a_failed_expiry_keeps_the_marks_of_the_same_batch(self, store: Store) -> None:
        first, failed, older = store.write(
            [
                Transaction((commit("orders", some(1)),), ProducerMark("p", 2)),
                Transaction((ExpireProducers(0, 100), RequireLog("missing"))),
                Transaction((commit("orders", some(1)),), ProducerMark("p", 1)),
            ]
        )
        assert isinstance(first, list)
        assert isinstance(failed, PenstockError)
        assert isinstance(older, MarkSuperseded)
        assert append(store, "orders", some(1), mark=ProducerMark("p", 2)).repeated

    # -- idempotency keys

    def test_a_key_used_again_answers_the_whole_commit(self, store: Store) -> None:
        append(store, "orders", some(1))
        first = keyed(store, "a", events=3)
        assert isinstance(first, Appended)
        assert keyed(store, "a", events=3) == replace(first, repeated=True)
        assert keyed(store, "a", events=3, expected=NEW) == replace(first, repeated=True)
        assert store.head() == 4

    def test_keys_of_events_are_known_in_other_commits_too(self, store: Store) -> None:
        first, second = keyed(store, "a", "b", events=2), keyed(store, "c")
        assert isinstance(first, Appended)
        assert isinstance(second, Appended)
        assert keyed(store, "b") == Appended(first.commit, 2, 2, 1, repeated=True)
        assert keyed(store, "b", "c", events=2) == Appended(first.commit, 2, 2, 2, repeated=True)
        assert store.head() == 3

    def test_a_batch_that_is_partly_known_is_refused(self, store: Store) -> None:
        keyed(store, "a")
        refused = keyed(store, "a", "b", "c", events=3)
        assert isinstance(refused, PartlyRepeated)
        assert (refused.context, refused.known, refused.events) == ("shop", 1, 3)
        assert isinstance(keyed(store, "b", "c", events=2), Appended)
        assert store.head() == 3

    def test_a_key_of_another_request_is_refused(self, store: Store) -> None:
        keyed(store, "a", fingerprint=1)
        for other in (0, 2):
            assert isinstance(keyed(store, "a", fingerprint=other), KeyReused)
        assert store.head() == 1

    def test_keys_in_one_batch_of_the_writer_see_one_another(self, store: Store) -> None:
        key = IdempotencyKey("a", 1).mark("shop")
        outcomes = store.write([Transaction((commit("orders", some(1)),), keys=(key,)) for _ in range(3)])
        results = [outcome[0] for outcome in outcomes if isinstance(outcome, list)]
        assert [result.repeated for result in results if isinstance(result, Appended)] == [False, True, True]
        assert store.head() == 1

    def test_a_commit_that_fails_leaves_its_keys_unused(self, store: Store) -> None:
        append(store, "orders", some(1))
        assert isinstance(keyed(store, "a", expected=NEW), VersionConflict)
        assert keyed(store, "a", refusal=FULL) is FULL
        again = keyed(store, "a")
        assert isinstance(again, Appended)
        assert not again.repeated

    def test_a_known_key_is_answered_when_the_store_is_full_and_after_opening_again(self, store: Store) -> None:
        first = keyed(store, "a")
        store.recover()
        assert isinstance(first, Appended)
        assert keyed(store, "a", refusal=FULL) == replace(first, repeated=True)

    def test_keys_and_producers_expire_apart(self, store: Store, clock: Clock) -> None:
        append(store, "orders", some(1), mark=ProducerMark("p", 1))
        keyed(store, "a")
        clock.advance(1000)
        assert do_one(store, ExpireProducers(clock.ticks, 10, keys=True)) == 1
        assert do_one(store, ExpireProducers(clock.ticks, 10, keys=True)) == 0
        again = keyed(store, "a")
        assert isinstance(again, Appended)
        assert not again.repeated
        assert append(store, "orders", some(1), mark=ProducerMark("p", 1)).repeated

    def test_keys_belong_to_a_context_and_an_owner(self) -> None:
        key = IdempotencyKey("a", 1)
        marks = {key.mark("shop"), key.mark("other"), replace(key, owner="~me/").mark("shop")}
        assert len(marks) == 3
        assert all(mark.key.startswith("idempotency:") for mark in marks)
