"""Cutting a record at positions.

The history of a backup ends at its head, and the next one goes on right after it. A record may lie across that place,
because small records are merged meanwhile: it is cut, so that files never overlap and nothing is in two of them.
"""

from struct import Struct

from penstock.store.record import CHECKSUM_BYTES, HEADER, RUN, VERSION, Record, with_checksum


def cut(record: Record, first: int, last: int) -> Record:
    """The events of a record from one position to another, as a record; itself if that is all of it."""
    low, high = max(first - record.position, 0), min(last - record.position + 1, record.count)
    if (low, high) == (0, record.count):
        return record
    with record.sound():
        return Record(_between(record, low, high), record.position + low)


def _between(record: Record, low: int, high: int) -> bytes:
    data, at, events = record.data, record.at, record.count
    lengths = Struct(f"<{events}I").unpack_from
    headers = _part(data, at.headers, lengths(data, at.header_lengths), low, high)
    bodies = _part(data, at.bodies, lengths(data, at.body_lengths), low, high)
    runs = _runs(record, low, high)
    head = HEADER.pack(
        *(0, VERSION, 0, record.type_count, high - low, record.position + low, len(runs), record.name_count),
        *(at.headers - at.text, len(headers)),
    )[CHECKSUM_BYTES:]
    columns = (
        (at.ids, 16),
        (at.stamps, 8),
        (at.types, 2),
        (at.header_lengths, 4),
        (at.body_lengths, 4),
    )
    fixed = (data[start + low * size : start + high * size] for start, size in columns)
    return with_checksum(b"".join((head, *runs, *fixed, data[at.lengths : at.headers], headers, bodies)))


def _runs(record: Record, low: int, high: int) -> list[bytes]:
    """The runs between two places; the first and the last may be parts of their commits."""
    runs: list[bytes] = []
    start = 0
    for commit, sequence, recorded, length, context, stream in RUN.iter_unpack(
        record.data[HEADER.size : record.at.ids]
    ):
        left, right = max(low - start, 0), min(high - start, length)
        if left < right:
            runs.append(RUN.pack(commit, sequence + left, recorded, right - left, context, stream))
        start += length
    return runs


def _part(data: bytes, start: int, lengths: tuple[int, ...], low: int, high: int) -> bytes:
    begin = start + sum(lengths[:low])
    return data[begin : begin + sum(lengths[low:high])]
