"""How versions, notifications and snapshots are kept in streams."""

from collections.abc import Sequence
from unittest.mock import patch
from uuid import UUID, uuid4

import pytest
from eventsourcing.persistence import DatabaseError, DataError, IntegrityError, PersistenceError, StoredEvent

import penstock
from penstock import errors
from penstock.integrations.eventsourcing import (
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockDatastore,
    PenstockSnapshotRecorder,
)
from penstock.integrations.eventsourcing.datastore import ERRORS, translation_of
from penstock.integrations.eventsourcing.recorders import FirstVersions
from penstock.model import EventPage
from tests.integrations.conftest import Opener


def stored(originator_id: UUID | str, *versions: int) -> list[StoredEvent]:
    return [StoredEvent(originator_id, version, f"Topic{version}", b"state%d" % version) for version in versions]


def versions(events: Sequence[StoredEvent]) -> list[int]:
    return [event.originator_version for event in events]


@pytest.fixture
def recorder(datastore: PenstockDatastore) -> PenstockApplicationRecorder:
    return PenstockApplicationRecorder(datastore, "Shop")


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize("first", [0, 1, 2, 17])
def test_an_aggregate_may_begin_with_any_version(another: Opener, first: int) -> None:
    order = uuid4()
    PenstockAggregateRecorder(another(), "Shop").insert_events(stored(order, first, first + 1))
    # As another process has it: nothing is known about the stream.
    PenstockAggregateRecorder(another(), "Shop").insert_events(stored(order, first + 2))
    fresh = PenstockAggregateRecorder(another(), "Shop")
    assert fresh.select_events(uuid4(), gt=first) == []
    assert versions(fresh.select_events(order, gt=first)) == [first + 1, first + 2]
    assert fresh.select_events(order) == stored(order, first, first + 1, first + 2)
    for taken in (first, first + 1, first + 2):
        with pytest.raises(IntegrityError):
            PenstockAggregateRecorder(another(), "Shop").insert_events(stored(order, taken))
        with pytest.raises(IntegrityError):
            fresh.insert_events(stored(order, taken))


def test_a_version_that_leaves_a_gap_is_refused(recorder: PenstockApplicationRecorder, another: Opener) -> None:
    recorder.insert_events(stored("a", 1, 2) + stored("b", 0, 1, 2))
    for each in (recorder, PenstockAggregateRecorder(another(), "Shop")):
        for name in ("a", "b"):
            with pytest.raises(IntegrityError):
                each.insert_events(stored(name, 4))
    for unordered in (stored("c", 1, 3), stored("c", 2, 1), stored("c", 1, 1)):
        with pytest.raises(IntegrityError, match="cannot be recorded after"):
            recorder.insert_events(unordered)
    assert recorder.select_events("c") == []


def test_a_version_before_the_first_is_refused(recorder: PenstockApplicationRecorder, another: Opener) -> None:
    recorder.insert_events(stored("a", 5))
    for each in (recorder, PenstockAggregateRecorder(another(), "Shop")):
        for version in range(5):
            with pytest.raises(IntegrityError):
                each.insert_events(stored("a", version))
    assert versions(recorder.select_events("a")) == [5]


@pytest.mark.parametrize("first", [0, 1, 5])
@pytest.mark.parametrize("desc", [False, True])
def test_every_choice_of_versions_is_exact(another: Opener, first: int, desc: bool) -> None:
    recorder = PenstockAggregateRecorder(another(), "Shop")
    snapshots = PenstockSnapshotRecorder(another(), "Shop.snapshots")
    events = stored("a", *range(first, first + 4))
    recorder.insert_events(events)
    snapshots.insert_events(events)
    bounds = [None, *range(first - 2, first + 6)]
    for gt in bounds:
        for lte in bounds:
            wanted = [v for v in versions(events) if (gt is None or v > gt) and (lte is None or v <= lte)]
            wanted = wanted[::-1] if desc else wanted
            for limit in (None, 0, 2):
                for each in (recorder, snapshots):
                    found = each.select_events("a", gt=gt, lte=lte, desc=desc, limit=limit)
                    assert versions(found) == wanted[:limit]


