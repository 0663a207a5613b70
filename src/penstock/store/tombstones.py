"""Erasing events from a record: they keep id, sequence, position and time, and lose type, headers and body."""

from collections.abc import Iterator
from struct import Struct

from penstock.store.record import CHECKSUM_BYTES, HEADER, VERSION, Record, with_checksum


def entomb(record: Record, context: str, stream: str, last: int) -> bytes:
    """The record with the events of a stream up to a sequence turned into tombstones; DamagedRecord if it is broken."""
    with record.sound():
        return _entombed(record, context, stream, last)


def _entombed(record: Record, context: str, stream: str, last: int) -> bytes:
    data, at, events = record.data, record.at, record.count
    gone = list(_gone(record, context, stream, last))
    texts = record.texts()
    names, types = texts[: record.name_count], texts[record.name_count :]
    fixed = Struct(f"<{events}H{events}I{events}I").unpack_from(data, at.types)
    type_names = [b"" if dead else types[code] for code, dead in zip(fixed[:events], gone, strict=True)]
    kept_types = list(dict.fromkeys(type_names))
    header_lengths, headers = _keep(data, at.headers, fixed[events : 2 * events], gone)
    body_lengths, bodies = _keep(data, at.bodies, fixed[2 * events :], gone)
    text = b"".join(names + kept_types)
    codes = {name: code for code, name in enumerate(kept_types)}
    rest = b"".join(
        (
            data[at.runs : at.types],
            Struct(f"<{events}H{events}I{events}I").pack(
                *(codes[name] for name in type_names), *header_lengths, *body_lengths
            ),
            Struct(f"<{len(names) + len(kept_types)}H").pack(*map(len, names + kept_types)),
            text,
            headers,
            bodies,
        )
    )
    header = HEADER.pack(
        *(0, VERSION, 0, len(kept_types), events, record.position, record.run_count, record.name_count),
        *(len(text), len(headers)),
    )[CHECKSUM_BYTES:]
    return with_checksum(header + rest)


def _gone(record: Record, context: str, stream: str, last: int) -> Iterator[bool]:
    for run in record.runs():
        hit = run.context == context and run.stream == stream
        for sequence in range(run.sequence, run.sequence + run.length):
            yield hit and sequence <= last


def _keep(data: bytes, start: int, lengths: tuple[int, ...], gone: list[bool]) -> tuple[list[int], bytes]:
    kept, parts = [], []
    for length, dead in zip(lengths, gone, strict=True):
        kept.append(0 if dead else length)
        if not dead:
            parts.append(data[start : start + length])
        start += length
    return kept, b"".join(parts)
