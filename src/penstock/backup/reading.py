"""Reading backups, with every check there is: a byte that changed anywhere is found."""

import re
import struct
from collections.abc import Iterator
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from penstock.backup.manifests import Manifest, Member, decode, history_path, manifest_path
from penstock.backup.places import Place
from penstock.backup.states import decode_state
from penstock.errors import DamagedRecord, PlaceRefused
from penstock.store.contract import Progressed, StoreState
from penstock.store.record import Record

LENGTH: Final = Struct("<I")
"""Before each record of a file of history: how many bytes it has."""
_MANIFEST: Final = re.compile(r"backups/(\d{8})\.json", re.ASCII)


class Chosen(NamedTuple):
    """A backup to restore, the newest of the same place, and up to where the records of this one are sealed."""

    manifest: Manifest
    newest: Manifest
    sealed: int


def numbers(place: Place) -> list[int]:
    """The numbers of all backups in a place."""
    return sorted(int(found[1]) for name in place.sizes() if (found := _MANIFEST.fullmatch(name)))


def read_manifest(place: Place, number: int) -> tuple[Manifest, str]:
    """The manifest of a backup, and its checksum."""
    path = manifest_path(number)
    data = place.read(path)
    manifest = decode(str(place.path), path, data)
    if manifest.number != number:
        raise place.damaged(path, f"is of backup {manifest.number}")
    return manifest, sha256(data).hexdigest()


def chain(place: Place) -> Iterator[Manifest]:
    """All backups of a place, each of which goes on from the one before it."""
    before: Manifest | None = None
    checksum: str | None = None
    for expected, number in enumerate(numbers(place), start=1):
        if number != expected:
            raise place.damaged(manifest_path(expected), "is not there")
        manifest, own = read_manifest(place, number)
        if manifest.previous != checksum or not _goes_on(before, manifest):
            raise place.damaged(manifest.path, "does not go on from the backup before it")
        yield manifest
        before, checksum = manifest, own


def _goes_on(before: Manifest | None, manifest: Manifest) -> bool:
    if before is None:
        return True
    one_store = (before.store, before.timeline, before.timelines) == (
        manifest.store,
        manifest.timeline,
        manifest.timelines,
    )
    return one_store and manifest.history[: len(before.history)] == before.history and before.head <= manifest.head


def choose(place: Place, number: int | None) -> Chosen:
    """A backup by its number, or the newest. Raises PlaceRefused if there is no such backup."""
    if number is None and place.doubt:
        raise PlaceRefused(str(place.path), f"{place.doubt}; {_offer(numbers(place))}")
    chosen = newest = None
    sealed, head = 1, 0
    for manifest in chain(place):
        newest = manifest
        if number is None or manifest.number <= number:
            chosen = manifest
            # What was not sealed when it was backed up is not, however far the seals have come since.
            sealed = manifest.sealed if sealed == head + 1 else sealed
            head = manifest.head
    if chosen is None or newest is None or number not in (None, chosen.number):
        raise PlaceRefused(str(place.path), f"it has no backup {number or ''}".rstrip())
    return Chosen(chosen, newest, sealed)


def _offer(found: list[int]) -> str:
    if not found:
        return "it has no whole backup"
    return f"its last whole backup is {found[-1]}: restore that with --number {found[-1]}"


def check(place: Place, chosen: Chosen, progressed: Progressed) -> None:
    """Check every file that a restore reads, byte by byte, and every record in it."""
    _check_history(place, chosen.manifest, progressed)
    for each in (chosen.manifest, chosen.newest):
        read_state(place, each)


def check_all(place: Place, progressed: Progressed) -> list[Manifest]:
    """Check every file of every backup; what backups there are."""
    if place.doubt:
        raise PlaceRefused(str(place.path), f"{place.doubt}; {_offer(numbers(place))}")
    found = list(chain(place))
    for manifest in found:
        read_state(place, manifest)
    if found:
        _check_history(place, found[-1], progressed)
    return found


def _check_history(place: Place, manifest: Manifest, progressed: Progressed) -> None:
    expected = 1
    for member in manifest.history:
        for record in read_history(place, member, expected):
            expected = record.last + 1
        progressed(expected - 1, manifest.head)
    if expected != manifest.head + 1:
        raise place.damaged(manifest.path, f"has events up to {manifest.head}, and its files up to {expected - 1}")


def read_state(place: Place, manifest: Manifest) -> StoreState:
    """The state of a backup."""
    member = manifest.state
    state = decode_state(str(place.path), member.path, read_member(place, member))
    if (state.identity.id, state.identity.timeline, state.head) != (manifest.store, manifest.timeline, manifest.head):
        raise place.damaged(member.path, "belongs to another backup")
    return state


def read_member(place: Place, member: Member) -> bytes:
    """A file of a backup; raises BackupDamaged if it is not what was written."""
    data = place.read(member.path, max(member.bytes, 0))
    if len(data) != member.bytes or sha256(data).hexdigest() != member.sha256:
        raise place.damaged(member.path, "is not what was written: its checksum does not match")
    return data


def read_history(place: Place, member: Member, expected: int) -> list[Record]:
    """The records of a file, of which the first begins at a position; they are whole, and none is missing."""
    data = read_member(place, member)
    records: list[Record] = []
    at, first = 0, expected
    while at < len(data):
        record = _record(place, member, data, at)
        if record.position != expected:
            raise place.damaged(member.path, f"has position {record.position} where {expected} belongs")
        records.append(record)
        at += LENGTH.size + len(record.data)
        expected = record.last + 1
    if member.path != history_path(first, expected - 1):
        raise place.damaged(member.path, f"has the positions {first} to {expected - 1}")
    return records


def _record(place: Place, member: Member, data: bytes, at: int) -> Record:
    try:
        (length,) = LENGTH.unpack_from(data, at)
        return Record.stored(data[at + LENGTH.size : at + LENGTH.size + length])
    except (DamagedRecord, struct.error) as error:
        raise place.damaged(member.path, f"has a bad record: {error}") from error
