"""This machine: its clock, and how many files a process may have open."""

import resource
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from penstock.doctor.findings import Finding, ok, problem, warning
from penstock.settings import Settings

CLOCK_MIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_MAX: Final = datetime(2100, 1, 1, tzinfo=UTC)
"""A clock outside of these has not been set."""
OTHER_FILES: Final = 72
"""Files and sockets of a server besides its connections: the store, workers."""


def machine(settings: Settings) -> Iterator[Finding]:
    """Look at all of it."""
    yield clock(datetime.now(UTC))
    yield open_files(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def clock(now: datetime) -> Finding:
    """Whether somebody has set the clock."""
    shown = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    if CLOCK_MIN <= now < CLOCK_MAX:
        return ok("clock", shown)
    return problem("clock", f"it is {shown} by this machine's clock", "set the clock, and have it kept by NTP")


def open_files(settings: Settings, limit: int) -> Finding:
    """Whether a server could have as many connections as its settings allow."""
    gates = (settings.res_connections_max, settings.mq_connections_max, settings.remits_connections_max)
    connections = sum(gates) + settings.http_connections_max
    wanted = connections + OTHER_FILES
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "as many as a process wants")
    if limit >= wanted:
        return ok("open files", f"{limit:,} for each process")
    message = f"{limit:,} for each process, and a server with all its connections needs {wanted:,}"
    return warning(
        "open files",
        message,
        f"ulimit -n {wanted}, or lower res_connections_max, mq_connections_max and remits_connections_max",
    )
