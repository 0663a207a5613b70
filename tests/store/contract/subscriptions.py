"""Durable subscriptions: who they are, and how they move."""

from penstock.errors import SubscriptionMoved, SubscriptionNotFound
from penstock.model import SubscriptionInfo
from penstock.store import Store
from penstock.store.contract import DeleteSubscription, Progress, Register, SetBookmark, Transaction
from tests.store.contract.case import StoreCase
from tests.store.kit import append, attempt, do, do_one, some


def register(
    store: Store, subscriber: str = "me", context: str = "shop", filter: str = "", position: int = 1
) -> SubscriptionInfo:
    """Register, in a history long enough for all positions that are used here."""
    if not store.head():
        append(store, "orders", some(20))
    made = do_one(store, Register(subscriber, context, filter, position))
    assert isinstance(made, SubscriptionInfo)
    return made


class SubscriptionContract(StoreCase):
    def test_a_subscription_is_made_where_it_was_asked_to_start(self, store: Store) -> None:
        made = register(store, "më", "shöp", "or", 7)
        assert made == SubscriptionInfo(made.id, "më", "shöp", "or", 7, None)
        assert made.id > 0
        assert store.subscription(made.id) == made
        assert store.find_subscription("më", "shöp", "or") == made

    def test_the_same_again_is_the_same_and_keeps_its_place(self, store: Store) -> None:
        made = register(store, position=7)
        assert register(store, position=3) == made
        do_one(store, Progress(made.id, 7, 9, 55))
        assert register(store, position=3) == SubscriptionInfo(made.id, "me", "shop", "", 9, 55)

    def test_subscriber_context_and_filter_make_the_identity(self, store: Store) -> None:
        made = [
            register(store, *key)
            for key in (
                ("me", "shop", ""),
                ("you", "shop", ""),
                ("me", "other", ""),
                ("me", "shop", "x"),
                ("mes", "hop", ""),
            )
        ]
        assert len({one.id for one in made}) == 5
        assert store.subscriptions(0, 10) == sorted(made, key=lambda one: one.id)

    def test_ids_grow_and_are_not_lost_by_failures_or_opening_again(self, store: Store) -> None:
        first = register(store)
        do(store, Register("me", "shop", "", 1), Register("a", "shop", "", 1))
        attempt(store, Register("b", "shop", "", 1), Progress(first.id, 99, 100, strict=True))
        store.recover()
        last = register(store, "c")
        ids = [one.id for one in store.subscriptions(0, 10)]
        assert ids == sorted(set(ids))
        assert len(ids) == 3
        assert last.id == ids[-1]

    def test_what_is_not_there_is_not_found(self, store: Store) -> None:
        made = register(store)
        assert store.subscription(made.id + 1) is None
        assert store.subscription(0) is None
        assert store.subscription(-1) is None
        assert store.find_subscription("me", "shop", "x") is None

    def test_subscriptions_are_listed_by_id_in_pages(self, store: Store) -> None:
        made = [register(store, f"s{number}") for number in range(7)]
        found: list[SubscriptionInfo] = []
        while page := store.subscriptions(found[-1].id if found else 0, 3):
            assert len(page) <= 3
            found += page
        assert found == made

    def test_progress_moves_only_from_where_the_subscription_is(self, store: Store) -> None:
        made = register(store)
        assert do_one(store, Progress(made.id, 1, 5, 100)) is True
        assert do_one(store, Progress(made.id, 1, 9, 200)) is False
        assert do_one(store, Progress(made.id + 1, 1, 9, 200)) is False
        assert store.subscription(made.id) == SubscriptionInfo(made.id, "me", "shop", "", 5, 100)

    def test_passing_events_over_keeps_the_time_of_the_last_batch(self, store: Store) -> None:
        made = register(store)
        do_one(store, Progress(made.id, 1, 5, 100))
        assert do_one(store, Progress(made.id, 5, 9)) is True
        assert store.subscription(made.id) == SubscriptionInfo(made.id, "me", "shop", "", 9, 100)

    def test_strict_progress_that_cannot_be_fails(self, store: Store) -> None:
        made = register(store)
        for wrong in (Progress(made.id, 2, 5, strict=True), Progress(made.id + 1, 1, 5, strict=True)):
            outcome = attempt(store, wrong)
            assert isinstance(outcome, SubscriptionMoved)
            assert outcome.subscription == wrong.subscription
        assert store.subscription(made.id) == made

    def test_two_progresses_of_one_batch_of_writes_move_once(self, store: Store) -> None:
        made = register(store)
        step = Transaction((Progress(made.id, 1, 5, 1),))
        assert store.write([step, step]) == [[True], [False]]

    def test_a_bookmark_is_set_forward_and_back(self, store: Store) -> None:
        made = register(store)
        do_one(store, Progress(made.id, 1, 5, 100))
        for position in (20, 1, 21):
            do_one(store, SetBookmark("me", "shop", "", position))
            found = store.subscription(made.id)
            assert found is not None
            assert found.position == position

    def test_a_set_bookmark_forgets_the_last_batch(self, store: Store) -> None:
        made = register(store)
        do_one(store, Progress(made.id, 1, 5, 100))
        do_one(store, SetBookmark("me", "shop", "", 1))
        assert store.subscription(made.id) == SubscriptionInfo(made.id, "me", "shop", "", 1, None)

    def test_setting_what_is_not_there_fails(self, store: Store) -> None:
        register(store)
        for wrong in (SetBookmark("you", "shop", "", 1), SetBookmark("me", "shop", "x", 1)):
            outcome = attempt(store, wrong)
            assert isinstance(outcome, SubscriptionNotFound)
            assert wrong.subscriber in str(outcome)

    def test_a_deleted_subscription_is_gone_and_its_number_is_not_used_again(self, store: Store) -> None:
        made, other = register(store), register(store, "you")
        assert do_one(store, DeleteSubscription(made.id)) is True
        assert do_one(store, DeleteSubscription(made.id)) is False
        assert store.subscription(made.id) is None
        assert [one.id for one in store.subscriptions(0, 10)] == [other.id]
        assert do_one(store, Progress(made.id, 1, 5)) is False
        again = register(store)
        assert again.id > other.id
        assert again.position == 1
