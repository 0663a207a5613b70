"""Reading backups. The checks find a change of any byte."""

import re
import struct
from collections.abc import Iterator
from hashlib import sha256
from struct import Struct
from typing import Final, NamedTuple

from penstock.backup.manifest import Manifest, Member, decode_manifest, decode_state, history_path, manifest_path
from penstock.backup.places import Place
from penstock.errors import DamagedRecord, PlaceRefused
from penstock.store.contract import Progressed, StoreState
from penstock.store.record import Record

LENGTH: Final = Struct("<I")
"""Precedes each record in a file of history: its length in bytes."""
_MANIFEST: Final = re.compile(r"backups/(\d{8})\.json", re.ASCII)


class Chosen(NamedTuple):
    """A backup to restore, the newest of the same place, and up to where the records of this one are sealed."""

    manifest: Manifest
    newest: Manifest
    sealed: int


def numbers(place: Place) -> list[int]:
    return sorted(int(found[1]) for name in place.sizes() if (found := _MANIFEST.fullmatch(name)))


def read_manifest(place: Place, number: int) -> tuple[Manifest, str]:
    path = manifest_path(number)
    data = place.read(path)
    manifest = decode_manifest(str(place.path), path, data)
    if manifest.number != number:
        raise place.damaged(path, f"is of backup {manifest.number}")
    return manifest, sha256(data).hexdigest()


def chain(place: Place) -> Iterator[Manifest]:
    """All backups of a place. Raises BackupDamaged if one does not continue the one before it."""
    before: Manifest | None = None
    checksum: str | None = None
    for expected, number in enumerate(numbers(place), start=1):
        if number != expected:
            raise place.damaged(manifest_path(expected), "is not there")
        manifest, own = read_manifest(place, number)
        continues = before is None or (
            (before.store, before.timeline, before.timelines) == (manifest.store, manifest.timeline, manifest.timelines)
            and manifest.history[: len(before.history)] == before.history
            and before.head <= manifest.head
        )
        if manifest.previous != checksum or not continues:
            raise place.damaged(manifest.path, "does not go on from the backup before it")
        yield manifest
        before, checksum = manifest, own


def choose(place: Place, number: int | None) -> Chosen:
    if number is None:
        _refuse_doubt(place)
    chosen = newest = None
    sealed, head = 1, 0
    for manifest in chain(place):
        newest = manifest
        if number is None or manifest.number <= number:
            chosen = manifest
            # Records that were not sealed when they were backed up stay unsealed, whatever later manifests say.
            sealed = manifest.sealed if sealed == head + 1 else sealed
            head = manifest.head
    if chosen is None or newest is None or number not in (None, chosen.number):
        raise PlaceRefused(str(place.path), f"it has no backup {number or ''}".rstrip())
    return Chosen(chosen, newest, sealed)


def _refuse_doubt(place: Place) -> None:
    if not place.doubt:
        return
    offer = "it has no whole backup"
    if found := numbers(place):
        offer = f"its last whole backup is {found[-1]}: restore that with --number {found[-1]}"
    raise PlaceRefused(str(place.path), f"{place.doubt}; {offer}")


def check(place: Place, chosen: Chosen, progressed: Progressed) -> None:
    """Check every file that a restore reads, byte by byte, and every record in it."""
    _check_history(place, chosen.manifest, progressed)
    for each in (chosen.manifest, chosen.newest):
        read_state(place, each)


def check_all(place: Place, progressed: Progressed) -> list[Manifest]:
    """Check every file of every backup, and return the manifests."""
    _refuse_doubt(place)
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
    member = manifest.state
    state = decode_state(str(place.path), member.path, read_member(place, member))
    if (state.identity.id, state.identity.timeline, state.head) != (manifest.store, manifest.timeline, manifest.head):
        raise place.damaged(member.path, "belongs to another backup")
    return state


def read_member(place: Place, member: Member) -> bytes:
    """Raises BackupDamaged if a file does not match its size and checksum."""
    data = place.read(member.path, max(member.bytes, 0))
    if len(data) != member.bytes or sha256(data).hexdigest() != member.sha256:
        raise place.damaged(member.path, "is not what was written: its checksum does not match")
    return data


def read_history(place: Place, member: Member, expected: int) -> list[Record]:
    """The records of a file. Raises BackupDamaged unless they are whole and follow one another from `expected` on."""
    data = read_member(place, member)
    records: list[Record] = []
    at, first = 0, expected
    while at < len(data):
        try:
            (length,) = LENGTH.unpack_from(data, at)
            record = Record.stored(data[at + LENGTH.size : at + LENGTH.size + length])
        except (DamagedRecord, struct.error) as error:
            raise place.damaged(member.path, f"has a bad record: {error}") from error
        if record.position != expected:
            raise place.damaged(member.path, f"has position {record.position} where {expected} belongs")
        records.append(record)
        at += LENGTH.size + len(record.data)
        expected = record.last + 1
    if member.path != history_path(first, expected - 1):
        raise place.damaged(member.path, f"has the positions {first} to {expected - 1}")
    return records
