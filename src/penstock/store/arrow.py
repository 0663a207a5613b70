"""Stored records to Arrow, many at a time and without a loop over events.

The columns of all records are joined and then placed with NumPy: the loop here is over records. Text columns
(context, stream, type) are looked up in one dictionary per batch.
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import DamagedRecord, LimitExceeded
from penstock.model import EventFilter
from penstock.model.ticks import TICKS_MASK
from penstock.store.record import Record

SCHEMA: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("context", pa.string(), nullable=False),
        pa.field("stream", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("id", pa.binary(16), nullable=False),
        pa.field("ticks", pa.int64(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
        pa.field("headers", pa.string()),
        pa.field("body", pa.binary(), nullable=False),
        pa.field("recorded", pa.int64(), nullable=False),
        pa.field("commit", pa.binary(16), nullable=False),
    ]
)
"""Events as columns; `ticks` and `recorded` count 100 ns from 0001-01-01 UTC."""

BATCH_BYTES_MAX: Final = (1 << 31) - 1
"""Bytes of bodies, or of headers, in one batch: Arrow's offsets have 32 bits."""

_RUN: Final = np.dtype(
    [
        ("commit", "V16"),
        ("sequence", "<i8"),
        ("recorded", "<i8"),
        ("count", "<u4"),
        ("context", "<u4"),
        ("stream", "<u4"),
    ]
)
_Ints = npt.NDArray[np.int64]


class _Dictionary:
    """The distinct texts of a batch, and for each record's own indices where they are in it."""

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self.lookup: list[int] = []

    def add(self, texts: list[bytes]) -> int:
        base = len(self.lookup)
        index = self.index
        self.lookup += [index.setdefault(text, len(index)) for text in texts]
        return base

    def array(self) -> Any:
        return pa.array(list(self.index), pa.binary()).cast(pa.string())


def record_batch(records: Iterable[Record], wanted: EventFilter | None = None) -> pa.RecordBatch:
    """The events of these records that pass a filter, tombstones left out."""
    columns = _Columns(records)
    try:
        return columns.batch(wanted or EventFilter())
    except pa.ArrowInvalid as error:
        raise DamagedRecord(int(columns.places[0, 0]), f"it or one after it has broken text: {error}") from error


