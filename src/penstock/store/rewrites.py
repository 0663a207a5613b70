"""Records that are made from a record: with tombstones, or a part of it.

An erased event keeps id, sequence, position and time in its record, and loses type, headers and body: a tombstone.

A reader of a history ends a step anywhere, for example between two backups, and continues there. The sealer may have
merged the records around that place meanwhile; `cut` drops what the reader already has. It lists only the names of the
events that are left, because erasures search for names.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate, groupby, repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.model import View
from penstock.store.concat import Concat, renumber, starts_of
from penstock.store.erasure_filter import Hidden
from penstock.store.record import Record

Mask = npt.NDArray[np.bool_]


def erased(record: Record, hidden: Hidden) -> Record:
    """A record with tombstones in place of hidden events; itself if it has none. DamagedRecord if it is broken."""
    with record.sound():
        mask = _mask_of_streams(record, hidden.streams) if hidden.streams else None
        low = bisect_left(hidden.ranges, record.position, key=itemgetter(1))
        high = bisect_right(hidden.ranges, record.last, key=itemgetter(0))
        if low < high:
            mask = np.zeros(record.count, bool) if mask is None else mask
            for first, last in hidden.ranges[low:high]:
                mask[max(first - record.position, 0) : last + 1 - record.position] = True
        return record if mask is None else Record(_erase(record, mask), record.position)


def _mask_of_streams(record: Record, streams: Mapping[tuple[str, str], int]) -> Mask | None:
    if len(streams) < record.run_count:
        # To search the text is quicker than to decode all runs.
        text = record.data[record.at.text : record.at.headers]
        if not any(stream.encode() in text and context.encode() in text for context, stream in streams):
            return None
    runs = record.runs()
    _, sequences, _, lengths, contexts, names = zip(*runs, strict=True)
    lasts = list(map(streams.get, zip(contexts, names, strict=True), repeat(0)))
    if not any(lasts):
        return None
    left = np.array(lasts, np.int64) - np.array(sequences, np.int64)
    dead = np.clip(left, -1, np.array(lengths) - 1) + 1
    if not dead.any():
        return None
    # Of each run, the first `dead` events are hidden and the others are not.
    return np.repeat(np.tile([True, False], len(runs)), np.column_stack((dead, lengths - dead)).ravel())


def _erase(record: Record, mask: Mask) -> bytes:
    parts = Concat([record]).parts()
    types = list(parts.types) if b"" in parts.types else [*parts.types, b""]
    codes, kept = renumber(np.where(mask, types.index(b""), parts.codes))
    header_lengths, headers = _keep(parts.headers, parts.header_lengths, mask)
    body_lengths, bodies = _keep(parts.bodies, parts.body_lengths, mask)
    return parts._replace(
        codes=codes,
        types=[types[code] for code in kept],
        header_lengths=header_lengths,
        headers=headers,
        body_lengths=body_lengths,
        bodies=bodies,
    ).encode(record.position)


def _keep(data: Any, lengths: npt.NDArray[np.uint32], mask: Mask) -> tuple[npt.NDArray[np.uint32], bytes]:
    """The lengths and bytes that are left without the masked events."""
    return np.where(mask, np.uint32(0), lengths), np.frombuffer(data, "u1")[np.repeat(~mask, lengths)].tobytes()


def cut(record: Record, first: int, last: int) -> Record:
    """The events of a record from one position to another, as a record; itself if that is all of it."""
    low, high = max(first - record.position, 0), min(last - record.position + 1, record.count)
    if (low, high) == (0, record.count):
        return record
    with record.sound():
        return Record(_between(record, low, high), record.position + low)


def seen_parts(record: Record, view: View) -> list[Record]:
    """The runs of a record that a principal may see, as records without the others and their names.

    A record of which it may see all stays as it is; its reader checks the checksum. The others are checked here.
    """
    runs = record.runs()
    seen = [view.has_stream(run.context, run.stream) for run in runs]
    if all(seen):
        return [record]
    record = Record(record.data, record.position)
    starts = list(accumulate((run.length for run in runs), initial=record.position))
    parts: list[Record] = []
    for is_seen, indexes in groupby(range(len(runs)), seen.__getitem__):
        if is_seen:
            together = list(indexes)
            parts.append(cut(record, starts[together[0]], starts[together[-1] + 1] - 1))
    return parts


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
