"""Queues: what was handed out before is offered once more, while the queue stays where it is."""

import pytest

from penstock.errors import LimitExceeded, QueueContended, QueueNotFound
from penstock.model import Allocation, ProducerMark
from penstock.store import Store
from penstock.store.contract import Acknowledge, QueueState, Reoffer, Transaction
from tests.store.contract.case import StoreCase
from tests.store.contract.queues import TTL_MS, declare, given, marker_of
from tests.store.kit import TICKS_PER_MS, Clock, append, attempt, do_one, some


class ReofferContract(StoreCase):
    @pytest.fixture
    def queue(self, store: Store) -> QueueState:
        append(store, "orders", some(10))
        return declare(store)

    def test_what_is_offered_once_more_goes_before_anything_new_and_the_marker_stays(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        for name in "ab":
            do_one(store, Acknowledge(queue.id, name, given(store, queue, name, 4).first, None))
        assert store.waiting(queue.id) == (0, 0)
        assert do_one(store, Reoffer(queue.id, ((1, 3, 3), (5, 8, 2)))) is True
        assert (marker_of(store, queue), store.waiting(queue.id)) == (9, (2, 5))
        assert store.with_lag(store.queues(0, 10)[0]).behind == 2 + 5
        first = given(store, queue, "c")
        assert first == Allocation(1, 3, 3, "c", clock.ticks + TTL_MS * TICKS_PER_MS, 1)
        assert given(store, queue, "d") == Allocation(5, 8, 2, "d", first.expires, 1)
        assert given(store, queue, "e").first == 9
        assert do_one(store, Acknowledge(queue.id, "c", 1, 3)) is True
        assert store.waiting(queue.id) == (0, 0)
        clock.advance(TTL_MS)
        assert store.waiting(queue.id) == (2, 4)

    def test_what_is_on_its_way_or_still_to_come_is_not_offered_and_all_of_it_stays_away(
        self, store: Store, queue: QueueState
    ) -> None:
        given(store, queue, "a", 2)
        do_one(store, Acknowledge(queue.id, "b", given(store, queue, "b", 4).first, None))
        assert [one.first for one in store.shared_allocations(queue.id, 2, 9, 10)] == [1]
        assert store.shared_allocations(queue.id, 3, 9, 10) == []
        for runs in (((2, 3, 2),), ((4, 5, 2), (1, 1, 1)), ((6, 7, 2),), ((3, 3, 1), (7, 7, 1))):
            outcome = attempt(store, Reoffer(queue.id, runs))
            assert isinstance(outcome, QueueContended), runs
            assert outcome.queue == "work"
        assert [one.first for one in store.allocations(queue.id, 0, 10)] == [1]
        assert isinstance(attempt(store, Reoffer(queue.id + 1, ((1, 1, 1),))), QueueNotFound)

    def test_what_was_offered_under_a_mark_is_not_offered_again(self, store: Store, queue: QueueState) -> None:
        do_one(store, Acknowledge(queue.id, "a", given(store, queue, "a", 4).first, None))
        offer = Transaction((Reoffer(queue.id, ((1, 4, 4),)),), ProducerMark("replay", 4))
        contended = Transaction((Reoffer(queue.id, ((3, 9, 1),)),), ProducerMark("replay", 9))
        assert isinstance(store.write([contended])[0], QueueContended)
        assert store.write([offer]) == [[True]]
        do_one(store, Acknowledge(queue.id, "b", given(store, queue, "b").first, None))
        # A refusal has not used its mark; what was done under one is done, whoever has taken it since.
        assert store.write([offer]) == [[None]]
        assert store.allocations(queue.id, 0, 10) == []
        assert store.write([Transaction((Reoffer(queue.id, ()),), ProducerMark("replay", 5))]) == [[True]]

    def test_no_more_is_offered_than_a_queue_may_have_out(
        self, store: Store, queue: QueueState, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        do_one(store, Acknowledge(queue.id, "a", given(store, queue, "a", 4).first, None))
        monkeypatch.setattr("penstock.store.tables.consumers.QUEUE_ALLOCATIONS_MAX", 2)
        outcome = attempt(store, Reoffer(queue.id, ((1, 1, 1), (2, 2, 1), (3, 3, 1))))
        assert isinstance(outcome, LimitExceeded)
        assert do_one(store, Reoffer(queue.id, ((1, 1, 1), (2, 2, 1)))) is True
