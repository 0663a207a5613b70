"""A store, or a running server: whether it opens, its state, unfinished erasures, and a quick check of its records."""

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.client import connect
from penstock.doctor.checks import CheckResult, ok, problem, warning
from penstock.doctor.machine import MB, milliseconds
from penstock.errors import (
    InvalidRequest,
    NotAllowed,
    NotAStore,
    NotAuthenticated,
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

ANSWER_S_MAX: Final = 5.0
CHECKED_EVENTS: Final = 10_000
CHECK_LIMITS: Final = ReadLimits(events_max=CHECKED_EVENTS, bytes_max=16 << 20, scan_ms_max=500)
WAL_TIMES: Final = 4
"""A write-ahead log this many times as long as one that starts a checkpoint is a warning."""
SKEW_S_MAX: Final = 5.0
RESTORE: Final = "if it is damaged, restore a backup into another directory: penstock restore; see docs/operations.md"
DURABLE: Final = "set it to on in the database's configuration and reload that; see docs/postgresql.md, what it refuses"
ADVICE: Final[dict[type[Exception], str]] = {
    StoreTooNew: "use the Penstock version that served it last, or a newer one",
    StoreUnfinished: "run the interrupted restore or copy again: it continues where it was",
    NotAStore: "name the place of a store instead, or an empty one",
}
DATABASE: Final = "check the database, its address and its permissions: docs/postgresql.md"


def server(url: str) -> Iterator[CheckResult]:
    try:
        with connect(url, timeout=ANSWER_S_MAX, retries=False) as client:
            began = time.perf_counter()
            stats = client.stats()
            yield ok("server", f"{url} answers in {milliseconds(time.perf_counter() - began)}")
            yield _identity(stats)
            yield erasures(sum(info.finished is None for info in client.erasures()))
            if stats.head:
                last = next(iter(client.read_all(stats.head, until=stats.head)), None)
                found = "was erased" if last is None else f"can be read: {last.type} in {last.context}"
                yield ok("records", f"the last event {found}")
    except (NotAuthenticated, NotAllowed) as error:
        yield problem("server", str(error), "give the token of an administrator: --token @FILE, or PENSTOCK_TOKEN")
    except PenstockError as error:
        yield problem("server", str(error), "start one: penstock serve --data DIR; or name another address with --url")


def embedded_store(directory: Path, settings: Settings) -> Iterator[CheckResult]:
    if directory.exists() and not directory.is_dir():
        # The check of the disk reports that.
        return
    if directory.exists() and not os.access(directory, os.X_OK):
        yield _no_permission(directory)
        return
    if not (directory / FILE_NAME).exists():
        if (directory / RESTORING).exists():
            yield problem("store", str(StoreUnfinished(str(directory))), ADVICE[StoreUnfinished])
        else:
            advice = f"penstock serve --data {shlex.quote(str(directory))} creates one"
            yield ok("store", f"there is none in {directory} yet", advice)
        return
    files = [directory / name for name in (FILE_NAME, LOCK_NAME)]
    if not all(os.access(file, os.R_OK) for file in files if file.exists()):
        yield _no_permission(directory / FILE_NAME)
        return
    yield from _open_store(store_url(directory), f"--data {shlex.quote(str(directory))}", RESTORE)
    yield access(directory, settings)
    yield wal(directory, settings)
    yield ok("served", "a server has it open" if is_served(directory) else "no server has it open")


def postgres_store(url: str) -> Iterator[CheckResult]:
    try:
        place = shown_place(url)
    except InvalidRequest as error:
        # A missing driver is another finding.
        yield problem("store", str(error), "see docs/postgresql.md for how to name a store")
        return
    yield from _open_store(url, f"--store {place}", DATABASE)


def _no_permission(path: Path) -> CheckResult:
    owner = path.stat().st_uid
    return problem("store", f"{path} belongs to user {owner}, and you may not open it", "run the doctor as that user")


def _open_store(url: str, flags: str, otherwise: str) -> Iterator[CheckResult]:
    """Open a store for reading and check it. `otherwise` is the advice for errors without better advice."""
    verify = f"penstock verify {flags}"
    try:
        with closing(open_reader(url)) as store:
            stats = store.stats()
            yield _identity(stats)
            if (refusal := store.refusal()) is not None:
                yield problem("writes", f"the store refuses writes: {refusal.reason}", DURABLE)
            yield erasures(store.open_erasures())
            checked, last = records(store, stats.head, verify)
            yield checked
            yield times(store.now(), last)
    except (TypeError, ValueError) as error:
        # A damaged file can hold any value in any column.
        yield problem(
            "store",
            f"it holds an impossible value: {error}",
            f"{verify} says more; see docs/operations.md for what to do",
        )
    except (PenstockError, OSError) as error:
        yield problem("store", _reason(error), _advice(error) or otherwise)


def _reason(error: PenstockError | OSError) -> str:
    # The sentence of StorageFailure is about a write in flight, and the doctor writes nothing.
    return f"the store failed: {error.reason}" if isinstance(error, StorageFailure) else str(error)


def _advice(error: PenstockError | OSError) -> str | None:
    if isinstance(error, StorageFailure) and "older schema" in error.reason:
        return "make a backup with the Penstock version that served it last, then start a server on it once"
    return ADVICE.get(type(error))


def _identity(stats: StoreStats) -> CheckResult:
    identity = f"{stats.store_id}, timeline {stats.timeline}, schema {stats.schema}"
    events = f"{stats.head:,} event{'s' * (stats.head != 1)}"
    return ok("store", f"{identity}: {events}, {stats.sealed:,} sealed")


def erasures(unfinished: int) -> CheckResult:
    if not unfinished:
        return ok("erasures", "none is unfinished")
    advice = "a running server finishes them; penstock erasures lists them"
    return warning("erasures", f"{unfinished:,} not finished", advice)


def access(directory: Path, settings: Settings) -> CheckResult:
    """The users that can open the store's files: they can read all events, and block all writes with a lock."""
    found = exposed(directory, shared=settings.group_access)
    if not found:
        whom = "its owner and its group" if settings.group_access else "its owner"
        return ok("access", f"only {whom} can use the store's files")
    names = ", ".join(f"{place.name} is {place.shown}" for place in found)
    command = f"chmod -R {'o' if settings.group_access else 'go'}= {shlex.quote(str(directory))}"
    group = "; if its group may use it, set group_access" if is_shared(directory) else ""
    return warning(
        "access",
        f"other users can read and lock the store: {names}",
        f"restart its server as the owner of the files, or {command}{group}",
    )


def wal(directory: Path, settings: Settings) -> CheckResult:
    path = directory / f"{FILE_NAME}-wal"
    length = path.stat().st_size if path.exists() else 0
    seen = f"{length / MB:,.1f} MB"
    if length <= WAL_TIMES * settings.wal_bytes_max:
        return ok("write-ahead log", seen)
    return warning("write-ahead log", f"{seen}, which is long", "end long reads of the store, or restart its server")


def records(store: Store, head: int, verify: str) -> tuple[CheckResult, Record | None]:
    """Check that the first and the last records are whole and without gaps; also returns the last record."""
    last: Record | None = None
    try:
        for start in sorted({1, max(1, head - CHECKED_EVENTS + 1)} if head else ()):
            last = _check_records(store, start, head)
    except (PenstockError, TypeError, ValueError) as error:
        reason = _reason(error) if isinstance(error, PenstockError) else f"an impossible value: {error}"
        advice = f"{verify} lists all damage; see docs/operations.md for what to do"
        return problem("records", reason, advice), None
    ends = "all are whole" if head <= CHECKED_EVENTS else f"the first and last {CHECKED_EVENTS:,} events are whole"
    return ok("records", f"{ends}, in a quick check; {verify} checks everything"), last


def _check_records(store: Store, start: int, head: int) -> Record | None:
    """Check the records from a position on, within the limits; returns the last of them. Raises StorageFailure."""
    page = store.read_records(start, EventFilter(), CHECK_LIMITS)
    expected = start
    for record in page.records:
        if record.position > expected:
            raise StorageFailure(f"the event at position {expected} is missing")
        expected = record.last + 1
    if page.end and expected <= head:
        raise StorageFailure(f"the event at position {expected} is missing, and the last one is {head}")
    return page.records[-1] if page.records else None


def times(now: int, last: Record | None) -> CheckResult:
    skew = (now - now_ticks()) / TICKS_PER_SECOND
    if abs(skew) > SKEW_S_MAX:
        return warning("times", f"the store's clock is {skew:+.1f} s from this machine's", "let NTP keep both clocks")
    recorded = max((run.recorded for run in last.runs()), default=0) if last is not None else 0
    ahead = (recorded - now) / TICKS_PER_SECOND
    if ahead <= SKEW_S_MAX:
        return ok("times", "the clock is not behind the last event")
    until = f"{datetime_of(recorded):%Y-%m-%dT%H:%M:%SZ}"
    return warning(
        "times",
        f"the last event was recorded {ahead:,.0f} s in the future, at {until}",
        f"if the clock is right, wait: until {until} all events are recorded at that time; if it is wrong, set it",
    )
