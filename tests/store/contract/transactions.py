"""Transactions: several operations together or not at all, and batches in which nobody disturbs a neighbour."""

import pytest

from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    IteratorExists,
    PenstockError,
    SubscriptionMoved,
    VersionConflict,
)
from penstock.model import ANY, NEW, Allocation, Appended, ProducerMark, SubscriptionInfo
from penstock.store import Store
from penstock.store.contract import (
    Acknowledge,
    AddIterator,
    AddLog,
    Allocate,
    DeclareQueue,
    DeleteIterator,
    DeleteLog,
    Operation,
    Progress,
    Proposal,
    QueueState,
    Register,
    RequireLog,
    SetBookmark,
    Transaction,
)
from tests.store.contract.case import StoreCase
from tests.store.kit import append, attempt, commit, do, do_one, event, everything, some, stream_of


def picture(store: Store) -> list[object]:
    """All that can be seen of a store."""
    queues = store.queues(0, 100)
    return [
        everything(store),
        store.contexts("", 100),
        [store.streams(context.name, "", "", 100) for context in store.contexts("", 100)],
        store.subscriptions(0, 100),
        queues,
        [store.allocations(queue.id, 0, 100) for queue in queues],
        store.logs("", 100),
        store.iterators(None, "", 100),
    ]


