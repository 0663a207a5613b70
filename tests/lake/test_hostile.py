"""Lakes that somebody has crafted: whatever their documents name, nothing outside is read, removed or placed."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LakeDamaged
from penstock.lake import iceberg_tables, remote
from penstock.lake.changes import read_manifest, recover
from penstock.lake.iceberg import METADATA, location, metadata_path, update
from penstock.lake.manifests import MANIFEST, PENDING, Manifest, path_of, sealed
from penstock.lake.places import open_lake_place
from penstock.lake.query import query_lake
from penstock.lake.restore import restore_lake
from penstock.lake.verification import status
from penstock.store import store_url
from tests.lake.support import archive, compact, fill, manifest_of, numbers, stage, verified

ASIDE = f"_penstock/aside/{'a' * 32}.new"
ELSEWHERE = [
    "../store/penstock.db",
    "recorded_day=2026-11-14/../../store/penstock.db",
    "_penstock/../../store/penstock.db",
    "/etc/passwd",
    "./recorded_day=2026-11-14/x.parquet",
    "a\0b",
    "\ud800",
    "_penstock/manifest.json",
    "recorded_day=2026-13-41/00000000000000000001-00000000000000000010.parquet",
    "recorded_day=٢٠٢٦-11-14/00000000000000000001-00000000000000000010.parquet",
    7,
    None,
    ["../x"],
]

COPIES = [
    "../outside/copy.parquet",
    "recorded_day=2026-11-14/../../outside/copy.parquet",
    "_penstock/../../outside/copy.parquet",
    "{outside}/copy.parquet",
]
"""Where a test puts a copy of a file of the lake."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, its lake with two files of one day, and a file aside; to be copied."""
    made = tmp_path_factory.mktemp("made")
    for _ in range(2):
        archive(fill(made / "store", numbers(3)), made / "lake")
    (made / "lake" / ASIDE).parent.mkdir()
    (made / "lake" / ASIDE).write_bytes(b"planted")
    return made


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "lake"


@pytest.fixture
def url(lake: Path) -> str:
    return store_url(lake.parent / "store")


