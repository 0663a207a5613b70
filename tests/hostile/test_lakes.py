"""Lakes that are damaged or forged: no command crashes on them, or takes damage for events."""

import json
import shutil
import zlib
from base64 import b85encode
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from penstock.lake import changes as lake_changes
from penstock.lake import parquet
from penstock.lake.archiver import Archiver
from penstock.lake.iceberg import METADATA
from penstock.lake.manifests import MANIFEST, PENDING, path_of, sealed
from penstock.store import store_url
from penstock.store.contract import HideStream
from tests.hostile.mutations import CHANGES, EDITS, TOO_DEEP, Change, Cut, Edit, changed, edited, raw, spoilt
from tests.hostile.support import Tally, contents, ended, some, untouched
from tests.lake.support import archive, awkward, erase, fill, manifest_of, numbers, quiet

ASIDE = f"_penstock/aside/{'a' * 32}.new"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a lake that has two files of it with something erased, and is a little behind; to be copied."""
    made = tmp_path_factory.mktemp("made")
    fill(made / "store", [*awkward(), *numbers(3, events=2)])
    erase(made / "store", HideStream("shop", "early"), HideStream("shop", "s-1"))
    archive(store_url(made / "store"), made / "lake")
    archive(fill(made / "store", numbers(3, events=2), days=1), made / "lake")
    fill(made / "store", numbers(1, events=2), days=2)
    (made / "lake" / ASIDE).parent.mkdir()
    (made / "lake" / ASIDE).write_bytes((made / "lake" / manifest_of(made / "lake").files[0].path).read_bytes())
    return made


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks run here, without Spark, and no command waits for a missing folder."""
    monkeypatch.setattr("penstock.cli.lake.session", lambda *_: nullcontext())
    monkeypatch.setattr(lake_changes, "AWAY_LOOK_S", 0.0)


@contextmanager
def copied(made: Path) -> Iterator[Path]:
    """A lake, to be damaged, in a folder with nothing else in it."""
    with TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        shutil.copytree(made / "lake", lake)
        yield lake


COMMANDS = ("status", "query", "verify", "restore", "restore")


def looked_at(made: Path, lake: Path, name: str) -> bool:
    """Run a command that only reads a lake; whether it refused it. A store that was restored is sound."""
    url, target = store_url(made / "store"), lake.parent / "new"
    commands: dict[str, tuple[object, ...]] = {
        "status": ("lake", "status", "--lake", lake, "--url", url),
        "query": ("lake", "query", "SELECT count(*), max(text) FROM events", "--lake", lake),
        "verify": ("lake", "verify", "--lake", lake, "--url", url),
        "restore": ("lake", "restore", "--lake", lake, "--data", target),
    }
    with untouched(lake.parent, target, lake / "_penstock" / "lock", lake / "_penstock" / "aside"):
        is_refused = ended(*commands[name]).code != 0
    if is_refused:
        assert set(contents(target)) <= {"penstock.lock"}
    elif name == "restore":
        assert ended("verify", "--data", target).code == 0
        assert ended("stats", "--data", target).code == 0
    return is_refused


# --- damage ---------------------------------------------------------------------------------------------------


def test_damage_to_the_manifest_or_to_events_is_found(made: Path) -> None:
    """Whatever changes in any byte of them: verify finds it, and nothing is restored."""

    @some(6)
    @given(st.integers(0, 2), CHANGES, st.sampled_from(("verify", "restore")))
    def check(file: int, changes: list[Change], command: str) -> None:
        with copied(made) as lake:
            path = [lake / MANIFEST, *sorted(lake.glob("*/*.parquet"))][file]
            before = path.read_bytes()
            path.write_bytes(changed(before, changes))
            assume(path.read_bytes() != before)
            assert looked_at(made, lake, command)

    check()


# --- forged documents -----------------------------------------------------------------------------------------


def forged(document: Any, edits: list[Edit]) -> bytes:
    """A document that was edited, with the checksum that belongs to it."""
    document = edited({name: value for name, value in document.items() if name != "checksum"}, edits)
    return raw(sealed(document) if isinstance(document, dict) else json.dumps(document).encode())


def test_a_manifest_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """It is refused, or a store comes of it in which nothing is wrong."""
    seen = Tally()

    @some(6)
    @given(EDITS, st.sampled_from(COMMANDS))
    @example([Edit("value", 0, TOO_DEEP)], "status")
    def check(edits: list[Edit], command: str) -> None:
        with copied(made) as lake:
            (lake / MANIFEST).write_bytes(forged(json.loads((lake / MANIFEST).read_bytes()), edits))
            seen.add(looked_at(made, lake, command))

    check()
    seen.check(1 / 3)


