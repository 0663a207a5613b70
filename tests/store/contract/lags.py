"""Lags: how many events lie before a queue or a subscription, of nobody else, and since when."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.model import EventFilter, QueueInfo, SubscriptionInfo
from penstock.store import Store
from penstock.store.contract import (
    Acknowledge,
    Allocate,
    HideEvents,
    HideStream,
    Progress,
    Proposal,
    QueueState,
    Release,
)
from penstock.store.lag import EventLag, LagLimits
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.contract.queues import TTL_MS, declare, given
from tests.store.contract.reads import FILTERS
from tests.store.contract.seals import BLOCK, append_singly, close_block, seal_all
from tests.store.contract.subscriptions import register
from tests.store.kit import Clock, append, do_one, everything, some

PATIENT = LagLimits(count_ms_max=60_000)
"""Machines of tests are busy."""


def queues(store: Store) -> list[QueueInfo]:
    return [store.with_lag(one, PATIENT) for one in store.queues(0, 10)]


def subscriptions(store: Store) -> list[SubscriptionInfo]:
    return [store.with_lag(one, PATIENT) for one in store.subscriptions(0, 10)]


def consumers(store: Store) -> list[QueueInfo | SubscriptionInfo]:
    return [*queues(store), *subscriptions(store)]


def behind(store: Store) -> list[int]:
    return [one.behind for one in queues(store)]


def check(store: Store, positions: Sequence[int]) -> None:
    """Every filter's lag from these positions is what reading on gives."""
    no_limit = PATIENT._replace(events_max=1 << 40, records_max=1 << 40)
    for wanted in (*FILTERS, EventFilter("nowhere"), EventFilter("shop", "nothing")):
        passing = everything(store, wanted)
        for position in positions:
            left = [one for one in passing if one.position >= position]
            known = EventLag(len(left), True, left[0].recorded if left else None)
            assert store.lag(wanted, position, no_limit) == known


