"""Cutting a record at positions.

Whoever reads a history in steps, for a page or for a backup, ends a step somewhere and goes on right after it. A record
may lie across that place by then, because small records are merged meanwhile: it is cut, so that nothing is read twice.
A part has only the names and types of its own events: what is erased later is looked for where its events are.
"""

from typing import Any

import numpy as np

from penstock.store.joining import Joined, renumbered, starts_of
from penstock.store.record import Record


def cut(record: Record, first: int, last: int) -> Record:
    """The events of a record from one position to another, as a record; itself if that is all of it."""
    low, high = max(first - record.position, 0), min(last - record.position + 1, record.count)
    if (low, high) == (0, record.count):
        return record
    with record.sound():
        return Record(_between(record, low, high), record.position + low)


def _between(record: Record, low: int, high: int) -> bytes:
    parts = Joined([record]).parts()
    runs = _runs(parts.runs, low, high)
    numbers, names = renumbered(np.concatenate((runs["context"], runs["stream"])).astype(np.int64))
    runs["context"], runs["stream"] = np.split(numbers, 2)
    codes, types = renumbered(parts.codes[low:high])
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
    """The runs between two places; the first and the last may be parts of their commits."""
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
