"""Staging: what tasks bring is nowhere until their job is published, and then all of it is history, once."""

from penstock.errors import InvalidRequest, LimitExceeded, MarkSuperseded, StageLost, VersionConflict
from penstock.model import ANY, NewEvent, ProducerMark, Published, StagedUnit, Winner
from penstock.store import Store
from penstock.store.contract import ExpireStages, HideStream, Placed, Publish, Stage, Transaction, Unstage
from penstock.store.stages import make_unit
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.kit import Clock, append, attempt, commit, do, do_one, event, everything, some, stream_of

MARK = ProducerMark("job", 1)
MIB = 1 << 20


def unit(
    stream: str, events: list[NewEvent], expected: int = ANY, keys: list[bytes] | None = None, context: str = "shop"
) -> StagedUnit:
    """A unit of one stream."""
    return make_unit(context, stream, events, expected, keys or [])


def stage(store: Store, part: int, *units: StagedUnit, attempt: str = "a", number: int = 0, job: str = "job") -> Winner:
    """Stage units; the attempt, as a winner."""
    do_one(store, Stage(job, part, attempt, number, units, MIB, 1000))
    return Winner(part, attempt, number + len(units))


def publish(store: Store, *winners: Winner, mark: ProducerMark = MARK, job: str = "job") -> Published:
    """Publish a job."""
    (placed,) = do(store, Publish(job, winners), mark=mark)
    assert isinstance(placed, Placed)
    return placed.published


def numbered(*numbers: int) -> list[NewEvent]:
    """Events whose bodies are numbers."""
    return [event(body=b"%d" % number) for number in numbers]


def bodies(store: Store, stream: str) -> list[bytes]:
    """What a stream has."""
    return [found.body for found in stream_of(store, stream)]


