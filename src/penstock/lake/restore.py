"""A store from a lake.

It has all events of the lake, at their positions, on a new timeline of the same store. Everything is checked: every
file as it is read, the new store as `penstock verify` does, and then every range of it against the lake. A lake has no
queues, subscriptions, producers, iterators, logs without messages, nor a ledger.

A lake has no commits. Consecutive events of a stream that were recorded at the same time become one commit, with a new
id. Erased events become places without contents, as in the store, with new ids and times, which a lake does not have.
No code here loops over events.
"""

import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backup.places import system_errors
from penstock.backup.restoration import FINDINGS_SHOWN_MAX, Stage, first_findings
from penstock.backup.writer import records_between
from penstock.errors import LakeDamaged, StoreError
from penstock.lake.changes import check_links, read_manifest, recover
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.parquet import Erased, digest
from penstock.lake.places import LakePlace, open_lake_place
from penstock.lake.slices import rows_of
from penstock.lake.verification import read_whole
from penstock.model import PositionRange, ticks_of_unix_ns
from penstock.model.events import random_ids
from penstock.model.times import KIND_UTC, TICKS_PER_US, UNIX_EPOCH_TICKS, stamp_of
from penstock.store import Store, open_replacement
from penstock.store.concat import RecordColumns
from penstock.store.contract import LOG_CONTEXT, STATE_TABLES, Progressed, StoreIdentity, StoreState
from penstock.store.record import Record
from penstock.store.seals import SEALED_BYTES_MAX, SEALED_EVENTS
from penstock.store.selective_decode import RUN_TYPE
from penstock.store.tables.imports import StoreImport

_KIND: Final = np.uint64(stamp_of(0, KIND_UTC))
_TOMBSTONE: Final = b""


class Places(NamedTuple):
    """Every position of a file, in order: its stream. `contexts` and `streams` are indices into `names`."""

    names: list[bytes]
    contexts: Any
    streams: Any
    sequences: Any
    recorded: Any

    def starts(self) -> Any:
        """Where commits begin."""
        same = np.ones(len(self.sequences), bool)
        for column, step in ((self.contexts, 0), (self.streams, 0), (self.recorded, 0), (self.sequences, 1)):
            same[1:] &= np.diff(column) == step
        same[0] = False
        return np.flatnonzero(~same)


class File:
    """The rows of a file by position, and its erased events."""

    def __init__(self, first: int, last: int, rows: pa.Table, erased: Sequence[Erased]) -> None:
        self.first, self.count = first, last - first + 1
        self.rows = rows.take(pc.sort_indices(rows, [("position", "ascending")])).combine_chunks()
        self._at = self.rows["position"].to_numpy() - first
        self.places = self._places(erased)

    def _places(self, erased: Sequence[Erased]) -> Places:
        names: dict[bytes, int] = {}
        contexts, streams = (self._spread(_codes(self.rows[name], names)) for name in ("context", "stream"))
        sequences = self._spread(self.rows["sequence"].to_numpy())
        micros = self.rows["recorded_at"].cast(pa.int64()).to_numpy()
        recorded = self._spread(micros * TICKS_PER_US + UNIX_EPOCH_TICKS)
        for each in erased:
            gone = slice(each.position - self.first, each.position - self.first + each.events)
            contexts[gone] = names.setdefault(each.context.encode(), len(names))
            streams[gone] = names.setdefault(each.stream.encode(), len(names))
            sequences[gone] = np.arange(each.sequence, each.sequence + each.events)
            # Cut to microseconds like the others, to keep the order.
            recorded[gone] = each.recorded - each.recorded % TICKS_PER_US
        return Places(list(names), contexts, streams, sequences, recorded)

    def _spread(self, values: Any, kind: Any = np.int64) -> Any:
        """Values of rows as an array over all positions."""
        found = np.zeros(self.count, kind)
        found[self._at] = values
        return found

    def records(self) -> Iterator[Record]:
        """All events as records, which begin at blocks and are not too large."""
        columns = self._columns()
        cuts = _cuts(self.first, columns["sizes"])
        starts = self.places.starts()
        commits = np.frombuffer(random_ids(len(starts)), "V16")
        for low, high in pairwise(cuts):
            yield Record(self._parts(columns, starts, commits, low, high).encode(self.first + low), self.first + low)

    def _columns(self) -> dict[str, Any]:
        rows, types = self.rows, {_TOMBSTONE: 0}
        ids = np.frombuffer(bytearray(random_ids(self.count)), "V16")
        texts = "".join(rows["event_id"].to_pylist()).replace("-", "")
        ids[self._at] = np.frombuffer(bytes.fromhex(texts), "V16")
        stamps = self.places.recorded.astype(np.uint64)
        stamps[self._at] = rows["ticks"].to_numpy().astype(np.uint64)
        headers, bodies = (_Texts(rows[name]) for name in ("headers", "body"))
        pairs = (("header", headers), ("body", bodies))
        lengths = {f"{name}_lengths": self._spread(each.lengths, np.uint32) for name, each in pairs}
        return {
            "ids": ids,
            "stamps": stamps | _KIND,
            "codes": self._spread(_codes(rows["type"], types)),
            "types": list(types),
            "headers": headers,
            "bodies": bodies,
            **lengths,
            "sizes": lengths["header_lengths"].astype(np.int64) + lengths["body_lengths"],
        }

    def _parts(self, columns: dict[str, Any], starts: Any, commits: Any, low: int, high: int) -> RecordColumns:
        """The contents of the record of some positions."""
        begins = np.union1d(starts[(starts >= low) & (starts < high)], [low])
        of = np.searchsorted(starts, begins, "right") - 1
        numbers = np.concatenate((self.places.contexts[begins], self.places.streams[begins]))
        used, inverse = np.unique(numbers, return_inverse=True)
        runs = np.zeros(len(begins), RUN_TYPE)
        runs["commit"], runs["sequence"] = commits[of], self.places.sequences[begins]
        runs["recorded"], runs["count"] = self.places.recorded[begins], np.diff(np.append(begins, high))
        runs["context"], runs["stream"] = np.split(inverse, 2)
        codes, kinds = np.unique(columns["codes"][low:high], return_inverse=True)
        first, last = np.searchsorted(self._at, (low, high))
        return RecordColumns(
            *(runs, columns["ids"][low:high], columns["stamps"][low:high], kinds),
            *(columns["header_lengths"][low:high], columns["body_lengths"][low:high]),
            *([self.places.names[name] for name in used], [columns["types"][code] for code in codes]),
            *(columns["headers"].between(first, last), columns["bodies"].between(first, last)),
        )


