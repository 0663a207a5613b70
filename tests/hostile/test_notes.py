"""Notes of exports and replays, damaged or forged: the commands continue correctly, start over, or refuse."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.cli.signals import INTERRUPTED
from penstock.files import sealed, unsealed
from penstock.interchange.exporter import FileTarget
from tests.backup.support import reading, writing
from tests.cli.support import run
from tests.hostile.mutations import CHANGES, EDITS, Change, Edit, Flip, Repeat, changed, edited, raw
from tests.hostile.support import Tally, ended, some, untouched
from tests.store.kit import append, everything
from tests.store.kit import some as events

EVENTS = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("store")
    with writing(store) as opened:
        for number in range(EVENTS // 3):
            append(opened, f"s{number}", events(3, headers="{}"), context="shop")
    return store


# --- exports --------------------------------------------------------------------------------------------------

KINDS = ("jsonl", "csv", "cloudevents", "parquet")


@pytest.fixture(scope="module")
def begun(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Exports that were interrupted behind their first events, and whole ones; to be copied."""
    begun = tmp_path_factory.mktemp("begun")
    for kind in KINDS:
        assert ended("export", begun / f"whole.{kind}", "--data", store).code == 0
        with interrupted():
            assert run("export", begun / f"begun.{kind}", "--data", store).code == INTERRUPTED
        assert (begun / f"begun.{kind}.partial.json").exists()
    return begun


@contextmanager
def interrupted() -> Iterator[None]:
    """Ctrl-C comes when half of the events are written."""
    write = FileTarget.write

    def half(self: FileTarget, events: Any, _following: int) -> None:
        at = EVENTS // 2
        # A list of events, or a batch of Arrow's.
        following = events[at].position if isinstance(events, list) else events["position"][at].as_py()
        write(self, events[:at], following)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileTarget, "write", half)
        yield


def gone_on(begun: Path, store: Path, kind: str, note: bytes, partial: bytes | None = None) -> bool | None:
    """Go on with an export; whether it made the file that a whole one makes, or None if it was refused."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for ending in ("partial", "partial.json"):
            shutil.copyfile(begun / f"begun.{kind}.{ending}", folder / f"file.{kind}.{ending}")
        (folder / f"file.{kind}.partial.json").write_bytes(note)
        if partial is not None:
            (folder / f"file.{kind}.partial").write_bytes(partial)
        passed_over = (folder / f"file.{kind}{ending}" for ending in ("", ".partial", ".partial.json"))
        with untouched(folder, *passed_over):
            done = ended("export", folder / f"file.{kind}", "--data", store)
        if done.code:
            assert not (folder / f"file.{kind}").exists()
            # Whatever is wrong with what was begun: there is a way to do without it.
            assert ended("export", "--anew", folder / f"file.{kind}", "--data", store).code == 0
            assert (folder / f"file.{kind}").read_bytes() == (begun / f"whole.{kind}").read_bytes()
            return None
        return (folder / f"file.{kind}").read_bytes() == (begun / f"whole.{kind}").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_export_goes_on_with_what_was_begun(begun: Path, store: Path, kind: str) -> None:
    assert gone_on(begun, store, kind, (begun / f"begun.{kind}.partial.json").read_bytes())


def forged(note: bytes, edits: list[Edit]) -> bytes:
    """A note that was edited, with the checksum that belongs to it."""
    document = edited({name: value for name, value in json.loads(note).items() if name != "checksum"}, edits)
    return raw(sealed(document).encode())


def test_a_damaged_note_of_an_export_counts_as_none(begun: Path, store: Path) -> None:
    """Whatever changes in it: the export starts over, and its file is right."""

    @some(4)
    @given(st.sampled_from(KINDS), CHANGES)
    def check(kind: str, changes: list[Change]) -> None:
        assert gone_on(begun, store, kind, changed((begun / f"begun.{kind}.partial.json").read_bytes(), changes))

    check()


def test_the_note_of_an_export_is_judged_before_it_is_used(begun: Path, store: Path) -> None:
    """The export starts over, refuses the note of another export, or continues."""
    seen = Counter[bool | None]()

    @some(4)
    @given(st.sampled_from(KINDS), EDITS)
    def check(kind: str, edits: list[Edit]) -> None:
        note = (begun / f"begun.{kind}.partial.json").read_bytes()
        seen[gone_on(begun, store, kind, forged(note, edits))] += 1

    check()
    # Positions and sizes are only numbers: some others are as good, and few of the edits make those.
    assert seen.total() < Tally.FEW or seen[True] + seen[None] > 2 * seen[False]


def test_what_was_written_of_a_parquet_export_is_judged_before_it_is_used(begun: Path, store: Path) -> None:
    """It is refused, unless it still is the stream that it was; beyond that it has no checksum."""
    seen = Counter[bool | None]()

    @some(4)
    @given(CHANGES)
    @example([Flip(0, 255)])
    def check(changes: list[Change]) -> None:
        note = (begun / "begun.parquet.partial.json").read_bytes()
        partial = changed((begun / "begun.parquet.partial").read_bytes(), changes)
        seen[gone_on(begun, store, "parquet", note, partial)] += 1

    check()
    assert seen[None]


# --- replays --------------------------------------------------------------------------------------------------


def command(store: Path, folder: Path) -> tuple[object, ...]:
    """The replay of all events into another store, which notes in a file how far it is."""
    into = ("--to-url", f"sqlite:///{folder / 'target'}", "--to-context", "copy")
    return ("replay", "--data", store, *into, "--state", folder / "note")


@pytest.fixture(scope="module")
def replayed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replay that was finished, with its target and its note; to be copied."""
    folder = tmp_path_factory.mktemp("replayed")
    with writing(folder / "target"):
        pass
    assert ended(*command(store, folder)).code == 0
    return folder


