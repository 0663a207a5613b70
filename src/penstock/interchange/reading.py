"""A file as events, whatever its format, in batches that are the same each time that it is read."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Final

from penstock.cloudevents import Incoming
from penstock.interchange.csvs import from_csv
from penstock.interchange.files import BrokenFile, FileRefused, Flaw, Format
from penstock.interchange.lines import from_cloud_lines, from_json_lines
from penstock.interchange.parquets import from_parquet
from penstock.interchange.rows import Defaults, size_of
from penstock.model import ANY, Append

BATCH_EVENTS_MAX: Final = 1000
"""Events of one transaction: each may be of another stream, and a transaction has at most so many parts."""
BATCH_BYTES_MAX: Final = 1 << 20
"""Bytes of one transaction; an event that is larger goes alone."""

_LINES: Final[dict[Format, Callable[[IO[bytes], Defaults], Iterator[Incoming]]]] = {
    Format.JSONL: from_json_lines,
    Format.CLOUDEVENTS: from_cloud_lines,
    Format.CSV: from_csv,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import: what it is called, where it is, what it is written in, and what it does not say."""

    name: str
    path: Path
    format: Format
    defaults: Defaults


Batch = list[Incoming]
Progressed = Callable[[int], object]
"""Told how many events are through."""


def events_of(source: Source) -> Iterator[Incoming]:
    """All events of a file. Raises BrokenFile."""
    try:
        if source.format is Format.PARQUET:
            yield from from_parquet(source.path, source.defaults)
        else:
            with source.path.open("rb") as file:
                yield from _LINES[source.format](file, source.defaults)
    except Flaw as flaw:
        raise BrokenFile(source.name, flaw.place, flaw.reason) from None
    except OSError as error:
        raise FileRefused(source.name, (error.strerror or str(error)).lower()) from None


def batches_of(source: Source) -> Iterator[Batch]:
    """The same in batches."""
    batch: Batch = []
    size = 0
    for row in events_of(source):
        own = size_of(row)
        if batch and (len(batch) >= BATCH_EVENTS_MAX or size + own > BATCH_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += own
    if batch:
        yield batch


def commits_of(batch: Batch) -> tuple[Append, ...]:
    """A batch as commits, in its order: what stands together in one stream is one of them."""
    return tuple(
        Append(context, stream, tuple(row.event for row in rows), ANY)
        for (context, stream), rows in groupby(batch, key=lambda row: (row.context, row.stream))
    )


def state_of(source: Source) -> tuple[int, int, int]:
    """What changes when somebody writes to a file. Raises FileRefused."""
    try:
        found = os.stat(source.path)  # noqa: PTH116 - what is asked for is the number of the file, too
    except OSError as error:
        raise FileRefused(source.name, (error.strerror or str(error)).lower()) from None
    return found.st_ino, found.st_size, found.st_mtime_ns
