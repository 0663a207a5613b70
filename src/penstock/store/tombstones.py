"""Erasing events from a record: they keep id, sequence, position and time, and lose type, headers and body."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from penstock.store.record import Record


class Gone(NamedTuple):
    """What nobody shall see any more: of a (context, stream) all up to a sequence, and events by position.

    `ranges` are (first, last) positions, disjoint and in order.
    """

    streams: Mapping[tuple[str, str], int] = MappingProxyType({})
    ranges: Sequence[tuple[int, int]] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.streams or self.ranges)


def entomb(record: Record, gone: Gone) -> bytes:
    """The record with what is gone turned into tombstones; DamagedRecord if it is broken.

    Types that no event has any more are no longer in it. An event that is a tombstone already stays one.
    """
    from penstock.store import entombing  # noqa: PLC0415 - it needs NumPy, and most stores have nothing erased

    with record.sound():
        dead = entombing.dead_of(record, gone)
        return entombing.entombed(record, entombing.nothing_of(record) if dead is None else dead)


def shown(record: Record, gone: Gone) -> Record:
    """A record as readers see it: itself if nothing in it is gone."""
    from penstock.store import entombing  # noqa: PLC0415 - as above

    with record.sound():
        dead = entombing.dead_of(record, gone)
        return record if dead is None else Record(entombing.entombed(record, dead), record.position)
