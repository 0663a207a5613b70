"""Writing a backup beside whoever serves the store.

The state is taken first, at one moment, and then the records up to its head, in short reads: history only grows. What
is erased meanwhile is shown as erased by those reads, before the state knows of it. So if the ledger has grown, the
state is taken again and the few records since are added, until both agree: whatever is missing from the records of a
backup is in its ledger.

A backup that is not the first writes only the records after the head of the one before it.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from penstock import __version__
from penstock.backup.exporting import records_between
from penstock.backup.manifests import (
    Manifest,
    Member,
    encode,
    history_path,
    manifest_path,
    member_of,
    state_path,
)
from penstock.backup.places import Place
from penstock.backup.reading import LENGTH, numbers, read_manifest
from penstock.backup.states import encode_state
from penstock.errors import PenstockError, PlaceRefused
from penstock.model.times import now_text
from penstock.store.contract import Progressed, Store, StoreState

CHUNK_BYTES_MAX: Final = 16 << 20
"""Bytes of a file of history. It is made in memory; only a record that is larger by itself makes it larger."""
ROUNDS_MAX: Final = 8
"""How often the state is taken again because something was erased meanwhile."""


class Written(NamedTuple):
    """What a backup has written: its manifest, and how many of its events and bytes are new."""

    manifest: Manifest
    new_events: int
    new_bytes: int


def back_up(store: Store, place: Place, progressed: Progressed) -> Written:
    """Write the next backup of a store to a place."""
    before, checksum = _last(place)
    state = _taken(store, place, before)
    place.keep_only(_finished(before))
    try:
        return _write(store, place, state, before, checksum, progressed)
    except BaseException:
        # Leave nothing behind that looks as if a backup had been killed here.
        with suppress(PenstockError):
            place.keep_only(_finished(before))
            place.sync()
        raise


def _write(
    store: Store,
    place: Place,
    state: StoreState,
    before: Manifest | None,
    checksum: str | None,
    progressed: Progressed,
) -> Written:
    chunks = _Chunks(place, before.history if before else (), before.head if before else 0)
    for _ in range(ROUNDS_MAX):
        chunks.take(store, state.head, progressed)
        now = _taken(store, place, before)
        if _ledger(now) == _ledger(state):
            break
        state = now
    chunks.take(store, state.head, progressed)
    return _conclude(place, before, checksum, state, chunks)


def _last(place: Place) -> tuple[Manifest | None, str | None]:
    """The last backup of a place, whose files are there, and its checksum."""
    found = numbers(place)
    if not found:
        return None, None
    manifest, checksum = read_manifest(place, found[-1])
    place.check_inside(member.path for member in manifest.files)
    sizes = place.sizes()
    for member in manifest.files:
        if sizes.get(member.path) != member.bytes:
            raise place.damaged(member.path, "is missing or has another length; begin anew in another place")
    return manifest, checksum


def _finished(last: Manifest | None) -> set[str]:
    """All files that belong to finished backups."""
    if last is None:
        return set()
    made = range(1, last.number + 1)
    return {member.path for member in last.history} | set(map(manifest_path, made)) | set(map(state_path, made))


def _taken(store: Store, place: Place, before: Manifest | None) -> StoreState:
    """The store's state, if the next backup of this place can be of it."""
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


def _ledger(state: StoreState) -> list[int]:
    return [row[0] for row in state.tables["erasures"]]


def _conclude(
    place: Place, before: Manifest | None, checksum: str | None, state: StoreState, chunks: "_Chunks"
) -> Written:
    number = before.number + 1 if before else 1
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
    # All that a manifest names must be safe before the manifest is there.
    place.sync()
    place.add(manifest.path, encode(manifest))
    place.sync()
    return Written(manifest, state.head - (before.head if before else 0), chunks.new_bytes + own.bytes)


class _Chunks:
    """The files of history: those that are there, and those that are added."""

    def __init__(self, place: Place, members: tuple[Member, ...], head: int) -> None:
        self._place = place
        self.members = list(members)
        self.head = head
        self.new_bytes = 0

    def take(self, store: Store, head: int, progressed: Progressed) -> None:
        """Add all records after those that are there, up to a position."""
        parts: list[bytes] = []
        size = 0
        last = self.head
        for record in records_between(store, self.head + 1, head):
            length = LENGTH.size + len(record.data)
            if parts and size + length > CHUNK_BYTES_MAX:
                self._add(parts, last)
                progressed(self.head, head)
                parts, size = [], 0
            parts += (LENGTH.pack(len(record.data)), record.data)
            size += length
            last = record.last
        if parts:
            self._add(parts, last)
        progressed(self.head, head)

    def _add(self, parts: list[bytes], last: int) -> None:
        data = b"".join(parts)
        member = member_of(history_path(self.head + 1, last), data)
        self._place.add(member.path, data)
        self.members.append(member)
        self.head = last
        self.new_bytes += member.bytes
