"""The Iceberg table of a lake, which pyiceberg writes through the lake's place. `penstock.lake.iceberg` uses it."""

import io
from collections.abc import Iterable, Iterator, Mapping
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableRequirement, TableUpdate, update_table_metadata
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IcebergType, LongType, NestedField, StringType, TimestamptzType

from penstock.errors import LakeDamaged, PenstockError
from penstock.history.columns import TABLE
from penstock.lake.iceberg import HINT, METADATA, TABLE_FOLDER, location, metadata_path
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import DAY, LakeFile
from penstock.lake.places import LakePlace

SNAPSHOTS_MAX: Final = 100
"""Snapshots that the table keeps. Compaction has removed most files of older ones."""
VERSIONS_MAX: Final = 10
"""Versions of the metadata that are kept for concurrent readers."""
FORMAT: Final = "2"
_TYPES: Final[dict[pa.DataType, IcebergType]] = {
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    TABLE.field("recorded_at").type: TimestamptzType(),
}
SCHEMA: Final = Schema(
    *(
        NestedField(number, field.name, _TYPES[field.type], required=not field.nullable)
        for number, field in enumerate(TABLE, 1)
    )
)
_IDS: Final = {field.name: field.field_id for field in SCHEMA.fields}
SPEC: Final = PartitionSpec(PartitionField(_IDS["recorded_at"], 1000, DayTransform(), DAY))
_EPOCH: Final = date(1970, 1, 1)


class IcebergTable:
    """The last version of the table; a new table if that cannot be read, is of another place, or if `is_new` is set."""

    def __init__(self, place: LakePlace, version: int, *, is_new: bool = False) -> None:
        if isinstance(place, LocalPlace):
            place.make_folder(METADATA)
        self._place = place
        self._io = _PlaceIO(place)
        metadata = (None if is_new else _read(place, self._io, version)) or _made(place)
        catalog = _Versions(place, self._io, version)
        where = location(place, metadata_path(version))
        self._table = Table(("penstock", "events"), metadata, where, self._io, catalog)

    def files(self) -> list[DataFile]:
        snapshot = self._table.current_snapshot()
        return [] if snapshot is None else list(_files(snapshot, self._io))

    def change(self, gone: Iterable[DataFile], new: Mapping[str, LakeFile], said: dict[str, str]) -> None:
        gone = list(gone)
        with self._table.transaction() as transaction:
            updating = transaction.update_snapshot(snapshot_properties=said)
            # Most changes only add: then old manifests stay as they are, or are merged now and then.
            with updating.overwrite() if gone else updating.merge_append() as snapshot:
                for file in gone:
                    snapshot.delete_data_file(file)
                for path, known in new.items():
                    snapshot.append_data_file(_data_file(path, known))


def _read(place: LakePlace, files: "_PlaceIO", version: int) -> TableMetadata | None:
    try:
        found = FromInputFile.table_metadata(files.new_input(location(place, metadata_path(version))))
        if found.location != location(place, TABLE_FOLDER) or found.schema() != SCHEMA:
            return None
        # Find out now whether its files can be read.
        for snapshot in found.snapshots[-1:]:
            list(_files(snapshot, files))
    except PenstockError:
        raise
    except Exception:  # noqa: BLE001 - whatever it raises, the table is replaced
        return None
    return found


def _made(place: LakePlace) -> TableMetadata:
    properties = {
        TableProperties.FORMAT_VERSION: FORMAT,
        TableProperties.DEFAULT_NAME_MAPPING: SCHEMA.name_mapping.model_dump_json(),
        TableProperties.MANIFEST_MERGE_ENABLED: "true",
    }
    return new_table_metadata(SCHEMA, SPEC, UNSORTED_SORT_ORDER, location(place, TABLE_FOLDER), properties)


def _files(snapshot: Snapshot, files: FileIO) -> Iterator[DataFile]:
    for manifest in snapshot.manifests(files):
        for entry in manifest.fetch_manifest_entry(files, discard_deleted=True):
            yield entry.data_file


