"""Queues: allocations with a time to live, taken over when they expire, acknowledged by whoever owns them."""

import pytest

from penstock.errors import AllocationLost, QueueFilterMismatch, QueueNotFound
from penstock.model import Allocation, QueueInfo
from penstock.store import Store
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    DeclareQueue,
    MoveQueue,
    Proposal,
    QueueState,
    Release,
    Result,
    Transaction,
)
from tests.store.contract.case import StoreCase
from tests.store.kit import TICKS_PER_MS, Clock, append, attempt, commit, do, do_one, some

TTL_MS = 1000


def declare(store: Store, name: str = "work", context: str = "shop", filter: str = "", position: int = 1) -> QueueState:
    made = do_one(store, DeclareQueue(context, name, filter, position))
    assert isinstance(made, QueueState)
    return made


def marker_of(store: Store, queue: QueueState) -> int:
    (found,) = store.find_queues(queue.name, queue.context)
    return found.position


def take(store: Store, queue: QueueState, subscriber: str, count: int = 2, ttl_ms: int = TTL_MS) -> Result:
    """Allocate as a server does: look at what there is to claim, else at what comes next, and propose that."""
    claim = store.claim(queue.id, subscriber, None)
    marker = marker_of(store, queue)
    last = min(store.head(), marker + count - 1)
    if claim is not None:
        kind = Proposal.OWN if claim.expires > store.now() else Proposal.EXPIRED
        proposal = Proposal(kind, marker, marker, claim.first, claim.last, claim.count)
    elif last < marker:
        proposal = Proposal(Proposal.NOTHING, marker, marker)
    else:
        proposal = Proposal(Proposal.FRESH, marker, last + 1, marker, last, last - marker + 1)
    return do_one(store, Allocate(queue.id, subscriber, ttl_ms, proposal))


def given(store: Store, queue: QueueState, subscriber: str, count: int = 2, ttl_ms: int = TTL_MS) -> Allocation:
    result = take(store, queue, subscriber, count, ttl_ms)
    assert isinstance(result, Allocation)
    return result


