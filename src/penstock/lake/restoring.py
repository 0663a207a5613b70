"""A store from a lake alone.

It has all events that the lake has, at their positions, on a new timeline of the same store. Everything is checked:
every file as it is read, the new store as `penstock verify` does it, and then every range of it against the lake. What
a lake does not have is not there: queues, subscriptions, producers, iterators, logs without messages, the ledger.
"""

import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow.compute as pc

from penstock.backup.places import system_errors
from penstock.backup.restoration import FINDINGS_SHOWN_MAX, Stage, first_findings
from penstock.backup.writer import records_between
from penstock.errors import LakeDamaged, StoreError
from penstock.lake.changes import check_links, read_manifest, recover
from penstock.lake.digests import digest
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.places import LakePlace, open_lake_place
from penstock.lake.reading import rows_of
from penstock.lake.rebuilding import File, Places
from penstock.lake.verifying import read_whole
from penstock.model import PositionRange, ticks_of_unix_ns
from penstock.store import Store, open_replacement
from penstock.store.contract import LOG_CONTEXT, STATE_TABLES, Progressed, StoreIdentity, StoreImport, StoreState
from penstock.store.record import Record

EVENT_BYTES: Final = 34
"""What an event takes beside type, headers and body: id, stamp, lengths and the like."""
CHUNK_BYTES_MAX: Final = 16 << 20
"""Bytes of records that come in together."""


class RestoredLake(NamedTuple):
    """What a restore did."""

    events: int
    erased: int
    files: int
    timeline: int
    store_id: str


def restore_lake(lake: str, url: str, stage: Stage) -> RestoredLake:
    """Make a store of a lake where there is none."""
    place = open_lake_place(lake)
    target = open_replacement(url, replace=False)
    target.advice = "a lake is restored to where there is none: name another place"
    with system_errors(target.shown), ExitStack() as held:
        target.look()
        manifest = _held(place, held)
        check_links(place, manifest)
        with target:
            with closing(target.filling()) as store, stage("restoring") as progressed:
                _fill(store, place, manifest, progressed)
            with closing(target.built()) as built:
                _check(built, manifest, stage)
            target.swap()
    erased = manifest.head - manifest.rows
    return RestoredLake(manifest.rows, erased, len(manifest.files), manifest.timeline + 1, manifest.store)


def _held(place: LakePlace, held: ExitStack) -> Manifest:
    """The manifest of a lake that nobody changes meanwhile."""
    manifest = read_manifest(place)
    try:
        held.enter_context(place.lock("restore"))
    except StoreError:
        # It may be read only: then nobody changes it.
        return manifest
    return recover(place)


# -- filling


def _fill(store: StoreImport, place: LakePlace, manifest: Manifest, progressed: Progressed) -> None:
    counts = _Counts()
    for file in manifest.files:
        rows, erased = read_whole(place, file)
        with _sound(place, file):
            found = File(file.first, file.last, rows, erased)
            counts.add(found)
            for chunk in _chunks(found.records()):
                store.add(chunk)
        progressed(file.last, manifest.head)
    store.finish(_state(manifest, counts))


