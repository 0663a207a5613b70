"""Tombstones: erased events keep id, sequence, position and time in their record, and lose type, headers and body."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store.concat import Concat, renumber
from penstock.store.erasure_filter import Hidden
from penstock.store.record import Record

Mask = npt.NDArray[np.bool_]


def erased(record: Record, hidden: Hidden) -> Record:
    """A record with tombstones in place of hidden events; itself if it has none. DamagedRecord if it is broken.

    The record loses the types that no event has any more. A tombstone stays a tombstone.
    """
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
