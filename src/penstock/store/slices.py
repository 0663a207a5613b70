"""Slices: the events of a record between two positions, as a record.

A reader of a history ends a step anywhere, for example between two backups, and continues there. The sealer may have
merged the records around that place meanwhile; a slice drops what the reader already has. A slice lists only the names
and types of the events in it, because erasures search for names.
"""

from typing import Any

import numpy as np

from penstock.store.concat import Concat, renumber, starts_of
from penstock.store.record import Record


def cut(record: Record, first: int, last: int) -> Record:
    """The events of a record from one position to another, as a record; itself if that is all of it."""
    low, high = max(first - record.position, 0), min(last - record.position + 1, record.count)
    if (low, high) == (0, record.count):
        return record
    with record.sound():
        return Record(_between(record, low, high), record.position + low)


def _between(record: Record, low: int, high: int) -> bytes:
    parts = Concat([record]).parts()
    runs = _runs(parts.runs, low, high)
    numbers, names = renumber(np.concatenate((runs["context"], runs["stream"])).astype(np.int64))
    runs["context"], runs["stream"] = np.split(numbers, 2)
    codes, types = renumber(parts.codes[low:high])
    return parts._replace(
        runs=runs,
        ids=parts.ids[low:high],
        stamps=parts.stamps[low:high],
        codes=codes,
        header_lengths=parts.header_lengths[low:high],
        body_lengths=parts.body_lengths[low:high],
        names=[parts.names[number] for number in names],
        types=[parts.types[code] for code in types],
        headers=_part(parts.headers, parts.header_lengths, low, high),
        bodies=_part(parts.bodies, parts.body_lengths, low, high),
    ).encode(record.position + low)


def _runs(runs: Any, low: int, high: int) -> Any:
    """The runs between two offsets; the first and the last may be incomplete."""
    counts = runs["count"].astype(np.int64)
    starts = starts_of(counts)
    left, right = (np.clip(place - starts, 0, counts) for place in (low, high))
    cut_runs = runs.copy()
    cut_runs["sequence"] += left.astype(np.uint64)
    cut_runs["count"] = right - left
    return cut_runs[right > left]


def _part(data: Any, lengths: Any, low: int, high: int) -> Any:
    begin = int(lengths[:low].sum(dtype=np.int64))
    return data[begin : begin + int(lengths[low:high].sum(dtype=np.int64))]
