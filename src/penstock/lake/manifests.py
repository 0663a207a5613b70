"""The layout of a lake, and its manifest: the list of files, the contents of each, and the store they are from.

The manifest is written last, atomically. A file that it does not name is not part of the lake. It has a checksum, which
detects damage. But a program that can write to a lake can make a checksum too, so every path that a document names is
checked before it is used.
"""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128_hexdigest

from penstock import __version__
from penstock.errors import LakeDamaged, PlaceRefused
from penstock.files import flaw_of, made_of, parsed
from penstock.model.times import now_text
from penstock.store.contract import StoreIdentity

DAY: Final = "recorded_day"
"""The column that folders are named after. It is in no file; readers that know Hive partitions add it."""
OWN: Final = "_penstock"
"""The folder of everything that is not events. Readers of Parquet folders skip such names."""
MANIFEST: Final = f"{OWN}/manifest.json"
PENDING: Final = f"{OWN}/pending.json"
LOCK: Final = f"{OWN}/lock"
ASIDE: Final = f"{OWN}/aside"
STAGED: Final = ".new"
"""The ending of temporary files. It is not .parquet, so that no reader takes them for events."""
_PATH: Final = re.compile(rf"{DAY}=(\d{{4}}-\d\d-\d\d)/(\d{{20}})-(\d{{20}})\.parquet", re.ASCII)
_ASIDE: Final = re.compile(rf"{ASIDE}/[0-9a-f]{{32}}\{STAGED}")


class Named(NamedTuple):
    day: str
    first: int
    last: int


def folder_of(day: str) -> str:
    return f"{DAY}={day}"


def path_of(day: str, first: int, last: int) -> str:
    return f"{folder_of(day)}/{first:020}-{last:020}.parquet"


def named(path: str) -> Named | None:
    """The parts of a path; None if it is not that of a file of events."""
    if found := _PATH.fullmatch(path):
        with suppress(ValueError):
            date.fromisoformat(found[1])
            return Named(found[1], int(found[2]), int(found[3]))
    return None


def day_in(path: str) -> str:
    found = named(path)
    assert found is not None
    return found.day


def is_aside(path: str) -> bool:
    return _ASIDE.fullmatch(path) is not None


def is_passed_over(path: str) -> bool:
    """Whether readers of the folder skip a path, because a part of it begins with an underscore or a dot."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))


FORMAT_VERSION: Final = 1
"""The version of the lake's layout, of manifests and of files' metadata."""
RECORDED_US_MIN: Final = -62_135_596_800_000_000
RECORDED_US_MAX: Final = 253_402_300_799_999_999
"""The years 1 to 9999, in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file of events: the positions from `first` to `last`, of which `rows` are there and the others erased.

    `event_bytes` are those of bodies and headers before compression. `checksum` is of the file's bytes, `digest` of its
    rows; both are XXH3 of 128 bits. The least and greatest position and recorded time (microseconds since 1970) are
    null if no row is left.
    """

    path: str
    first: int
    last: int
    rows: int
    bytes: int
    event_bytes: int
    checksum: str
    digest: str
    position_min: int | None
    position_max: int | None
    recorded_min: int | None
    recorded_max: int | None

    @property
    def day(self) -> str:
        return day_in(self.path)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A lake at one moment. `erasures` is the last entry of the store's ledger that the files have followed."""

    store: str
    timeline: int
    timelines: tuple[tuple[int, int, int], ...] = ()
    number: int = 0
    written: str = ""
    penstock: str = __version__
    head: int = 0
    erasures: int = 0
    files: tuple[LakeFile, ...] = field(default=(), repr=False)

    @property
    def identity(self) -> StoreIdentity:
        return StoreIdentity(self.store, self.timeline)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def with_files(self, removed: set[str], added: list[LakeFile], **changed: Any) -> "Manifest":
        gone = removed | {file.path for file in added}
        kept = [file for file in self.files if file.path not in gone]
        files = tuple(sorted((*kept, *added), key=lambda file: file.first))
        return replace(self, number=self.number + 1, written=now_text(), penstock=__version__, files=files, **changed)


def encode(manifest: Manifest) -> bytes:
    return sealed({"format": FORMAT_VERSION, **asdict(manifest)})


def sealed(document: dict[str, Any]) -> bytes:
    """The bytes of a document with its checksum."""
    return _text({**document, "checksum": xxh3_128_hexdigest(_text(document))})


def _text(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def opened(lake: str, path: str, data: bytes) -> dict[str, Any]:
    """A document, checked. Raises LakeDamaged, or PlaceRefused if a newer Penstock wrote it."""
    try:
        document = parsed(data)
        version, checksum = document["format"], document.pop("checksum")
        if isinstance(version, int) and version > FORMAT_VERSION:
            reason = f"it has format {version}, and this Penstock knows {FORMAT_VERSION}; use a newer Penstock"
            raise PlaceRefused(lake, reason)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise LakeDamaged(lake, path, f"cannot be read: {error}") from error
    if sealed(document) != data or not isinstance(checksum, str):
        raise LakeDamaged(lake, path, "does not have the checksum that it says")
    del document["format"]
    return dict(document)


def decode(lake: str, data: bytes) -> Manifest:
    """A manifest from its bytes. Raises LakeDamaged, or PlaceRefused if a newer Penstock wrote it."""
    document = opened(lake, MANIFEST, data)
    try:
        manifest = made_of(Manifest, document)
    except TypeError as error:
        raise LakeDamaged(lake, MANIFEST, f"cannot be read: {error}") from error
    check_entries(lake, MANIFEST, manifest.files)
    check(lake, MANIFEST, manifest)
    return manifest


def check_entries(lake: str, document: str, files: Iterable[LakeFile]) -> None:
    """Raise LakeDamaged unless each file of a document has a sound path, and numbers that can be."""
    for file in files:
        found, times = event_path(lake, document, file.path), (file.recorded_min, file.recorded_max)
        reason = None
        if (found.first, found.last) != (file.first, file.last):
            reason = f"it names {file.path} for the positions {file.first} to {file.last}"
        elif not 0 <= file.rows <= file.last - file.first + 1 or min(file.bytes, file.event_bytes) < 0:
            reason = f"it has {file.rows} events in {file.bytes} bytes of {file.path}"
        elif not all(time is None or RECORDED_US_MIN <= time <= RECORDED_US_MAX for time in times):
            reason = f"{file.path} has times that cannot be"
        if reason is not None:
            raise LakeDamaged(lake, document, f"is not sound: {reason}")


def event_path(lake: str, document: str, path: str) -> Named:
    """The parts of the path of a file of events. Raises LakeDamaged, which names the document and the path."""
    reason, found = flaw_of(path), None
    if reason is None:
        reason, found = "is not a file of events", named(path)
    if found is None:
        raise LakeDamaged(lake, document, f"names {path!r}, which {reason}")
    return found


def check(lake: str, document: str, manifest: Manifest) -> None:
    """Raise LakeDamaged if files have gaps or overlaps."""
    following = 1
    for file in manifest.files:
        if file.first != following or file.last < file.first:
            raise LakeDamaged(lake, document, f"is not sound: {file.path} does not begin at {following}")
        following = file.last + 1
    if manifest.head != following - 1:
        raise LakeDamaged(lake, document, f"is not sound: its files end at {following - 1}, not at {manifest.head}")