class QueueContract(StoreCase):
    @pytest.fixture
    def queue(self, store: Store) -> QueueState:
        append(store, "orders", some(10))
        return declare(store)

    # -- queues

    def test_a_queue_is_made_where_it_was_asked_to_start(self, store: Store) -> None:
        append(store, "orders", some(10))
        made = declare(store, "wörk", "shöp", "or", 7)
        assert made == QueueState(made.id, "shöp", "wörk", "or", 7)
        assert made.id > 0
        assert store.find_queues("wörk", "shöp") == [made]
        assert declare(store, "wörk", "shöp", "or", 3) == made

    def test_another_filter_is_a_mismatch(self, store: Store, queue: QueueState) -> None:
        outcome = attempt(store, DeclareQueue("shop", "work", "x", 1))
        assert isinstance(outcome, QueueFilterMismatch)
        assert (outcome.queue, outcome.filter, outcome.wanted) == ("work", "", "x")
        assert store.find_queues("work") == [queue]

    def test_queues_of_one_name_in_several_contexts_are_found_together(self, store: Store) -> None:
        made = [declare(store, context=context) for context in ("a", "b")]
        declare(store, "other", "a")
        assert len({queue.id for queue in made}) == 2
        assert sorted(store.find_queues("work"), key=lambda one: one.id) == made
        assert store.find_queues("work", "b") == [made[1]]
        assert store.find_queues("work", "d") == []
        assert store.find_queues("nothing") == []

    def test_queues_are_listed_with_their_counts(self, store: Store, queue: QueueState, clock: Clock) -> None:
        assert store.queues(0, 10) == [QueueInfo(queue.id, "shop", "work", "", 1, 0, 0, 0, 0, 0, None)]
        given(store, queue, "a", 3)
        given(store, queue, "b", 2)
        assert store.queues(0, 10) == [QueueInfo(queue.id, "shop", "work", "", 6, 0, 5, 2, 1, 0, None)]
        clock.advance(TTL_MS)
        given(store, queue, "c")
        append(store, "orders", some(2))
        assert store.queues(0, 10) == [QueueInfo(queue.id, "shop", "work", "", 6, 2, 3, 2, 2, 0, None)]
        do_one(store, Acknowledge(queue.id, "c", 1, 3))
        assert store.queues(0, 10) == [QueueInfo(queue.id, "shop", "work", "", 6, 2, 0, 1, 1, 0, None)]

    def test_who_releases_what_it_holds_may_say_that_it_does_not_count(self, store: Store, queue: QueueState) -> None:
        given(store, queue, "a", 3)
        for _ in range(2):
            # Done twice, it is the same as once.
            assert do_one(store, Release(queue.id, "a", 1, 3, counts=False)) is True
        assert [one.deliveries for one in store.allocations(queue.id, 0, 10)] == [0]
        assert given(store, queue, "b").deliveries == 1
        do_one(store, Release(queue.id, "b", 1, 3))
        # It is not held any more: that holder counts.
        do_one(store, Release(queue.id, "b", 1, 3, counts=False))
        assert given(store, queue, "c").deliveries == 2

    def test_queues_are_listed_in_pages(self, store: Store) -> None:
        made = [declare(store, f"q{number}").id for number in range(5)]
        found: list[int] = []
        while page := store.queues(found[-1] if found else 0, 2):
            found += [one.id for one in page]
        assert found == made

    # -- allocating

    def test_an_allocation_is_given_and_moves_the_marker(self, store: Store, queue: QueueState, clock: Clock) -> None:
        first = given(store, queue, "a", 3)
        assert first == Allocation(1, 3, 3, "a", clock.ticks + TTL_MS * TICKS_PER_MS, 1)
        assert given(store, queue, "b", 3) == Allocation(4, 6, 3, "b", first.expires, 1)
        assert marker_of(store, queue) == 7
        assert [one.first for one in store.allocations(queue.id, 0, 10)] == [1, 4]

    def test_a_sparse_allocation_counts_its_events_and_passes_over_the_rest(
        self, store: Store, queue: QueueState
    ) -> None:
        proposal = Proposal(Proposal.FRESH, 1, 10, 2, 7, 3)
        found = do_one(store, Allocate(queue.id, "a", TTL_MS, proposal))
        assert isinstance(found, Allocation)
        assert (found.first, found.last, found.count) == (2, 7, 3)
        assert marker_of(store, queue) == 10

    def test_ones_own_live_allocation_comes_again_unchanged(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        first = given(store, queue, "a")
        clock.advance(TTL_MS - 1)
        assert given(store, queue, "a", 5, 99_999) == first
        assert marker_of(store, queue) == 3

    def test_an_allocation_lives_exactly_as_long_as_was_said(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        first = given(store, queue, "a")
        assert store.next_expiry(queue.id, store.now()) == first.expires
        clock.ns += TTL_MS * 1_000_000 - 100
        assert store.claim(queue.id, "b", None) is None
        assert store.claim(queue.id, "a", None) == first
        clock.ns += 100
        assert store.claim(queue.id, "b", None) == first

    def test_an_expired_allocation_is_taken_over_whole(self, store: Store, queue: QueueState, clock: Clock) -> None:
        given(store, queue, "a", 3)
        clock.advance(TTL_MS)
        taken = given(store, queue, "b", 1, 500)
        assert taken == Allocation(1, 3, 3, "b", clock.ticks + 500 * TICKS_PER_MS, 2)
        clock.advance(500)
        assert given(store, queue, "b", 1, 500).deliveries == 3
        assert marker_of(store, queue) == 4

    def test_the_oldest_expired_allocation_goes_first(self, store: Store, queue: QueueState, clock: Clock) -> None:
        given(store, queue, "a", 2, 900)
        given(store, queue, "b", 2, 100)
        given(store, queue, "c", 2, 5000)
        clock.advance(900)
        assert [given(store, queue, name, 2).first for name in ("x", "y", "z")] == [1, 3, 7]

    def test_ones_own_allocation_that_has_just_expired_is_like_any_other(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        oldest = given(store, queue, "a", 2)
        given(store, queue, "b", 2)
        clock.advance(TTL_MS)
        assert store.claim(queue.id, "b", None) == oldest
        assert given(store, queue, "b").first == oldest.first

    def test_ones_own_live_allocation_goes_before_expired_ones(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        given(store, queue, "a", 2, 100)
        mine = given(store, queue, "b", 2, 5000)
        clock.advance(100)
        assert given(store, queue, "b", 2) == mine

    def test_a_claim_leaves_out_what_is_about_to_be_acknowledged(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        first = given(store, queue, "a")
        assert store.claim(queue.id, "a", first.first) is None
        clock.advance(TTL_MS)
        second = given(store, queue, "b")
        assert second.first == first.first
        third = given(store, queue, "c")
        clock.advance(TTL_MS)
        assert store.claim(queue.id, "a", second.first) == third

    def test_the_next_expiry_is_one_that_is_still_to_come(self, store: Store, queue: QueueState, clock: Clock) -> None:
        assert store.next_expiry(queue.id, store.now()) is None
        late, early = given(store, queue, "a", 2, 900), given(store, queue, "b", 2, 100)
        assert store.next_expiry(queue.id, store.now()) == early.expires
        clock.advance(100)
        assert store.next_expiry(queue.id, store.now()) == late.expires
        clock.advance(800)
        assert store.next_expiry(queue.id, store.now()) is None

    def test_with_nothing_to_give_the_queue_remembers_how_far_it_looked(self, store: Store, queue: QueueState) -> None:
        assert do_one(store, Allocate(queue.id, "a", TTL_MS, Proposal(Proposal.NOTHING, 1, 11))) is None
        assert marker_of(store, queue) == 11
        assert take(store, queue, "a") is None
        assert store.allocations(queue.id, 0, 10) == []
        assert store.next_expiry(queue.id, store.now()) is None

    def test_a_proposal_that_came_too_late_is_stale_and_changes_nothing(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        fresh = Proposal(Proposal.FRESH, 1, 3, 1, 2, 2)
        live = given(store, queue, "a", 2)
        marker = marker_of(store, queue)
        too_late = [
            Allocate(queue.id, "b", TTL_MS, fresh),
            Allocate(queue.id, "b", TTL_MS, Proposal(Proposal.NOTHING, 1, 11)),
            Allocate(queue.id, "b", TTL_MS, Proposal(Proposal.OWN, marker, marker, 1, 2, 2)),
            Allocate(queue.id, "b", TTL_MS, Proposal(Proposal.EXPIRED, marker, marker, 1, 2, 2)),
            Allocate(queue.id, "a", TTL_MS, Proposal(Proposal.FRESH, marker, 5, 3, 4, 2)),
            Allocate(queue.id, "a", TTL_MS, Proposal(Proposal.OWN, marker, marker, 9, 9, 1)),
        ]
        for wrong in too_late:
            assert do_one(store, wrong) == STALE, wrong
        clock.advance(TTL_MS)
        for kind in (Proposal.OWN, Proposal.FRESH, Proposal.NOTHING):
            proposal = Proposal(kind, marker, marker + 2, 3 if kind == Proposal.FRESH else 1, 4, 2)
            assert do_one(store, Allocate(queue.id, "a", TTL_MS, proposal)) == STALE, kind
        assert store.allocations(queue.id, 0, 10) == [live]
        assert marker_of(store, queue) == marker

    def test_of_two_who_propose_the_same_one_is_stale(self, store: Store, queue: QueueState, clock: Clock) -> None:
        fresh = Proposal(Proposal.FRESH, 1, 3, 1, 2, 2)
        first, second = store.write([Transaction((Allocate(queue.id, name, TTL_MS, fresh),)) for name in "ab"])
        assert isinstance(first, list)
        assert isinstance(first[0], Allocation)
        assert second == [STALE]
        clock.advance(TTL_MS)
        late = Proposal(Proposal.EXPIRED, 3, 3, 1, 2, 2)
        third, fourth = store.write([Transaction((Allocate(queue.id, name, TTL_MS, late),)) for name in "cd"])
        assert isinstance(third, list)
        assert isinstance(third[0], Allocation)
        assert (third[0].subscriber, third[0].deliveries) == ("c", 2)
        assert fourth == [STALE]

    def test_a_queue_that_is_not_there_allocates_nothing(self, store: Store) -> None:
        assert isinstance(attempt(store, Allocate(7, "a", 1, Proposal(Proposal.NOTHING, 1, 1))), QueueNotFound)
        assert isinstance(attempt(store, MoveQueue(7, 1)), QueueNotFound)
        assert do_one(store, Acknowledge(7, "a", 1, 1)) is False
        assert store.allocations(7, 0, 10) == []
        assert store.claim(7, "a", None) is None

    # -- acknowledging

    def test_an_acknowledged_allocation_is_gone(self, store: Store, queue: QueueState) -> None:
        given(store, queue, "a")
        assert do_one(store, Acknowledge(queue.id, "a", 1, 2)) is True
        assert do_one(store, Acknowledge(queue.id, "a", 1, 2)) is False
        assert store.allocations(queue.id, 0, 10) == []
        assert given(store, queue, "a").first == 3

    def test_late_acknowledgements_count_until_somebody_takes_over(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        given(store, queue, "a")
        clock.advance(10 * TTL_MS)
        assert do_one(store, Acknowledge(queue.id, "a", 1, 2)) is True
        given(store, queue, "a")
        clock.advance(TTL_MS)
        taken = given(store, queue, "b")
        assert do_one(store, Acknowledge(queue.id, "a", 3, 4)) is False
        assert store.allocations(queue.id, 0, 10) == [taken]
        assert do_one(store, Acknowledge(queue.id, "b", 3, 4)) is True

    @pytest.mark.parametrize(("subscriber", "first", "last"), [("b", 1, 2), ("a", 1, 1), ("a", 2, 2), ("a", 0, 0)])
    def test_only_the_owner_with_both_markers_acknowledges(
        self, store: Store, queue: QueueState, subscriber: str, first: int, last: int
    ) -> None:
        live = given(store, queue, "a")
        assert do_one(store, Acknowledge(queue.id, subscriber, first, last)) is False
        lost = attempt(store, Acknowledge(queue.id, subscriber, first, last, strict=True))
        assert isinstance(lost, AllocationLost)
        assert (lost.first, lost.last) == (first, last)
        assert store.allocations(queue.id, 0, 10) == [live]

    def test_the_first_marker_alone_is_enough_to_acknowledge(self, store: Store, queue: QueueState) -> None:
        given(store, queue, "a")
        assert do_one(store, Acknowledge(queue.id, "b", 1, None)) is False
        assert do_one(store, Acknowledge(queue.id, "a", 2, None)) is False
        assert isinstance(attempt(store, Acknowledge(queue.id, "b", 1, None, strict=True)), AllocationLost)
        assert do_one(store, Acknowledge(queue.id, "a", 1, None, strict=True)) is True
        assert store.allocations(queue.id, 0, 10) == []

    def test_queues_do_not_share_allocations(self, store: Store, queue: QueueState) -> None:
        other = declare(store, "other")
        assert given(store, queue, "a").first == given(store, other, "a").first == 1
        assert do_one(store, Acknowledge(other.id, "a", 1, 2)) is True
        assert len(store.allocations(queue.id, 0, 10)) == 1

    def test_acknowledging_and_allocating_go_together(self, store: Store, queue: QueueState) -> None:
        given(store, queue, "a")
        fresh = Allocate(queue.id, "a", TTL_MS, Proposal(Proposal.FRESH, 3, 5, 3, 4, 2))
        made = do(store, Acknowledge(queue.id, "a", 1, 2), fresh, commit("made", some(1)))
        assert made[0] is True
        assert isinstance(made[1], Allocation)
        assert [one.first for one in store.allocations(queue.id, 0, 10)] == [3]

    # -- resetting

    @pytest.mark.parametrize("position", [1, 3, 11])
    def test_a_reset_queue_has_no_allocations_and_starts_where_it_was_put(
        self, store: Store, queue: QueueState, position: int
    ) -> None:
        given(store, queue, "a")
        given(store, queue, "b")
        do_one(store, MoveQueue(queue.id, position))
        assert store.allocations(queue.id, 0, 10) == []
        assert marker_of(store, queue) == position
        assert do_one(store, Acknowledge(queue.id, "a", 1, 2)) is False
        again = take(store, queue, "a")
        assert again is None if position == 11 else isinstance(again, Allocation) and again.first == position