class StagingContract(StoreCase):
    def test_what_is_staged_is_not_history(self, store: Store) -> None:
        stage(store, 0, unit("a", some(3)))
        assert store.head() == 0
        assert everything(store) == []
        assert store.contexts("", 10) == []

    def test_published_events_are_history_with_all_they_have(self, store: Store) -> None:
        first, second = event(7, "placed", '{"k":"ü"}', b"\x00\xff"), event(9, "paid", None, b"")
        published = publish(store, stage(store, 0, unit("a", [first, second])))
        assert published == Published(1, 1, 2)
        found = stream_of(store, "a")
        assert [(e.id, e.stamp, e.type, e.headers, e.body) for e in found] == [first, second]
        assert [(e.position, e.sequence) for e in found] == [(1, 1), (2, 2)]

    def test_streams_come_by_name_and_parts_by_number(self, store: Store) -> None:
        append(store, "b", numbered(0))
        two = stage(store, 1, unit("b", numbered(3)), unit("a", numbered(4)))
        one = stage(store, 0, unit("b", numbered(1)), unit("b", numbered(2)))
        assert publish(store, two, one) == Published(2, 4, 4)
        assert bodies(store, "b") == [b"0", b"1", b"2", b"3"]
        assert [e.stream for e in everything(store)] == ["b", "a", "b", "b", "b"]

    def test_only_the_winning_attempt_counts(self, store: Store) -> None:
        stage(store, 0, unit("a", numbered(1)), attempt="lost")
        winner = stage(store, 0, unit("a", numbered(2)), attempt="won")
        assert publish(store, winner).events == 1
        assert bodies(store, "a") == [b"2"]
        assert do_one(store, Unstage("job")) == 0

    def test_publishing_again_answers_the_same_and_adds_nothing(self, store: Store) -> None:
        winner = stage(store, 0, unit("a", some(2)), unit("b", some(1)))
        first = publish(store, winner)
        again = publish(store, winner)
        assert again == Published(first.position, 2, 3, repeated=True)
        assert store.head() == 3

    def test_a_replay_that_has_staged_anew_adds_nothing(self, store: Store) -> None:
        publish(store, stage(store, 0, unit("a", some(2))))
        assert publish(store, stage(store, 0, unit("a", some(5)), attempt="replay")).repeated
        assert store.head() == 2
        assert do_one(store, Unstage("job")) == 1

    def test_an_older_number_is_superseded(self, store: Store) -> None:
        publish(store, stage(store, 0, unit("a", some(1))), mark=ProducerMark("q", 5))
        outcome = attempt(store, Publish("other", ()), mark=ProducerMark("q", 4))
        assert isinstance(outcome, MarkSuperseded)

    def test_a_mark_is_either_of_commits_or_of_a_publication(self, store: Store) -> None:
        publish(store, stage(store, 0, unit("a", some(1))))
        assert isinstance(attempt(store, commit("a", some(1)), mark=MARK), InvalidRequest)
        append(store, "a", some(1), mark=ProducerMark("p", 1))
        assert isinstance(attempt(store, Publish("job", ()), mark=ProducerMark("p", 1)), InvalidRequest)
        assert store.head() == 2

    def test_a_mark_that_another_origin_has_published_is_refused(self, store: Store) -> None:
        job = stage(store, 0, unit("a", some(2)))
        do(store, Publish("job", (job,), "query 1"), mark=MARK)
        again = stage(store, 0, unit("a", some(4)), job="again")
        outcome = attempt(store, Publish("again", (again,), "query 2"), mark=MARK)
        assert isinstance(outcome, InvalidRequest)
        assert MARK.producer in str(outcome)
        for origin in ("query 1", ""):
            (placed,) = do(store, Publish("again", (again,), origin), mark=MARK)
            assert isinstance(placed, Placed)
            assert placed.published.repeated
        assert store.head() == 2

    def test_a_mark_without_an_origin_is_anybodys(self, store: Store) -> None:
        publish(store, stage(store, 0, unit("a", some(2))))
        (placed,) = do(store, Publish("job", (), "query"), mark=MARK)
        assert isinstance(placed, Placed)
        assert placed.published.repeated

    def test_a_job_without_events_is_published_too(self, store: Store) -> None:
        assert publish(store) == Published(0, 0, 0)
        assert publish(store, Winner(0, "a", 0)) == Published(0, 0, 0, repeated=True)
        assert store.head() == 0

    def test_the_same_units_again_are_staged_once(self, store: Store) -> None:
        one, two = unit("a", numbered(1)), unit("a", numbered(2))
        stage(store, 0, one)
        stage(store, 0, one)
        winner = stage(store, 0, two, number=1)
        stage(store, 0, one)
        publish(store, winner)
        assert bodies(store, "a") == [b"1", b"2"]

    def test_a_gap_between_units_is_refused(self, store: Store) -> None:
        stage(store, 0, unit("a", some(1)))
        outcome = attempt(store, Stage("job", 0, "a", 2, (unit("a", some(1)),), MIB, 1000))
        assert isinstance(outcome, InvalidRequest)
        assert publish(store, Winner(0, "a", 1)).events == 1

    def test_units_that_are_missing_fail_the_publication(self, store: Store) -> None:
        winner = stage(store, 0, unit("a", some(1)))
        for wrong in (Winner(0, "a", 2), Winner(0, "b", 1), Winner(1, "a", 1)):
            outcome = attempt(store, Publish("job", (wrong,)), mark=MARK)
            assert isinstance(outcome, StageLost)
        assert isinstance(attempt(store, Publish("job", (winner, winner)), mark=MARK), InvalidRequest)
        assert store.head() == 0
        assert publish(store, winner).events == 1

    def test_jobs_do_not_disturb_one_another(self, store: Store) -> None:
        one = stage(store, 0, unit("a", numbered(1)), job="one")
        two = stage(store, 0, unit("a", numbered(2)), job="two")
        publish(store, two, job="two", mark=ProducerMark("two", 1))
        assert bodies(store, "a") == [b"2"]
        publish(store, one, job="one", mark=ProducerMark("one", 1))
        assert bodies(store, "a") == [b"2", b"1"]

    def test_a_job_that_is_dropped_is_gone(self, store: Store) -> None:
        winner = stage(store, 0, unit("a", some(1)))
        stage(store, 1, unit("a", some(1)))
        assert do_one(store, Unstage("job")) == 2
        assert isinstance(attempt(store, Publish("job", (winner,)), mark=MARK), StageLost)

    def test_keys_put_the_events_of_a_stream_in_order(self, store: Store) -> None:
        keys = [[b"a", b"d", b"d"], [b"b", b"d"], [b"c", b"e"]]
        numbers = [[1, 4, 5], [2, 6], [3, 7]]
        winners = [
            stage(store, part, unit("s", numbered(*these), keys=own), unit("t", numbered(part), keys=[b"k"]))
            for part, (these, own) in enumerate(zip(numbers, keys, strict=True))
        ]
        assert publish(store, *reversed(winners)) == Published(1, 2, 10)
        assert bodies(store, "s") == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
        assert bodies(store, "t") == [b"0", b"1", b"2"]

    def test_an_expected_version_that_holds_is_of_the_first_event(self, store: Store) -> None:
        append(store, "a", some(2))
        winners = [stage(store, part, unit("a", numbered(part), 3), unit("n", some(1), 1)) for part in (0, 1)]
        assert publish(store, *winners).events == 4
        assert bodies(store, "a")[2:] == [b"0", b"1"]

    def test_a_conflict_anywhere_publishes_nothing_and_leaves_the_mark(self, store: Store) -> None:
        append(store, "z", some(2))
        winner = stage(store, 0, unit("a", some(1)), unit("z", some(1), 2))
        outcome = attempt(store, Publish("job", (winner,)), mark=MARK)
        assert isinstance(outcome, VersionConflict)
        assert (outcome.stream, outcome.expected, outcome.actual) == ("z", 2, 2)
        assert store.head() == 2
        better = stage(store, 0, unit("z", some(1), 3), attempt="b")
        assert not publish(store, better).repeated
        assert store.head() == 3

    def test_two_expected_versions_of_one_stream_are_refused(self, store: Store) -> None:
        winners = (stage(store, 0, unit("a", some(1), 1)), stage(store, 1, unit("a", some(1), 2)))
        assert isinstance(attempt(store, Publish("job", winners), mark=MARK), InvalidRequest)
        assert store.head() == 0

    def test_a_failed_publication_leaves_its_neighbours_alone(self, store: Store) -> None:
        winner = stage(store, 0, unit("a", numbered(1)), unit("b", some(1), 9))
        outcomes = store.write(
            [
                Transaction((commit("a", numbered(0)),)),
                Transaction((Publish("job", (winner,)),), MARK),
                Transaction((commit("a", numbered(2)),)),
            ]
        )
        assert [isinstance(outcome, list) for outcome in outcomes] == [True, False, True]
        assert bodies(store, "a") == [b"0", b"2"]

    def test_a_job_may_stage_only_so_much(self, store: Store) -> None:
        small = unit("a", some(1))
        for op in (Stage("job", 0, "a", 0, (small,), 10, 1000), Stage("job", 0, "a", 0, (small, small), MIB, 1)):
            assert isinstance(attempt(store, op), LimitExceeded)
        stage(store, 0, small)
        outcome = attempt(store, Stage("job", 1, "a", 0, (small,), MIB, 1))
        assert isinstance(outcome, LimitExceeded)

    def test_idle_stages_expire(self, store: Store, clock: Clock) -> None:
        old = stage(store, 0, unit("a", some(1)))
        clock.advance(1000)
        before = clock.ticks
        new = stage(store, 0, unit("a", some(1)), job="new")
        assert do_one(store, ExpireStages(before, 10)) == 1
        assert do_one(store, ExpireStages(before, 10)) == 0
        assert isinstance(attempt(store, Publish("job", (old,)), mark=MARK), StageLost)
        assert publish(store, new, job="new").events == 1

    def test_what_is_staged_outlives_opening_again(self, store: Store) -> None:
        winner = stage(store, 0, unit("a", some(2)))
        store.recover()
        assert publish(store, winner).events == 2

    def test_appends_go_on_after_a_publication(self, store: Store) -> None:
        publish(store, stage(store, 0, unit("a", numbered(1)), unit("x", numbered(1), context="new")))
        assert append(store, "a", numbered(2)).sequence == 2
        assert append(store, "x", numbered(2), context="new").sequence == 2
        assert [info.events for info in store.contexts("", 10)] == [2, 2]

    def test_a_large_publication_is_whole(self, store: Store) -> None:
        big = [unit(f"s{number % 7}", [event(body=b"x" * 300_000)] * 2) for number in range(40)]
        for number, one in enumerate(big):
            do_one(store, Stage("job", 0, "a", number, (one,), 64 * MIB, 1000))
        assert publish(store, Winner(0, "a", 40)) == Published(1, 40, 80)
        assert sum(len(bodies(store, f"s{number}")) for number in range(7)) == 80

    def test_a_failed_publication_leaves_all_attempts_as_they_were(self, store: Store) -> None:
        refused = unit("z", some(1), 9)
        for number in range(30):
            for which in ("lost", "won"):
                stage(store, 0, unit("a", [event(body=which.encode() * 300)]), attempt=which, number=number)
        winner = stage(store, 1, refused)
        assert isinstance(attempt(store, Publish("job", (Winner(0, "won", 30), winner)), mark=MARK), VersionConflict)
        assert publish(store, Winner(0, "lost", 30)).events == 30
        assert bodies(store, "a") == [b"lost" * 300] * 30

    def test_an_erasure_leaves_alone_what_is_staged_for_its_stream(self, store: Store) -> None:
        append(store, "a", numbered(1, 2))
        winner = stage(store, 0, unit("a", numbered(3)))
        do_one(store, HideStream("shop", "a"))
        erase_all(store)
        publish(store, winner)
        assert [(found.sequence, found.body) for found in stream_of(store, "a")] == [(3, b"3")]
        do_one(store, HideStream("shop", "a"))
        assert bodies(store, "a") == []
