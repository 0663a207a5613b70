"""The list of contents of a backup: what it is of, and every file that belongs to it, with size and checksum.

It is the last that is written: a backup without its manifest does not exist. Each names the checksum of the one before
it, and carries its own, so that not a byte of it can change unnoticed. Whoever can write to the place can make a
checksum too, so every path that a manifest names is checked before anything is done with it.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, Final

from penstock.errors import BackupDamaged, PlaceRefused
from penstock.files import flaw_of, made_of, parsed

FORMAT_VERSION: Final = 1
"""Of the layout of backups and of all their files but the records, which have versions of their own."""

_HISTORY: Final = re.compile(r"history/\d{20}-\d{20}\.records", re.ASCII)


@dataclass(frozen=True, slots=True)
class Member:
    """A file of a backup."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One backup. `history` are the files of records, of all backups up to this one; `sealed` is the store's mark."""

    number: int
    created: str
    penstock: str
    store: str
    timeline: int
    head: int
    sealed: int
    timelines: tuple[tuple[int, int, int], ...]
    state: Member
    history: tuple[Member, ...] = field(repr=False)
    previous: str | None = None

    @property
    def path(self) -> str:
        """Its own place among the files."""
        return manifest_path(self.number)

    @property
    def files(self) -> tuple[Member, ...]:
        """Everything a restore reads."""
        return (*self.history, self.state)

    @property
    def bytes(self) -> int:
        """How much that is."""
        return sum(member.bytes for member in self.files)


def member_of(path: str, data: bytes) -> Member:
    """What a manifest says of a file."""
    return Member(path, len(data), sha256(data).hexdigest())


def manifest_path(number: int) -> str:
    """Where the manifest of a backup is."""
    return f"backups/{number:08}.json"


def state_path(number: int) -> str:
    """Where the state of a backup is."""
    return f"states/{number:08}.cbor"


def history_path(first: int, last: int) -> str:
    """Where the records of these positions are."""
    return f"history/{first:020}-{last:020}.records"


def encode(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file."""
    document: dict[str, Any] = {"format": FORMAT_VERSION, **asdict(manifest)}
    del document["state"], document["history"]
    document["timelines"] = [list(row) for row in manifest.timelines]
    document["files"] = [asdict(member) for member in manifest.files]
    return _encoded({**document, "checksum": _checksum(document)})


def _encoded(document: dict[str, Any]) -> bytes:
    return (json.dumps(document, indent=1) + "\n").encode()


def _checksum(document: dict[str, Any]) -> str:
    return sha256(_encoded(document)).hexdigest()


def decode(place: str, path: str, data: bytes) -> Manifest:
    """A manifest from its file; raises BackupDamaged, or PlaceRefused if a newer Penstock wrote it."""
    try:
        document = parsed(data)
        version = document["format"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            reason = (
                f"its backups have format {version}, and this Penstock knows {FORMAT_VERSION}; use a newer Penstock"
            )
            raise PlaceRefused(place, reason)
        *history, state = files = document["files"]
        for file in files:
            if (flaw := flaw_of(file["path"])) is not None:
                raise BackupDamaged(place, path, f"names {file['path']!r}, which {flaw}")
        said = {name: value for name, value in document.items() if name not in ("format", "files", "checksum")}
        manifest = made_of(Manifest, {**said, "state": state, "history": history})
    except (ValueError, TypeError, KeyError) as error:
        raise BackupDamaged(place, path, f"cannot be read: {error}") from error
    for member in manifest.files:
        if (flaw := _foreign(manifest, member)) is not None:
            raise BackupDamaged(place, path, f"names {member.path!r}, which {flaw}")
    if not 1 <= manifest.sealed <= manifest.head + 1:
        raise BackupDamaged(place, path, f"is not sound: it has {manifest.head} events, and {manifest.sealed} sealed")
    if encode(manifest) != data:
        raise BackupDamaged(place, path, "does not have the checksum that it says")
    return manifest


def _foreign(manifest: Manifest, member: Member) -> str | None:
    """Why a file cannot belong to a backup, by its name."""
    if member is manifest.state:
        return None if member.path == state_path(manifest.number) else "is not the state of this backup"
    return None if _HISTORY.fullmatch(member.path) else "is not a file of records"
