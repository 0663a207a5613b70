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
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.backup.places import system_errors
from penstock.backup.restore import Stage, check_new_store
from penstock.backup.writer import records_between
from penstock.errors import LakeDamaged, StoreError
from penstock.lake.changes import read_manifest, recover
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.parquet import Erased, digest, whole
from penstock.lake.places import LakePlace, open_lake_place
from penstock.lake.slices import rows_of
from penstock.lake.verification import read_whole
from penstock.model import AUDIT_CONTEXT, LOG_CONTEXT, PositionRange, ticks_of_unix_ns
from penstock.model.chunks import chunked
from penstock.model.events import random_ids
from penstock.model.times import KIND_UTC, TICKS_PER_US, UNIX_EPOCH_TICKS, stamp_of
from penstock.store import Store, open_replacement
from penstock.store.concat import RecordColumns
from penstock.store.contract import STATE_TABLES, Arrival, Progressed, StoreIdentity, StoreState
from penstock.store.record import Record
from penstock.store.seals import SEALED_BYTES_MAX, SEALED_EVENTS
from penstock.store.selective_decode import RUN_TYPE
from penstock.store.tables.imports import StoreImport

_KIND: Final = np.uint64(stamp_of(0, KIND_UTC))
_TOMBSTONE: Final = b""


class FileColumns:
    """The events of a file as arrays over all of its positions, with those that are erased.

    `contexts` and `streams` are indices into `names`, `codes` into `types`. `living` is where events are not erased,
    and `starts` is where commits begin.
    """

    def __init__(self, file: LakeFile, rows: pa.Table, erased: Sequence[Erased]) -> None:
        self.first, self.count = file.first, file.last - file.first + 1
        rows = rows.take(pc.sort_indices(rows, [("position", "ascending")])).combine_chunks()
        self.living = rows["position"].to_numpy() - file.first
        names: dict[bytes, int] = {}
        types = {_TOMBSTONE: 0}
        self.contexts, self.streams = (self._spread(_codes(rows[name], names)) for name in ("context", "stream"))
        self.sequences = self._spread(rows["sequence"].to_numpy())
        micros = rows["recorded_at"].cast(pa.int64()).to_numpy()
        self.recorded = self._spread(micros * TICKS_PER_US + UNIX_EPOCH_TICKS)
        for each in erased:
            gone = slice(each.position - file.first, each.position - file.first + each.events)
            self.contexts[gone] = names.setdefault(each.context.encode(), len(names))
            self.streams[gone] = names.setdefault(each.stream.encode(), len(names))
            self.sequences[gone] = np.arange(each.sequence, each.sequence + each.events)
            # Cut to microseconds like the others, to keep the order.
            self.recorded[gone] = each.recorded - each.recorded % TICKS_PER_US
        self.ticks = self.recorded.copy()
        self.ticks[self.living] = rows["ticks"].to_numpy()
        self.codes = self._spread(_codes(rows["type"], types))
        self.names, self.types = list(names), list(types)
        self._headers, self._bodies = _Texts(rows["headers"]), _Texts(rows["body"])
        self.header_lengths = self._spread(self._headers.lengths, np.uint32)
        self.body_lengths = self._spread(self._bodies.lengths, np.uint32)
        self._ids = np.frombuffer(bytearray(random_ids(self.count)), "V16")
        texts = "".join(rows["event_id"].to_pylist()).replace("-", "")
        self._ids[self.living] = np.frombuffer(bytes.fromhex(texts), "V16")
        same = np.ones(self.count, bool)
        for column, step in ((self.contexts, 0), (self.streams, 0), (self.recorded, 0), (self.sequences, 1)):
            same[1:] &= np.diff(column) == step
        same[0] = False
        self.starts = np.flatnonzero(~same)

    def _spread(self, values: Any, kind: Any = np.int64) -> Any:
        """Values of rows as an array over all positions."""
        found = np.zeros(self.count, kind)
        found[self.living] = values
        return found

    def records(self) -> Iterator[Record]:
        """All events as records, which begin at blocks and are not too large."""
        commits = np.frombuffer(random_ids(len(self.starts)), "V16")
        for low, high in pairwise(_cuts(self.first, self.header_lengths.astype(np.int64) + self.body_lengths)):
            yield Record(self._columns(commits, low, high).encode(self.first + low), self.first + low)

    def _columns(self, commits: Any, low: int, high: int) -> RecordColumns:
        begins = np.union1d(self.starts[(self.starts >= low) & (self.starts < high)], [low])
        of = np.searchsorted(self.starts, begins, "right") - 1
        numbers = np.concatenate((self.contexts[begins], self.streams[begins]))
        used, inverse = np.unique(numbers, return_inverse=True)
        runs = np.zeros(len(begins), RUN_TYPE)
        runs["commit"], runs["sequence"] = commits[of], self.sequences[begins]
        runs["recorded"], runs["count"] = self.recorded[begins], np.diff(np.append(begins, high))
        runs["context"], runs["stream"] = np.split(inverse, 2)
        codes, kinds = np.unique(self.codes[low:high], return_inverse=True)
        first, last = np.searchsorted(self.living, (low, high))
        return RecordColumns(
            *(runs, self._ids[low:high], self.ticks[low:high].astype(np.uint64) | _KIND, kinds),
            *(self.header_lengths[low:high], self.body_lengths[low:high]),
            *([self.names[name] for name in used], [self.types[code] for code in codes]),
            *(self._headers.between(first, last), self._bodies.between(first, last)),
        )


