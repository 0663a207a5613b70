"""Records from the rows of a lake: what a store is filled with.

A lake has no commits. Events of a stream in a row that were recorded at the same time become one, with an id of its
own. What is erased becomes what it was in the store: a place without contents. Ids and times of such events are not in
a lake, and are made anew. Nothing here loops over events.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.lake.parquet import Erased
from penstock.model.events import random_ids
from penstock.model.times import KIND_UTC, TICKS_PER_US, UNIX_EPOCH_TICKS, stamp_of
from penstock.store.concat import RecordColumns
from penstock.store.record import Record
from penstock.store.seals import SEALED_BYTES_MAX, SEALED_EVENTS
from penstock.store.selective_decode import RUN_TYPE

_KIND: Final = np.uint64(stamp_of(0, KIND_UTC))
_TOMBSTONE: Final = b""


class Places(NamedTuple):
    """Every position of a file, in order: whose it is. `contexts` and `streams` are indices into `names`."""

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
    """The rows of a file by position, and what is erased of it."""

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
            # As fine as those of the others, so that they are still in order.
            recorded[gone] = each.recorded - each.recorded % TICKS_PER_US
        return Places(list(names), contexts, streams, sequences, recorded)

    def _spread(self, values: Any, kind: Any = np.int64) -> Any:
        """Values of rows at their places among all positions."""
        found = np.zeros(self.count, kind)
        found[self._at] = values
        return found

    def records(self) -> Iterator[Record]:
        """All of it as records, which are cut where blocks begin, and not too large."""
        columns = self._columns()
        cuts = _cuts(self.first, columns["sizes"])
        starts = self.places.starts()
        commits = np.frombuffer(random_ids(len(starts)), "V16")
        for low, high in pairwise(cuts):
            yield Record(self._parts(columns, starts, commits, low, high).encode(self.first + low), self.first + low)

    def _columns(self) -> dict[str, Any]:
        rows, types = self.rows, {_TOMBSTONE: 0}
        ids = np.frombuffer(bytearray(random_ids(self.count)), "V16")
        ids[self._at] = _ids(rows["event_id"])
        stamps = self.places.recorded.astype(np.uint64)
        stamps[self._at] = rows["ticks"].to_numpy().astype(np.uint64)
        headers, bodies = (_Texts(rows[name]) for name in ("headers", "body"))
        lengths = {f"{name}_lengths": self._spread(each.lengths, np.uint32) for name, each in _pairs(headers, bodies)}
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
        """What the record of some places consists of."""
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


def _pairs(headers: "_Texts", bodies: "_Texts") -> tuple[tuple[str, "_Texts"], tuple[str, "_Texts"]]:
    return ("header", headers), ("body", bodies)


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
        """The bytes of some of them, one after the other."""
        return self._data[int(self._offsets[first]) : int(self._offsets[last])]


def _codes(column: pa.ChunkedArray, texts: dict[bytes, int]) -> Any:
    """For each text its number among all; new ones are added."""
    encoded = column.combine_chunks().dictionary_encode()
    numbers = [texts.setdefault(text.encode(), len(texts)) for text in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[encoded.indices.to_numpy()]


def _ids(column: pa.ChunkedArray) -> Any:
    """Ids from their texts."""
    text = "".join(column.to_pylist()).replace("-", "")
    return np.frombuffer(bytes.fromhex(text), "V16")


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
