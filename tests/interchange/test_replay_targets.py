"""Where replays go, and the parts that they are made of."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.engine.queues import REPLAY_BATCH_EVENTS_MAX
from penstock.errors import LimitExceeded
from penstock.interchange.exporter import Selection
from penstock.interchange.replay import STEP_S, Pace, ReplayRequest, open_replay
from penstock.interchange.replay_targets import (
    QUEUE_EVENTS_MAX,
    BatchLimits,
    HistoryPage,
    IntoStreams,
    QueueTarget,
    ReplayBatch,
    ReplayRefused,
    cut_into_batches,
)
from penstock.model import Event
from penstock.testing import Server, server
from tests.interchange.replays import EVENTS, Never, Soon, consumed, finish, history, ignore, into, through

# --- what goes where ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("selected", ["shop", None], ids=["a context", "all contexts"])
def test_streams_that_must_be_new_are_so_when_it_begins_and_it_goes_on_among_its_own(
    source: Server, tmp_path: Path, selected: str | None
) -> None:
    with server() as own:
        target = IntoStreams(own.url, None, "copy-", new=True)
        wanted = ReplayRequest(source.url, Selection(selected), target, folder=tmp_path, rate=100)
        with open_replay(wanted) as replay:
            assert not replay.run(Soon(1), ignore)
        finish(wanted)
        assert {stream for stream, *_ in history(own, "shop")} == {f"copy-order-{number}" for number in range(5)}
        before = history(own, "shop")
        for again in (replace(wanted, again=True), replace(wanted, name="another")):
            with pytest.raises(ReplayRefused, match="already"):
                finish(again)
        assert history(own, "shop") == before


def test_a_stream_whose_name_has_no_place_is_told_with_its_position(
    source: Server, store: Server, tmp_path: Path
) -> None:
    with pytest.raises(ReplayRefused, match="the event at position 1 has no place"):
        finish(into(source, store, "long", tmp_path, places={"prefix": "x" * 1020}))


def test_messages_of_logs_arrive_in_logs(tmp_path: Path, store: Server) -> None:
    with server() as own, penstock.connect(own.url) as client:
        client.log("readings").create()
        client.log("readings").append([{"celsius": 4}, {"celsius": 5}])
        finish(ReplayRequest(own.url, Selection("remits"), IntoStreams(store.url), folder=tmp_path))
    with penstock.connect(store.url) as client:
        assert client.log("readings").show().messages == 2


def test_what_was_erased_is_counted_and_passed_over(tmp_path: Path, store: Server) -> None:
    with server() as own, penstock.connect(own.url) as client:
        for number in range(6):
            client.append("shop", f"order-{number % 3}", [penstock.event("Placed", number)] * 2)
        client.erase_stream("shop", "order-1")
        client.append("else", "s", [penstock.event("Placed")])
        client.erase_stream("else", "s")
        note = finish(into(own, store, "erased", tmp_path)).note
        assert (note.events, note.erased, len(history(store, "erased"))) == (8, 4, 8)
        typed = finish(into(own, store, "typed", tmp_path, selection={"types": ("Placed",), "last": 6})).note
        assert (typed.events, typed.erased) == (4, 2)


def test_only_what_is_wanted_goes_through_a_queue(source: Server, tmp_path: Path) -> None:
    selection = {"types": ("Even",), "filter": "order-2", "first": 5, "last": 60}
    note = finish(through(source, tmp_path, selection=selection)).note
    found = consumed(source)
    assert found == [number for number in range(EVENTS) if number % 10 == 2 and 5 <= 2 * number + 1 <= 60]
    assert (note.events, note.left_out) == (len(found), 0)


def test_a_queue_that_is_full_is_waited_for(source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueTarget, "events_max", 1)
    waits: list[float] = []
    taken: list[int] = []

    class Consumers(Never):
        """They take what there is when one waits for them."""

        def wait(self, seconds: float) -> bool:
            waits.append(seconds)
            if seconds:
                taken.extend(consumed(source))
            return True

    with open_replay(through(source, tmp_path, name="full")) as replay:
        assert replay.run(Consumers(), ignore)
    assert sorted(taken + consumed(source)) == list(range(EVENTS))
    assert any(waits)


def test_a_queue_that_stays_full_can_be_left(source: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QueueTarget, "events_max", 1)

    class Impatient(Never):
        def wait(self, seconds: float) -> bool:
            return not seconds

    with open_replay(through(source, tmp_path, name="left")) as replay:
        assert not replay.run(Impatient(), ignore)
        assert 0 < replay.note.events < EVENTS
        assert replay.note.sending == 0
    monkeypatch.undo()
    found = consumed(source)
    assert len(found) == replay.note.events
    finish(through(source, tmp_path, name="left"))
    assert sorted(found + consumed(source)) == list(range(EVENTS))


def test_what_a_consumer_holds_is_left_out(source: Server, tmp_path: Path) -> None:
    finish(through(source, tmp_path, name="held", selection={"last": 20}))
    with penstock.connect(source.url) as client:
        held = client.queue("shop", "mail").take()
        note = finish(through(source, tmp_path, name="rest")).note
        assert (note.left_out, note.events) == (10, EVENTS - 10)
        client.queue("shop", "mail", subscriber=held.receipts[0].subscriber).acknowledge(held)
    assert len(consumed(source)) == EVENTS - 10


def test_an_event_that_is_too_large_for_its_target_ends_it_there(source: Server, tmp_path: Path) -> None:
    with server(event_bytes_max="4") as strict, pytest.raises(LimitExceeded):
        finish(into(source, strict, "strict", tmp_path))


def test_what_goes_through_a_queue_together_is_one_batch() -> None:
    assert QUEUE_EVENTS_MAX == REPLAY_BATCH_EVENTS_MAX


# --- its parts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.5, 7, 10, 250, 100_000])
def test_a_rate_is_kept_in_small_steps(rate: float) -> None:
    now, sent, pauses = 0.0, 0, 0
    pace = Pace(rate, lambda: now)
    size = pace.batch(1000)
    assert size == max(1, min(1000, int(rate * STEP_S)))
    while sent < 40 * size:
        if wait := pace.wait_s():
            pauses += 1
            now += wait
        sent += size
        pace.took(size)
        # What one step has may go out at once, and a batch.
        assert sent <= rate * (now + STEP_S) + size + 1e-6
    assert now == pytest.approx((sent - size) / rate, abs=2 * STEP_S + size / rate)
    assert pauses >= 30


def test_who_was_slow_does_not_make_up_for_it_in_a_burst() -> None:
    now = 0.0
    pace = Pace(10, lambda: now)
    now = 1000.0
    free = 0
    while not pace.wait_s():
        free += 1
        pace.took(1)
    assert free == 2
    assert Pace(None, lambda: now).wait_s() == 0
    assert Pace(None).batch(77) == 77


def numbered(position: int, size: int = 1) -> Event:
    return Event(position, "c", "s", position, b"", 0, "t", None, b"x" * size, 0, b"")


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=30),
    st.lists(st.integers(1, 30), max_size=5),
    st.integers(1, 7),
    st.integers(0, 30),
    st.booleans(),
)
def test_pieces_have_all_that_is_wanted_once_and_are_cut_in_the_same_places(
    found: list[tuple[int, bool]], cuts: list[int], events_max: int, first_end: int, unbroken: bool
) -> None:
    events = [numbered(at, size) for at, (size, _) in enumerate(found, 1)]
    wanted = {at for at, (_, is_wanted) in enumerate(found, 1) if is_wanted}
    last = len(found) + 3

    def pieces(ends: list[int]) -> list[ReplayBatch]:
        marks = [0, *sorted(end for end in ends if end <= len(found)), last]
        read = (HistoryPage(events[a:b], 0, b + 1) for a, b in pairwise(marks))
        limits = BatchLimits(events_max, 60, first_end, unbroken)
        return list(cut_into_batches(read, lambda event: event.position in wanted, last, limits))

    cut = [piece for piece in pieces(cuts) if piece.events]
    assert cut == [piece for piece in pieces([]) if piece.events]
    assert pieces(cuts)[-1].last == last
    assert [event.position for piece in cut for event in piece.events] == sorted(wanted)
    for at, piece in enumerate(cut):
        assert piece.last >= piece.events[-1].position
        if at or not first_end:
            assert len(piece.events) <= events_max
            assert len(piece.events) == 1 or sum(len(event.body) + 2 for event in piece.events) <= 60
        if unbroken and (at or not first_end):
            assert [event.position for event in piece.events] == list(range(piece.events[0].position, piece.last + 1))
