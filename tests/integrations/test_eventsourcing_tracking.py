"""Tracking under concurrency, live subscriptions, and waiting."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event, Thread
from threading import enumerate as all_threads
from uuid import uuid4

import pytest
from eventsourcing.persistence import (
    IntegrityError,
    InterfaceError,
    OperationalError,
    Tracking,
    WaitInterruptedError,
)

from penstock.integrations.eventsourcing import (
    PenstockApplicationRecorder,
    PenstockProcessRecorder,
    PenstockTrackingRecorder,
    recorders,
)
from penstock.integrations.eventsourcing.recorders import ATTEMPTS_MAX, PendingWrite, write
from penstock.model import Append, EventPage, new_event
from tests.integrations.conftest import Opener
from tests.integrations.support import served
from tests.integrations.test_eventsourcing_recorders import stored
from tests.test_server import until

WORKERS = 4
NOTIFICATIONS = 25


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with served() as url:
        yield url


@pytest.fixture(params=["in process", "over tcp"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "in process":
        return f"sqlite:///{tmp_path / 'data'}"
    found: str = request.getfixturevalue("server")
    return found


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads of subscriptions that were stopped are not waited for."""
    monkeypatch.setattr(recorders, "LONG_POLL_S", 0.05)


class Place:
    """One application, and recorders of it as several processes would have them."""

    def __init__(self, another: Opener) -> None:
        self.context = f"Stock-{uuid4()}"
        self.tracking_context = f"{self.context}.tracking"
        self._another = another

    def process(self) -> PenstockProcessRecorder:
        return PenstockProcessRecorder(self._another(), self.context, self.tracking_context)

    def tracking(self) -> PenstockTrackingRecorder:
        return PenstockTrackingRecorder(self._another(), self.tracking_context)

    def application(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self._another(), self.context)


@pytest.fixture
def place(another: Opener) -> Place:
    return Place(another)


# ---------------------------------------------------------------- tracking


def test_of_several_processes_one_records_each_notification(place: Place) -> None:
    recorders = [place.process() for _ in range(WORKERS)]
    start = Barrier(WORKERS)

    def work(worker: int) -> list[int]:
        done: list[int] = []
        start.wait()
        for number in range(1, NOTIFICATIONS + 1):
            with suppress(IntegrityError):
                events = stored(f"worker-{worker}", len(done) + 1)
                recorders[worker].insert_events(events, tracking=Tracking("Shop", number))
                done.append(number)
        return done

    with ThreadPoolExecutor(WORKERS) as pool:
        done = list(pool.map(work, range(WORKERS)))
    times = Counter(number for numbers in done for number in numbers)
    assert max(times.values()) == 1
    assert times[NOTIFICATIONS] == 1
    fresh = place.process()
    assert fresh.max_tracking_id("Shop") == NOTIFICATIONS
    # Each one that was tracked has its event, and none that was not.
    assert len(fresh.select_notifications(None, 1000)) == times.total()
    records = fresh.datastore.client.read_stream(place.tracking_context, "Shop")
    assert [record.json()["notification_id"] for record in records] == sorted(times)


def test_a_process_that_was_overtaken_goes_on_behind_the_other(place: Place) -> None:
    one, two = place.process(), place.process()
    one.insert_events(stored("a", 1), tracking=Tracking("Shop", 1))
    two.insert_events(stored("a", 2), tracking=Tracking("Shop", 2))
    # What this one has seen last is out of date.
    one.insert_events(stored("a", 3), tracking=Tracking("Shop", 3))
    with pytest.raises(IntegrityError, match="processed up to 3: 3 is not new"):
        two.insert_events(stored("b", 1), tracking=Tracking("Shop", 3))
    assert two.select_events("b") == []


def test_a_conflict_of_events_leaves_the_tracking_alone(place: Place) -> None:
    one, two = place.process(), place.process()
    one.insert_events(stored("a", 1), tracking=Tracking("Shop", 1))
    with pytest.raises(IntegrityError):
        two.insert_events(stored("a", 1), tracking=Tracking("Shop", 2))
    assert two.max_tracking_id("Shop") == 1


