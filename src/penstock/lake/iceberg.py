"""Iceberg metadata of a lake, so that engines which read Iceberg see a table with snapshots.

    LAKE/_penstock/iceberg/metadata/vN.metadata.json    the table; version-hint.text has the current N
    LAKE/_penstock/iceberg/metadata/*.avro              the files of each snapshot

The lake's own manifest is the truth, and the table follows it: `update` brings the table to exactly the manifest's
files, in one snapshot, and can be repeated. It adds files like pyiceberg's `add_files`, in place, with columns by name.
The manifest already has all that Iceberg needs to know of them, so it opens none. If the metadata is damaged, it makes
a new table: everything in it is elsewhere too.

Only the process that holds the lake's lock calls `update`, so no catalog has to decide between two.
"""

from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.files import parsed
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import OWN, LakeFile, Manifest
from penstock.lake.places import LakePlace

if TYPE_CHECKING:
    from penstock.lake.iceberg_tables import IcebergTable

TABLE_FOLDER: Final = f"{OWN}/iceberg"
"""The path of the table for engines."""
METADATA: Final = f"{TABLE_FOLDER}/metadata"
HINT: Final = f"{METADATA}/version-hint.text"
VERSION_DIGITS_MAX: Final = 18
NUMBER: Final = "penstock.manifest"
HEAD: Final = "penstock.head"
"""Properties of a snapshot: the manifest's number, and its last position."""


def update(place: LakePlace, manifest: Manifest) -> bool:
    """Bring the table to the files of a manifest; returns whether it changed."""
    version = _version(place)
    if _follows(place, version, manifest):
        return False
    # It takes a while to import, and most commands and rounds do not need it.
    from penstock.lake.iceberg_tables import IcebergTable  # noqa: PLC0415

    try:
        _follow(IcebergTable(place, version), place, manifest)
    except PenstockError:
        raise
    except Exception:  # noqa: BLE001 - damaged metadata raises anything, and is replaced
        _follow(IcebergTable(place, version, is_new=True), place, manifest)
    return True


def _follow(table: "IcebergTable", place: LakePlace, manifest: Manifest) -> None:
    wanted = {location(place, file.path): file for file in manifest.files if file.rows}
    present = {file.file_path: file for file in table.files()}
    gone = [file for path, file in present.items() if not _is_same(file, wanted.get(path))]
    new = {path: file for path, file in wanted.items() if not _is_same(present.get(path), file)}
    table.change(gone, new, {NUMBER: str(manifest.number), HEAD: str(manifest.head)})


def update_iceberg(place: LakePlace, manifest: Manifest) -> None:
    """The same, if pyiceberg is installed."""
    try:
        update(place, manifest)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("pyiceberg"):
            raise


def location(place: LakePlace, path: str) -> str:
    """The address of a file for Iceberg. It is absolute, so a lake that was moved gets a new table."""
    root = f"file://{place.path.resolve()}" if isinstance(place, LocalPlace) else place.shown.rstrip("/")
    return f"{root}/{path}"


def metadata_path(version: int) -> str:
    return f"{METADATA}/v{version}.metadata.json"


def _version(place: LakePlace) -> int:
    """The last version of the table; 0 if there is no table. The hint is written last, and may be behind."""
    text = (place.find(HINT) or b"0").strip()
    version = int(text) if text.isdigit() and len(text) <= VERSION_DIGITS_MAX else 0
    while place.find(metadata_path(version + 1)) is not None:
        version += 1
    return version


def _follows(place: LakePlace, version: int, manifest: Manifest) -> bool:
    """Whether the table, and its hint, already follow a manifest."""
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
