"""The state of a lake's store: identity, head, size and erasures.

The ledger of erasures names streams, or positions. The name of a lake's file has its positions, and the statistics of
its row groups tell which contexts and streams may be in it. So `archive` need not compare all files with the store.
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from penstock.errors import InvalidRequest, NotAllowed, PlaceRefused
from penstock.history.columns import TABLE
from penstock.history.options import check_url
from penstock.history.source import SERVED, open_history
from penstock.lake.manifests import LakeFile, Manifest
from penstock.lake.places import LakePlace
from penstock.store import open_reader
from penstock.store.contract import Erasure, StoreIdentity


class LakeSource(NamedTuple):
    """A store at one moment. `erasures` is the last erasure of events in its ledger; `bytes` are of all events."""

    identity: StoreIdentity
    head: int
    bytes: int
    erasures: int


def look(url: str) -> LakeSource:
    """The present state of a store. It reads the ledger first, so later erasures count for the next look."""
    try:
        check_url(url)
    except ValueError as error:
        raise InvalidRequest("--url", f"is not usable: it {error}") from None
    erasures = max(erasures_of(url), default=0)
    with closing(open_history(url)) as history:
        now = history.now()
        size = history.all_bytes()
    return LakeSource(now.identity, now.head, size, erasures)


def timelines(url: str, identity: StoreIdentity) -> tuple[tuple[int, int, int], ...]:
    """The timelines of a store. A server gives only the last."""
    if url.startswith(SERVED):
        return ((identity.timeline, 0, 0),)
    with closing(open_reader(url)) as store:
        return tuple((row[0], row[1], row[2]) for row in store.state().tables["timelines"])


def check_source(lake: str, manifest: Manifest, source: LakeSource) -> None:
    """Raise PlaceRefused, which names both, if a lake is not of this history."""
    ours, theirs = manifest.identity, source.identity
    what = None
    if ours.id != theirs.id:
        what = f"it is of store {ours.id}, and this is store {theirs.id}"
    elif ours.timeline != theirs.timeline:
        what = f"it is of timeline {ours.timeline} of store {ours.id}, and the store is on timeline {theirs.timeline}"
    elif source.head < manifest.head:
        what = f"it has {manifest.head} events, and the store has {source.head}: it is an older copy"
    if what is not None:
        raise PlaceRefused(lake, f"{what}; use another lake")


LEDGER_ROWS: Final = 1000
_COLUMNS: Final = tuple(TABLE.get_field_index(name) for name in ("context", "stream"))


class ErasedEvents(NamedTuple):
    """Erased events: whole streams by context and name, and ranges of positions."""

    streams: frozenset[tuple[str, str]]
    ranges: tuple[tuple[int, int], ...]

    def may_be_in(self, place: LakePlace, file: LakeFile) -> bool:
        if any(first <= file.last and last >= file.first for first, last in self.ranges):
            return True
        if not self.streams:
            return False
        with place.opened(file.path) as data:
            metadata = pq.read_metadata(data)
        groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
        bounds = [[_bounds(group.column(number)) for number in _COLUMNS] for group in groups]
        return any(
            all(known is None or known[0] <= name <= known[1] for name, known in zip(names, each, strict=True))
            for names in self.streams
            for each in bounds
        )


def _bounds(column: Any) -> tuple[str, str] | None:
    """The least and the greatest text of a column; None if it was too long for the statistics."""
    statistics = column.statistics
    return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


def erasures_of(url: str) -> Iterator[int]:
    """The ids of a store's erasures of events, without those of an iterator's output."""
    if not url.startswith(SERVED):
        yield from (erasure.id for erasure in _ledger(url, 0) if erasure.iterator is None)
        return
    import penstock  # noqa: PLC0415 - a client takes a while to import

    with penstock.connect(url) as client:
        if not (caller := client.whoami()).sees_all:
            # Hidden events would look like erased ones.
            raise NotAllowed(caller.principal, "read,audit", "the whole history, which a lake holds")
        # A server does not name iterators. An erasure of their output has no events and no stream.
        yield from (info.id for info in client.erasures() if info.stream is not None or info.events)


def erased_since(url: str, after: int) -> ErasedEvents | None:
    """Events erased after an entry of the ledger. None means any events: a server gives no positions."""
    if url.startswith(SERVED):
        return None
    entries = list(_ledger(url, after))
    streams = {(each.context, each.stream) for each in entries if each.context is not None and each.stream is not None}
    return ErasedEvents(frozenset(streams), tuple(part for each in entries for part in each.ranges))


def _ledger(url: str, after: int) -> Iterator[Erasure]:
    with closing(open_reader(url)) as store:
        while found := store.erasures(after, LEDGER_ROWS):
            yield from found
            after = found[-1].id
