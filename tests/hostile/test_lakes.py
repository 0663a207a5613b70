"""Lakes that are damaged, or that somebody has made up: no command crashes on them, or takes damage for events."""

import json
import shutil
import zlib
from base64 import b85encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from penstock.lake import changes as lake_changes
from penstock.lake.archiving import archiving
from penstock.lake.iceberg import METADATA
from penstock.lake.layout import MANIFEST, PENDING, path_of
from penstock.lake.manifests import sealed
from penstock.store import store_url
from penstock.store.contract import HideStream
from tests.hostile.mutations import CHANGES, EDITS, VALUES, Change, Edit, changed, edited, raw
from tests.hostile.support import contents, ended, untouched
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
    """Tasks run here, without Spark, and nobody waits for a folder that is away."""
    monkeypatch.setattr("penstock.cli.lake.session", lambda *_: nullcontext())
    monkeypatch.setattr(lake_changes, "AWAY_LOOK_S", 0.0)


@contextmanager
def copied(made: Path) -> Iterator[Path]:
    """A lake, to be damaged, in a folder with nothing else in it."""
    with TemporaryDirectory() as folder:
        lake = Path(folder) / "lake"
        shutil.copytree(made / "lake", lake)
        yield lake


def looked_at(made: Path, lake: Path) -> Counter[str]:
    """Run the commands that only read a lake; which of them refused it."""
    url, target, refused = store_url(made / "store"), lake.parent / "new", Counter[str]()
    with untouched(lake.parent, lake, target, lake.parent / ".lake.penstock-aside"):
        for name, command in (
            ("status", ("lake", "status", "--lake", lake, "--url", url)),
            ("query", ("lake", "query", "SELECT count(*), max(text) FROM events", "--lake", lake)),
            ("verify", ("lake", "verify", "--lake", lake, "--url", url)),
            ("restore", ("lake", "restore", "--lake", lake, "--data", target)),
        ):
            refused[name] += ended(*command).code != 0
    if refused["restore"]:
        assert set(contents(target)) <= {"penstock.lock"}
    else:
        assert ended("verify", "--data", target).code == 0
        assert ended("stats", "--data", target).code == 0
    return refused


# --- damage ---------------------------------------------------------------------------------------------------


def test_damage_to_the_manifest_or_to_events_is_found(made: Path) -> None:
    """Whatever changes in any byte of them: verify finds it, and nothing is restored."""

    @given(st.integers(0, 99), CHANGES)
    def check(file: int, changes: list[Change]) -> None:
        with copied(made) as lake:
            path = [lake / MANIFEST, *sorted(lake.glob("*/*.parquet"))][file % 3]
            before = path.read_bytes()
            path.write_bytes(changed(before, changes))
            assume(path.read_bytes() != before)
            refused = looked_at(made, lake)
            assert refused["verify"]
            assert refused["restore"]

    check()


# --- documents that somebody has made up ----------------------------------------------------------------------


def forged(document: dict[str, Any], edits: list[Edit]) -> bytes:
    """A document that was edited, with the checksum that belongs to it."""
    document = edited({name: value for name, value in document.items() if name != "checksum"}, edits)
    return raw(sealed(document) if isinstance(document, dict) else json.dumps(document).encode())


def test_a_manifest_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """It is refused, or a store comes of it in which nothing is wrong."""
    seen = Counter[str]()

    @given(EDITS)
    def check(edits: list[Edit]) -> None:
        with copied(made) as lake:
            (lake / MANIFEST).write_bytes(forged(json.loads((lake / MANIFEST).read_bytes()), edits))
            seen.update(looked_at(made, lake))
            seen["all"] += 1

    check()
    assert seen["verify"] > seen["all"] // 2


def test_a_plan_that_was_made_up_is_judged_before_it_is_carried_out(made: Path) -> None:
    """It is refused, and then the lake is as it was; or it is carried out, and then the lake has all of its files."""
    seen = Counter[str]()
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
    change["added"][0].update(first=other.last + 1, last=other.last + 1)  # type: ignore[index, attr-defined]
    compacted = {**change, "kind": "compact", "head": manifest.head, "removed": [other.path]}
    compacted |= {"added": [{**asdict(other)}], "staged": {other.path: ASIDE}, "removed": []}
    plans: list[dict[str, Any]] = [
        {"format": 1, "plan": {"kind": "compact", "spans": [[1, 5], [6, 9]]}},
        {"format": 1, "change": change},
        {"format": 1, "change": compacted},
        {"format": 1, "change": {**change, "kind": "rewrite", "removed": [path]}},
    ]

    @given(st.sampled_from(plans), EDITS)
    def check(plan: dict[str, Any], edits: list[Edit]) -> None:
        with copied(made) as lake:
            (lake / PENDING).write_bytes(forged(plan, edits))
            before = {name: data for name, data in contents(lake).items() if not name.endswith("/lock")}
            with untouched(lake.parent, lake, lake.parent / ".lake.penstock-aside"):
                ended("lake", "status", "--lake", lake)
                done = ended("lake", "compact", "--lake", lake)
            seen["refused"] += done.code != 0
            seen["all"] += 1
            if done.code:
                after = contents(lake)
                assert {name: data for name, data in after.items() if not name.endswith("/lock")} == before
            else:
                there = {file.path for file in manifest_of(lake).files}
                assert there == {str(each.relative_to(lake)) for each in lake.glob("*/*.parquet")}

    check()
    assert seen["refused"] > seen["all"] // 2


