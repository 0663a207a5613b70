"""Replays, ended at every moment: what was replayed is there once, in order, and nothing is missing."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock.errors import StoreChanged
from penstock.files import sealed, unsealed
from penstock.interchange.replay import NoteFile, ReplayRequest, open_replay
from penstock.interchange.replay_targets import ReplayRefused, StreamsTarget
from penstock.interchange.sender import Sender
from penstock.testing import Server, server
from tests.interchange.replays import EVENTS, PIECE, Never, Soon, consumed, finish, history, ignore, into, through

# --- ended at every moment ------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing of a process is left."""


class Death(NamedTuple):
    """A moment at which a process is killed."""

    call: Callable[..., Any]
    number: int
    is_after: bool


MOMENTS = [
    Death(call, number, is_after)
    for call in (NoteFile.write, Sender.start, Sender.settle, Sender.ask)
    for number in (1, 2, 5)
    for is_after in (False, True)
]


def kill(monkeypatch: pytest.MonkeyPatch, death: Death) -> None:
    """Have this process die as far as the replay is concerned: from that moment on, it notes nothing any more."""
    kind = NoteFile if death.call is NoteFile.write else Sender
    real, count = death.call, 0

    def dying(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == death.number and not death.is_after:
            die()
        result = real(self, *arguments, **options)
        if count == death.number:
            die()
        return result

    def die() -> None:
        monkeypatch.setattr(NoteFile, "write", lambda *_arguments, **_options: None)
        raise Killed

    monkeypatch.setattr(kind, real.__name__, dying)


def killed(wanted: ReplayRequest, death: Death) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        kill(monkeypatch, death)
        with suppress(Killed):
            finish(wanted)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "note lost"])
def test_what_is_killed_at_any_moment_is_in_its_target_once(
    source: Server, store: Server, tmp_path: Path, is_noted: bool
) -> None:
    wanted_events = history(source, "shop")
    for number, death in enumerate(MOMENTS):
        wanted = into(source, store, f"copy-{is_noted}-{number}", tmp_path)
        killed(wanted, death)
        if not is_noted:
            for path in tmp_path.glob("*.json"):
                path.unlink()
        replay = finish(wanted)
        assert history(store, f"copy-{is_noted}-{number}") == wanted_events, death
        assert not is_noted or replay.note.events == EVENTS, death


@pytest.mark.usefixtures("small")
def test_what_is_killed_at_any_moment_goes_through_a_queue_once(source: Server, tmp_path: Path) -> None:
    for number, death in enumerate(MOMENTS):
        # The test empties the queue in between: replayed events must not come again because they are gone from it.
        wanted = through(source, tmp_path, name=f"r{number}")
        killed(wanted, death)
        found = consumed(source)
        finish(wanted)
        assert sorted(found + consumed(source)) == list(range(EVENTS)), death


@pytest.mark.usefixtures("small")
def test_another_rate_goes_on_with_the_piece_that_was_under_way(source: Server, store: Server, tmp_path: Path) -> None:
    wanted = into(source, store, "slower", tmp_path)
    killed(wanted, Death(Sender.start, 3, is_after=False))
    with open_replay(into(source, store, "slower", tmp_path, rate=1e6)) as replay:
        assert replay.resumed_at == replay.note.done
        with pytest.MonkeyPatch.context() as monkeypatch:
            sent: list[int] = []
            start = Sender.start

            def counted(self: Sender, commits: Any, events: int, mark: Any) -> None:
                sent.append(events)
                start(self, commits, events, mark)

            monkeypatch.setattr(StreamsTarget, "events_max", 2)
            monkeypatch.setattr(Sender, "start", counted)
            assert replay.run(Never(), ignore)
    assert sent[:2] == [PIECE, 2]
    assert history(store, "slower") == history(source, "shop")


@pytest.mark.usefixtures("small")
def test_two_at_a_time_are_refused_and_two_with_other_notes_do_it_once(
    source: Server, store: Server, tmp_path: Path
) -> None:
    wanted = into(source, store, "both", tmp_path, name="both")
    with open_replay(wanted) as one:
        with pytest.raises(ReplayRefused, match="another process is at this replay"), open_replay(wanted):
            pass
        # On another machine there is no such note; the target knows them as the same.
        with open_replay(into(source, store, "both", tmp_path / "else", name="both")) as two:
            assert not two.run(Soon(3), ignore)
            assert one.run(Never(), ignore)
            assert two.run(Never(), ignore)
    assert history(store, "both") == history(source, "shop")