class _Texts:
    """A column of texts or bytes as lengths and bytes; null is empty."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = whole(pc.fill_null(column.cast(pa.binary()), b""))
        _, offsets, data = array.buffers()
        self._offsets = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self._data = memoryview(data if data is not None else b"")
        self.lengths = np.diff(self._offsets)

    def between(self, first: int, last: int) -> Any:
        return self._data[int(self._offsets[first]) : int(self._offsets[last])]


def _codes(column: pa.ChunkedArray, texts: dict[bytes, int]) -> Any:
    """The number of each text in `texts`; adds new ones."""
    encoded = whole(column).dictionary_encode()
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
    had_principals: bool
    """The store of the lake had some, and the new store has none."""


def restore_lake(lake: str, url: str, stage: Stage) -> RestoredLake:
    place = open_lake_place(lake)
    target = open_replacement(url, replace=False)
    target.advice = "restore a lake to a new place: name another"
    with system_errors(target.shown), ExitStack() as held:
        target.look()
        manifest = read_manifest(place)
        try:
            held.enter_context(place.lock("restore"))
        except StoreError:
            # A lake that is read-only does not change.
            pass
        else:
            manifest = recover(place)
        place.check_inside(file.path for file in manifest.files)
        with target:
            with closing(target.filling()) as store, stage("restoring") as progressed:
                contexts = _fill(store, place, manifest, progressed)
            with closing(target.built()) as built:
                complaint = "what was restored is not what the lake has, and was not put in place"
                check_new_store(built, stage, complaint, partial(_differences, built, manifest))
            target.swap()
    had_principals = AUDIT_CONTEXT.encode() in contexts
    counts = manifest.rows, manifest.head - manifest.rows, len(manifest.files)
    return RestoredLake(*counts, manifest.timeline + 1, manifest.store, had_principals)


# -- filling


def _fill(store: StoreImport, place: LakePlace, manifest: Manifest, progressed: Progressed) -> Collection[bytes]:
    """Returns the contexts."""
    counts = _Counts()
    for file in manifest.files:
        rows, erased = read_whole(place, file)
        with _sound(place, file):
            found = FileColumns(file, rows, erased)
            counts.add(found)
            for chunk in chunked(found.records(), lambda record: len(record.data), CHUNK_BYTES_MAX):
                store.add(chunk)
        progressed(file.last, manifest.head)
    began = (manifest.timeline + 1, manifest.head, ticks_of_unix_ns(time.time_ns()))
    tables: dict[str, list[tuple[Any, ...]]] = {name: [] for name in STATE_TABLES}
    tables["timelines"] = [*manifest.timelines, began]
    tables["contexts"] = [(name.decode(), *counted) for name, counted in sorted(counts.contexts.items())]
    tables["logs"] = [(name.decode(), *log) for name, log in sorted(counts.logs.items())]
    # Its server finds out what to seal.
    state = StoreState(StoreIdentity(manifest.store, manifest.timeline + 1), manifest.head, 1, tables)
    store.finish(state, Arrival("restored", {"lake": manifest.written}))
    return counts.contexts


@contextmanager
def _sound(place: LakePlace, file: LakeFile) -> Iterator[None]:
    """A checksum proves that a file was not changed, not that its rows can be events."""
    try:
        yield
    except (ValueError, OverflowError, IndexError, struct.error, MemoryError) as error:
        raise LakeDamaged(place.shown, file.path, f"has rows that cannot be events: {error}") from error


class _Counts:
    """The counts of a store: events, commits, streams, bytes and highest time of each context; and the logs."""

    def __init__(self) -> None:
        self.contexts: dict[bytes, tuple[int, ...]] = {}
        self.logs: dict[bytes, tuple[int, int, int]] = {}

    def add(self, file: FileColumns) -> None:
        sizes = EVENT_BYTES + file.header_lengths.astype(np.int64) + file.body_lengths
        # A store keeps each type once in a commit.
        commits = np.searchsorted(file.starts, np.arange(file.count), "right")
        _, begins = np.unique(commits * len(file.types) + file.codes, return_index=True)
        sizes[begins] += np.array([len(type) for type in file.types])[file.codes[begins]]
        self._add_contexts(file, sizes)
        self._add_logs(file)

    def _add_contexts(self, file: FileColumns, sizes: Any) -> None:
        contexts, names = file.contexts, len(file.names)
        tops = np.full(names, -1)
        np.maximum.at(tops, contexts, file.ticks)
        begun = contexts[file.starts], contexts[file.sequences == 1]
        counts = [np.bincount(each, minlength=names) for each in (contexts, *begun)]
        size = np.bincount(contexts, sizes, names).astype(np.int64)
        for number in np.unique(contexts).tolist():
            new = *(int(each[number]) for each in (*counts, size)), int(tops[number])
            *known, top = self.contexts.get(file.names[number], (0, 0, 0, 0, -1))
            summed = (one + other for one, other in zip(known, new, strict=False))
            self.contexts[file.names[number]] = (*summed, max(top, new[-1]))

    def _add_logs(self, file: FileColumns) -> None:
        """A log begins with the first message that remains."""
        if LOG_CONTEXT.encode() not in file.names:
            return
        living = file.living[file.contexts[file.living] == file.names.index(LOG_CONTEXT.encode())]
        streams = file.streams[living]
        size = np.bincount(streams, file.body_lengths[living], len(file.names)).astype(np.int64)
        for stream, first in zip(*np.unique(streams, return_index=True), strict=True):
            begin = living[first]
            started = int(file.recorded[begin]), int(file.sequences[begin]) - 1, 0
            created, base, known = self.logs.get(file.names[stream], started)
            self.logs[file.names[stream]] = created, base, known + int(size[stream])


# -- checking


def _differences(built: Store, manifest: Manifest, progressed: Progressed) -> Iterator[str]:
    for file in manifest.files:
        positions = PositionRange(file.first, file.last)
        rows, _ = rows_of(([record] for record in records_between(built, *positions)), positions)
        if (rows.num_rows, digest(rows)) != (file.rows, file.digest):
            yield f"positions {file.first} to {file.last} differ"
        progressed(file.last, manifest.head)