@contextmanager
def _sound(place: LakePlace, file: LakeFile) -> Iterator[None]:
    """A checksum tells that a file is as it was written, not that what is in it can be events."""
    try:
        yield
    except (ValueError, OverflowError, IndexError, struct.error, MemoryError) as error:
        raise LakeDamaged(place.shown, file.path, f"has rows that cannot be events: {error}") from error


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.data)
        if size > CHUNK_BYTES_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Counts:
    """What a store counts: of each context its events, commits, streams, bytes and highest time; and the logs."""

    def __init__(self) -> None:
        self.contexts: dict[bytes, tuple[int, ...]] = {}
        self.logs: dict[bytes, tuple[int, int, int]] = {}

    def add(self, file: File) -> None:
        """Count a file."""
        places, rows = file.places, file.rows
        at, bodies = rows["position"].to_numpy() - file.first, _lengths(rows["body"])
        sizes = np.full(file.count, EVENT_BYTES, np.int64)
        sizes[at] += bodies + _lengths(rows["headers"])
        begins, types = _types_begin(places, at, rows["type"]), _lengths(rows["type"])
        sizes[at[begins]] += types[begins]
        ticks = places.recorded.copy()
        ticks[at] = rows["ticks"].to_numpy()
        self._add_contexts(places, sizes, ticks)
        self._add_logs(places, at, bodies)

    def _add_contexts(self, places: Places, sizes: Any, ticks: Any) -> None:
        contexts, names = places.contexts, len(places.names)
        tops = np.full(names, -1)
        np.maximum.at(tops, contexts, ticks)
        begun = contexts[places.starts()], contexts[places.sequences == 1]
        counts = [np.bincount(each, minlength=names) for each in (contexts, *begun)]
        size = np.bincount(contexts, sizes, names).astype(np.int64)
        for number in np.unique(contexts).tolist():
            new = *(int(each[number]) for each in (*counts, size)), int(tops[number])
            *known, top = self.contexts.get(places.names[number], (0, 0, 0, 0, -1))
            summed = (one + other for one, other in zip(known, new, strict=False))
            self.contexts[places.names[number]] = (*summed, max(top, new[-1]))

    def _add_logs(self, places: Places, at: Any, bodies: Any) -> None:
        """A log is there from its first message that is left."""
        if LOG_CONTEXT.encode() not in places.names:
            return
        mine = places.contexts[at] == places.names.index(LOG_CONTEXT.encode())
        living, streams = at[mine], places.streams[at][mine]
        size = np.bincount(streams, bodies[mine], len(places.names)).astype(np.int64)
        for stream, first in zip(*np.unique(streams, return_index=True), strict=True):
            begin = living[first]
            started = int(places.recorded[begin]), int(places.sequences[begin]) - 1, 0
            created, base, known = self.logs.get(places.names[stream], started)
            self.logs[places.names[stream]] = created, base, known + int(size[stream])


def _types_begin(places: Places, at: Any, column: Any) -> Any:
    """The rows that are the first of their type in their commit: a store has a type once for each."""
    codes = column.combine_chunks().dictionary_encode().indices.to_numpy()
    commits = np.searchsorted(places.starts(), at, "right")
    _, begins = np.unique(commits * (len(codes) + 1) + codes, return_index=True)
    return begins


def _lengths(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)


def _state(manifest: Manifest, counts: _Counts) -> StoreState:
    began = (manifest.timeline + 1, manifest.head, ticks_of_unix_ns(time.time_ns()))
    tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in STATE_TABLES}
    tables["timelines"] = [*manifest.timelines, began]
    tables["contexts"] = [(name.decode(), *counted) for name, counted in sorted(counts.contexts.items())]
    tables["logs"] = [(name.decode(), *log) for name, log in sorted(counts.logs.items())]
    # What of it can be merged further is for its server to find.
    return StoreState(StoreIdentity(manifest.store, manifest.timeline + 1), manifest.head, 1, tables)


# -- checking


def _check(built: Store, manifest: Manifest, stage: Stage) -> None:
    with stage("verifying") as progressed:
        found = first_findings(built, progressed)
    if not found:
        with stage("comparing") as progressed:
            found = list(islice(_differences(built, manifest, progressed), FINDINGS_SHOWN_MAX))
    if found:
        raise StoreError(f"what was restored is not what the lake has, and was not put in place: {'; '.join(found)}")


def _differences(built: Store, manifest: Manifest, progressed: Progressed) -> Iterator[str]:
    for file in manifest.files:
        if not _is_same(built, file):
            yield f"positions {file.first} to {file.last} are others"
        progressed(file.last, manifest.head)


def _is_same(built: Store, file: LakeFile) -> bool:
    span = PositionRange(file.first, file.last)
    rows, _ = rows_of(([record] for record in records_between(built, *span)), span)
    return (rows.num_rows, digest(rows)) == (file.rows, file.digest)