def test_only_what_is_wanted_of_a_long_stream_is_read(recorder: PenstockApplicationRecorder) -> None:
    recorder.insert_events(stored("a", *range(500)))
    client = recorder.datastore.client
    with patch.object(client, "read_stream", wraps=client.read_stream) as read:
        assert versions(recorder.select_events("a", gt=497)) == [498, 499]
        assert versions(recorder.select_events("a", lte=400, desc=True, limit=1)) == [400]
    assert [(call.args[2:], call.kwargs) for call in read.mock_calls] == [
        ((499, None), {"backward": False, "limit": None}),
        ((401, 1), {"backward": True, "limit": 1}),
    ]


def test_a_save_after_a_read_asks_for_nothing_else(another: Opener) -> None:
    PenstockAggregateRecorder(another(), "Shop").insert_events(stored("a", 1, 2))
    recorder = PenstockAggregateRecorder(another(), "Shop")
    recorder.select_events("a")
    with patch.object(recorder.datastore, "first") as look:
        recorder.insert_events(stored("a", 3))
        recorder.insert_events(stored("b", 1))
    look.assert_not_called()


def test_first_versions_are_forgotten_when_there_are_too_many(datastore: PenstockDatastore) -> None:
    memory = FirstVersions(datastore, "Shop", remembered_max=2)
    for name in ("a", "b", "c"):
        memory.learn(name, 1)
    assert [memory.versions.get(name) for name in ("a", "b", "c")] == [None, 1, 1]


# ---------------------------------------------------------------- several aggregates


def test_a_conflict_of_one_aggregate_keeps_all_from_being_recorded(recorder: PenstockApplicationRecorder) -> None:
    recorder.insert_events(stored("a", 1))
    with pytest.raises(IntegrityError):
        recorder.insert_events(stored("b", 1) + stored("a", 1))
    assert recorder.select_events("b") == []
    assert recorder.max_notification_id() == 1


def test_notifications_have_the_order_in_which_events_are_given(recorder: PenstockApplicationRecorder) -> None:
    a, b = stored("a", 1, 2), stored("b", 0, 1)
    assert recorder.insert_events([a[0], b[0], a[1], b[1]]) == [1, 2, 3, 4]
    found = recorder.select_notifications(None, 10)
    assert [(each.originator_id, each.originator_version) for each in found] == [("a", 1), ("b", 0), ("a", 2), ("b", 1)]


def test_too_much_at_once_is_refused_with_the_limit(recorder: PenstockApplicationRecorder) -> None:
    with pytest.raises(DataError, match="transaction_operations_max"):
        recorder.insert_events([event for number in range(1001) for event in stored(f"a{number}", 1)])
    assert recorder.max_notification_id() is None


@pytest.mark.parametrize("bad", [StoredEvent("", 1, "Topic", b""), StoredEvent("a", 1, "", b"")])
def test_names_that_cannot_be_are_errors_of_data(recorder: PenstockApplicationRecorder, bad: StoredEvent) -> None:
    with pytest.raises(DataError):
        recorder.insert_events([bad])


# ---------------------------------------------------------------- ids


def test_ids_come_back_as_what_they_were(recorder: PenstockApplicationRecorder) -> None:
    number = uuid4()
    ids: list[UUID | str] = [number, str(uuid4()), str(uuid4()).upper(), "order-1", "x" * 36]
    recorder.insert_events([event for each in ids for event in stored(each, 1)])
    assert [each.originator_id for each in recorder.select_notifications(None, 10)] == ids
    assert [recorder.select_events(each)[0].originator_id for each in ids] == ids


# ---------------------------------------------------------------- notifications


def test_notifications_are_those_of_the_context_alone(recorder: PenstockApplicationRecorder, another: Opener) -> None:
    stock = PenstockApplicationRecorder(another(), "Stock")
    assert recorder.insert_events(stored("a", 1)) == [1]
    assert stock.insert_events(stored("a", 1, 2)) == [2, 3]
    assert recorder.insert_events(stored("a", 2)) == [4]
    assert [each.id for each in recorder.select_notifications(1, 10)] == [1, 4]
    assert [each.id for each in stock.select_notifications(1, 10, stop=2)] == [2]
    assert (recorder.max_notification_id(), stock.max_notification_id()) == (4, 3)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 100, 10_000])