def contents(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder, but for locks and what SQLite makes while somebody reads."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        is_file = path.is_symlink() or path.is_file()
        if is_file and path.name != "lock" and not path.name.endswith(("-wal", "-shm")):
            found[str(path.relative_to(folder))] = str(path.readlink()) if path.is_symlink() else path.read_bytes()
    return found


def attempts(url: str, lake: Path) -> Iterator[Callable[[], object]]:
    # First what would read a file wherever it is: the others look for it in the lake.
    yield lambda: restore_lake(str(lake), f"sqlite:///{lake.parent / 'restored'}", stage)
    yield lambda: query_lake(str(lake), None, "SELECT count(*) FROM events", lambda answer: None)
    yield lambda: archive(url, lake)
    yield lambda: compact(lake)
    yield lambda: verified(url, lake)
    yield lambda: status(str(lake))


def check_refused(url: str, lake: Path, document: str, entry: str) -> None:
    """Every command refuses the lake, names the document and the entry, and changes nothing anywhere."""
    before = contents(lake.parent)
    for attempt in attempts(url, lake):
        with pytest.raises(LakeDamaged) as caught:
            attempt()
        assert caught.value.what == document
        assert entry in str(caught.value)
        assert contents(lake.parent) == before


def change(manifest: Manifest, **changed: Any) -> dict[str, Any]:
    """A change as it is recorded: the two files become one."""
    one, other = manifest.files
    path = path_of(one.day, one.first, other.last)
    added = {**asdict(one), "path": path, "last": other.last}
    made = {
        "kind": "compact",
        "number": manifest.number + 1,
        "head": manifest.head,
        "erasures": manifest.erasures,
        "added": [added],
        "staged": {path: ASIDE},
        "removed": [one.path, other.path],
    }
    return {"format": 1, "change": {**made, **changed}}


@pytest.mark.parametrize("kind", ["archive", "compact"])
@pytest.mark.parametrize("ahead", [0, 1], ids=["done already", "to be done"])
@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_change_removes_nothing_but_files_of_the_lake(
    url: str, lake: Path, path: object, ahead: int, kind: str
) -> None:
    manifest = manifest_of(lake)
    document = change(manifest, kind=kind, number=manifest.number + ahead, removed=[path])
    (lake / PENDING).write_bytes(sealed(document))
    check_refused(url, lake, PENDING, repr(path))


@pytest.mark.parametrize("kind", ["archive", "compact"])
@pytest.mark.parametrize("path", [path for path in ELSEWHERE if isinstance(path, str)])
def test_a_change_places_nothing_outside(url: str, lake: Path, path: str, kind: str) -> None:
    manifest = manifest_of(lake)
    added = {**asdict(manifest.files[0]), "path": path}
    (lake / PENDING).write_bytes(sealed(change(manifest, kind=kind, staged={path: ASIDE})))
    check_refused(url, lake, PENDING, repr(path))
    (lake / PENDING).write_bytes(sealed(change(manifest, kind=kind, added=[added], staged={path: ASIDE})))
    check_refused(url, lake, PENDING, repr(path))


@pytest.mark.parametrize("kind", ["archive", "compact"])
@pytest.mark.parametrize("aside", [*ELSEWHERE, "_penstock/aside/../../../store/penstock.db", "_penstock/aside/x.new"])
def test_a_change_places_nothing_from_outside(url: str, lake: Path, aside: object, kind: str) -> None:
    manifest = manifest_of(lake)
    path = path_of(manifest.files[0].day, 1, 60)
    (lake / PENDING).write_bytes(sealed(change(manifest, kind=kind, staged={path: aside})))
    check_refused(url, lake, PENDING, repr(aside))


@pytest.mark.parametrize("path", [*COPIES, *ELSEWHERE])
def test_a_manifest_names_nothing_outside(url: str, lake: Path, path: object) -> None:
    """The copies outside are what the manifest says of the file: whoever reads them finds nothing wrong."""
    document = json.loads((lake / MANIFEST).read_bytes())
    del document["checksum"]
    entry = document["files"][1]
    (lake.parent / "outside").mkdir()
    shutil.copy(lake / entry["path"], lake.parent / "outside" / "copy.parquet")
    if path in COPIES:
        shutil.move(lake / entry["path"], lake.parent / "outside" / "moved.parquet")
        path = str(path).format(outside=lake.parent / "outside")
    entry["path"] = path
    (lake / MANIFEST).write_bytes(sealed(document))
    check_refused(url, lake, MANIFEST, repr(path))


def test_a_file_has_the_positions_that_its_name_says(url: str, lake: Path) -> None:
    document = json.loads((lake / MANIFEST).read_bytes())
    del document["checksum"]
    other = path_of("2026-11-14", 31, 61)
    document["files"][1]["path"] = other
    (lake / MANIFEST).write_bytes(sealed(document))
    check_refused(url, lake, MANIFEST, other)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kind": "delete"}, "'delete'"),
        ({"number": 9}, "it is for manifest 9, and the last one is 3"),
        ({"number": "4"}, "its number is '4'"),
        ({"number": 3}, "which the manifest names"),
        ({"head": 70}, "its files end at 60, not at 70"),
        ({"staged": {}}, "it places other files than it adds"),
        ({"removed": "../x"}, "its removed is '../x'"),
        ({"removed": []}, "does not begin at"),
        ({"staged": None}, "cannot be read"),
        ({"added": 5}, "cannot be read"),
        ({"added": [5]}, "cannot be read"),
        ({"more": 5}, "cannot be read"),
    ],
)
def test_a_change_that_does_not_follow_its_manifest_is_not_carried_out(
    lake: Path, wrong: dict[str, Any], said: str
) -> None:
    (lake / PENDING).write_bytes(sealed(change(manifest_of(lake), **wrong)))
    before = contents(lake)
    with pytest.raises(LakeDamaged, match=r"_penstock/pending.json") as caught:
        recover(open_lake_place(str(lake)))
    assert said in str(caught.value)
    assert contents(lake) == before


# --- links ----------------------------------------------------------------------------------------------------


def linked(path: Path, target: Path) -> None:
    """Move something elsewhere, and leave a link to it."""
    shutil.move(path, target)
    path.symlink_to(target)


def test_a_day_that_is_a_link_out_of_the_lake_is_not_changed(url: str, lake: Path) -> None:
    manifest = manifest_of(lake)
    (lake / PENDING).write_bytes(sealed(change(manifest)))
    (day,) = lake.glob("recorded_day=*")
    linked(day, lake.parent / "moved")
    before = contents(lake.parent)
    for attempt in (lambda: archive(url, lake), lambda: compact(lake)):
        with pytest.raises(LakeDamaged, match=r"recorded_day=.* is a link that leads out of the folder"):
            attempt()
        assert contents(lake.parent) == before


def test_a_file_that_is_a_link_out_of_the_lake_is_not_read(url: str, lake: Path) -> None:
    first = manifest_of(lake).files[0].path
    linked(lake / first, lake.parent / "moved.parquet")
    check_link_refused(lake)
    assert [each.what for each in verified(url, lake).differences] == ["is a link that leads out of the folder"]


def test_a_day_that_is_a_link_out_of_the_lake_is_not_read(url: str, lake: Path) -> None:
    (day,) = lake.glob("recorded_day=*")
    linked(day, lake.parent / "moved")
    check_link_refused(lake)
    assert {each.what for each in verified(url, lake).differences} >= {"is a link that leads out of the folder"}


