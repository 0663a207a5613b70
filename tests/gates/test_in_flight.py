"""One message with several requests: its answers come in order and end once, in whatever order the replies come."""

import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any, cast

import pytest

from penstock.engine import Engine
from penstock.engine.access import Login, Usage
from penstock.engine.engine import Budget
from penstock.engine.metrics import Metrics
from penstock.gates.in_flight import InFlightMessage
from penstock.model import ANONYMOUS, Done, FetchedBatch, Limits, Principal, Reply, Request
from penstock.model.replies import Encoded
from penstock.wire.res01.dialects import OWN_TAG, Frames
from penstock.wire.res01.messages import decode

Answer = Callable[[Reply], None]
COUNT = 4


class Replies:
    """In the place of an engine: requests wait until the test replies to them, or are replied to at once."""

    def __init__(self, at_once: tuple[int, ...] = (), *, gives_up: bool = True) -> None:
        self.waiting: dict[int, Answer] = {}
        self.metrics = Metrics()
        self.begun = 0
        self.budget = Budget(10_000, Counter())
        self._at_once = at_once
        self.give_up: Callable[[], bool] = lambda: gives_up

    def submit(
        self, _principal: object, request: Request, answer: Answer, _present: object, _sender: object = None
    ) -> Callable[[], bool]:
        number, self.begun = self.begun, self.begun + 1
        self.waiting[number] = answer
        if number in self._at_once:
            self.reply(number)
        return self.give_up

    def reply(self, number: int) -> None:
        answer = self.waiting.pop(number)
        answer(self.replies(number))

    def replies(self, number: int) -> Reply:
        return FetchedBatch(number, [])


class Large(Replies):
    """For a message whose replies take memory."""

    BYTES = 500

    def replies(self, number: int) -> Reply:
        return FetchedBatch(number, [], encoded=Encoded(1, [bytes(self.BYTES)]))


class Progressing(Replies):
    """For a message that is answered once."""

    def replies(self, _number: int) -> Reply:
        return Done()