# --- files that somebody has made up --------------------------------------------------------------------------


def put(lake: Path, number: int, data: bytes) -> None:
    """Another file of events, which the manifest names as its own."""
    document = json.loads((lake / MANIFEST).read_bytes())
    entry = document["files"][number]
    (lake / entry["path"]).write_bytes(data)
    entry.update(bytes=len(data), checksum=xxh3_128_hexdigest(data))
    (lake / MANIFEST).write_bytes(forged(document, []))


def test_a_file_of_events_that_was_made_up_is_judged_before_it_is_used(made: Path) -> None:
    """The manifest has its checksum, and still it is refused, or is as good as the one that was written."""
    seen = Counter[str]()

    @given(st.integers(0, 1), CHANGES)
    def check(number: int, changes: list[Change]) -> None:
        with copied(made) as lake:
            path = lake / manifest_of(lake).files[number].path
            put(lake, number, changed(path.read_bytes(), changes))
            seen.update(looked_at(made, lake))
            seen["all"] += 1

    check()
    assert seen["verify"] > seen["all"] // 2


ERASED = [[1, 2, "shop", "early", 1, 639_000_000_000_000_000], [3, 1, "c", "s", 2, 639_000_000_000_000_000]]
"""What a file says is erased in it."""


def test_what_a_file_says_is_erased_in_it_is_judged_before_it_is_used(made: Path) -> None:
    """It is refused, or a store comes of it in which nothing is wrong."""
    seen = Counter[str]()

    @given(st.sampled_from(("edited", "bytes", "bomb")), EDITS, CHANGES)
    def check(how: str, edits: list[Edit], changes: list[Change]) -> None:
        packed = zlib.compress(raw(json.dumps(edited(ERASED, edits)).encode()))
        if how == "bomb":
            packed = zlib.compress(b"[" + b" " * (64 << 20) + b"]", 1)
        said = b85encode(packed)
        with copied(made) as lake:
            path = lake / manifest_of(lake).files[0].path
            rows = pq.read_table(path, partitioning=None)
            known = dict(rows.schema.metadata or {})
            known[b"penstock.erased"] = changed(said, changes) if how == "bytes" else said
            sink = pa.BufferOutputStream()
            pq.write_table(rows.replace_schema_metadata(known), sink)
            put(lake, 0, sink.getvalue().to_pybytes())
            seen.update(looked_at(made, lake))
            seen["all"] += 1

    check()
    assert seen["restore"] > seen["all"] // 2


@pytest.mark.parametrize("column", ["position", "sequence", "context", "event_id", "ticks", "recorded_at", "body"])
def test_columns_that_were_made_up_are_judged_before_they_are_used(made: Path, column: str) -> None:
    """Whatever stands in a column, nothing of it comes into a store, or all of it does."""
    with copied(made) as lake:
        path = lake / manifest_of(lake).files[0].path
        rows = pq.read_table(path, partitioning=None)
        for values in columns(rows.num_rows):
            sink = pa.BufferOutputStream()
            pq.write_table(rows.set_column(rows.schema.get_field_index(column), column, values), sink)
            put(lake, 0, sink.getvalue().to_pybytes())
            assert looked_at(made, lake)["verify"], values


def columns(rows: int) -> Iterator[pa.Array]:
    yield pa.array([None] * rows, pa.int64())
    for value in (-1, 0, (1 << 63) - 1, -(1 << 63), 5):
        yield pa.array([value] * rows, pa.int64())
    for text in ("", "x", "\0", "00000000-0000-0000-0000-000000000000"):
        yield pa.array([text] * rows, pa.string())
    yield pa.array([b"\xff\xfe"] * rows, pa.binary()).cast(pa.string(), safe=False)
    yield pa.array([1e300] * rows)
    yield pa.array([[1]] * rows)


# --- Iceberg's metadata ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def iced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a lake with Iceberg's metadata that is a little behind; to be copied."""
    iced = tmp_path_factory.mktemp("iced")
    for _ in range(2):
        with archiving(None, fill(iced / "store", numbers(1, events=2)), str(iced / "lake")) as archiver:
            archiver.catch_up(quiet)
    fill(iced / "store", numbers(1, events=2))
    return iced


def test_whatever_is_in_icebergs_metadata_the_lake_goes_on(iced: Path) -> None:
    """An archive follows the lake's own manifest: the metadata is made anew, or refused if it names files elsewhere."""
    seen = Counter[str]()

    @given(st.integers(0, 99), CHANGES | EDITS)
    def check(file: int, changes: list[Change] | list[Edit]) -> None:
        with copied(iced) as lake:
            url = store_url(iced / "store")
            files = sorted(each for each in (lake / METADATA).iterdir() if each.is_file())
            path = files[file % len(files)]
            if not isinstance(changes[0], Edit):
                path.write_bytes(changed(path.read_bytes(), changes))  # type: ignore[arg-type]
            elif path.suffix == ".json":
                document = edited(json.loads(path.read_bytes()), changes)  # type: ignore[arg-type]
                path.write_bytes(raw(json.dumps(document).encode()))
            else:
                path.write_bytes(str(VALUES[changes[0].value]).encode(errors="replace"))
            with untouched(lake.parent, lake):
                done = ended("lake", "archive", "--lake", lake, "--url", url)
            seen["refused"] += done.code != 0
            assert ended("lake", "verify", "--lake", lake, "--url", url).code == 0
            seen["all"] += 1

    check()
    assert seen["refused"] < seen["all"] // 2
