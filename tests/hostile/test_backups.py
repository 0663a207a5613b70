"""Backups that are damaged, or forged: no command crashes on them, and none restores damage."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import Any

import cbor2
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.backup.places import END, _member
from penstock.store.record import with_checksum
from tests.backup.support import backed_up, check_same, furnish, reading, writing
from tests.hostile.mutations import CHANGES, EDITS, TOO_DEEP, Change, Cut, Edit, Flip, as_json, changed, edited
from tests.hostile.support import Tally, contents, ended, some, untouched
from tests.store.kit import Clock, append
from tests.store.kit import some as events

LENGTH = Struct("<I")
BACKUPS = 2
CBOR = (
    b"\x81" * 2_000 + b"\x00",
    b"\x9b\x0f\xff\xff\xff\xff\xff\xff\xff",
    b"\x5b\x0f\xff\xff\xff\xff\xff\xff\xff",
    b"\xc0\x74" + b"2026-11-16T00:00:00Z",
    b"\xc4\x82\x1b\x7f\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xd8\x1c\x81\xd8\x1d\x00",
    b"\xd8\x23\x64((((",
    b"\xc2\x59\x10\x00" + b"\xff" * 4096,
    b"\xf7",
    b"\x62\xff\xff",
)
"""Items of CBOR that no value stands for: deep, long, with tags, in a circle, broken."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store with one of everything, and two backups of it in a folder and in one file; to be copied."""
    made, clock = tmp_path_factory.mktemp("made"), Clock()
    with writing(made / "data", clock) as store:
        furnish(store, clock, commits=12)
        for name in ("place", "place.tar"):
            backed_up(store, made / name)
        append(store, "s", events(3))
        for name in ("place", "place.tar"):
            backed_up(store, made / name)
    return made


@contextmanager
def copied(made: Path, name: str = "place") -> Iterator[Path]:
    """A place for backups, to be damaged, in a folder with nothing else in it."""
    with TemporaryDirectory() as folder:
        place = Path(folder) / name
        shutil.copytree(made / name, place) if (made / name).is_dir() else shutil.copyfile(made / name, place)
        yield place


COMMANDS = ("list", "verify", "restore", "backup")


def tried(made: Path, place: Path, name: str) -> bool:
    """Run a command that reads backups; whether it refused them. A store that was restored is sound."""
    target = place.parent / "new"
    commands: dict[str, tuple[object, ...]] = {
        "list": ("backups", place),
        "verify": ("backups", place, "--verify", "--json"),
        "restore": ("restore", place, "--data", target),
        "backup": ("backup", place, "--data", made / "data"),
    }
    before = contents(place)
    with untouched(place.parent, target, place if name == "backup" else target):
        is_refused = ended(*commands[name]).code != 0
    if is_refused:
        assert set(contents(target)) <= {"penstock.lock"}
        assert contents(place) == before
    elif name == "restore":
        assert ended("verify", "--data", target).code == 0
        assert ended("stats", "--data", target).code == 0
    return is_refused