class _Columns:
    """The columns of several records, joined."""

    def __init__(self, records: Iterable[Record]) -> None:
        names, types = _Dictionary(), _Dictionary()
        parts: list[tuple[Any, ...]] = []
        places: list[tuple[int, ...]] = []
        for record in records:
            at, data = record.at, memoryview(record.data)
            texts = record.texts()
            name_base = names.add(texts[: record.name_count])
            type_base = types.add(texts[record.name_count :])
            places.append(
                (
                    *(record.position, record.count, record.run_count, name_base, type_base),
                    *(record.name_count, record.type_count, at.bodies - at.headers, len(data) - at.bodies),
                )
            )
            parts.append(
                (
                    data[at.runs : at.ids],
                    data[at.ids : at.stamps],
                    data[at.stamps : at.types],
                    data[at.types : at.header_lengths],
                    data[at.header_lengths : at.body_lengths],
                    data[at.body_lengths : at.lengths],
                    data[at.headers : at.bodies],
                    data[at.bodies :],
                )
            )
        columns = [b"".join(column) for column in zip(*parts, strict=True)] if parts else [b""] * 8
        runs, self.ids, stamps, codes, header_lengths, body_lengths, self.headers, self.bodies = columns
        self.runs = np.frombuffer(runs, _RUN)
        self.stamps = np.frombuffer(stamps, "<i8")
        self.codes = np.frombuffer(codes, "<u2")
        self.header_lengths = np.frombuffer(header_lengths, "<u4")
        self.body_lengths = np.frombuffer(body_lengths, "<u4")
        self.places = np.array(places, np.int64).reshape(-1, 9)
        self.names, self.types = names, types
        if places:
            self._check()

    def _check(self) -> None:
        """A checksum tells that a record is as it was written, not that it was written well."""
        first, counts, run_counts, _, _, names, types, header_bytes, body_bytes = self.places.T
        if len(self.headers) > BATCH_BYTES_MAX or len(self.bodies) > BATCH_BYTES_MAX:
            raise LimitExceeded("batch_bytes_max", max(len(self.headers), len(self.bodies)), BATCH_BYTES_MAX)
        bad = (counts < 1) | (run_counts < 1)
        if not bad.any():
            starts, run_starts = _starts(counts), _starts(run_counts)
            bad |= np.add.reduceat(self.header_lengths.astype(np.int64), starts) != header_bytes
            bad |= np.add.reduceat(self.body_lengths.astype(np.int64), starts) != body_bytes
            bad |= np.add.reduceat(self.runs["count"].astype(np.int64), run_starts) != counts
            named = np.maximum(self.runs["context"], self.runs["stream"])
            bad |= np.maximum.reduceat(named, run_starts) >= names
            bad |= np.maximum.reduceat(self.codes, starts) >= types
        if bad.any():
            raise DamagedRecord(int(first[int(bad.argmax())]), "its insides do not fit together")

    def batch(self, wanted: EventFilter) -> pa.RecordBatch:
        first, counts, run_counts, name_bases, type_bases = self.places.T[:5]
        total = len(self.stamps)
        order = np.arange(total, dtype=np.int64)
        run_lengths = self.runs["count"].astype(np.int64)
        run_names = np.repeat(name_bases, run_counts)
        lookup = np.array(self.names.lookup, np.int64)
        contexts = lookup[self.runs["context"] + run_names]
        streams = lookup[self.runs["stream"] + run_names]
        types = np.array(self.types.lookup, np.int64)[self.codes + np.repeat(type_bases, counts)]
        names = self.names.array()

        def per_run(values: Any) -> Any:
            return np.repeat(values, run_lengths)

        columns = [
            pa.array(np.repeat(first - _starts(counts), counts) + order),
            names.take(pa.array(per_run(contexts))),
            names.take(pa.array(per_run(streams))),
            pa.array(per_run(self.runs["sequence"] - _starts(run_lengths)) + order),
            _fixed(self.ids, total),
            pa.array(self.stamps & TICKS_MASK),
            self.types.array().take(pa.array(types)),
            self._headers(),
            _variable(pa.binary(), self.body_lengths, self.bodies),
            pa.array(per_run(self.runs["recorded"])),
            _fixed(per_run(self.runs["commit"]).tobytes(), total),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        mask = self._mask(wanted, per_run, contexts, streams, types)
        return batch if mask is None else batch.filter(pa.array(mask))

    def _headers(self) -> Any:
        nulls = self.header_lengths == 0
        if nulls.all():
            return pa.nulls(len(nulls), pa.string())
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        return _variable(pa.string(), self.header_lengths, self.headers, valid)

    def _mask(
        self, wanted: EventFilter, per_run: Any, contexts: _Ints, streams: _Ints, types: _Ints
    ) -> npt.NDArray[np.bool_] | None:
        passing = [wanted.types is None or name.decode() in wanted.types for name in self.types.index]
        living = [bool(name) and ok for name, ok in zip(self.types.index, passing, strict=True)]
        mask = None if all(living) else np.array(living)[types]
        if wanted.context is None and not wanted.prefix:
            return mask
        context = None if wanted.context is None else wanted.context.encode()
        prefix = wanted.prefix.encode()
        in_context = np.array([context in (None, name) for name in self.names.index], bool)
        in_stream = np.array([name.startswith(prefix) for name in self.names.index], bool)
        by_name: npt.NDArray[np.bool_] = per_run(in_context[contexts] & in_stream[streams])
        return by_name if mask is None else mask & by_name


def _starts(lengths: _Ints) -> _Ints:
    starts: _Ints = np.cumsum(lengths) - lengths
    return starts


def _fixed(data: bytes, total: int) -> Any:
    return pa.Array.from_buffers(pa.binary(16), total, [None, pa.py_buffer(data)])


def _variable(kind: Any, lengths: npt.NDArray[np.uint32], data: bytes, valid: Any = None) -> Any:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.Array.from_buffers(kind, len(lengths), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])
