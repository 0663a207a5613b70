"""Ranges of positions: what one task reads.

A range is cut where a block of 4,096 positions begins, and has the records that *begin* in it, all of each. Records are
only ever merged with others that begin in the same block, so that it does not change which range a record is in when
the store is sealed meanwhile, and no record is taken apart by two tasks. The first range also has the record that
begins before it.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import DamagedRecord
from penstock.history.columns import batch_of, between, stored_columns, table_batch
from penstock.history.options import ReadOptions
from penstock.history.source import History, Now, check_identity, open_history
from penstock.model import EventFilter, View
from penstock.store.arrow import record_batch
from penstock.store.contract import StoreIdentity
from penstock.store.record import Record
from penstock.store.seals import SEALED_EVENTS
from penstock.store.selective_decode import Picker

RANGES_MAX: Final = 10_000
"""Tasks of one read; in a larger history their ranges are wider than requested."""
RANGES_USUAL: Final = 16
RANGE_BYTES_MIN: Final = 32 << 20
RANGE_BYTES_MAX: Final = 128 << 20
"""Without the option `partitionBytes` a read has this many tasks, neither too small nor too large: Spark and
Python take tens of milliseconds for each, whatever it reads."""
SAMPLES_PER_RANGE: Final = 4
SAMPLES_MAX: Final = 1024
"""Places of a history where it is looked how large events are."""
PASSING_PART: Final = 8
"""To pass over the events of other contexts takes this part, or less, of the time that it takes to read one's own."""
FEW_PART: Final = 8
"""If fewer than one in so many events of a record are wanted, they are picked one by one."""


@dataclass(frozen=True)
class ReadPartition:
    """Positions from `first` to `last` in the records that begin from `begin` on and before `end`."""

    identity: StoreIdentity
    first: int
    last: int
    begin: int
    end: int


def plan(history: History, now: Now, options: ReadOptions, first: int, last: int) -> list[ReadPartition]:
    """The positions from `first` to `last` in ranges of about even bytes, as far as samples tell."""
    if first > last:
        return []
    cuts = _cuts(history, _count(history, now, options, last - first + 1), first, last)
    begins = [0, *cuts, last + 1]
    return [ReadPartition(now.identity, max(first, begin), last, begin, end) for begin, end in pairwise(begins)]


def first_wanted(history: History, options: ReadOptions, first: int, head: int) -> int:
    """The first position whose event can be late enough for the options, or one after the head."""
    if options.since is None or options.context is None:
        return first
    found = history.position_of(options.context, options.since)
    return max(first, head + 1 if found is None else found)


def _count(history: History, now: Now, options: ReadOptions, total: int) -> int:
    if total <= SEALED_EVENTS:
        return 1
    size = history.all_bytes()
    if options.context is not None:
        mine = history.context_bytes(options.context)
        size = mine + max(0, size - mine) // PASSING_PART
    share = size * total // max(now.head, total)
    each = options.partition_bytes or min(max(share // RANGES_USUAL, RANGE_BYTES_MIN), RANGE_BYTES_MAX)
    return min(max(1, -(-share // each)), RANGES_MAX)


def _cuts(history: History, count: int, first: int, last: int) -> list[int]:
    """Where ranges after the first begin: at blocks, so that each has about as many bytes as the others."""
    if count == 1:
        return []
    samples = np.linspace(first, last + 1, min(SAMPLES_PER_RANGE * count, SAMPLES_MAX) + 1).astype(np.int64)
    sizes = [_event_bytes(history, position) for position in samples[:-1].tolist()]
    reached = np.concatenate(([0.0], np.cumsum(np.diff(samples) * np.array(sizes, float))))
    cuts = np.interp(np.arange(1, count) * (reached[-1] / count), reached, samples)
    blocks = np.unique(np.rint(cuts / SEALED_EVENTS).astype(np.int64))
    found: list[int] = (blocks[(blocks > first // SEALED_EVENTS) & (blocks <= last // SEALED_EVENTS)]).tolist()
    return [block * SEALED_EVENTS for block in found]


def _event_bytes(history: History, position: int) -> int:
    try:
        return max(1, history.event_bytes(position))
    except DamagedRecord:
        # The read itself reports it.
        return 1


def read_range(
    options: ReadOptions, schema: pa.Schema, part: ReadPartition, view: View | None = None
) -> Iterator[pa.RecordBatch]:
    """The wanted events of a range as rows of the table, in order: those in a view, if there is one.

    Raises DamagedRecord, which names its position.
    """
    wanted = options.wanted.seen_by(view)
    with closing(open_history(options.url)) as history:
        check_identity(part.identity, history.now().identity, "the plan of this read")
        for records in history.records(wanted, part.first, part.end):
            mine = [record for record in records if part.begin <= record.position < part.end]
            batch = _batch(mine, options, wanted, part, stored_columns(schema.names))
            if batch is not None and batch.num_rows:
                yield table_batch(batch, schema)


def _batch(
    records: list[Record], options: ReadOptions, wanted: EventFilter, part: ReadPartition, columns: list[str]
) -> pa.RecordBatch | None:
    timed = options.since is not None or options.until is not None
    needed = [*columns, "ticks"] if timed and "ticks" not in columns else columns
    if _are_few(records, wanted):
        events = [event for record in records for event in record.events(wanted, part.first, part.last)]
        batch = batch_of(events, needed) if events else None
    else:
        batch = record_batch(records, wanted, first=part.first, last=part.last, columns=needed)
    return between(batch, options.since, options.until) if timed and batch is not None else batch


def _are_few(records: list[Record], wanted: EventFilter) -> bool:
    """Whether little of these records is wanted, judging by the first. In small records it does not matter."""
    if not records:
        return True
    record = records[0]
    if wanted.is_open or record.run_count == 1:
        return False
    with record.sound():
        return FEW_PART * len(Picker(record).wanted(wanted, record.position, record.last).offsets) < record.count
