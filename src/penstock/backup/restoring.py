"""Restoring a store from a backup: everything is checked before anything is touched.

The store comes back as it was, on a new timeline, without what was erased since. It is built beside the one that it
replaces, checked as `penstock verify` checks a store, and put in its place at one stroke.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import islice
from typing import Final, NamedTuple

from penstock.backup.ledger import Ledger, Replay, Timeline, without_logs
from penstock.backup.places import Place, told
from penstock.backup.reading import Chosen, check, choose, read_history, read_state
from penstock.errors import StoreError
from penstock.model import ticks_of_unix_ns
from penstock.store import Store, open_replacement
from penstock.store.contract import Progressed, StoreIdentity, StoreImport, StoreState
from penstock.store.replacement import Replaced

FINDINGS_TOLD_MAX: Final = 3

Stage = Callable[[str], AbstractContextManager[Progressed]]
"""Told what comes next; gives who is told how far it is."""


class Restored(NamedTuple):
    """What a restore did. `is_ledger_lost` if a damaged store was replaced, whose own ledger could not be read."""

    number: int
    events: int
    timeline: int
    erasures: int
    is_ledger_lost: bool


def restore(place: Place, url: str, stage: Stage, *, number: int | None = None, replace: bool = False) -> Restored:
    """Restore a backup, the newest unless another is named, to where a store's URL says."""
    target = open_replacement(url, replace=replace)
    with told(target.shown):
        target.look()
    chosen = choose(place, number)
    with stage("checking") as progressed:
        check(place, chosen, progressed)
    with told(target.shown), target:
        replay, state = _plan(place, chosen, target.replaced)
        with closing(target.filling()) as store, stage("restoring") as progressed:
            state = _fill(store, place, chosen, replay, state, progressed)
        with closing(target.built()) as built, stage("verifying") as progressed:
            _verify(built, progressed)
        target.swap()
    erasures = len(state.tables["erasures"])
    return Restored(chosen.manifest.number, state.head, state.identity.timeline, erasures, target.is_damaged)


def _plan(place: Place, chosen: Chosen, replaced: Replaced | None) -> tuple[Replay, StoreState]:
    """What to leave out of the records, and the state of the new store."""
    state = read_state(place, chosen.manifest)
    timelines = Ledger.of(state.tables).timelines
    ledgers = [Ledger.of(read_state(place, chosen.newest).tables)]
    top = state.identity.timeline
    if replaced is not None and replaced.identity.id == state.identity.id:
        ledgers.append(Ledger.of({"timelines": replaced.timelines, "erasures": replaced.erasures}))
        top = max(top, replaced.identity.timeline)
    replay = Replay(timelines, ledgers)
    began: Timeline = (top + 1, state.head, ticks_of_unix_ns(time.time_ns()))
    tables = {**state.tables, "timelines": [*state.tables["timelines"], began]}
    return replay, StoreState(StoreIdentity(state.identity.id, top + 1), state.head, chosen.sealed, tables)


def _fill(
    store: StoreImport, place: Place, chosen: Chosen, replay: Replay, state: StoreState, progressed: Progressed
) -> StoreState:
    """Bring the records and the state into the new store; the state as it came to be."""
    for member in chosen.manifest.history:
        records = read_history(place, member, store.head() + 1)
        store.add([piece for record in records for piece in replay.shown(record)])
        progressed(store.head(), state.head)
    tables = without_logs(state.tables, replay.deleted_logs(state))
    state = state._replace(tables={**tables, "erasures": replay.rows()})
    store.finish(state)
    return state


def _verify(store: Store, progressed: Progressed) -> None:
    found = list(islice(findings(store, progressed), FINDINGS_TOLD_MAX))
    if found:
        raise StoreError(f"what was restored is not sound, and was not put in place: {'; '.join(found)}")


def findings(store: Store, progressed: Progressed) -> Iterator[str]:
    """What is wrong with a store, in words."""
    for finding in store.verify(progressed):
        yield f"{finding.where}: {finding.what}"
