"""Copying a whole store to another backend. The copy is the same store, with its id and its timeline.

The copy locks the source against writers. Before the first record it notes its source in the half-filled store, so that
an interrupted copy continues, and never with another source. At the end it verifies the copy as `penstock verify` does,
and compares it with the source, record by record and row by row.
"""

import json
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.backup.places import system_errors
from penstock.backup.restore import Stage, check_new_store
from penstock.backup.writer import records_between
from penstock.errors import NotAStore, PlaceRefused, StoreError, StoreUnfinished
from penstock.files import parsed
from penstock.model.chunks import chunked
from penstock.store import Store, hold_store, is_same_place, open_import, open_reader, shown_place
from penstock.store.contract import STATE_TABLES, Arrival, Progressed, StoreIdentity, StoreState
from penstock.store.tables.imports import StoreImport

CHUNK_BYTES_MAX: Final = 8 << 20
"""Bytes of records in one transaction. A larger record gets a larger transaction."""
CHUNK_RECORDS_MAX: Final = 20_000
_FINISHED: Final = STATE_TABLES["erasures"].index("finished")


class Copied(NamedTuple):
    """Result of a copy. `new_events` counts those of this run, `tables` the rows of each table."""

    identity: StoreIdentity
    events: int
    new_events: int
    tables: dict[str, int]


def copy_store(source: str, target: str, stage: Stage) -> Copied:
    """Copy a store to an empty place, or continue an interrupted copy. Raises PlaceRefused."""
    if is_same_place(source, target):
        raise PlaceRefused(shown_place(target), "it is where the store is copied from")
    with system_errors(shown_place(target)), hold_store(source) as hold, closing(open_reader(source)) as original:
        state = original.state()
        new_events = _fill(original, source, state, target, stage)
        with hold_store(target, is_strict=False), closing(open_reader(target)) as copy:
            differences = partial(_differences, original, copy, state.head)
            check_new_store(copy, stage, "the copy is not what the source is; remove it", differences)
        hold.check()
        if original.state() != state:
            raise StoreError("the source was changed while it was copied: remove the copy, and copy it again")
    tables = {name: len(rows) for name, rows in state.tables.items()}
    return Copied(state.identity, state.head, new_events, tables)


# --- filling --------------------------------------------------------------------------------------------------


class _Note(NamedTuple):
    """Where a half-filled store comes from. Records stay the same as long as no more events are erased."""

    store: str
    timeline: int
    erasures: int
    sealed: int

    @classmethod
    def of(cls, state: StoreState) -> "_Note":
        return cls(*state.identity, len(state.tables["erasures"]), state.sealed)


def _fill(original: Store, source: str, state: StoreState, target: str, stage: Stage) -> int:
    if _is_filled(target, state):
        return 0
    with closing(open_import(target)) as filling, stage("copying") as progressed:
        before = filling.head()
        sealed = _begin(filling, state, target)
        records = records_between(original, before + 1, state.head)
        for chunk in chunked(records, lambda record: len(record.data), CHUNK_BYTES_MAX, CHUNK_RECORDS_MAX):
            filling.add(chunk)
            progressed(filling.head(), state.head)
        # Records that were copied before they were sealed are not sealed in the copy.
        arrival = Arrival("moved", {"from": shown_place(source)})
        filling.finish(state._replace(sealed=min(sealed, state.sealed)), arrival)
        return state.head - before


def _is_filled(target: str, state: StoreState) -> bool:
    """Whether the target is the same store already: an earlier copy was finished, perhaps without its checks."""
    try:
        with closing(open_reader(target)) as there:
            return (there.identity(), there.head()) == (state.identity, state.head)
    except (StoreError, NotAStore, StoreUnfinished):
        return False


def _begin(filling: StoreImport, state: StoreState, target: str) -> int:
    """Note the source, or check that it is the noted one. Returns the mark of seals in the note."""
    wanted = _Note.of(state)
    text, kept = filling.begin(json.dumps(wanted)), None
    with suppress(ValueError, TypeError):
        kept = _Note(*parsed(text))
    what = None
    if kept is None:
        what = "something else was being put there, and is not finished"
    elif (kept.store, kept.timeline) != (wanted.store, wanted.timeline):
        what = f"a copy of store {kept.store}, timeline {kept.timeline}, into it is not finished"
    elif kept.erasures != wanted.erasures:
        what = "events were erased since this copy was begun, and are in it"
    elif filling.head() > state.head:
        what = f"it has {filling.head()} events already, and the source has {state.head}"
    if kept is None or what is not None:
        raise PlaceRefused(shown_place(target), f"{what}; remove what is there, and begin again")
    return kept.sealed


# --- checking -------------------------------------------------------------------------------------------------


def _differences(original: Store, copy: Store, head: int, progressed: Progressed) -> Iterator[str]:
    theirs, ours = original.state(), copy.state()
    for what, here, there in (("identity", ours.identity, theirs.identity), ("head", ours.head, theirs.head)):
        if here != there:
            yield f"its {what} is {here}, not {there}"
    for name in STATE_TABLES:
        if _rows(ours, name) != _rows(theirs, name):
            counts = f"{len(ours.tables[name])} rows for {len(theirs.tables[name])}"
            yield f"its {name} are others: {counts}"
    if ours.head == theirs.head:
        yield from _different_records(original, copy, head, progressed)


def _rows(state: StoreState, table: str) -> list[tuple[Any, ...]]:
    rows = state.tables[table]
    if table != "erasures":
        return rows
    # Erasures are finished in the copy: erased events never reached its files.
    return [(*row[:_FINISHED], *row[_FINISHED + 1 :]) for row in rows]


def _different_records(original: Store, copy: Store, head: int, progressed: Progressed) -> Iterator[str]:
    """Compare bytes where both have the same records, else events: a record may have been sealed since."""
    left, right = records_between(original, 1, head), records_between(copy, 1, head)
    at = 1
    one, other = next(left, None), next(right, None)
    while one is not None and other is not None:
        last = min(one.last, other.last)
        if one.data != other.data:
            ids = [record.ids()[at - record.position : last + 1 - record.position] for record in (one, other)]
            if ids[0] != ids[1] or one.events(first=at, last=last) != other.events(first=at, last=last):
                yield f"its events {at} to {last} are others"
        one = next(left, None) if one.last == last else one
        other = next(right, None) if other.last == last else other
        progressed(last, head)
        at = last + 1
    if one is not None or other is not None:
        yield f"its records end at {at - 1}"