# --- what continues -------------------------------------------------------------------------------------------


def test_what_is_ended_goes_on_and_is_finished_once(source: Server, store: Server, tmp_path: Path) -> None:
    wanted = into(source, store, "ended", tmp_path, selection={"first": 11}, rate=100)
    with open_replay(wanted) as replay:
        assert replay.resumed_at is None
        assert not replay.run(Soon(2), ignore)
        assert (replay.note.events > 0, replay.note.sending) == (True, 0)
    with open_replay(wanted) as replay:
        assert replay.resumed_at == replay.note.done >= 11
    done = finish(into(source, store, "ended", tmp_path, selection={"first": 11}))
    assert done.note.events == len(history(store, "ended")) == EVENTS - 5
    with open_replay(wanted) as replay:
        assert replay.note.finished == done.note.finished
    again = finish(into(source, store, "ended", tmp_path, selection={"first": 11}, again=True))
    assert (again.resumed_at, len(history(store, "ended"))) == (None, 2 * (EVENTS - 5))


def test_the_end_is_fixed_when_it_begins(tmp_path: Path, store: Server) -> None:
    with server() as own, penstock.connect(own.url) as client:
        client.append("shop", "s", [penstock.event("Before", number) for number in range(3)])
        with open_replay(into(own, store, "fixed", tmp_path)) as replay:
            assert not replay.run(Soon(0), ignore)
        client.append("shop", "s", [penstock.event("After")])
        assert finish(into(own, store, "fixed", tmp_path)).note.events == 3
        assert len(history(store, "fixed")) == 3


def test_another_replay_or_another_store_under_the_same_name_is_refused(
    source: Server, store: Server, tmp_path: Path
) -> None:
    with open_replay(into(source, store, "first", tmp_path, name="n")):
        pass
    with (
        pytest.raises(ReplayRefused, match="say another --name"),
        open_replay(into(source, store, "second", tmp_path, name="n")),
    ):
        pass
    note = unsealed((tmp_path / "n.json").read_bytes())
    (tmp_path / "n.json").write_text(sealed({**note, "source": [note["source"][0], 7]}))
    with pytest.raises(StoreChanged, match="timeline 7"), open_replay(into(source, store, "first", tmp_path, name="n")):
        pass
    for text in ("{}", "x", "[]", '{"a": 1}'):
        (tmp_path / "n.json").write_text(text)
        with (
            pytest.raises(ReplayRefused, match="no state of a replay"),
            open_replay(into(source, store, "first", tmp_path, name="n")),
        ):
            pass


@pytest.mark.usefixtures("small")
def test_a_target_that_has_forgotten_a_replay_is_asked_nothing_that_it_cannot_know(
    source: Server, store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = into(source, store, "forgotten", tmp_path)
    killed(wanted, Death(Sender.start, 3, is_after=False))
    with monkeypatch.context() as forgetful:
        forgetful.setattr(Sender, "highest", lambda *_: None)
        with pytest.raises(ReplayRefused, match="has forgotten how far"), open_replay(wanted):
            pass
    assert finish(wanted).note.events == EVENTS


@pytest.mark.usefixtures("small")
def test_a_first_batch_that_was_sent_long_ago_is_not_sent_again_if_it_may_be_forgotten(
    source: Server, store: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = into(source, store, "long-ago", tmp_path)
    killed(wanted, Death(Sender.start, 1, is_after=True))
    with monkeypatch.context() as later:
        later.setattr(Sender, "highest", lambda *_: None)
        with open_replay(wanted) as replay:
            assert (replay.note.events, replay.resumed_at) == (0, None)
        later.setattr("penstock.interchange.replay.FORGOTTEN_S_MIN", -1)
        with pytest.raises(ReplayRefused, match="has forgotten how far"), open_replay(wanted):
            pass
    assert finish(wanted).note.events == EVENTS
