"""The health of a store: whether it opens, where it stands, what is unfinished, and a quick look at its records."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.doctor.findings import Finding, ok, problem, warning
from penstock.errors import (
    InvalidRequest,
    NotAStore,
    PenstockError,
    StorageFailure,
    StoreTooNew,
    StoreUnfinished,
)
from penstock.files import is_shared
from penstock.model import EventFilter, StoreStats
from penstock.model.times import TICKS_PER_SECOND, datetime_of, now_ticks
from penstock.settings import Settings
from penstock.store import Store, open_reader, shown_place, store_url
from penstock.store.contract import ReadLimits
from penstock.store.record import Record
from penstock.store.sqlite.directory import FILE_NAME, LOCK_NAME, RESTORING, exposed, is_served

LOOKED_EVENTS: Final = 10_000
"""How many events at either end of the history are looked at."""
LOOKED: Final = ReadLimits(events_max=LOOKED_EVENTS, bytes_max=16 << 20, scan_ms_max=500)
WAL_TIMES: Final = 4
"""A log so many times as long as one that starts a checkpoint is not as it should be."""
SKEW_S_MAX: Final = 5.0
"""How far two clocks may be apart before somebody should know."""
MB: Final = 1_000_000
USED: Final = (FILE_NAME, LOCK_NAME)
"""What whoever looks at a store has to open."""
RESTORE: Final = "if it is damaged, restore a backup into another directory: penstock restore; see docs/operations.md"
DURABLE: Final = "set it to on in the database's configuration and reload that; docs/postgresql.md, what it refuses"
DATABASE: Final = "see to the database, its address and the rights in it: docs/postgresql.md"


def embedded(directory: Path, settings: Settings) -> Iterator[Finding]:
    """Look at the store in a directory, beside whoever serves it."""
    if not directory.is_dir():
        if not directory.exists():
            yield nothing_yet(directory)
        return
    if not os.access(directory, os.X_OK):
        yield closed(directory)
        return
    if not (directory / FILE_NAME).exists():
        yield unfinished(directory) if (directory / RESTORING).exists() else nothing_yet(directory)
        return
    if not all(os.access(directory / name, os.R_OK) for name in USED if (directory / name).exists()):
        yield closed(directory / FILE_NAME)
        return
    yield from opened(store_url(directory), f"--data {directory}", RESTORE)
    yield access(directory, settings)
    yield wal(directory, settings)
    in_use = is_served(directory)
    yield ok("served", "a server has it open" if in_use else "no server has it open")


def shared(url: str) -> Iterator[Finding]:
    """Look at a store on PostgreSQL, beside whoever serves it."""
    try:
        place = shown_place(url)
    except InvalidRequest as error:
        # Without its driver nothing can be known of it, which is a finding of its own.
        yield problem("store", str(error), "see docs/postgresql.md for how to name one")
        return
    yield from opened(url, f"--store {place}", DATABASE)


def nothing_yet(directory: Path) -> Finding:
    """There is no store, which is no mistake."""
    return ok("store", f"there is none in {directory} yet", f"penstock serve --data {directory} makes one")


def closed(path: Path) -> Finding:
    """There may be a store, which is not for us."""
    owner = path.stat().st_uid
    return problem("store", f"{path} belongs to user {owner} and is closed to us", "look at it as that user")


def unfinished(directory: Path) -> Finding:
    """There is half a store."""
    error = StoreUnfinished(str(directory))
    return problem("store", str(error), advice_for(error) or RESTORE)


# --- one that is there ----------------------------------------------------------------------------------------


def opened(url: str, flags: str, otherwise: str) -> Iterator[Finding]:
    """Open it for reading and look at it. `otherwise` is what to do if it fails in a way that is not known better."""
    verify = f"penstock verify {flags}"
    try:
        with closing(open_reader(url)) as store:
            yield from seen(store, verify)
    except (TypeError, ValueError) as error:
        # A damaged file can hold any value in any column.
        yield problem(
            "store", f"it holds a value that cannot be: {error}", f"{verify} says more; docs/operations.md, what to do"
        )
    except (PenstockError, OSError) as error:
        yield problem("store", told(error), advice_for(error) or otherwise)


def told(error: PenstockError | OSError) -> str:
    """An error as a sentence; nothing was sent here that could have been written."""
    return f"the store failed: {error.reason}" if isinstance(error, StorageFailure) else str(error)


def advice_for(error: PenstockError | OSError) -> str | None:
    """What to do about a store that cannot be opened, if its error says enough."""
    match error:
        case StoreTooNew():
            return "use the Penstock that has served it last, or a newer one"
        case StoreUnfinished():
            return "finish the restore or the copy that was interrupted: do it again, it goes on where it was"
        case NotAStore():
            return "name the place of a store instead, or an empty one"
        case StorageFailure() if "older schema" in error.reason:
            return "start a server on it once; before that, make a backup with the Penstock that has served it last"
        case _:
            return None


def seen(store: Store, verify: str) -> Iterator[Finding]:
    """Look at one that is open."""
    stats = store.stats()
    yield standing(stats)
    if (refusal := store.refusal()) is not None:
        yield problem("writes", f"the store takes none: {refusal.reason}", DURABLE)
    yield erasures(store.open_erasures())
    looked, last = records(store, stats.head, verify)
    yield looked
    yield times(store.now(), last)


def standing(stats: StoreStats) -> Finding:
    """Which store it is, and where it stands."""
    identity = f"{stats.store_id}, timeline {stats.timeline}, schema {stats.schema}"
    events = f"{stats.head:,} event{'s' * (stats.head != 1)}"
    return ok("store", f"{identity}: {events}, {stats.sealed:,} sealed")


def erasures(unfinished: int) -> Finding:
    """What somebody wanted gone, and is not yet."""
    if not unfinished:
        return ok("erasures", "none is unfinished")
    return warning(
        "erasures", f"{unfinished:,} not finished", "a server that runs finishes them; penstock erasures lists them"
    )


def access(directory: Path, settings: Settings) -> Finding:
    """Who can use the store's files: whoever opens them reads all events, and stops all writes with a lock."""
    found = exposed(directory, shared=settings.group_access)
    if not found:
        whom = "its owner and its group" if settings.group_access else "its owner"
        return ok("access", f"only {whom} can use the store's files")
    names = ", ".join(f"{place.name} is {place.shown}" for place in found)
    advice = f"start its server anew as the owner of the files, or chmod -R {'o' if settings.group_access else 'go'}= "
    group = "; if its group may use it, set group_access" if is_shared(directory) else ""
    return warning("access", f"other users can read and lock the store: {names}", f"{advice}{directory}{group}")


