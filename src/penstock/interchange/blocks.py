"""Blocks: some events of a file, column by column.

A reader makes blocks of rows that are plain: a few calls check a whole column. It leaves rows of which that cannot be
said to `penstock.event_json.event_of`, which looks at them one by one and says what is wrong. Both ways take the same
events; where they might not, a row is not plain.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from penstock.cloudevents import Incoming
from penstock.event_json import NAME_CHECKS, Defaults, NotPlain, check_kinds, plain_ids, size_of
from penstock.model import ANY, LOG_CONTEXT, Append, NewEvent, now_ticks, stamp_of
from penstock.model.chunks import chunked
from penstock.model.columns import columns_of_one, columns_of_parts
from penstock.model.times import stamp_of_text

ROWS_MAX: Final = 1000
ROWS_BYTES_MAX: Final = 1 << 20
"""Rows of one block that are read one by one, and their bytes."""


class Block(NamedTuple):
    contexts: Sequence[str]
    streams: Sequence[str]
    ids: Sequence[bytes]
    stamps: Sequence[int]
    types: Sequence[str]
    headers: Sequence[str]
    """Empty where an event has none."""
    bodies: Sequence[bytes]
    sizes: Sequence[int]
    """Of each event, as `penstock.event_json.size_of` counts."""

    @staticmethod
    def empty() -> "Block":
        return Block((), (), (), (), (), (), (), ())

    def part(self, start: int, end: int) -> "Block":
        columns: Any = (column[start:end] for column in self)
        return Block(*columns)

    def commits(self) -> tuple[Append, ...]:
        """The events as commits, in their order. A run of events of one stream is one commit."""
        types = {name: name.encode() for name in set(self.types)}
        headers = list(map(str.encode, self.headers))
        parts: Any = self.ids, self.stamps, [types[name] for name in self.types], headers, self.bodies
        found, start = [], 0
        for (context, stream), run in groupby(zip(self.contexts, self.streams, strict=True)):
            end = start + len(list(run))
            if end == start + 1:
                columns = columns_of_one(*(part[start] for part in parts))
            else:
                columns = columns_of_parts(*(part[start:end] for part in parts))
            found.append(Append(context, stream, columns, ANY))
            start = end
        return tuple(found)

    def rows(self) -> Iterator[Incoming]:
        headers = (text or None for text in self.headers)
        events = map(NewEvent, self.ids, self.stamps, self.types, headers, self.bodies)
        return map(Incoming, self.contexts, self.streams, events)


def blocks_of_rows(rows: Iterable[Incoming]) -> Iterator[Block]:
    return map(block_of, chunked(rows, size_of, ROWS_BYTES_MAX, ROWS_MAX))


def block_of(rows: Sequence[Incoming]) -> Block:
    """A block of rows that were read one by one."""
    contexts, streams, events = zip(*rows, strict=True)
    headers = [event.headers or "" for event in events]
    return Block(
        contexts,
        streams,
        [event.id for event in events],
        [event.stamp for event in events],
        [event.type for event in events],
        headers,
        [event.body for event in events],
        list(map(size_of, rows)),
    )


def plain_block(
    defaults: Defaults,
    names: Sequence[Sequence[Any]],
    ids: Sequence[Any],
    stamps: Sequence[int],
    headers: Sequence[str],
    bodies: Sequence[bytes],
) -> Block:
    """A block of columns; `names` are context, stream and type. Raises NotPlain."""
    if defaults.bytes_max is not None:
        raise NotPlain
    contexts, streams, types = (
        _plain_names(names[at], getattr(defaults, member), member) for at, member in enumerate(NAME_CHECKS)
    )
    if LOG_CONTEXT in contexts:
        raise NotPlain
    sizes = [len(kind) + len(header) + len(body) for kind, header, body in zip(types, headers, bodies, strict=True)]
    return Block(contexts, streams, plain_ids(ids), stamps, types, headers, bodies, sizes)


def _plain_names(names: Sequence[Any], default: str | None, member: str) -> Sequence[str]:
    check_kinds(names)
    distinct = set(names)
    if not all(distinct):
        if default is None:
            raise NotPlain
        names = [name or default for name in names]
        distinct = set(names)
    if any(map(NAME_CHECKS[member], distinct)):
        raise NotPlain
    return names


def plain_stamps(texts: Iterable[Any]) -> list[int]:
    """The stamps of times as text; the current time for an empty text."""
    try:
        return [stamp_of_text(text) if text else stamp_of(now_ticks()) for text in texts]
    except (TypeError, ValueError):
        raise NotPlain from None


def batches(blocks: Iterable[Block], bytes_max: int, events_max: int) -> Iterator[Block]:
    """The same events in blocks of at most so many events and bytes; a larger event has its own."""
    held: list[Block] = []
    count = size = 0
    for block in blocks:
        start = 0
        for at, own in enumerate(block.sizes):
            if count and (count >= events_max or size + own > bytes_max):
                yield _joined([*held, block.part(start, at)])
                held, start, count, size = [], at, 0, 0
            count += 1
            size += own
        held.append(block if not start else block.part(start, len(block.sizes)))
    if count:
        yield _joined(held)


def _joined(blocks: Sequence[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    return Block(*([value for part in column for value in part] for column in zip(*blocks, strict=True)))