# --- damage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["place", "place.tar"])
def test_damage_to_any_file_of_a_backup_is_found(made: Path, name: str) -> None:
    """Whatever changes in any byte, `--verify` finds it; a restore refuses it, or does not need it. Nothing changes."""

    @some(4)
    @given(st.integers(0, 99), CHANGES, st.sampled_from(("verify", "restore")))
    @example(0, [Cut(0)], "restore")
    @example(1, [Flip(0, 1)], "verify")
    @example(5, [Cut(49)], "restore")
    @example(5, [Cut(49)], "verify")
    def check(file: int, changes: list[Change], command: str) -> None:
        with copied(made, name) as place:
            files = [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
            path = files[file % len(files)]
            before = path.read_bytes()
            path.write_bytes(changed(before, changes))
            assume(path.read_bytes() != before)
            if not tried(made, place, command):
                # What it restores is whole: only the state of the older backup is of no use to it.
                assert command == "restore"
                with reading(place.parent / "new") as new, reading(made / "data") as store:
                    check_same(store, new)

    check()


# --- forged manifests and states ------------------------------------------------------------------------------


class Forged:
    """A place whose documents are edited and whose checksums are right nevertheless."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.manifests = [json.loads(path.read_bytes()) for path in sorted((place / "backups").iterdir())]
        self.states = [cbor2.loads(path.read_bytes()) for path in sorted((place / "states").iterdir())]

    def put_state(self, number: int, data: bytes) -> None:
        """Another state, which its manifest names as its own."""
        (self.place / "states" / f"{number + 1:08}.cbor").write_bytes(data)
        self.manifests[number]["files"][-1].update(bytes=len(data), sha256=sha256(data).hexdigest())

    def put_history(self, path: str, data: bytes) -> None:
        """Another file of records."""
        (self.place / path).write_bytes(data)
        for manifest in self.manifests:
            for member in manifest["files"]:
                if member["path"] == path:
                    member.update(bytes=len(data), sha256=sha256(data).hexdigest())

    def seal(self) -> None:
        """Write the manifests: each has its own checksum, and that of the one before it."""
        previous = None
        for number, document in enumerate(self.manifests, 1):
            if isinstance(document, dict):
                document.pop("checksum", None)
                if "previous" in document:
                    document["previous"] = previous
                document["checksum"] = sha256((json.dumps(document, indent=1) + "\n").encode()).hexdigest()
            data = as_json(document, lambda value: json.dumps(value, indent=1) + "\n")
            (self.place / "backups" / f"{number:08}.json").write_bytes(data)
            previous = sha256(data).hexdigest()


def test_a_manifest_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """It is refused, or restores the same store as before: nothing relies on its other members."""
    seen = Tally()

    @some(4)
    @given(st.integers(0, BACKUPS - 1), EDITS, st.sampled_from(COMMANDS))
    @example(0, [Edit("value", 0, TOO_DEEP)], "list")
    def check(number: int, edits: list[Edit], command: str) -> None:
        with copied(made) as place:
            forged = Forged(place)
            forged.manifests[number] = edited(forged.manifests[number], edits)
            forged.seal()
            seen.add(tried(made, place, command))

    check()
    seen.check(1 / 2)


def as_cbor(document: Any, item: bytes) -> bytes:
    """A document as CBOR, in which an item that no value stands for is put in its place."""
    return cbor2.dumps(document).replace(b"\x66@deep@", item).replace(b"\x68@digits@", CBOR[7])


def test_a_state_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """It is refused, or a store is restored in which nothing is wrong, and which all commands can show."""
    seen = Tally()

    @some(4)
    @given(st.integers(0, BACKUPS - 1), EDITS, st.sampled_from(CBOR), st.sampled_from(("verify", "restore", "restore")))
    @example(0, [Edit("lose", 0)], CBOR[0], "restore")
    def check(number: int, edits: list[Edit], item: bytes, command: str) -> None:
        with copied(made) as place:
            forged = Forged(place)
            try:
                data = as_cbor(edited(forged.states[number], edits), item)
            except UnicodeEncodeError:
                # CBOR has no text with half of a surrogate pair; bytes that are no UTF-8 are among the items.
                assume(False)
            forged.put_state(number, data)
            forged.seal()
            seen.add(tried(made, place, command))

    check()
    seen.check(1 / 4)


def test_records_that_were_made_up_are_judged_before_they_are_used(made: Path) -> None:
    """Their checksums are right and their insides are not: it is refused, or nothing is wrong with what is restored."""
    seen = Tally()

    @some(4)
    @given(st.integers(0, 99), CHANGES, st.sampled_from(("verify", "restore", "restore")))
    @example(0, [Cut(0)], "restore")
    def check(number: int, changes: list[Change], command: str) -> None:
        with copied(made) as place:
            forged = Forged(place)
            path = forged.manifests[-1]["files"][0]["path"]
            records = list(split((place / path).read_bytes()))
            at = number % len(records)
            records[at] = with_checksum(changed(records[at][8:], changes))
            forged.put_history(path, b"".join(LENGTH.pack(len(each)) + each for each in records))
            forged.seal()
            seen.add(tried(made, place, command))

    check()
    seen.check(1 / 4)


def split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        (length,) = LENGTH.unpack_from(data, at)
        yield data[at + LENGTH.size : at + LENGTH.size + length]
        at += LENGTH.size + length


def test_a_length_that_a_file_says_is_not_believed(made: Path) -> None:
    """A header of a tar says that eight gigabytes follow: no reader allocates them."""
    header = bytearray(_member("backups/00000003.json", b"", 0)[:512])
    header[124:136] = b"77777777777\0"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    with copied(made, "place.tar") as place:
        place.write_bytes(place.read_bytes()[: -len(END)] + bytes(header) + b"{}")
        tracemalloc.start()
        try:
            assert ended("restore", place, "--data", place.parent / "new").code == 1
            assert ended("backup", place, "--data", made / "data").code == 0
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_a_file_that_is_larger_than_its_manifest_says_is_not_read(made: Path) -> None:
    """It is sparse: its apparent size fits in no memory."""
    with copied(made) as place:
        for path in (*(place / "history").iterdir(), *(place / "backups").iterdir()):
            with path.open("r+b") as file:
                file.truncate(1 << 42)
            assert ended("backups", place, "--verify").code == 1
            shutil.rmtree(place)
            shutil.copytree(made / "place", place)


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(made: Path) -> None:
    with copied(made) as place:
        path = min((place / "backups").iterdir())
        path.unlink()
        os.mkfifo(path)
        assert "It is not a file" in ended("backups", place).err


@pytest.mark.parametrize(
    "wrong",
    [{"head": None}, {"head": "5"}, {"created": "\x1b[31m"}, {"created": 5}, {"sealed": 1 << 70}, {"timelines": [[1]]}],
)
def test_a_manifest_with_a_wrong_field_is_refused(made: Path, wrong: dict[str, object]) -> None:
    with copied(made) as place:
        forged = Forged(place)
        forged.manifests[-1].update(wrong)
        forged.seal()
        for command in COMMANDS:
            assert tried(made, place, command), command


@pytest.mark.parametrize(
    ("table", "column", "item"),
    [
        ("queues", "position", CBOR[3]),
        ("queues", "name", CBOR[5]),
        ("erasures", "ranges", b"\x81\x81\x01"),
        ("erasures", "context", b"\x80"),
        ("producers", "result", b"\xa0"),
        ("contexts", "events", b"\xf9\x7e\x00"),
        ("timelines", "started", CBOR[7]),
    ],
    ids=["a time", "a circle", "no pairs", "a list", "a map", "no number", "many digits"],
)
def test_a_state_with_a_wrong_value_is_refused(made: Path, table: str, column: str, item: bytes) -> None:
    with copied(made) as place:
        forged = Forged(place)
        state = forged.states[-1]["tables"][table]
        state["rows"][0][list(state["columns"]).index(column)] = "@deep@"
        forged.put_state(BACKUPS - 1, as_cbor(forged.states[-1], item))
        forged.seal()
        assert tried(made, place, "verify")
        assert tried(made, place, "restore")