class Peer:
    """In the place of a pipeline: keeps what is sent, each answer with whether it came last."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bool]] = []

    def send(self, _framing: object, answers: list[Frames]) -> None:
        self.answers += [(int(answer[4]) if answer[4].isdigit() else 0, False) for answer in answers]

    def finished(self, _message: object, answers: list[Frames]) -> None:
        first = len(self.answers) - len(answers)
        self.answers[first:] = [(code, True) for code, _ in self.answers[first:]]


class Carried(InFlightMessage):
    """Keeps what is delivered; at most so many requests may be under way."""

    def __init__(self, frames: Frames, most: int = COUNT, login: Login | None = None) -> None:
        exchange, peer = decode(frames), Peer()
        super().__init__(cast("Any", peer), exchange, 100, exchange, login or Login(ANONYMOUS, Usage()))
        self.delivered = peer.answers
        self.most = most
        self.most_seen = 0

    def may_go_on(self, begun: int) -> bool:
        self.most_seen = max(self.most_seen, begun)
        return begun < self.most


def fetch() -> Carried:
    return Carried([b"", b"Res01", b"FE", b"id", b"%d" % COUNT, *[b"1", b"10"] * COUNT])


def begun(carried: Carried, replies: Replies) -> None:
    assert carried.enter(replies.budget)
    carried.begin(cast("Engine", replies))


IN_ORDER = [(0, False), (1, False), (2, False), (3, True)]


@pytest.mark.parametrize("order", list(permutations(range(COUNT))))
def test_answers_come_in_order_and_only_the_last_one_ends_the_message(order: tuple[int, ...]) -> None:
    carried, replies = fetch(), Replies()
    begun(carried, replies)
    for number in order:
        assert carried.left
        replies.reply(number)
    assert carried.delivered == IN_ORDER
    assert not carried.left


@pytest.mark.parametrize("at_once", [(0,), (1,), (3,), (1, 2), (0, 1, 2, 3)])
def test_replies_that_come_while_the_requests_are_submitted_are_no_exception(at_once: tuple[int, ...]) -> None:
    carried, replies = fetch(), Replies(at_once)
    begun(carried, replies)
    for number in sorted(replies.waiting, reverse=True):
        replies.reply(number)
    assert carried.delivered == IN_ORDER


@pytest.mark.parametrize("most", [1, 2, 3])
def test_a_reply_that_waits_for_its_turn_still_counts_as_under_way(most: int) -> None:
    carried, replies = fetch(), Replies()
    carried.most = most
    begun(carried, replies)
    while carried.left:
        # The latest first: no other may begin in its place before the earlier ones are answered.
        assert replies.begun - len(carried.delivered) <= most
        replies.reply(max(replies.waiting))
    assert carried.delivered == IN_ORDER
    assert carried.most_seen <= most


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_what_is_answered_together_is_answered_once_when_all_is_done(order: tuple[int, ...]) -> None:
    carried = Carried([b"", b"Res01", b"PS", b"id", b"3", *[b"7", b"1"] * 3])
    replies = Progressing()
    begun(carried, replies)
    for number in order:
        assert carried.delivered == []
        replies.reply(number)
    assert (carried.delivered, carried.left) == ([(3, True)], 0)


# ---------------------------------------------------------------- what counts


def test_a_message_counts_until_its_last_answer() -> None:
    carried, replies = fetch(), Replies()
    begun(carried, replies)
    for number in range(COUNT):
        assert replies.budget.taken == carried.size
        replies.reply(number)
    assert replies.budget.taken == 0


def test_a_message_that_is_given_up_counts_no_more() -> None:
    for answered in range(COUNT):
        carried, replies = fetch(), Large()
        begun(carried, replies)
        for number in range(COUNT - answered, COUNT):
            replies.reply(number)
        carried.abandon()
        assert replies.budget.taken == 0


def test_a_message_that_is_written_all_the_same_counts_until_it_is() -> None:
    carried, replies = Carried([b"", b"Res01", b"PS", b"id", b"1", b"7", b"1"]), Progressing(gives_up=False)
    begun(carried, replies)
    carried.abandon()
    assert replies.budget.taken == carried.size
    replies.reply(0)
    assert replies.budget.taken == 0


def test_without_room_each_request_is_answered_busy_and_none_is_begun() -> None:
    replies = Replies()
    assert replies.budget.take(9950)
    carried = fetch()
    assert not carried.enter(replies.budget)
    assert [(code, done) for code, done in carried.delivered] == [(10, False)] * 3 + [(10, True)]
    together = Carried([b"", b"Res01", b"PS", b"id", b"3", *[b"7", b"1"] * 3])
    assert not together.enter(replies.budget)
    assert (together.left, len(together.delivered)) == (0, 1)
    assert replies.budget.taken == 9950
    assert replies.begun == 0


def test_a_reply_that_waits_for_an_earlier_one_counts_until_it_is_answered() -> None:
    carried, replies = fetch(), Large()
    begun(carried, replies)
    replies.reply(2)
    assert replies.budget.taken == carried.size + Large.BYTES
    replies.reply(1)
    assert replies.budget.taken == carried.size + 2 * Large.BYTES
    replies.reply(0)
    assert replies.budget.taken == carried.size
    replies.reply(3)
    assert replies.budget.taken == 0
    assert carried.delivered == IN_ORDER


def test_a_reply_that_has_no_room_to_wait_is_answered_busy() -> None:
    carried, replies = fetch(), Large()
    begun(carried, replies)
    assert replies.budget.take(9800)
    replies.reply(1)
    for number in (0, 2, 3):
        replies.reply(number)
    assert carried.delivered == [(0, False), (10, False), (2, False), (3, True)]
    assert replies.budget.taken == 9800


class Task:
    """What is given up, and can be watched."""

    def cancel(self) -> bool:
        return True


def test_a_message_that_is_given_up_keeps_nothing_of_the_engine() -> None:
    """A cancelled task refers to the message that it was for."""
    task = Task()
    watched = weakref.ref(task)
    carried, replies = fetch(), Replies()
    replies.give_up = task.cancel
    begun(carried, replies)
    replies.give_up = bool
    del task
    assert watched() is not None
    carried.abandon()
    assert watched() is None


def test_a_malformed_message_is_answered_without_room_too() -> None:
    replies = Replies()
    assert replies.budget.take(9950)
    for command in (b"FE", b"PS"):
        malformed = Carried([b"", b"Res01", command, b"id", b"x"])
        assert not malformed.enter(replies.budget)
        assert (malformed.left, len(malformed.delivered)) == (0, 1)


@pytest.mark.parametrize("late", [1, 3])
def test_a_reply_after_the_message_was_given_up_changes_nothing(late: int) -> None:
    carried, replies = fetch(), Large()
    carried.most = 2 if late == 1 else COUNT
    begun(carried, replies)
    submitted = replies.begun
    carried.abandon()
    replies.reply(late)
    assert (carried.delivered, replies.begun, replies.budget.taken) == ([], submitted, 0)


def waiting() -> Carried:
    """A long poll of several subscriptions."""
    return Carried([b"", b"Res01", b"FW", b"id", b"1000", b"%d" % COUNT, *[b"1", b"10"] * COUNT])


@pytest.mark.parametrize("replied", [(), (0,), (2,), (1, 0), (3, 1)])
def test_a_long_poll_whose_sender_is_revoked_is_answered_to_its_end(replied: tuple[int, ...]) -> None:
    carried, replies = waiting(), Large()
    begun(carried, replies)
    done: set[int] = set()
    for number in replied:
        replies.reply(number)
        done.add(number)
    # What is done cannot be given up.
    carried._abandons = [partial(lambda number: number not in done, number) for number in range(COUNT)]
    carried.revoke()
    assert len(carried.delivered) == COUNT
    assert carried.delivered[-1][1]
    assert replies.budget.taken == 0
    assert carried.login.usage.polls == 0
    before = len(carried.delivered)
    for number in list(replies.waiting):
        replies.reply(number)
    assert len(carried.delivered) == before


# ---------------------------------------------------------------- long polls of a principal


def polls(maximum: int) -> Login:
    return Login(Principal("eve", (), Limits(polls_max=maximum)), Usage())


def poll(login: Login, requests: int = 1) -> Carried:
    """A long poll."""
    return Carried([b"", OWN_TAG, b"FW", b"id", b"5000", b"%d" % requests, *[b"7", b"10"] * requests], login=login)


@pytest.mark.parametrize("requests", [1, 3])
def test_each_long_poll_of_a_message_counts_until_that_is_answered(requests: int) -> None:
    login, replies = polls(requests), Replies()
    carried = poll(login, requests)
    begun(carried, replies)
    assert (login.usage.polls, login.usage.requests) == (requests, requests)
    refused = poll(login)
    assert not refused.enter(replies.budget)
    assert (refused.left, login.usage.polls, login.usage.busy) == (0, requests, 1)
    for number in range(requests):
        assert login.usage.polls == requests
        replies.reply(number)
    assert (login.usage.polls, replies.budget.taken) == (0, 0)


def test_a_long_poll_without_room_in_the_budget_is_not_counted() -> None:
    login, replies = polls(1), Replies()
    assert replies.budget.take(9950)
    assert not poll(login).enter(replies.budget)
    assert (login.usage.polls, login.usage.busy) == (0, 0)


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("gives_up", [True, False])
def test_a_long_poll_whose_connection_is_lost_is_counted_no_more_and_only_once(requests: int, gives_up: bool) -> None:
    login, replies = polls(requests), Replies(gives_up=gives_up)
    carried = poll(login, requests)
    begun(carried, replies)
    carried.abandon()
    assert login.usage.polls == 0
    # One that the engine writes all the same is answered later.
    if not gives_up:
        for number in range(requests):
            replies.reply(number)
    assert (login.usage.polls, replies.budget.taken) == (0, 0)


def test_a_long_poll_of_somebody_revoked_is_answered_and_counted_no_more() -> None:
    login, replies = polls(1), Replies()
    carried = poll(login)
    begun(carried, replies)
    carried.revoke()
    carried.abandon()
    assert ([done for _, done in carried.delivered], login.usage.polls, replies.budget.taken) == ([True], 0, 0)
