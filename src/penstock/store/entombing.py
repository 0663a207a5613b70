"""Records without what is gone, made with NumPy; `penstock.store.tombstones` says what that means."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.store.joining import Joined, renumbered
from penstock.store.record import Record
from penstock.store.tombstones import Gone

Mask = npt.NDArray[np.bool_]


def nothing_of(record: Record) -> Mask:
    """No event of a record."""
    return np.zeros(record.count, bool)


def dead_of(record: Record, gone: Gone) -> Mask | None:
    """Which events of a record are gone; None if none is."""
    by_stream = _dead_of_streams(record, gone.streams) if gone.streams else None
    low = bisect_left(gone.ranges, record.position, key=itemgetter(1))
    high = bisect_right(gone.ranges, record.last, key=itemgetter(0))
    if low >= high:
        return by_stream
    dead = np.zeros(record.count, bool) if by_stream is None else by_stream
    for first, last in gone.ranges[low:high]:
        dead[max(first - record.position, 0) : last + 1 - record.position] = True
    return dead


def _dead_of_streams(record: Record, streams: Mapping[tuple[str, str], int]) -> Mask | None:
    if len(streams) < record.run_count and not _may_name(record, streams):
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
    # Of each run, so many at its beginning are gone and the others not.
    return np.repeat(np.tile([True, False], len(runs)), np.column_stack((dead, lengths - dead)).ravel())


def _may_name(record: Record, streams: Mapping[tuple[str, str], int]) -> bool:
    """Whether the text of a record has any of these; quicker than to look at all its runs."""
    text = record.data[record.at.text : record.at.headers]
    return any(stream.encode() in text and context.encode() in text for context, stream in streams)


# -- a record without it


def entombed(record: Record, dead: Mask) -> bytes:
    """A record whose dead events are tombstones."""
    parts = Joined([record]).parts()
    types = list(parts.types) if b"" in parts.types else [*parts.types, b""]
    codes, kept = renumbered(np.where(dead, types.index(b""), parts.codes))
    header_lengths, headers = _keep(parts.headers, parts.header_lengths, dead)
    body_lengths, bodies = _keep(parts.bodies, parts.body_lengths, dead)
    return parts._replace(
        codes=codes,
        types=[types[code] for code in kept],
        header_lengths=header_lengths,
        headers=headers,
        body_lengths=body_lengths,
        bodies=bodies,
    ).encode(record.position)


def _keep(data: Any, lengths: npt.NDArray[np.uint32], dead: Mask) -> tuple[npt.NDArray[np.uint32], bytes]:
    """The lengths and bytes of the living."""
    living = np.repeat(~dead, lengths)
    return np.where(dead, np.uint32(0), lengths), np.frombuffer(data, "u1")[living].tobytes()
