"""A sample of a history: some bodies of each type of event, from its beginning and its end."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.history.columns import TABLE
from penstock.history.histories import Now, open_history
from penstock.history.options import ReadOptions
from penstock.history.ranges import ReadPartition, read_range

SAMPLE_EVENTS: Final = 1000
"""Events of each type that are looked at, unless another number is asked for."""
LOOKED_AT_MAX: Final = 100_000
"""Positions that are looked at, at the end of a history and again at its beginning."""
_COLUMNS: Final = ("type", "text")
_SCHEMA: Final = pa.schema([TABLE.field(name) for name in _COLUMNS])


@dataclass(frozen=True)
class Sample:
    """The bodies of each type, and the positions of the history that were not looked at."""

    texts: dict[str, list[str | None]]
    unseen: int


def sample(url: str, context: str | None, types: Sequence[str] | None, events: int = SAMPLE_EVENTS) -> Sample:
    """Some bodies of each type; of all types, or of these."""
    given = {"url": url, "context": context, "type": ",".join(types) if types else None}
    options = ReadOptions.of({name: value for name, value in given.items() if value is not None})
    with closing(open_history(url)) as history:
        now = history.now()
    texts: dict[str, list[str | None]] = {}
    ranges = list(_ranges(now))
    for part in ranges:
        for batch in read_range(options, _SCHEMA, part):
            _take(texts, batch, events)
    return Sample(texts, now.head - sum(part.last - part.first + 1 for part in ranges))


def _ranges(now: Now) -> Iterator[ReadPartition]:
    """The end first: what events are like now matters more."""
    end = max(1, now.head - LOOKED_AT_MAX + 1)
    if now.head:
        yield ReadPartition(now.identity, end, now.head, 0, now.head + 1)
    if end > 1:
        last = min(LOOKED_AT_MAX, end - 1)
        yield ReadPartition(now.identity, 1, last, 0, last + 1)


def _take(texts: dict[str, list[str | None]], batch: pa.RecordBatch, events: int) -> None:
    for type, text in zip(batch["type"].to_pylist(), batch["text"].to_pylist(), strict=True):
        found = texts.setdefault(type, [])
        if len(found) < events:
            found.append(text)