def test_tracking_takes_no_part_in_the_notifications(place: Place) -> None:
    recorder = place.process()
    ids = recorder.insert_events(stored("a", 1), tracking=Tracking("Shop", 1))
    recorder.insert_tracking(Tracking("Shop", 2))
    assert recorder.insert_events([], tracking=Tracking("Shop", 3)) == []
    assert ids == [each.id for each in recorder.select_notifications(None, 10)] == [recorder.max_notification_id()]


class Unlucky(PendingWrite):
    """Always too late."""

    def __init__(self, context: str) -> None:
        self.context = context
        self.looked = 0

    def appends(self) -> list[Append]:
        return [Append(self.context, "a", (new_event("Placed"),), 1)]

    def refresh(self) -> bool:
        self.looked += 1
        return True

    def confirm(self) -> None:
        raise AssertionError


def test_a_write_that_is_always_too_late_is_given_up(place: Place) -> None:
    recorder = place.application()
    recorder.insert_events(stored("a", 1))
    part = Unlucky(place.context)
    with pytest.raises(OperationalError, match="nothing was written"):
        write(recorder.datastore, [part])
    assert part.looked == ATTEMPTS_MAX


# ---------------------------------------------------------------- waiting


def test_a_wait_ends_when_another_process_gets_there(place: Place) -> None:
    waiting, working = (place.tracking() for _ in range(2))
    working.insert_tracking(Tracking("Shopping", 99))
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(waiting.wait, "Shop", 3, 30.0)
        for number in (1, 2, 3):
            assert not waited.done()
            working.insert_tracking(Tracking("Shop", number))
        waited.result()


def test_a_wait_can_be_interrupted(place: Place) -> None:
    recorder = place.tracking()
    interrupt = Event()
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(recorder.wait, "Shop", 3, 30.0, interrupt)
        interrupt.set()
        with pytest.raises(WaitInterruptedError):
            waited.result()


# ---------------------------------------------------------------- subscriptions


def follower_threads() -> list[Thread]:
    return [thread for thread in all_threads() if thread.name == "penstock-subscription"]


def test_a_subscription_goes_on_with_what_others_record(place: Place) -> None:
    recorder = place.application()
    others = place.application()
    with recorder.subscribe(gt=None, topics=["Topic1"]) as notifications:
        for name in ("a", "b", "c"):
            others.insert_events(stored(name, 0, 1))
            assert next(notifications).originator_id == name
        with pytest.raises(Exception, match="Already entered"), notifications:
            pass
    assert list(notifications) == []
    until(lambda: not follower_threads())


def test_a_subscription_reads_ahead_only_so_far(place: Place) -> None:
    recorder = place.application()
    ids = recorder.insert_events(stored("a", *range(20)))
    pulled = []

    def pull(position: int, wait: float) -> EventPage:
        pulled.append(position)
        return recorder.datastore.client.read_page(position, context=place.context, limit=1, wait=wait)

    with recorders.PenstockSubscription(recorder, pull, None, ()) as notifications:
        until(lambda: len(pulled) == recorders.PAGES_AHEAD_MAX)
        assert [next(notifications).id for _ in range(20)] == ids
    until(lambda: not follower_threads())


@pytest.mark.parametrize("end", ["stop", "close"])
def test_whoever_waits_for_notifications_is_told_of_the_end(place: Place, end: str) -> None:
    recorder = place.application()
    notifications = recorder.subscribe()
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(next, notifications, None)
        until(lambda: bool(follower_threads()))
        ending: Callable[[], None] = notifications.stop if end == "stop" else recorder.datastore.close
        ending()
        if end == "stop":
            assert waited.result() is None
        else:
            with pytest.raises((InterfaceError, OperationalError)):
                waited.result()
    until(lambda: not follower_threads())