def test_a_plan_that_was_made_up_is_judged_before_it_is_carried_out(made: Path) -> None:
    """It is refused, and then the lake is as it was; or it is carried out, and then the lake has all of its files."""
    seen = Tally()
    manifest = manifest_of(made / "lake")
    one, other = manifest.files
    path = path_of(other.day, other.first, other.last + 1)
    change = {
        "kind": "archive",
        "number": manifest.number + 1,
        "head": manifest.head + 1,
        "erasures": manifest.erasures,
        "added": [{**asdict(one), "path": path_of(one.day, other.last + 1, other.last + 1)}],
        "staged": {path_of(one.day, other.last + 1, other.last + 1): ASIDE},
        "removed": [],
    }
    change["added"][0].update(first=other.last + 1, last=other.last + 1)  # type: ignore[index]
    compacted = {**change, "kind": "compact", "head": manifest.head, "removed": [other.path]}
    compacted |= {"added": [{**asdict(other)}], "staged": {other.path: ASIDE}, "removed": []}
    plans: list[dict[str, Any]] = [
        {"format": 1, "plan": {"kind": "compact", "spans": [[1, 5], [6, 9]]}},
        {"format": 1, "change": change},
        {"format": 1, "change": compacted},
        {"format": 1, "change": {**change, "kind": "rewrite", "removed": [path]}},
    ]

    @some(6)
    @given(st.sampled_from(plans), EDITS)
    @example(plans[1], [Edit("lose", 0)])
    def check(plan: dict[str, Any], edits: list[Edit]) -> None:
        with copied(made) as lake:
            (lake / PENDING).write_bytes(forged(plan, edits))
            before = {name: data for name, data in contents(lake).items() if not name.endswith("/lock")}
            with untouched(lake.parent, lake, lake.parent / ".lake.penstock-aside"):
                ended("lake", "status", "--lake", lake)
                done = ended("lake", "compact", "--lake", lake)
            seen.add(done.code != 0)
            if done.code:
                after = contents(lake)
                assert {name: data for name, data in after.items() if not name.endswith("/lock")} == before
            else:
                there = {file.path for file in manifest_of(lake).files}
                assert there == {str(each.relative_to(lake)) for each in lake.glob("*/*.parquet")}

    check()
    seen.check(1 / 3)


# --- forged files ---------------------------------------------------------------------------------------------


def put(lake: Path, number: int, data: bytes) -> None:
    """Another file of events, which the manifest names as its own."""
    document = json.loads((lake / MANIFEST).read_bytes())
    entry = document["files"][number]
    (lake / entry["path"]).write_bytes(data)
    entry.update(bytes=len(data), checksum=xxh3_128_hexdigest(data))
    (lake / MANIFEST).write_bytes(forged(document, []))


def test_a_file_of_events_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """The manifest has its checksum, and still it is refused, or is as good as the one that was written."""
    seen = Tally()

    @some(6)
    @given(st.integers(0, 1), CHANGES, st.sampled_from(("query", "verify", "restore")))
    @example(0, [Cut(0)], "verify")
    def check(number: int, changes: list[Change], command: str) -> None:
        with copied(made) as lake:
            path = lake / manifest_of(lake).files[number].path
            put(lake, number, changed(path.read_bytes(), changes))
            seen.add(looked_at(made, lake, command))

    check()
    seen.check(1 / 3)


ERASED = [[1, 2, "shop", "early", 1, 639_000_000_000_000_000], [3, 1, "c", "s", 2, 639_000_000_000_000_000]]
"""The erasures that a file lists."""