def test_the_highest_id_is_found_however_far_back_it_is(another: Opener, after: int) -> None:
    others = PenstockApplicationRecorder(another(), "Others")
    others.insert_events(stored("a", *range(1, 1000)))
    assert PenstockApplicationRecorder(another(), "Shop").max_notification_id() is None
    PenstockApplicationRecorder(another(), "Shop").insert_events(stored("a", 1, 2, 3))
    if after:
        others.insert_events(stored("b", *range(after)))
    assert PenstockApplicationRecorder(another(), "Shop").max_notification_id() == 1002
    assert others.max_notification_id() == (1002 + after if after else 999)


def test_an_empty_page_is_not_taken_for_the_end(recorder: PenstockApplicationRecorder) -> None:
    recorder.insert_events(stored("a", 1))
    found = [EventPage([], 1, False), recorder.datastore.client.read_page(1, context="Shop")]
    with patch.object(recorder.datastore.client, "read_page", side_effect=found):
        assert PenstockApplicationRecorder(recorder.datastore, "Shop").max_notification_id() == 1
    with patch.object(recorder.datastore.client, "read_page", side_effect=found):
        assert [each.id for each in recorder.select_notifications(None, 10)] == [1]


def test_more_notifications_than_a_page_has_are_read_in_pages(recorder: PenstockApplicationRecorder) -> None:
    recorder.insert_events(stored("a", *range(5000)))
    recorder.insert_events(stored("b", *range(5000)))
    assert [each.id for each in recorder.select_notifications(None, 9000)] == list(range(1, 9001))
    assert [each.id for each in recorder.select_notifications(-5, 3)] == [1, 2, 3]
    assert recorder.select_notifications(1, 0) == []
    topics = ["Topic4999", "Topic0"]
    assert [each.id for each in recorder.select_notifications(2, 10, topics=topics)] == [5000, 5001, 10_000]


def test_events_that_another_client_appended_are_notifications_too(recorder: PenstockApplicationRecorder) -> None:
    client = recorder.datastore.client
    for headers in (None, "not JSON", "[" * 100_000, {"trace": "1"}):
        client.append("Shop", "order-1", [penstock.event("OrderPlaced", b"{}", headers)])
    found = recorder.select_notifications(None, 10)
    assert [(each.id, each.originator_id, each.originator_version) for each in found] == [
        (number, "order-1", number) for number in (1, 2, 3, 4)
    ]
    assert recorder.insert_events(stored("order-1", 5)) == [5]
    assert client.read_event("Shop", "order-1", 5).headers is None


# ---------------------------------------------------------------- snapshots


def test_snapshots_may_have_gaps_and_come_in_any_order(datastore: PenstockDatastore, another: Opener) -> None:
    recorder = PenstockSnapshotRecorder(datastore, "Shop.snapshots")
    order = uuid4()
    recorder.insert_events(stored(order, 20))
    recorder.insert_events(stored(order, 5))
    recorder.insert_events(stored(order, 100, 9) + stored("order-1", 9))
    fresh = PenstockSnapshotRecorder(another(), "Shop.snapshots")
    assert fresh.select_events(order) == stored(order, 5, 9, 20, 100)
    assert fresh.select_events(order, lte=50, desc=True, limit=1) == stored(order, 20)
    for repeated in (stored(order, 7, 9), stored(order, 8, 8)):
        with pytest.raises(IntegrityError):
            fresh.insert_events(repeated)
    assert versions(fresh.select_events(order)) == [5, 9, 20, 100]


def test_snapshots_of_ids_with_slashes_are_told_apart(datastore: PenstockDatastore) -> None:
    recorder = PenstockSnapshotRecorder(datastore, "Shop.snapshots")
    recorder.insert_events(stored("a", 1) + stored("a/1", 2) + stored("a/b", 3) + stored("*", 4))
    for name, version in (("a", 1), ("a/1", 2), ("a/b", 3), ("*", 4)):
        assert recorder.select_events(name) == stored(name, version)


# ---------------------------------------------------------------- errors


def subclasses(kind: type[errors.PenstockError]) -> list[type[errors.PenstockError]]:
    return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]


def test_every_error_becomes_one_of_the_library() -> None:
    for kind in subclasses(errors.PenstockError):
        error = kind.__new__(kind)
        with patch.object(kind, "__str__", lambda self: "a sentence"):
            translated = translation_of(error)
        assert isinstance(translated, PersistenceError)
        assert str(translated) == "a sentence"
    assert type(translation_of(errors.QueueNotFound("q"))) is DatabaseError
    named = [ours for group in ERRORS.values() for ours in group]
    assert len(named) == len(set(named))
