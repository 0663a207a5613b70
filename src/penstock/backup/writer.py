"""Writing a backup while a server uses the store.

The writer takes the state first, at one moment, and then the records up to its head, in short reads: history only
grows. An erasure in between shows in those reads before the state knows of it. So if the ledger has grown, the writer
takes the state again and adds the few records since, until both agree: the ledger of a backup names everything that is
missing from its records.

Every backup but the first writes only the records after the head of the one before it.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from penstock import __version__
from penstock.backup.manifest import (
    Manifest,
    Member,
    encode_manifest,
    encode_state,
    history_path,
    manifest_path,
    member_of,
    state_path,
)
from penstock.backup.places import Place
from penstock.backup.reader import LENGTH, numbers, read_manifest
from penstock.errors import PenstockError, PlaceRefused
from penstock.model import EventFilter
from penstock.model.chunks import chunked
from penstock.model.times import now_text
from penstock.store import Store
from penstock.store.contract import Progressed, ReadLimits, StoreState
from penstock.store.record import Record
from penstock.store.rewrites import cut
from penstock.store.watermarks import BACKUP

CHUNK_BYTES_MAX: Final = 16 << 20
"""Bytes of a file of history, which the writer builds in memory. A larger record gets a larger file."""
ROUNDS_MAX: Final = 8
"""How often the writer takes the state again because of erasures."""
READ_LIMITS: Final = ReadLimits(events_max=1 << 20, bytes_max=4 << 20, scan_ms_max=250)
"""Limits of one read, so that it does not hold a server's WAL for long."""


class Written(NamedTuple):
    """The manifest of a new backup, and how many of its events and bytes are new."""

    manifest: Manifest
    new_events: int
    new_bytes: int


def back_up(store: Store, place: Place, progressed: Progressed) -> Written:
    before, checksum = _last_backup(place)
    state = _take_state(store, place, before)
    number = before.number + 1 if before else 1
    finished = {path for made in range(1, number) for path in (manifest_path(made), state_path(made))}
    finished.update(member.path for member in (before.history if before else ()))
    place.keep_only(finished)
    try:
        chunks = _Chunks(place, before.history if before else (), before.head if before else 0)
        for _ in range(ROUNDS_MAX):
            chunks.take(store, state.head, progressed)
            now = _take_state(store, place, before)
            if [row[0] for row in now.tables["erasures"]] == [row[0] for row in state.tables["erasures"]]:
                break
            state = now
        chunks.take(store, state.head, progressed)
        data = encode_state(state)
        own = member_of(state_path(number), data)
        manifest = Manifest(
            number,
            now_text(),
            __version__,
            *state.identity,
            state.head,
            state.sealed,
            tuple(state.tables["timelines"]),
            own,
            tuple(chunks.members),
            checksum,
        )
        place.add(own.path, data)
        # All files that a manifest names must be on disk before the manifest is.
        place.sync()
        place.add(manifest.path, encode_manifest(manifest))
        place.sync()
    except BaseException:
        # Leave no files that look like the remains of a killed backup.
        with suppress(PenstockError):
            place.keep_only(finished)
            place.sync()
        raise
    store.leave_watermark(BACKUP, state.identity, state.head)
    return Written(manifest, state.head - (before.head if before else 0), chunks.new_bytes + own.bytes)


def _last_backup(place: Place) -> tuple[Manifest | None, str | None]:
    """The last manifest of a place and its checksum. Raises BackupDamaged if a file of it is missing."""
    found = numbers(place)
    if not found:
        return None, None
    manifest, checksum = read_manifest(place, found[-1])
    place.check_inside(member.path for member in manifest.files)
    sizes = place.sizes()
    for member in manifest.files:
        if sizes.get(member.path) != member.bytes:
            raise place.damaged(member.path, "is missing or has another length; begin again in another place")
    return manifest, checksum


def _take_state(store: Store, place: Place, before: Manifest | None) -> StoreState:
    """The store's state. Raises PlaceRefused if the place has backups of another history."""
    state = store.state()
    if before is None:
        return state
    what = None
    if state.identity.id != before.store:
        what = f"it has backups of another store, {before.store}"
    elif state.identity.timeline != before.timeline:
        what = f"it has backups of timeline {before.timeline}, and the store is on timeline {state.identity.timeline}"
    elif state.head < before.head:
        what = f"its last backup has {before.head} events, and the store has {state.head}: an older one was put there"
    if what is not None:
        raise PlaceRefused(str(place.path), f"{what}; back up to another place")
    return state


class _Chunks:
    def __init__(self, place: Place, members: tuple[Member, ...], head: int) -> None:
        self._place = place
        self.members = list(members)
        self.head = head
        self.new_bytes = 0

    def take(self, store: Store, head: int, progressed: Progressed) -> None:
        records = records_between(store, self.head + 1, head)
        for chunk in chunked(records, lambda record: LENGTH.size + len(record.data), CHUNK_BYTES_MAX):
            data = b"".join(part for record in chunk for part in (LENGTH.pack(len(record.data)), record.data))
            member = member_of(history_path(self.head + 1, chunk[-1].last), data)
            self._place.add(member.path, data)
            self.members.append(member)
            self.head = chunk[-1].last
            self.new_bytes += member.bytes
            progressed(self.head, head)
        progressed(self.head, head)


def records_between(store: Store, first: int, last: int) -> Iterator[Record]:
    """The records of a store from one position to another, cut at both ends, without erased events."""
    while first <= last:
        page = store.read_records(first, EventFilter(), READ_LIMITS)
        for record in page.records:
            if record.position > last:
                return
            yield cut(record, first, last)
        first = page.next
