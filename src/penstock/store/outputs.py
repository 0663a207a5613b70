"""Output of iterators that other processes compute: chunks of items, and the units in which they are staged.

A chunk is the number of its items, their lengths (u32 each, little-endian), and the items one after the other. A row of
stored output is the same with the number in a separate column. All chunks of an iterator are staged as one job. Its
name begins with `RESERVED_JOBS`, which clients cannot use. The store drops the job with the iterator, because its
messages may be about to be erased.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from struct import pack, unpack_from
from typing import Final

from penstock.errors import DamagedRecord, InvalidRequest
from penstock.model import StagedUnit, check_job, new_event
from penstock.model.events import RESERVED_JOBS
from penstock.store.record import Record
from penstock.store.stages import make_unit

CHUNK_ITEMS_MAX: Final = 4096
CHUNK_BYTES_MAX: Final = 256 * 1024
"""Items of one chunk, all together; a single larger item is a chunk too."""
ROW_BYTES_MIN: Final = CHUNK_BYTES_MAX // 4
ROW_ITEMS_MIN: Final = CHUNK_ITEMS_MAX // 4
ROW_BYTES_MAX: Final = 2 * CHUNK_BYTES_MAX
"""A chunk between these sizes becomes a row as it is; smaller ones are combined, larger ones are split."""
OUTPUT_JOBS: Final = f"{RESERVED_JOBS}output:"
"""How the job of an iterator's output begins; its id follows."""
_OUTPUT_JOB: Final = re.compile(f"{OUTPUT_JOBS}([1-9][0-9]{{0,17}})")
_PLACE: Final = ("penstock", "output")
COUNT_BYTES: Final = 4


def pack_items(items: Sequence[bytes]) -> bytes:
    return pack(f"<{len(items) + 1}I", len(items), *map(len, items)) + b"".join(items)


def unpack_items(chunk: bytes) -> list[bytes]:
    """The items of a chunk; InvalidRequest if it is not one."""
    ends = list(accumulate(_lengths(chunk)))
    start = len(chunk) - (ends[-1] if ends else 0)
    return [chunk[start + a : start + b] for a, b in pairwise((0, *ends))]


def count_items(chunk: bytes) -> int:
    """How many items a chunk has; InvalidRequest if it is not one."""
    return len(_lengths(chunk))


def _lengths(chunk: bytes) -> tuple[int, ...]:
    try:
        (count,) = unpack_from("<I", chunk)
        if count > CHUNK_ITEMS_MAX:
            raise InvalidRequest("chunk", f"has {count} items; at most {CHUNK_ITEMS_MAX} are allowed")
        lengths = unpack_from(f"<{count}I", chunk, COUNT_BYTES)
    except struct.error:
        raise InvalidRequest("chunk", f"is cut off: it has {len(chunk)} bytes") from None
    if COUNT_BYTES * (1 + count) + sum(lengths) != len(chunk):
        raise InvalidRequest("chunk", f"has {len(chunk)} bytes, where its items do not end")
    return lengths


def chunks_of(items: Iterable[bytes]) -> Iterator[bytes]:
    """Items as chunks, each about as large as may be."""
    held: list[bytes] = []
    size = 0
    for item in items:
        if held and (size + len(item) > CHUNK_BYTES_MAX or len(held) >= CHUNK_ITEMS_MAX):
            yield pack_items(held)
            held, size = [], 0
        held.append(item)
        size += len(item)
    if held:
        yield pack_items(held)


def output_job(iterator: int) -> str:
    return f"{OUTPUT_JOBS}{iterator}"


def iterator_of_job(job: str) -> int | None:
    """The iterator whose output a job stages; None if it stages events. InvalidRequest if no job has that name."""
    if not job.startswith(RESERVED_JOBS):
        return None
    if (found := _OUTPUT_JOB.fullmatch(job)) is None:
        raise InvalidRequest("job", check_job(job) or "")
    return int(found[1])


def make_output_unit(chunk: bytes) -> StagedUnit:
    return make_unit(*_PLACE, [new_event("output", chunk)])


def chunk_in(data: bytes) -> bytes:
    """The chunk of a staged unit; InvalidRequest if the unit is broken."""
    try:
        (event,) = Record(data, 1).events()
    except (DamagedRecord, ValueError) as error:
        raise InvalidRequest("chunk", f"cannot be read: {error}") from None
    return event.body


def rows_of(chunks: Iterable[bytes], skipped: int) -> Iterator[bytes]:
    """The chunks that become rows of output: without the first `skipped` items, neither small nor large."""
    for is_row, group in groupby(_without(chunks, skipped), _is_row):
        if is_row:
            yield from group
        else:
            yield from chunks_of(item for chunk in group for item in unpack_items(chunk))


def _without(chunks: Iterable[bytes], skipped: int) -> Iterator[bytes]:
    for chunk in chunks:
        count = count_items(chunk)
        if skipped <= 0:
            yield chunk
        elif count > skipped:
            yield pack_items(unpack_items(chunk)[skipped:])
        skipped -= count


def _is_row(chunk: bytes) -> bool:
    count = count_items(chunk)
    is_small = count < ROW_ITEMS_MIN and len(chunk) < ROW_BYTES_MIN
    return not is_small and (count == 1 or len(chunk) <= ROW_BYTES_MAX)