def wal(directory: Path, settings: Settings) -> Finding:
    """The write-ahead log, which is checkpointed and used again."""
    path = directory / f"{FILE_NAME}-wal"
    length = path.stat().st_size if path.exists() else 0
    shown = f"{length / MB:,.1f} MB"
    if length <= WAL_TIMES * settings.wal_bytes_max:
        return ok("write-ahead log", shown)
    return warning(
        "write-ahead log", f"{shown}, which is long", "end what reads the store for long, or start its server anew"
    )


# --- a quick look at its records ------------------------------------------------------------------------------


def records(store: Store, head: int, verify: str) -> tuple[Finding, Record | None]:
    """Check the first and the last records: whole, in a row, up to the head; and the last of them."""
    last: Record | None = None
    try:
        for start in sorted({1, max(1, head - LOOKED_EVENTS + 1)} if head else ()):
            last = in_a_row(store, start, head)
    except (PenstockError, TypeError, ValueError) as error:
        reason = told(error) if isinstance(error, PenstockError) else f"a value that cannot be: {error}"
        return problem(
            "records", reason, f"{verify} lists all that is damaged; docs/operations.md says what to do"
        ), None
    ends = "all are whole" if head <= LOOKED_EVENTS else f"the first and last {LOOKED_EVENTS:,} events are whole"
    return ok("records", f"{ends}, in a quick look; {verify} checks everything"), last


def in_a_row(store: Store, start: int, head: int) -> Record | None:
    """Check the records from a position on, as far as a quick look goes; the last of them. Raises what is wrong."""
    span = store.read_records(start, EventFilter(), LOOKED)
    expected = start
    for record in span.records:
        if record.position > expected:
            raise StorageFailure(f"there is nothing at position {expected}, where an event should be")
        expected = record.last + 1
    if span.end and expected <= head:
        raise StorageFailure(f"there is nothing at position {expected}, and the last one is {head}")
    return span.records[-1] if span.records else None


def times(now: int, last: Record | None) -> Finding:
    """The store's clock against ours, and against what was recorded last."""
    apart = (now - now_ticks()) / TICKS_PER_SECOND
    if abs(apart) > SKEW_S_MAX:
        return warning("times", f"the store's clock is {apart:+.1f} s from this machine's", "have both kept by NTP")
    recorded = max((run.recorded for run in last.runs()), default=0) if last is not None else 0
    ahead = (recorded - now) / TICKS_PER_SECOND
    if ahead > SKEW_S_MAX:
        until = f"{datetime_of(recorded):%Y-%m-%dT%H:%M:%SZ}"
        message = f"the last event was recorded {ahead:,.0f} s in the future, at {until}"
        return warning(
            "times",
            message,
            f"if the clock is right, wait: until {until} all events are recorded at that time; if it is not, set it",
        )
    return ok("times", "the clock goes on from what was recorded last")