class TransactionContract(StoreCase):
    @pytest.fixture
    def subscription(self, store: Store) -> SubscriptionInfo:
        made = do_one(store, Register("me", "shop", "", 1))
        assert isinstance(made, SubscriptionInfo)
        return made

    @pytest.fixture
    def allocation(self, store: Store) -> tuple[QueueState, Allocation]:
        """A queue over two events, and the allocation of the first."""
        append(store, "orders", some(2))
        queue = do_one(store, DeclareQueue("shop", "work", "", 1))
        assert isinstance(queue, QueueState)
        proposal = Proposal(Proposal.FRESH, 1, 2, 1, 1, 1)
        given = do_one(store, Allocate(queue.id, "me", 1000, proposal))
        assert isinstance(given, Allocation)
        return queue, given

    def test_several_commits_happen_together(self, store: Store) -> None:
        results = do(store, commit("a", some(2), NEW), commit("b", some(1), NEW, "other"), commit("a", some(1), 3))
        assert [(r.position, r.sequence, r.count) for r in results if isinstance(r, Appended)] == [
            (1, 1, 2),
            (3, 1, 1),
            (4, 3, 1),
        ]
        assert [found.position for found in stream_of(store, "a")] == [1, 2, 4]

    def test_a_conflict_takes_all_of_its_transaction_with_it(self, store: Store) -> None:
        append(store, "old", some(1))
        before = picture(store)
        conflict = attempt(
            store,
            commit("new", some(2), NEW),
            commit("old", some(2), 2),
            commit("fresh", some(2), NEW, "another"),
            commit("old", some(1), 2),
        )
        assert isinstance(conflict, VersionConflict)
        assert (conflict.stream, conflict.expected) == ("old", 2)
        assert picture(store) == before
        assert append(store, "new", some(1), NEW).position == 2
        assert append(store, "fresh", some(1), NEW, "another").position == 3
        assert append(store, "old", some(1), 2).position == 4

    def test_commits_acknowledgements_and_progress_happen_together(
        self, store: Store, subscription: SubscriptionInfo, allocation: tuple[QueueState, Allocation]
    ) -> None:
        queue, given = allocation
        results = do(
            store,
            Acknowledge(queue.id, "me", given.first, given.last, strict=True),
            commit("made", some(1), NEW),
            Progress(subscription.id, 1, 3, 7, strict=True),
        )
        assert [type(result) for result in results] == [bool, Appended, bool]
        assert store.allocations(queue.id, 0, 10) == []
        moved = store.subscription(subscription.id)
        assert moved is not None
        assert (moved.position, moved.last_ticks) == (3, 7)

    @pytest.mark.parametrize("place", [0, 1, 2])
    @pytest.mark.parametrize("bad", ["acknowledgement", "progress", "conflict", "name", "iterator"])
    def test_whatever_fails_inside_a_transaction_undoes_all_of_it(
        self,
        store: Store,
        subscription: SubscriptionInfo,
        allocation: tuple[QueueState, Allocation],
        bad: str,
        place: int,
    ) -> None:
        queue, given = allocation
        do(store, AddLog("log"), AddIterator("it", "log", "map", "return msg", True))
        before = picture(store)
        failing: dict[str, tuple[Operation, type[PenstockError]]] = {
            "acknowledgement": (Acknowledge(queue.id, "you", given.first, given.last, strict=True), AllocationLost),
            "progress": (Progress(subscription.id, 2, 3, strict=True), SubscriptionMoved),
            "conflict": (commit("orders", some(1), 9), VersionConflict),
            "name": (commit("", some(1)), InvalidRequest),
            "iterator": (AddIterator("it", "log", "filter", "return msg", True), IteratorExists),
        }
        operation, error = failing[bad]
        others: list[Operation] = [
            commit("orders", some(3)),
            commit("brand new", some(1), NEW, "brand new"),
            Acknowledge(queue.id, "me", given.first, given.last, strict=True),
            Progress(subscription.id, 1, 3, 5, strict=True),
            Register("another", "shop", "x", 1),
            DeclareQueue("shop", "another", "x", 1),
            AddLog("another"),
            DeleteIterator("log", "it") if bad != "iterator" else AddLog("third"),
            DeleteLog("log") if bad != "iterator" else AddLog("fourth"),
        ]
        others.insert(place * 4, operation)
        neighbour = Transaction((commit("neighbour", some(1), NEW),))
        first, failed, last = store.write(
            [
                neighbour,
                Transaction(tuple(others), ProducerMark("p", 1)),
                Transaction((commit("neighbour", some(1), 2),)),
            ]
        )
        assert isinstance(failed, error)
        assert isinstance(first, list)
        assert isinstance(last, list)
        assert [found.position for found in stream_of(store, "neighbour")] == [3, 4]
        after = picture(store)
        assert after[0][:2] == before[0]  # type: ignore[index]
        assert [info.name for info in store.streams("shop", "", "", 10)] == ["neighbour", "orders"]
        assert [info.name for info in store.contexts("", 10)] == ["shop"]
        assert after[3] == before[3]
        assert after[5:] == before[5:]
        assert append(store, "brand new", some(1), NEW, "brand new", ProducerMark("p", 1)).position == 5

    def test_failures_between_many_neighbours_leave_no_gap(self, store: Store) -> None:
        batch = []
        for number in range(40):
            name = f"s{number}"
            batch += [
                Transaction((commit(name, some(2), NEW), commit("shared", some(1)))),
                Transaction((commit(name, some(1), 3), commit("shared", some(1)), commit(name, some(1), 3))),
                Transaction((commit(name, some(1), 3),)),
                Transaction((commit("never", some(1), NEW, "never"), commit(name, some(1), 9))),
            ]
        outcomes = store.write(batch)
        assert [isinstance(outcome, list) for outcome in outcomes] == [True, False, True, False] * 40
        found = everything(store)
        assert [one.position for one in found] == list(range(1, 161))
        assert [one.sequence for one in stream_of(store, "shared")] == list(range(1, 41))
        assert [info.name for info in store.contexts("", 10)] == ["shop"]
        assert store.contexts("", 10)[0].streams == 41

    def test_an_acknowledgement_that_is_not_strict_fails_nothing(
        self, store: Store, subscription: SubscriptionInfo, allocation: tuple[QueueState, Allocation]
    ) -> None:
        queue, _ = allocation
        results = do(
            store,
            Acknowledge(queue.id, "you", 1, 1),
            Progress(subscription.id, 2, 3),
            commit("made", some(1), NEW),
        )
        assert results[:2] == [False, False]
        assert store.head() == 3

    # -- transactions sent again

    def test_a_transaction_sent_again_answers_its_first_commits_and_does_nothing(
        self, store: Store, subscription: SubscriptionInfo, allocation: tuple[QueueState, Allocation]
    ) -> None:
        queue, given = allocation
        operations: tuple[Operation, ...] = (
            commit("a", some(2), NEW),
            Acknowledge(queue.id, "me", given.first, given.last, strict=True),
            commit("b", some(1), NEW),
            Progress(subscription.id, 1, 3, strict=True),
        )
        first = do(store, *operations)
        before = picture(store)
        again = do(store, *operations)
        assert picture(store) == before
        for index in (0, 2):
            one, two = first[index], again[index]
            assert isinstance(one, Appended)
            assert isinstance(two, Appended)
            assert (two.commit, two.position, two.repeated) == (one.commit, one.position, True)

    def test_a_transaction_of_which_only_a_part_is_there_is_a_conflict(self, store: Store) -> None:
        a = commit("a", some(2), NEW)
        do(store, a)
        before = picture(store)
        for rest in (commit("b", some(1), NEW), commit("b", some(1), ANY), commit("a", some(1), 3)):
            for operations in ((a, rest), (rest, a)):
                conflict = attempt(store, *operations)
                assert isinstance(conflict, VersionConflict)
                assert (conflict.stream, conflict.expected) == ("a", 1)
                assert conflict.actual in (2, 3), "3 with what the transaction itself wanted to add"
                assert picture(store) == before

    def test_a_commit_twice_in_one_transaction_is_a_conflict(self, store: Store) -> None:
        twice = commit("a", some(1), NEW)
        assert isinstance(attempt(store, twice, twice), VersionConflict)
        assert store.head() == 0

    def test_one_transaction_may_do_something_with_what_it_made(self, store: Store) -> None:
        log, iterator, made, bookmark = do(
            store,
            AddLog("log"),
            AddIterator("it", "log", "map", "return msg", False),
            Register("me", "shop", "", 1),
            SetBookmark("me", "shop", "", 1),
        )
        assert log is True
        assert iterator == store.iterator("it")
        assert isinstance(made, SubscriptionInfo)
        assert bookmark is not None
        assert do(store, DeleteIterator("log", "it"), DeleteLog("log")) is not None
        assert store.iterator("it") is None

    # -- values that no store can keep

    @pytest.mark.parametrize(
        "bad",
        [
            Register("\ud800", "shop", "", 1),
            Register("me", "\ud800", "", 1),
            DeclareQueue("shop", "\ud800", "", 1),
            AddLog("\ud800"),
            DeleteLog("\ud800"),
            AddIterator("\ud800", "log", "map", "return msg", False),
            AddIterator("it", "shop/a", "map", "\ud800", False),
            RequireLog("\ud800"),
            Progress(1 << 70, 1, 2),
            Progress(1, 1 << 70, 2),
            Acknowledge(1 << 70, "me", 1, 1),
            Acknowledge(1, "me", 1 << 70, 1 << 70),
        ],
        ids=lambda bad: type(bad).__name__,
    )
    def test_a_value_that_cannot_be_kept_fails_only_its_own_transaction(self, store: Store, bad: Operation) -> None:
        first, failed, last = store.write(
            [
                Transaction((commit("a", some(1), NEW),)),
                Transaction((commit("a", some(1), 2), bad)),
                Transaction((commit("a", [event()], 2),)),
            ]
        )
        assert isinstance(first, list)
        assert isinstance(failed, InvalidRequest)
        assert isinstance(last, list)
        assert store.head() == 2