def unfinished(replayed: Path) -> bytes:
    """The note as it was when the replay was not finished yet."""
    note = {**json.loads((replayed / "note").read_bytes()), "finished": None, "done": 3}
    del note["checksum"]
    return sealed(note).encode()


def went_on(store: Path, replayed: Path, note: bytes) -> int | None:
    """Go on with a replay; how many events the target has then, or None if the note was refused and nothing changed."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(replayed / "target", folder / "target")
        (folder / "note").write_bytes(note)
        with untouched(folder, folder / "target", folder / "note", folder / "note.lock"):
            done = ended(*command(store, folder))
        with reading(folder / "target") as target:
            events = len(everything(target))
        if done.code:
            assert (folder / "note").read_bytes() == note
            assert events == EVENTS
        return None if done.code else events


def test_a_damaged_note_of_a_replay_is_refused(store: Path, replayed: Path) -> None:
    """Whatever changes in it, unless it still says the same: a replay that continues under another name would send
    all of it again."""

    @some(4)
    @given(CHANGES)
    @example([Flip(1553, 1)])
    @example([Repeat(131, 421)])
    def check(changes: list[Change]) -> None:
        note = unfinished(replayed)
        other = changed(note, changes)
        assume(other != note)
        found = went_on(store, replayed, other)
        assert found is None or (found == EVENTS and unsealed(other) == unsealed(note))

    check()
    assert went_on(store, replayed, unfinished(replayed)) == EVENTS


def test_the_note_of_a_replay_is_judged_before_it_is_used(store: Path, replayed: Path) -> None:
    """Its checksum is right, and still it is refused if it cannot be; then it stays as it is, and nothing is sent."""
    seen = Tally()

    @some(4)
    @given(EDITS)
    @example([Edit("lose", 0)])
    def check(edits: list[Edit]) -> None:
        seen.add(went_on(store, replayed, forged(unfinished(replayed), edits)) is None)

    check()
    seen.check(1 / 3)


WRONG_NOTES: tuple[dict[str, object], ...] = (
    {"source": 5},
    {"target": ["x"]},
    {"done": "3"},
    {"done": -5},
    {"done": 1 << 70},
    {"sending": None},
    {"sending_at": "x"},
    {"name": "\x1b[31m"},
)


@pytest.mark.parametrize("wrong", WRONG_NOTES, ids=str)
def test_the_note_of_a_replay_with_a_wrong_field_is_refused(store: Path, replayed: Path, wrong: dict[str, Any]) -> None:
    with TemporaryDirectory() as name:
        shutil.copytree(replayed, name, dirs_exist_ok=True)
        note = Path(name) / "note"
        document = {**json.loads(note.read_bytes()), "finished": None, **wrong}
        del document["checksum"]
        note.write_text(sealed(document))
        before = note.read_bytes()
        assert "is no state of a replay" in ended(*command(store, Path(name))).err
        assert note.read_bytes() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"bytes": 1.5},
        {"bytes": -1},
        {"next": "x"},
        {"next": None},
        {"events": []},
        {"bounds": {"last": "x"}},
        {"bounds": 5},
    ],
    ids=str,
)
def test_an_export_whose_note_has_a_wrong_field_begins_anew(begun: Path, store: Path, wrong: dict[str, Any]) -> None:
    note = json.loads((begun / "begun.jsonl.partial.json").read_bytes())
    del note["checksum"]
    assert gone_on(begun, store, "jsonl", sealed({**note, **wrong}).encode())
    del note[next(iter(wrong))]
    assert gone_on(begun, store, "jsonl", sealed(note).encode())
