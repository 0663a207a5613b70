"""What a lake must know of the store that it is of, beside the events."""

from contextlib import closing
from typing import NamedTuple

from penstock.errors import InvalidRequest, PlaceRefused
from penstock.history.histories import SERVED, open_history
from penstock.history.options import url as checked_url
from penstock.lake.erasures import erasures_of
from penstock.lake.manifests import Manifest
from penstock.store import open_reader
from penstock.store.contract import StoreIdentity


class Source(NamedTuple):
    """A store at one moment. `erasures` is the last entry of events in its ledger; `bytes` are those of all events."""

    identity: StoreIdentity
    head: int
    bytes: int
    erasures: int


def look(url: str) -> Source:
    """What a store is now. The ledger is read first: whatever is erased later is for the next look."""
    erasures = max(erasures_of(_checked(url)), default=0)
    with closing(open_history(url)) as history:
        now = history.now()
        size = history.all_bytes()
    return Source(now.identity, now.head, size, erasures)


def _checked(url: str) -> str:
    try:
        return checked_url(url)
    except ValueError as error:
        raise InvalidRequest("--url", f"is not usable: it {error}") from None


def timelines(url: str, identity: StoreIdentity) -> tuple[tuple[int, int, int], ...]:
    """The timelines that a store has been on. A server does not tell them; then there is only the last."""
    if url.startswith(SERVED):
        return ((identity.timeline, 0, 0),)
    with closing(open_reader(url)) as store:
        return tuple((row[0], row[1], row[2]) for row in store.state().tables["timelines"])


def check_source(lake: str, manifest: Manifest, source: Source) -> None:
    """Refuse a lake of another history; names both."""
    ours, theirs = manifest.identity, source.identity
    what = None
    if ours.id != theirs.id:
        what = f"it is of store {ours.id}, and this is store {theirs.id}"
    elif ours.timeline != theirs.timeline:
        what = f"it is of timeline {ours.timeline} of store {ours.id}, and the store is on timeline {theirs.timeline}"
    elif source.head < manifest.head:
        what = f"it has {manifest.head} events, and the store has {source.head}: an older one was put there"
    if what is not None:
        raise PlaceRefused(lake, f"{what}; use another lake")