def check_link_refused(lake: Path) -> None:
    """Whatever reads the files says that they are behind a link, and leaves nothing anywhere."""
    before = set(lake.parent.rglob("*"))
    for attempt in (
        lambda: query_lake(str(lake), None, "SELECT count(*) FROM events", lambda answer: None),
        lambda: restore_lake(str(lake), store_url(lake.parent / "new" / "restored"), stage),
        lambda: compact(lake),
    ):
        with pytest.raises(LakeDamaged, match=r"recorded_day=.* is a link that leads out of the folder"):
            attempt()
        assert set(lake.parent.rglob("*")) <= before


@pytest.mark.parametrize("name", ["_penstock/lock", "_penstock/manifest.json", "_penstock/pending.json"])
def test_a_document_that_is_a_link_out_of_the_lake_is_neither_read_nor_written(url: str, lake: Path, name: str) -> None:
    precious = lake.parent / "precious"
    precious.write_bytes(b"precious")
    (lake / name).unlink(missing_ok=True)
    (lake / name).symlink_to(precious)
    for attempt in (lambda: archive(url, lake), lambda: compact(lake)):
        with pytest.raises(LakeDamaged, match=f"{name} is a link that leads out of the folder"):
            attempt()
    assert precious.read_bytes() == b"precious"


def test_nothing_is_written_aside_through_a_link(url: str, lake: Path) -> None:
    linked(lake / "_penstock" / "aside", lake.parent / "moved")
    fill(lake.parent / "store", numbers(1))
    before = contents(lake.parent)
    with pytest.raises(LakeDamaged, match="_penstock/aside is a link that leads out of the folder"):
        archive(url, lake)
    assert contents(lake.parent) == before


def test_a_lake_behind_a_link_is_a_lake(url: str, lake: Path) -> None:
    (lake.parent / "link").symlink_to(lake)
    assert compact(lake.parent / "link") == (2, 1, 1)
    assert not verified(url, lake.parent / "link").differences


# --- elsewhere ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["../precious", "recorded_day=2026-11-14/../../precious", "/lakes/precious"])
def test_elsewhere_nothing_outside_is_touched_either(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "SETTLE_S", 0.01)
    lake = f"memory://lakes/{tmp_path.name}"
    url = fill(tmp_path / "store", numbers(3))
    archive(url, lake)
    archive(fill(tmp_path / "store", numbers(2)), lake)
    place = open_lake_place(lake)
    assert isinstance(place, remote.RemotePlace)
    place._fs.create_dir("/lakes")
    with place._fs.open_output_stream("/lakes/precious") as file:
        file.write(b"precious")
    manifest = read_manifest(place)
    place.replace(PENDING, sealed(change(manifest, removed=[path])))
    for attempt in (lambda: archive(url, lake), lambda: compact(lake), lambda: verified(url, lake)):
        with pytest.raises(LakeDamaged, match=r"pending.json names") as caught:
            attempt()
        assert repr(path) in str(caught.value)
    for act in (place.find, place.read, place.remove, lambda path: place.replace(path, b"")):
        with pytest.raises(LakeDamaged, match=r"is an absolute path|leads out of the folder"):
            act(path)
    with place._fs.open_input_file("/lakes/precious") as file:
        assert file.read() == b"precious"


# --- the Iceberg table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file://{precious}", "{table}/../../../../precious", "{blank}../precious"])
def test_what_the_metadata_of_the_table_names_elsewhere_is_neither_read_nor_removed(
    url: str, lake: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_tables, "SNAPSHOTS_MAX", 1)
    place, precious = open_lake_place(str(lake)), lake.parent / "precious"
    precious.write_bytes(b"precious")
    update(place, manifest_of(lake))
    metadata = lake / metadata_path(1)
    document = json.loads(metadata.read_bytes())
    root = location(place, "")
    named = where.format(precious=precious, table=f"{root}{METADATA}", blank="x" * len(root))
    # A snapshot that is forgotten when the next one comes: its list of manifests is read and removed then.
    old = {**document["snapshots"][0], "snapshot-id": 7, "manifest-list": named, "sequence-number": 0}
    metadata.write_text(json.dumps({**document, "snapshots": [old, *document["snapshots"]]}))
    archive(fill(lake.parent / "store", numbers(1)), lake)
    with pytest.raises(LakeDamaged) as caught:
        update(place, manifest_of(lake))
    assert "precious" in str(caught.value)
    assert METADATA in str(caught.value)
    assert precious.read_bytes() == b"precious"
    shutil.rmtree(lake / "_penstock" / "iceberg")
    assert update(place, manifest_of(lake))
