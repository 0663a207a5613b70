"""Queues by key, delays, times, pauses and other changes, and what becomes of single events."""

import json
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NamedTuple

import pytest

from penstock import model
from penstock.engine import queue_jobs
from penstock.engine.queue_jobs import bury_exhausted, list_letters, plan_settlement, reviving
from penstock.engine.queues import find_events
from penstock.errors import (
    AllocationLost,
    InvalidRequest,
    LimitExceeded,
    QueueExists,
    QueueNotFound,
)
from penstock.model import Buried, NewEvent, Rest, Retried, Run
from penstock.model.times import datetime_of
from penstock.store import Store
from penstock.store.contract import (
    STALE,
    WAITING,
    AllocateParts,
    ChangeQueue,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Held,
    HideEvents,
    HideStream,
    MoveQueue,
    Operation,
    Part,
    QueueState,
    ReadLimits,
    Reoffer,
    Revive,
    SetDeadRule,
    Settle,
)
from penstock.store.tables import consumers
from tests.store.contract.case import StoreCase
from tests.store.kit import TICKS_PER_MS, Clock, append, attempt, do_one, some
from tests.store.queue_histories import allocated

TTL_MS = 1000
SOON_MS = 400
STEADY = model.RetryPolicy(2.0, 3.0, 10.0, 0.0).text
"""Without luck: 2 s, 6 s, 10 s."""


def made(store: Store, ordered: str = "stream", name: str = "work", position: int = 1, **rules: object) -> QueueState:
    queue = do_one(store, DeclareQueue("shop", name, "", position, ordered, **rules))  # type: ignore[arg-type]
    assert isinstance(queue, QueueState)
    return queue


class Batch(NamedTuple):
    who: str
    held: tuple[Held, ...]
    positions: list[int]

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple(Run(*one.run) for one in self.held)

    @property
    def attempts(self) -> list[int]:
        return [one.deliveries for one in self.held]


def take(store: Store, queue: QueueState, who: str, count: int = 100, *, several: bool = True) -> Batch:
    request = model.SubscribeQueue("shop", queue.name, who, "", 0, count, TTL_MS, several=several)
    held, events = allocated(store, request, lambda: bury(store, queue))
    return Batch(who, held, [one.position for one in events])


def bury(store: Store, queue: QueueState) -> None:
    while (operation := bury_exhausted(store, found(store, queue), ReadLimits())) is not None:
        do_one(store, operation)


def found(store: Store, queue: QueueState) -> QueueState:
    (state,) = store.find_queues(queue.name, "shop")
    return state


def settlement(
    store: Store,
    queue: QueueState,
    batch: Batch,
    rest: Rest = Rest.DONE,
    *,
    delay_ms: int | None = None,
    retries: Iterable[Retried] = (),
    buries: Iterable[Buried] = (),
    reason: str = "",
) -> Operation:
    outcomes = tuple(retries), tuple(buries)
    request = model.SettleQueue("shop", queue.name, batch.who, batch.runs, rest, delay_ms, reason, *outcomes)
    return plan_settlement(store, request, None)[1]


def settle(store: Store, queue: QueueState, batch: Batch, rest: Rest = Rest.DONE, **outcomes: object) -> None:
    assert do_one(store, settlement(store, queue, batch, rest, **outcomes)) == len(batch.held)  # type: ignore[arg-type]


def put_back(store: Store, queue: QueueState, *positions: int, drop: bool = False) -> int:
    request = model.PutBackLetters("shop", queue.name, positions, drop)
    _, known, parts = reviving(store, request, None)
    done = do_one(store, Revive(queue.id, known, () if drop else parts))
    assert isinstance(done, int)
    return done


def letters(store: Store, queue: QueueState) -> list[tuple[int, int, str, str]]:
    return [(one.position, one.deliveries, one.subscriber, one.reason) for one in store.letters(queue.id, 0, 99)]


def due(clock: Clock, ms: int, type: str = "T") -> NewEvent:
    """An event that is due so much later."""
    return model.event(type, b"body", due=datetime_of(clock.ticks) + timedelta(milliseconds=ms))