def _data_file(path: str, file: LakeFile) -> DataFile:
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record((date.fromisoformat(file.day) - _EPOCH).days),
        record_count=file.rows,
        file_size_in_bytes=file.bytes,
        lower_bounds=_bounds(file.position_min, file.recorded_min),
        upper_bounds=_bounds(file.position_max, file.recorded_max),
        sort_order_id=None,
        spec_id=SPEC.spec_id,
        equality_ids=None,
        key_metadata=None,
    )


def _bounds(position: int | None, recorded: int | None) -> dict[int, bytes]:
    known = (("position", LongType(), position), ("recorded_at", TimestamptzType(), recorded))
    return {_IDS[name]: to_bytes(kind, value) for name, kind, value in known if value is not None}


# -- versions


class _Versions(NoopCatalog):
    """Writes a table's metadata: the next version, and then the hint."""

    def __init__(self, place: LakePlace, files: "_PlaceIO", version: int) -> None:
        super().__init__("penstock")
        self._place, self._io, self._version = place, files, version

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        changed = update_table_metadata(table.metadata, updates, metadata_location=table.metadata_location)
        # The oldest snapshots, which are not kept. A later snapshot never uses the files that they alone have.
        old = _by_time(changed)[:-SNAPSHOTS_MAX]
        if old:
            forgotten = {"snapshot-ids": [snapshot.snapshot_id for snapshot in old]}
            changed = update_table_metadata(changed, (RemoveSnapshotsUpdate.model_validate(forgotten),))
        self._version += 1
        where = location(self._place, metadata_path(self._version))
        ToOutputFile.table_metadata(changed, self._io.new_output(where), overwrite=True)
        self._place.replace(HINT, str(self._version).encode())
        self._clean(old, changed)
        return CommitTableResponse.model_validate({"metadata": changed, "metadata-location": where})

    def _clean(self, old: list[Snapshot], changed: TableMetadata) -> None:
        """Remove what no kept version needs. A kill may leave small files behind, which do no harm."""
        if self._version > VERSIONS_MAX:
            self._place.remove(metadata_path(self._version - VERSIONS_MAX))
        if not old:
            return
        needed = {manifest.manifest_path for manifest in _by_time(changed)[0].manifests(self._io)}
        for snapshot in old:
            for manifest in snapshot.manifests(self._io):
                if manifest.manifest_path not in needed:
                    self._io.delete(manifest.manifest_path)
            self._io.delete(snapshot.manifest_list)


def _by_time(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)


# -- files


class _PlaceIO(FileIO):
    """The small files of a table, read and written through the lake's place."""

    def __init__(self, place: LakePlace) -> None:
        super().__init__({})
        self._place = place
        self._root = len(location(place, ""))

    def path(self, where: str) -> str:
        """The path of a file of the table. Raises LakeDamaged for a file elsewhere."""
        path = where[self._root :]
        if where != location(self._place, path) or not path.startswith(f"{METADATA}/"):
            reason = f"names {where!r}, which is not in it; remove {TABLE_FOLDER}, and the next run makes it again"
            raise LakeDamaged(self._place.shown, METADATA, reason)
        return path

    def new_input(self, location: str) -> "_PlaceFile":
        return _PlaceFile(self._place, self.path(location), location)

    def new_output(self, location: str) -> "_PlaceFile":
        return self.new_input(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._place.remove(self.path(location if isinstance(location, str) else location.location))


class _PlaceFile(InputFile, OutputFile):
    def __init__(self, place: LakePlace, path: str, location: str) -> None:
        super().__init__(location)
        self._place, self._path = place, path

    def __len__(self) -> int:
        return len(self._data())

    def _data(self) -> bytes:
        data = self._place.find(self._path)
        if data is None:
            raise FileNotFoundError(self._path)
        return data

    def exists(self) -> bool:
        return self._place.find(self._path) is not None

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002 - it always is
        return io.BytesIO(self._data())

    def to_input_file(self) -> "_PlaceFile":
        return self

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002 - names are new, or to be overwritten
        return _WrittenOnClose(self._place, self._path)


class _WrittenOnClose(io.BytesIO):
    def __init__(self, place: LakePlace, path: str) -> None:
        super().__init__()
        self._place, self._path = place, path

    def close(self) -> None:
        if not self.closed:
            self._place.replace(self._path, self.getvalue())
        super().close()