class _Texts:
    """A column of texts or bytes as lengths and bytes; null is empty."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = pc.fill_null(column.cast(pa.binary()), b"").combine_chunks()
        array = pa.concat_arrays([array]) if isinstance(array, pa.Array) else pa.array([], pa.binary())
        _, offsets, data = array.buffers()
        self._offsets = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self._data = memoryview(data if data is not None else b"")
        self.lengths = np.diff(self._offsets)

    def between(self, first: int, last: int) -> Any:
        """The bytes of some values, one after the other."""
        return self._data[int(self._offsets[first]) : int(self._offsets[last])]


def _codes(column: pa.ChunkedArray, texts: dict[bytes, int]) -> Any:
    """The number of each text in `texts`; adds new ones."""
    encoded = column.combine_chunks().dictionary_encode()
    numbers = [texts.setdefault(text.encode(), len(texts)) for text in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[encoded.indices.to_numpy()]


def _cuts(first: int, sizes: Any) -> list[int]:
    """Where records begin and end: at blocks of positions, and before there are too many bytes."""
    cuts = [0]
    blocks = (first + np.arange(len(sizes))) % SEALED_EVENTS == 0
    edges = np.append(np.flatnonzero(blocks), len(sizes))
    low = 0
    for edge in edges.tolist():
        while low < edge:
            sums = np.cumsum(sizes[low:edge])
            fits = max(1, int(np.searchsorted(sums, SEALED_BYTES_MAX, "right")))
            low = min(edge, low + fits)
            cuts.append(low)
    return cuts


EVENT_BYTES: Final = 34
"""Bytes of an event without type, headers and body: id, stamp, lengths and the like."""
CHUNK_BYTES_MAX: Final = 16 << 20
"""Bytes of records that a store imports together."""


class RestoredLake(NamedTuple):
    events: int
    erased: int
    files: int
    timeline: int
    store_id: str


def restore_lake(lake: str, url: str, stage: Stage) -> RestoredLake:
    """Make a new store from a lake."""
    place = open_lake_place(lake)
    target = open_replacement(url, replace=False)
    target.advice = "restore a lake to a new place: name another"
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
    """Lock a lake; its manifest."""
    manifest = read_manifest(place)
    try:
        held.enter_context(place.lock("restore"))
    except StoreError:
        # A lake that is read-only does not change.
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
    """A checksum proves that a file was not changed, not that its rows can be events."""
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
    """The counts of a store: events, commits, streams, bytes and highest time of each context; and the logs."""

    def __init__(self) -> None:
        self.contexts: dict[bytes, tuple[int, ...]] = {}
        self.logs: dict[bytes, tuple[int, int, int]] = {}

    def add(self, file: File) -> None:
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
        """A log begins with the first message that remains."""
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
    """The rows that are the first of their type in their commit: a store keeps each type once in a commit."""
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
    # Its server finds out what to seal.
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
        positions = PositionRange(file.first, file.last)
        rows, _ = rows_of(([record] for record in records_between(built, *positions)), positions)
        if (rows.num_rows, digest(rows)) != (file.rows, file.digest):
            yield f"positions {file.first} to {file.last} differ"
        progressed(file.last, manifest.head)