def interleave(store: Store, *streams: str) -> None:
    for stream in streams:
        append(store, stream, some(1))


class ConsumerContract(StoreCase):
    # -- order by key

    def test_of_each_stream_one_consumer_at_a_time_has_events_and_in_order(self, store: Store) -> None:
        interleave(store, "a", "b", "a", "b", "a", "c")
        queue = made(store)
        ann = take(store, queue, "ann", 3)
        assert ann.positions == [1, 2, 3]
        assert [one.run for one in ann.held] == [(1, 3), (2, 2)]
        assert [one.key for one in ann.held] == ["a", "b"]
        bob = take(store, queue, "bob")
        assert bob.positions == [6]
        assert take(store, queue, "cid").positions == []
        settle(store, queue, ann)
        assert take(store, queue, "cid").positions == [4, 5]
        assert take(store, queue, "ann").positions == []

    def test_a_key_can_be_the_beginning_of_a_name(self, store: Store) -> None:
        interleave(store, "a-1", "a-2", "b", "-x", "-y", "c--d", "c-")
        queue = made(store, "prefix:-")
        assert [queue.key_of(one) for one in ("a-1", "b", "-x", "c--d")] == ["a", "b", "-", "c"]
        assert take(store, queue, "ann", 1).positions == [1]
        assert take(store, queue, "bob", 3).positions == [3, 4]
        assert take(store, queue, "cid").positions == [6, 7]

    def test_an_unordered_queue_has_no_keys(self, store: Store) -> None:
        interleave(store, "a", "a", "a")
        queue = made(store, "")
        assert take(store, queue, "ann", 1).positions == [1]
        assert take(store, queue, "bob", 1).positions == [2]

    @pytest.mark.parametrize("gives_back", [True, False])
    def test_what_comes_again_holds_back_its_key_alone(self, store: Store, clock: Clock, gives_back: bool) -> None:
        interleave(store, "a", "b")
        queue = made(store)
        ann = take(store, queue, "ann", 1)
        interleave(store, "a", "b")
        bob = take(store, queue, "bob")
        assert bob.positions == [2, 4]
        assert take(store, queue, "cid").positions == []
        if gives_back:
            settle(store, queue, ann, Rest.RETRY, delay_ms=0)
        else:
            clock.advance(TTL_MS)
        again = take(store, queue, "cid", 1)
        assert (again.positions, again.attempts) == ([1], [2])
        settle(store, queue, again)
        assert 3 in take(store, queue, "cid").positions

    def test_who_asks_for_one_allocation_gets_consecutive_events_of_one_key(self, store: Store) -> None:
        interleave(store, "a", "b", "a", "c", "a")
        queue = made(store)
        ann = take(store, queue, "ann", 4, several=False)
        assert (ann.positions, [one.run for one in ann.held]) == ([1, 3], [(1, 3)])
        assert take(store, queue, "ann", 4, several=False) == ann
        bob = take(store, queue, "bob", 4, several=False)
        assert (bob.positions, [one.run for one in bob.held]) == ([2], [(2, 2)])
        assert take(store, queue, "cid", 4, several=False).positions == [4]
        assert take(store, queue, "dan", 4, several=False).positions == []
        settle(store, queue, ann)
        assert take(store, queue, "dan", 4, several=False).positions == [5]

    def test_a_consumer_gets_the_same_batch_until_it_is_settled(self, store: Store) -> None:
        interleave(store, "a", "b", "a")
        queue = made(store)
        ann = take(store, queue, "ann", 2)
        interleave(store, "d")
        again = take(store, queue, "ann", 100)
        assert (again.positions, again.runs, again.attempts) == (ann.positions, ann.runs, ann.attempts)

    def test_two_consumers_that_saw_the_same_do_not_both_get_it(self, store: Store) -> None:
        interleave(store, "a", "b")
        queue = made(store)
        parts = (Part(1, 1, 1, "a"),)
        first, second = (
            do_one(store, AllocateParts(queue.id, who, TTL_MS, 1, 2, held=parts)) for who in ("ann", "bob")
        )
        assert isinstance(first, tuple)
        assert second == STALE
        late = AllocateParts(queue.id, "bob", TTL_MS, 2, 3, taken=((1, 1),), held=(Part(2, 2, 1, "b"),))
        assert do_one(store, late) == STALE
        assert do_one(store, AllocateParts(queue.id, "ann", TTL_MS, 2, 2)) == STALE
        used = AllocateParts(queue.id, "bob", TTL_MS, 2, 3, held=(Part(2, 2, 1, "a"),))
        assert do_one(store, used) == STALE
        assert isinstance(attempt(store, AllocateParts(99, "ann", TTL_MS, 1, 1)), QueueNotFound)

    def test_a_proposal_that_was_made_ahead_gives_way_to_what_the_queue_had_before(self, store: Store) -> None:
        interleave(store, "a", "b", "c")
        queue = made(store)
        first = AllocateParts(queue.id, "ann", TTL_MS, 1, 2, held=(Part(1, 1, 1, "a"),), ahead=True)
        assert isinstance(do_one(store, first), tuple)
        ahead = AllocateParts(queue.id, "bob", TTL_MS, 2, 3, held=(Part(2, 2, 1, "b"),), ahead=True)
        do_one(store, Settle(queue.id, "ann", ((1, 1),), (Part(1, 1, 1, "a"),)))
        assert do_one(store, ahead) == STALE
        assert take(store, queue, "cid", 1).positions == [1]
        assert isinstance(do_one(store, ahead), tuple)

    # -- delays and times

    def test_a_delayed_event_comes_when_its_time_has_come_and_not_before(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "a", "b")
        queue = made(store)
        ann = take(store, queue, "ann")
        settle(store, queue, ann, retries=[Retried(1, SOON_MS, "no")])
        for ms in (0, SOON_MS - 1):
            clock.advance(ms)
            assert take(store, queue, "bob").positions == []
        clock.advance(1)
        bob = take(store, queue, "bob")
        assert (bob.positions, bob.attempts) == ([1], [2])
        settle(store, queue, bob)
        bob = take(store, queue, "bob")
        assert (bob.positions, bob.attempts) == ([2], [1])

    def test_the_policy_of_a_queue_says_how_long_an_event_waits(self, store: Store, clock: Clock) -> None:
        interleave(store, "a")
        queue = made(store, "", retry=STEADY)
        for seconds in (2, 6, 10, 10):
            settle(store, queue, take(store, queue, "ann"), Rest.RETRY)
            clock.advance(1000 * seconds - 1)
            assert take(store, queue, "ann").positions == []
            clock.advance(1)
        do_one(store, ChangeQueue(queue.id, retry=model.RetryPolicy(1, 1, 1, 0).text))
        settle(store, queue, take(store, queue, "ann"), Rest.RETRY)
        clock.advance(1000)
        assert take(store, queue, "ann").attempts == [6]

    @pytest.mark.parametrize("ordered", ["", "stream"])
    def test_an_event_is_in_the_history_at_once_and_comes_when_it_is_due(
        self, store: Store, clock: Clock, ordered: str
    ) -> None:
        append(store, "a", [due(clock, SOON_MS)])
        interleave(store, "a", "b")
        queue = made(store, ordered)
        assert [one.position for one in store.read_all(1, model.EventFilter(), ReadLimits()).events] == [1, 2, 3]
        early = [3] if ordered else [2, 3]
        assert take(store, queue, "ann").positions == early
        clock.advance(SOON_MS - 1)
        assert take(store, queue, "bob").positions == []
        clock.advance(1)
        bob = take(store, queue, "bob")
        assert bob.positions == [1]
        assert take(store, queue, "cid").positions == []
        settle(store, queue, bob)
        assert take(store, queue, "cid").positions == ([2] if ordered else [])

    def test_events_of_one_key_never_overtake_one_that_is_due_later(self, store: Store, clock: Clock) -> None:
        append(store, "a", [*some(1), due(clock, SOON_MS), *some(2), due(clock, 2 * SOON_MS), due(clock, 1)])
        queue = made(store)
        order = []
        for _ in range(9):
            batch = take(store, queue, "ann")
            order.append(batch.positions)
            if batch.held:
                settle(store, queue, batch)
            else:
                clock.advance(SOON_MS)
        assert order == [[1], [], [2], [3, 4], [], [5], [6], [], []]

    def test_a_header_that_is_no_time_is_none(self, store: Store) -> None:
        said = ["yesterday", 7, None, "2000-01-01T00:00:00Z"]
        headers = [json.dumps({model.DUE: one}) for one in said] + [f'["{model.DUE}"]', f'{{"{model.DUE}"', '"x"']
        append(store, "a", [model.event("T", b"", one) for one in headers])
        assert len(take(store, made(store, ""), "ann").positions) == len(headers)

    def test_lists_count_what_waits_for_a_time(self, store: Store, clock: Clock) -> None:
        append(store, "a", [due(clock, SOON_MS), *some(2)])
        interleave(store, "b")
        queue = made(store)
        ann = take(store, queue, "ann")
        settle(store, queue, ann, Rest.RETRY, delay_ms=SOON_MS)
        (info,) = store.queues(0, 9)
        assert (info.delayed, info.behind, info.allocated, info.allocations) == (2, 2, 0, 3)
        clock.advance(SOON_MS)
        (info,) = store.queues(0, 9)
        assert (info.delayed, info.behind, info.ordered) == (0, 4, "stream")

    # -- leases

    def test_a_lease_can_be_extended_until_another_consumer_has_it(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "b")
        queue = made(store)
        ann = take(store, queue, "ann")
        for _ in range(3):
            clock.advance(TTL_MS - 1)
            expires = do_one(store, Extend(queue.id, "ann", ann.runs, TTL_MS))
            assert expires == clock.ticks + TTL_MS * TICKS_PER_MS
            assert take(store, queue, "bob").positions == []
        clock.advance(TTL_MS)
        bob = take(store, queue, "bob", 1)
        before = store.allocations(queue.id, 0, 9)
        for operation in (
            Extend(queue.id, "ann", ann.runs, TTL_MS),
            settlement(store, queue, ann),
            Settle(queue.id, "ann", ann.runs, back=(Part(1, 1, 1, "a"),), strict=True),
        ):
            outcome = attempt(store, operation)
            assert isinstance(outcome, AllocationLost)
            assert (outcome.queue, outcome.first, outcome.last) == ("work", *bob.runs[0])
        with pytest.raises(AllocationLost):
            settlement(store, queue, ann, retries=[Retried(1, 0, "")])
        assert store.allocations(queue.id, 0, 9) == before
        # What is not strict ends what is left, unless something were to take its place.
        assert do_one(store, Settle(queue.id, "ann", ann.runs, back=(Part(1, 1, 1, "a"),))) == 0
        assert do_one(store, Settle(queue.id, "ann", ann.runs)) == 1
        assert [one.run for one in store.held(queue.id, "bob")] == [*bob.runs]

    # -- outcomes of single events

    def test_each_event_of_a_batch_can_have_its_own_outcome(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "b", "a", "c", "a", "d")
        queue = made(store)
        ann = take(store, queue, "ann")
        settle(
            *(store, queue, ann),
            retries=[Retried(3, SOON_MS, "later"), Retried(4, 0, "now")],
            buries=[Buried(2, "never")],
        )
        assert letters(store, queue) == [(2, 1, "ann", "never")]
        bob = take(store, queue, "bob")
        assert (bob.positions, bob.attempts) == ([4], [2])
        clock.advance(SOON_MS)
        cid = take(store, queue, "cid")
        assert (cid.positions, cid.attempts) == ([3], [2])
        settle(store, queue, cid)
        # What came behind the failed one was not tried.
        cid = take(store, queue, "cid")
        assert (cid.positions, cid.attempts) == ([5], [1])

    def test_without_keys_what_is_behind_a_failed_event_is_done(self, store: Store) -> None:
        interleave(store, "a", "a", "a")
        queue = made(store, "")
        settle(store, queue, take(store, queue, "ann"), retries=[Retried(2, 0, "no")])
        bob = take(store, queue, "bob")
        assert (bob.positions, bob.attempts) == ([2], [2])

    def test_what_is_given_back_was_not_tried(self, store: Store) -> None:
        interleave(store, "a", "b", "a")
        queue = made(store, dead_after=1)
        for _ in range(3):
            ann = take(store, queue, "ann")
            assert (ann.positions, ann.attempts) == ([1, 2, 3], [1, 1])
            settle(store, queue, ann, Rest.BACK)

    def test_all_of_a_batch_can_fail_with_one_reason(self, store: Store) -> None:
        interleave(store, "a", "b", "b")
        queue = made(store, "", dead_after=2)
        for number in (1, 2):
            batch = take(store, queue, f"c{number}")
            assert batch.attempts[0] == number
            settle(store, queue, batch, Rest.RETRY, delay_ms=0, reason="no stock")
        assert letters(store, queue) == [(position, 2, "c2", "no stock") for position in (1, 2, 3)]
        assert take(store, queue, "zoe").positions == []

    # -- dead letters

    def test_what_expired_too_often_dies_event_by_event_and_frees_its_key(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "a", "b", "a")
        queue = made(store, dead_after=2)
        for who in ("ann", "bob"):
            assert take(store, queue, who, 3).positions == [1, 2, 3]
            clock.advance(TTL_MS)
        assert take(store, queue, "cid").positions == [4]
        said = "delivered 2 times and never acknowledged"
        assert letters(store, queue) == [(position, 2, "bob", said) for position in (1, 2, 3)]
        assert {one.died for one in store.letters(queue.id, 0, 9)} == {clock.ticks}
        (info,) = store.queues(0, 9)
        assert (info.dead, info.allocated, info.behind) == (3, 1, 0)

    def test_dead_letters_are_listed_in_pages(self, store: Store) -> None:
        interleave(store, *"abcde")
        queue = made(store)
        settle(store, queue, take(store, queue, "ann"), buries=[Buried(one, f"r{one}") for one in range(1, 6)])
        request = model.ListLetters("shop", "work")
        page = list_letters(store, request, 3, None)
        assert ([one.position for one in page.items], page.end) == ([1, 2, 3], False)
        assert (page.items[1].stream, page.items[1].sequence, page.items[1].reason) == ("b", 1, "r2")
        page = list_letters(store, model.ListLetters("shop", "work", 3), 3, None)
        assert ([one.position for one in page.items], page.end) == ([4, 5], True)

    def test_dead_letters_are_put_back_or_dropped_one_or_all(self, store: Store) -> None:
        interleave(store, "a", "b", "a", "c")
        queue = made(store)
        settle(store, queue, take(store, queue, "ann"), buries=[Buried(one, "no") for one in (1, 2, 3, 4)])
        assert put_back(store, queue, 2, 7) == 1
        assert put_back(store, queue, 2) == 0
        again = take(store, queue, "bob")
        assert (again.positions, again.attempts) == ([2], [1])
        assert put_back(store, queue, 4, drop=True) == 1
        assert put_back(store, queue, 3, 1) == 2
        assert letters(store, queue) == []
        cid = take(store, queue, "cid", 1)
        assert cid.positions == [1]
        assert take(store, queue, "dan").positions == []
        settle(store, queue, cid)
        assert take(store, queue, "dan").positions == [3]

    def test_a_letter_put_back_comes_although_the_filter_changed(self, store: Store) -> None:
        interleave(store, "a", "b")
        for ordered in ("", "stream"):
            queue = made(store, ordered, f"work{ordered}")
            settle(store, queue, take(store, queue, "ann"), buries=[Buried(1, "no"), Buried(2, "no")])
            do_one(store, ChangeQueue(queue.id, selection=model.Selection(("U",)).text))
            assert put_back(store, queue, 1, 2) == 2
            first = take(store, queue, "ann", 1, several=False)
            assert first.positions == [1]
            assert take(store, queue, "bob").positions == [2]

    def test_a_filter_does_not_leave_out_streams_of_dead_letters(self, store: Store) -> None:
        interleave(store, "a", "b")
        queue = made(store)
        settle(store, queue, take(store, queue, "ann"), buries=[Buried(1, "no"), Buried(2, "no")])
        narrow = model.Selection(None, ("b",)).text
        for change in (ChangeQueue(queue.id, filter="b"), ChangeQueue(queue.id, selection=narrow)):
            outcome = attempt(store, change)
            assert isinstance(outcome, InvalidRequest)
            assert "leaves out streams of which queue work has dead letters" in str(outcome)
        assert do_one(store, ChangeQueue(queue.id, selection=model.Selection(None, ("a", "b")).text)) is True
        assert put_back(store, queue, 1, drop=True) == 1
        assert do_one(store, ChangeQueue(queue.id, filter="b", selection="")) is True
        assert [one[0] for one in letters(store, queue)] == [2]

    def test_another_rule_counts_from_the_next_look_on(self, store: Store, clock: Clock) -> None:
        interleave(store, "a")
        queue = made(store)
        for attempts in (1, 2, 3):
            assert take(store, queue, "ann").attempts == [attempts]
            clock.advance(TTL_MS)
        do_one(store, SetDeadRule(queue.id, 3))
        assert take(store, queue, "ann").positions == []
        assert [one[:2] for one in letters(store, queue)] == [(1, 3)]

    def test_erasing_reaches_dead_letters_and_their_reasons(self, store: Store) -> None:
        interleave(store, "a", "b", "c", "a")
        append(store, "a", some(1), context="else")
        queue = made(store)
        settle(store, queue, take(store, queue, "ann"), buries=[Buried(one, f"of {one}") for one in (1, 2, 3, 4)])
        do_one(store, HideStream("shop", "a", 1))
        assert [one.position for one in store.letters(queue.id, 0, 9)] == [2, 3, 4]
        do_one(store, HideEvents(((3, 3),), (("shop", "c"),)))
        assert [one.position for one in store.letters(queue.id, 0, 9)] == [2, 4]
        assert put_back(store, queue, 1, 3) == 0

    def test_allocations_whose_events_were_erased_go_by_themselves(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "b", "a")
        queue = made(store)
        take(store, queue, "ann", 1)
        take(store, queue, "bob", 1)
        clock.advance(TTL_MS)
        do_one(store, HideStream("shop", "a", 1))
        assert take(store, queue, "cid").positions == [2]
        assert take(store, queue, "dan").positions == [3]

    # -- replays

    def test_an_ordered_queue_delivers_again_what_is_neither_open_nor_dead(self, store: Store, clock: Clock) -> None:
        append(store, "a", [*some(3), due(clock, SOON_MS)])
        interleave(store, "b", "b")
        queue = made(store)
        ann = take(store, queue, "ann")
        assert ann.positions == [1, 2, 3, 5, 6]
        settle(store, queue, ann, retries=[Retried(6, 0, "")], buries=[Buried(2, "")])
        request = model.ReplayQueue("shop", "work", 1, 6)
        known = find_events(store, request, 1, 100, ReadLimits(), None)
        assert [part[:4] for part in known.parts] == [(1, 1, 1, "a"), (3, 3, 1, "a"), (5, 5, 1, "b")]
        assert known.left_out == [2, 4, 6]
        assert do_one(store, Reoffer(queue.id, (), tuple(known.parts))) is True
        assert do_one(store, Reoffer(queue.id, (), tuple(known.parts))) is True
        assert store.outstanding(queue.id) == 5
        order = []
        for _ in range(8):
            batch = take(store, queue, "bob", 1)
            order += batch.positions
            if batch.held:
                settle(store, queue, batch)
            else:
                clock.advance(SOON_MS)
        # The fourth was next already, at its time, and what comes again is behind it.
        assert sorted(order) == [1, 3, 4, 5, 6]
        assert [one for one in order if one < 5] == [4, 1, 3]

    # -- the life of a queue

    def test_a_paused_queue_gives_nothing_out_and_takes_everything_back(self, store: Store, clock: Clock) -> None:
        interleave(store, "a", "b", "a", "c")
        queue = made(store)
        ann = take(store, queue, "ann", 2)
        assert do_one(store, ChangeQueue(queue.id, paused=1)) is True
        assert found(store, queue).paused == 1
        assert store.queues(0, 9)[0].paused is True
        assert take(store, queue, "ann").positions == ann.positions
        assert take(store, queue, "bob").positions == take(store, queue, "bob", several=False).positions == []
        settle(store, queue, ann, retries=[Retried(1, 0, "")])
        clock.advance(10 * TTL_MS)
        assert take(store, queue, "bob").positions == []
        do_one(store, ChangeQueue(queue.id, paused=0))
        assert take(store, queue, "bob").positions == [1, 4]

    def test_what_was_proposed_before_a_change_is_not_carried_out_after_it(self, store: Store) -> None:
        interleave(store, "a", "b")
        for several in (True, False):
            queue = made(store, "", f"work {several}")
            request = model.SubscribeQueue("shop", queue.name, "ann", "", 0, 1, TTL_MS, several=several)

            def propose(request: model.SubscribeQueue = request) -> Operation:
                proposed = queue_jobs.propose(store, request, None, 1, ReadLimits(), None, None)
                assert proposed.operation is not None
                return proposed.operation

            changes: list[Callable[[], Operation]] = [
                lambda queue=queue: ChangeQueue(queue.id, paused=0),  # type: ignore[misc]
                lambda queue=queue: ChangeQueue(queue.id, filter="b"),  # type: ignore[misc]
                lambda queue=queue: MoveQueue(queue.id, 2),  # type: ignore[misc]
            ]
            for change in changes:
                operation = propose()
                do_one(store, change())
                assert do_one(store, operation) == STALE
            assert store.outstanding(queue.id) == 0
            assert take(store, queue, "ann", 1, several=several).positions == [2]

    def test_a_deleted_queue_leaves_nothing_and_its_name_is_free(self, store: Store, clock: Clock) -> None:
        append(store, "a", [*some(2), due(clock, SOON_MS)])
        interleave(store, "b")
        queue = made(store)
        settle(store, queue, take(store, queue, "ann"), buries=[Buried(1, "no")])
        ann = take(store, queue, "ann")
        other = made(store, "", "other")
        take(store, other, "ann")
        assert do_one(store, DeleteQueue(queue.id)) is True
        assert do_one(store, DeleteQueue(queue.id)) is False
        assert store.find_queues("work") == []
        assert (store.allocations(queue.id, 0, 9), store.letters(queue.id, 0, 9)) == ([], [])
        assert store.held(other.id, "ann") != []
        lost = attempt(store, Settle(queue.id, "ann", ((2, 2),), strict=True))
        assert isinstance(lost, AllocationLost)
        assert ann.positions == []
        again = made(store)
        assert again.id > queue.id
        assert take(store, again, "ann").positions == [1, 2, 4]

    def test_a_queue_gets_another_name_unless_one_has_it(self, store: Store) -> None:
        interleave(store, "a", "b")
        queue = made(store)
        made(store, "", "other")
        do_one(store, DeclareQueue("else", "free", "", 1))
        ann = take(store, queue, "ann", 1)
        outcome = attempt(store, ChangeQueue(queue.id, name="other"))
        assert isinstance(outcome, QueueExists)
        assert (outcome.queue, outcome.context) == ("other", "shop")
        assert do_one(store, ChangeQueue(queue.id, name="work")) is True
        assert do_one(store, ChangeQueue(queue.id, name="free")) is True
        assert store.find_queues("work") == []
        (renamed,) = store.find_queues("free", "shop")
        assert (renamed.id, renamed.ordered) == (queue.id, "stream")
        settle(store, renamed, ann)
        assert take(store, renamed, "ann").positions == [2]
        assert isinstance(attempt(store, ChangeQueue(99, name="x")), QueueNotFound)

    def test_a_filter_changes_only_while_nothing_is_allocated(self, store: Store, clock: Clock) -> None:
        append(store, "a", [*some(1), *some(1, type="U"), due(clock, SOON_MS)])
        interleave(store, "b", "bc", "c")
        queue = made(store)
        ann = take(store, queue, "ann", 2)
        selection = model.Selection(None, ("b", "c"))
        change = ChangeQueue(queue.id, selection=selection.text)
        for _ in range(2):
            outcome = attempt(store, change)
            assert isinstance(outcome, InvalidRequest)
            assert "cannot change while queue work has" in str(outcome)
            if ann.held:
                settle(store, queue, ann, Rest.BACK)
                ann = ann._replace(held=())
        settle(store, queue, take(store, queue, "ann"))
        clock.advance(SOON_MS)
        while (batch := take(store, queue, "ann")).held:
            settle(store, queue, batch)
        interleave(store, "a", "b", "bc", "c")
        assert do_one(store, change) is True
        assert found(store, queue).selection == selection.text
        assert take(store, queue, "ann").positions == [8, 9, 10]

    def test_a_queue_selects_types_and_several_prefixes(self, store: Store) -> None:
        append(store, "a", [*some(1), *some(1, type="U")])
        append(store, "bc", [*some(1), *some(1, type="V")])
        append(store, "c", some(2, type="U"))
        for selection, positions in (
            (model.Selection(("U", "V")), [2, 4, 5, 6]),
            (model.Selection(None, ("b", "c")), [3, 4, 5, 6]),
            (model.Selection(("U",), ("a", "b")), [2]),
        ):
            queue = made(store, "stream", selection.text, selection=selection.text)
            assert queue.selection == selection.text
            assert take(store, queue, "ann").positions == positions

    @pytest.mark.parametrize("ordered", ["", "stream"])
    def test_a_moved_queue_begins_anew_at_a_position(self, store: Store, clock: Clock, ordered: str) -> None:
        append(store, "a", [*some(1), due(clock, SOON_MS), *some(2)])
        interleave(store, "b")
        queue = made(store, ordered)
        batch = take(store, queue, "ann")
        settle(store, queue, batch, buries=[Buried(1, "no")])
        ann = take(store, queue, "ann")
        do_one(store, MoveQueue(queue.id, 1))
        assert (store.outstanding(queue.id), letters(store, queue)) == (0, [])
        assert isinstance(attempt(store, Settle(queue.id, "ann", ann.runs or ((1, 1),), strict=True)), AllocationLost)
        assert take(store, queue, "bob").positions == batch.positions
        do_one(store, MoveQueue(queue.id, 5))
        assert take(store, queue, "bob").positions == [5]

    # -- limits

    def test_what_waits_in_a_queue_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consumers, "QUEUE_ALLOCATIONS_MAX", 4)
        monkeypatch.setattr("penstock.engine.queue_jobs.QUEUE_ALLOCATIONS_MAX", 4)
        interleave(store, "a", "a", "a", "a", "a", "a", "b")
        queue = made(store)
        ann = take(store, queue, "ann", 1)
        # Another consumer looks behind the key that is taken, but not for ever.
        assert take(store, queue, "bob", 1).positions == []
        assert store.outstanding(queue.id) == 4
        outcome = attempt(store, Reoffer(queue.id, (), (Part(1, 1, 1, "a"),)))
        assert isinstance(outcome, LimitExceeded)
        settle(store, queue, ann)
        assert [take(store, queue, who, 1).positions for who in ("ann", "bob")] == [[2], []]

    def test_a_consumer_reads_past_a_key_that_is_taken(self, store: Store) -> None:
        append(store, "a", some(3000))
        append(store, "b", some(2))
        queue = made(store)
        ann = take(store, queue, "ann", 10)
        assert ann.positions == list(range(1, 11))
        bob = take(store, queue, "bob", 10)
        assert bob.positions == [3001, 3002]
        assert {one.events for one in store.of_keys(queue.id, ["a"])} == {10}
        assert store.outstanding(queue.id) < 310
        settle(store, queue, ann)
        assert take(store, queue, "cid", 25).positions == list(range(11, 21))

    def test_of_a_key_with_much_that_waits_the_first_comes_next(self, store: Store) -> None:
        append(store, "a", some(1))
        queue = made(store)
        ann = take(store, queue, "ann", 1)
        for _ in range(20):
            append(store, "a", some(1))
            assert take(store, queue, "bob").positions == []
        assert len([one for one in store.of_keys(queue.id, ["a"]) if one.expires == WAITING]) == 20
        for position in range(2, 22):
            settle(store, queue, ann)
            ann = take(store, queue, "ann")
            assert ann.positions == [position]