class LagContract(StoreCase):
    @pytest.fixture
    def queue(self, store: Store) -> QueueState:
        append(store, "orders", some(10))
        return declare(store)

    # -- what counts

    def test_events_of_other_contexts_and_streams_do_not_count(self, store: Store, queue: QueueState) -> None:
        declare(store, "carts", filter="cart")
        assert behind(store) == [10, 0]
        given(store, queue, "a", 10)
        append(store, "s", some(5000), context="else")
        assert behind(store) == [0, 0]
        append(store, "cart-1", some(1))
        append(store, "s", some(2), context="else")
        assert behind(store) == [1, 1]
        append(store, "orders", some(3))
        assert behind(store) == [4, 1]
        assert all(one.behind_is_exact for one in queues(store))

    def test_what_a_queue_delivers_again_counts_and_what_consumers_hold_does_not(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        given(store, queue, "a", 3)
        given(store, queue, "b", 2)
        assert behind(store) == [5]
        do_one(store, Release(queue.id, "a", 1, 3))
        assert behind(store) == [8]
        clock.advance(TTL_MS)
        assert behind(store) == [10]
        do_one(store, Acknowledge(queue.id, "b", 4, 5))
        assert behind(store) == [8]

    def test_a_subscription_has_the_lag_of_its_filter(self, store: Store) -> None:
        append(store, "orders", some(3))
        append(store, "carts", some(2))
        append(store, "orders", some(7), context="else")
        made = register(store, filter="or")
        register(store, "all")
        assert [(one.behind, one.behind_is_exact) for one in subscriptions(store)] == [(3, True), (5, True)]
        do_one(store, Progress(made.id, 1, 3, 100))
        assert [one.behind for one in subscriptions(store)] == [1, 5]

    def test_erased_events_do_not_count(self, store: Store, reader: Store, queue: QueueState) -> None:
        append(store, "carts", some(4))
        append_singly(store, ["orders"], BLOCK)
        close_block(store)
        seal_all(store)
        total = 10 + 4 + BLOCK
        assert behind(reader) == [total]
        do_one(store, HideStream("shop", "carts"))
        do_one(store, HideEvents(((2, 3), (20, 24)), (("shop", "orders"),)))
        for _ in range(2):
            assert behind(store) == behind(reader) == [total - 4 - 2 - 5]
            erase_all(store)

    def test_lags_are_what_reading_on_would_give(self, store: Store) -> None:
        self.fill(store)
        positions = (1, BLOCK - 1, BLOCK + 1, store.head() // 2, store.head(), 1 << 40)
        check(store, positions)
        seal_all(store)
        check(store, positions)
        do_one(store, HideStream("shop", "b"))
        do_one(store, HideEvents(((BLOCK - 3, BLOCK + 3),), ()))
        check(store, positions)
        erase_all(store)
        check(store, positions)

    @staticmethod
    def fill(store: Store) -> None:
        """Small commits of several contexts and streams, types mixed, and large ones between them."""
        for number in range(60):
            append(store, "orders", [*some(1), *some(1, type="other")], context=("shop", "else")[number % 7 == 0])
            append(store, ("a", "b", "order-2")[number % 3], some(number % 4 + 1))
        append_singly(store, ["a", "b", "orders"], 100)
        append(store, "b", some(BLOCK + 7), context="else")
        append(store, "a", some(700))
        close_block(store)
        append_singly(store, ["a"], 20)

    def test_a_lag_begins_in_the_middle_of_a_commit(self, store: Store) -> None:
        append(store, "orders", some(10))
        append(store, "orders", some(10), context="else")
        for position, events in ((0, 10), (1, 10), (4, 7), (10, 1), (11, 0), (15, 0), (21, 0)):
            assert store.lag(EventFilter("shop"), position)[:2] == (events, True)

    # -- since when

    def test_a_lag_has_the_age_of_the_oldest_event(self, store: Store, clock: Clock) -> None:
        for _ in range(3):
            append(store, "orders", some(2))
            append(store, "orders", some(1), context="else")
            clock.advance(1500)
        declare(store)
        register(store)
        ages = [one.behind_ms for one in consumers(store)]
        assert ages == [4500, 4500]
        (made,) = store.subscriptions(0, 10)
        (found,) = store.find_queues("work")
        do_one(store, Progress(made.id, 1, 4, 100))
        do_one(store, Allocate(found.id, "a", TTL_MS, Proposal(Proposal.FRESH, 1, 6, 1, 5, 4)))
        assert [one.behind_ms for one in consumers(store)] == [1500, 3000]
        do_one(store, Release(found.id, "a", 1, 5))
        assert [(one.behind, one.behind_ms) for one in queues(store)] == [(6, 4500)]

    def test_who_has_everything_is_not_behind_at_all(self, store: Store, clock: Clock) -> None:
        append(store, "orders", some(2))
        register(store, position=3)
        declare(store, position=3)
        clock.advance(9000)
        for one in consumers(store):
            assert (one.behind, one.behind_is_exact, one.behind_ms) == (0, True, 0)

    def test_a_clock_that_was_set_back_makes_no_negative_age(self, store: Store, clock: Clock) -> None:
        declare(store)
        append(store, "orders", some(2))
        clock.advance(-5000)
        assert [(one.behind, one.behind_ms) for one in queues(store)] == [(2, 0)]

    def test_events_delivered_again_that_were_erased_have_no_age(
        self, store: Store, queue: QueueState, clock: Clock
    ) -> None:
        given(store, queue, "a", 10)
        clock.advance(TTL_MS)
        do_one(store, HideEvents(((1, 10),), ()))
        # How many an allocation has is not counted anew; its next consumer gets none of them.
        assert [(one.behind, one.behind_ms) for one in queues(store)] == [(10, 0)]

    # -- bounds

    @pytest.mark.parametrize("erases", [False, True])
    def test_a_count_ends_at_its_limits_and_says_so(self, store: Store, erases: bool) -> None:
        append(store, "orders", some(1))
        append_singly(store, ["a", "b"], 30)
        close_block(store)
        if erases:
            do_one(store, HideStream("filler", "filler", 1))
        wanted, whole = EventFilter("shop"), PATIENT
        oldest = store.lag(wanted, 1, whole).oldest
        assert oldest is not None
        assert store.lag(wanted, 1, whole._replace(events_max=31)) == (31, True, oldest)
        assert store.lag(wanted, 1, whole._replace(events_max=30)) == (30, False, oldest)
        assert store.lag(wanted, 1, whole._replace(records_max=5)) == (5, False, oldest)
        events, is_exact, _ = store.lag(wanted, 1, whole._replace(count_ms_max=0))
        assert 0 < events < 31
        assert not is_exact
        seal_all(store)
        assert store.lag(wanted, 1, whole._replace(events_max=31)) == (31, True, oldest)
        assert store.lag(wanted, 1, whole._replace(events_max=30)) == (30, False, oldest)

    def test_ten_thousand_events_are_counted(self, store: Store) -> None:
        for stream in ("a", "b", "c"):
            append(store, stream, some(3333))
        declare(store)
        append(store, "a", some(1))
        assert behind(store) == [10_000]
        assert queues(store)[0].behind_is_exact
        append(store, "a", some(4000), context="shop")
        (info,) = queues(store)
        assert (info.behind, info.behind_is_exact) == (10_000, False)

    def test_a_list_alone_counts_nothing(self, store: Store, queue: QueueState) -> None:
        (info,) = store.queues(0, 10)
        assert (info.behind, info.behind_is_exact, info.behind_ms) == (0, False, 0)
        assert store.with_lag(info) == replace(info, behind=10, behind_is_exact=True)