def test_what_a_file_says_is_erased_in_it_is_judged_before_it_is_used(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, or a store comes of it in which nothing is wrong. Very much that is packed is not unpacked."""
    monkeypatch.setattr(parquet, "ERASED_BYTES_MAX", 1 << 20)
    bomb = zlib.compress(b"[" + b" " * (8 << 20) + b"]")
    seen = Tally()

    @some(6)
    @given(
        st.sampled_from(("edited", "edited", "bytes", "bomb")), EDITS, CHANGES, st.sampled_from(("verify", "restore"))
    )
    @example("bomb", [Edit("lose", 0)], [Cut(0)], "verify")
    @example("bytes", [Edit("lose", 0)], [Cut(1)], "restore")
    def check(how: str, edits: list[Edit], changes: list[Change], command: str) -> None:
        said = b85encode(bomb if how == "bomb" else zlib.compress(raw(json.dumps(edited(ERASED, edits)).encode())))
        with copied(made) as lake:
            rows = first_rows(lake)
            known = dict(rows.schema.metadata or {})
            known[b"penstock.erased"] = changed(said, changes) if how == "bytes" else said
            put(lake, 0, written(rows.replace_schema_metadata(known)))
            is_refused = looked_at(made, lake, command)
            assert is_refused or how != "bomb"
            seen.add(is_refused)

    check()
    seen.check(1 / 3)


def first_rows(lake: Path) -> pa.Table:
    return pq.read_table(lake / manifest_of(lake).files[0].path, partitioning=None)


def written(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return bytes(sink.getvalue())


def columns(rows: int) -> list[pa.Array]:
    """Columns that stand where others belong."""
    numbers = [pa.array([value] * rows, pa.int64()) for value in (None, -1, 0, (1 << 63) - 1, -(1 << 63), 5)]
    texts = [pa.array([text] * rows, pa.string()) for text in ("", "x", "\0", "00000000-0000-0000-0000-000000000000")]
    broken = pa.array([b"\xff\xfe"] * rows, pa.binary()).cast(pa.string(), safe=False)
    return [*numbers, *texts, broken, pa.array([1e300] * rows), pa.array([[1]] * rows)]


def test_columns_that_were_made_up_are_judged_before_they_are_used(made: Path) -> None:
    """Whatever stands in a column, nothing of it comes into a store."""
    names = ("position", "sequence", "context", "type", "event_id", "ticks", "recorded_at", "body")
    rows = first_rows(made / "lake")

    @some(6)
    @given(st.sampled_from(names), st.sampled_from(columns(rows.num_rows)), st.sampled_from(("verify", "restore")))
    @example("event_id", columns(rows.num_rows)[6], "restore")
    @example("position", columns(rows.num_rows)[3], "restore")
    @example("context", columns(rows.num_rows)[10], "restore")
    def check(name: str, values: pa.Array, command: str) -> None:
        with copied(made) as lake:
            put(lake, 0, written(rows.set_column(rows.schema.get_field_index(name), name, values)))
            assert looked_at(made, lake, command)

    check()


# --- Iceberg's metadata ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a lake with Iceberg's metadata that is a little behind; to be copied."""
    iced = tmp_path_factory.mktemp("iced")
    for _ in range(2):
        archiver = Archiver(None, fill(iced / "store", numbers(1, events=2)), str(iced / "lake"))
        archiver.catch_up(quiet)
    fill(iced / "store", numbers(1, events=2))
    return iced


def test_whatever_is_in_icebergs_metadata_the_lake_goes_on(iced: Path) -> None:
    """An archive follows the lake's manifest: it rebuilds the metadata, or refuses it if it names files elsewhere."""
    seen = Tally()

    @some(6)
    @given(st.integers(0, 99), CHANGES | EDITS)
    @example(0, [Cut(0)])
    def check(file: int, changes: list[Change] | list[Edit]) -> None:
        with copied(iced) as lake:
            url = store_url(iced / "store")
            files = sorted(each for each in (lake / METADATA).iterdir() if each.is_file())
            path = files[file % len(files)]
            path.write_bytes(spoilt(path.read_bytes(), changes))
            with untouched(lake.parent, lake):
                done = ended("lake", "archive", "--lake", lake, "--url", url)
            seen.add(done.code == 0)
            assert ended("lake", "verify", "--lake", lake, "--url", url).code == 0

    check()
    seen.check(1 / 2)


@pytest.mark.parametrize(
    "metadata",
    [
        b"[" * 5000,
        b"[]",
        b'{"current-snapshot-id": 1, "snapshots": [{"snapshot-id": 1, "summary": []}]}',
        b'{"current-snapshot-id": 1, "snapshots": [{"snapshot-id": 1, "summary": "x"}]}',
    ],
    ids=["deep", "list", "no summary", "text"],
)
def test_icebergs_metadata_that_is_none_is_made_anew(iced: Path, metadata: bytes) -> None:
    with copied(iced) as lake:
        path = max((lake / METADATA).glob("*.json"))
        path.write_bytes(metadata)
        assert ended("lake", "archive", "--lake", lake, "--url", store_url(iced / "store")).code == 0
        assert max((lake / METADATA).glob("*.json")) > path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timelines", [[1]]),
        ("timelines", [5]),
        ("written", "\x1b[31m"),
        ("penstock", "\ud800"),
        ("rows", "7"),
        ("rows", -1),
        ("bytes", None),
        ("recorded_min", 1 << 62),
        ("recorded_min", "x"),
        ("position_min", []),
        ("checksum", 5),
        ("digest", []),
    ],
)
def test_a_manifest_with_a_wrong_field_is_refused(made: Path, name: str, value: object) -> None:
    with copied(made) as lake:
        document = json.loads((lake / MANIFEST).read_bytes())
        (document if name in document and name != "checksum" else document["files"][0])[name] = value
        (lake / MANIFEST).write_bytes(forged(document, []))
        for command in ("status", "verify", "restore"):
            assert looked_at(made, lake, command), command


def test_positions_that_a_manifest_claims_are_not_made_room_for(made: Path) -> None:
    """A file of a few bytes says that it has all positions that there can be, and that they are erased."""
    with copied(made) as lake:
        document = json.loads((lake / MANIFEST).read_bytes())
        entry, last = document["files"][0], (1 << 62) - 1
        path, rows = path_of("2026-11-14", 1, last), first_rows(lake)
        erased = [[rows.num_rows + 1, last - rows.num_rows, "c", "s", 1, 639_000_000_000_000_000]]
        known = {b"penstock.erased": b85encode(zlib.compress(json.dumps(erased).encode()))}
        data = written(rows.replace_schema_metadata(known))
        (lake / entry["path"]).unlink()
        (lake / path).parent.mkdir(exist_ok=True)
        (lake / path).write_bytes(data)
        entry.update(path=path, last=last, bytes=len(data), checksum=xxh3_128_hexdigest(data))
        document.update(files=[entry], head=last)
        (lake / MANIFEST).write_bytes(forged(document, []))
        assert looked_at(made, lake, "restore")
