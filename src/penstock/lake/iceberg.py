"""Iceberg metadata beside a lake, so that engines which speak Iceberg see a table with snapshots.

    LAKE/_penstock/iceberg/metadata/vN.metadata.json    the table; version-hint.text says which N is the present one
    LAKE/_penstock/iceberg/metadata/*.avro              which files each snapshot has

The lake's own manifest is what counts, and this follows it: `update` brings the table to exactly the manifest's files,
in one snapshot, and may be called as often as one likes. Files are added as pyiceberg's `add_files` does, where they
are and as they are, their columns found by name; but what Iceberg wants to know of them the manifest says already, so
that none of them is opened. Whatever is wrong with the metadata, it is made anew: all that is in it is elsewhere too.

Nobody but who has the lake alone calls `update`, so that there is no catalog to decide between two of them.
"""

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.files import parsed
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import OWN, LakeFile, Manifest
from penstock.lake.places import LakePlace, open_lake_place

if TYPE_CHECKING:
    from penstock.lake.iceberg_tables import IcebergTable

TABLE_FOLDER: Final = f"{OWN}/iceberg"
"""What engines are given as the table's path."""
METADATA: Final = f"{TABLE_FOLDER}/metadata"
HINT: Final = f"{METADATA}/version-hint.text"
VERSION_DIGITS_MAX: Final = 18
NUMBER: Final = "penstock.manifest"
HEAD: Final = "penstock.head"
"""What a snapshot says of the manifest that it follows: its number, and the last position."""


def update(lake: LakePlace | str, manifest: Manifest) -> bool:
    """Bring the table to the files of a manifest; whether anything was to be done."""
    place = open_lake_place(lake) if isinstance(lake, str) else lake
    version = _version(place)
    if _follows(place, version, manifest):
        return False
    # It takes a while to import, and most commands, and rounds in which nothing comes, do without it.
    from penstock.lake.iceberg_tables import IcebergTable  # noqa: PLC0415

    try:
        _follow(IcebergTable(place, version), place, manifest)
    except PenstockError:
        raise
    except Exception:  # noqa: BLE001 - whatever pyiceberg makes of metadata that is no good, it is made anew
        _follow(IcebergTable(place, version, anew=True), place, manifest)
    return True


def _follow(table: "IcebergTable", place: LakePlace, manifest: Manifest) -> None:
    wanted = {location(place, file.path): file for file in manifest.files if file.rows}
    present = {file.file_path: file for file in table.files()}
    gone = [file for path, file in present.items() if not _is_same(file, wanted.get(path))]
    new = {path: file for path, file in wanted.items() if not _is_same(present.get(path), file)}
    table.change(gone, new, {NUMBER: str(manifest.number), HEAD: str(manifest.head)})


def update_iceberg(place: LakePlace, manifest: Manifest) -> None:
    """The same. Where there is no pyiceberg, there is no table."""
    try:
        update(place, manifest)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyiceberg"):
            raise


def location(place: LakePlace, path: str) -> str:
    """Where Iceberg finds a file of a lake. It has whole addresses, so that a lake that is moved gets a new table."""
    root = f"file://{place.path.resolve()}" if isinstance(place, LocalPlace) else place.shown.rstrip("/")
    return f"{root}/{path}"


def metadata_path(version: int) -> str:
    """The metadata of a version of the table."""
    return f"{METADATA}/v{version}.metadata.json"


def _version(place: LakePlace) -> int:
    """The last version of the table; 0 if there is none. The hint is written last, and may be behind."""
    text = (place.find(HINT) or b"0").strip()
    version = int(text) if text.isdigit() and len(text) <= VERSION_DIGITS_MAX else 0
    while place.find(metadata_path(version + 1)) is not None:
        version += 1
    return version


def _follows(place: LakePlace, version: int, manifest: Manifest) -> bool:
    """Whether the table has followed a manifest already, and its hint too."""
    try:
        document = parsed(place.find(metadata_path(version)) or b"{}")
        current = document.get("current-snapshot-id", -1)
        said: Any = next(each["summary"] for each in document.get("snapshots", ()) if each["snapshot-id"] == current)
        is_followed = said[NUMBER] == str(manifest.number)
    except (ValueError, LookupError, StopIteration, AttributeError, TypeError):
        return False
    is_here = document.get("location") == location(place, TABLE_FOLDER)
    is_hinted = (place.find(HINT) or b"").strip() == str(version).encode()
    return is_here and is_hinted and bool(is_followed)


def _is_same(found: Any, file: LakeFile | None) -> bool:
    if found is None or file is None:
        return False
    return bool((found.file_size_in_bytes, found.record_count) == (file.bytes, file.rows))
