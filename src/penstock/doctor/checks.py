"""The checks of `penstock doctor` in their order, and their results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from penstock.settings import Settings

INDISPENSABLE: Final = ("libraries", "sqlite")
"""Checks without which nothing else of Penstock can be imported."""


class CheckStatus(StrEnum):
    """How bad a finding is. A warning may be intended, so it is not a failure."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check: what it found, and what to do."""

    check: str
    status: CheckStatus
    message: str
    advice: str | None = None


def ok(check: str, message: str, advice: str | None = None) -> CheckResult:
    return CheckResult(check, CheckStatus.OK, message, advice)


def warning(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckStatus.WARNING, message, advice)


def problem(check: str, message: str, advice: str) -> CheckResult:
    return CheckResult(check, CheckStatus.PROBLEM, message, advice)


@dataclass(frozen=True, slots=True)
class Target:
    """This machine with these settings, and at most one of a directory, a database and a server."""

    settings: Settings
    environ: Mapping[str, str]
    data: Path | None = None
    database: str | None = None
    url: str | None = None


def examine(target: Target) -> Iterator[CheckResult]:
    """All checks. Those that need libraries are skipped if libraries are missing."""
    from penstock.doctor.machine import disk, installation, machine, spark  # noqa: PLC0415 - they import this module

    installed = list(installation(needs_postgres=target.database is not None))
    yield from installed
    yield from spark(target.environ)
    yield from machine(target.settings)
    if any(finding.status is CheckStatus.PROBLEM and finding.check in INDISPENSABLE for finding in installed):
        return
    from penstock.doctor.ports import ports  # noqa: PLC0415
    from penstock.doctor.stores import embedded_store, postgres_store, server  # noqa: PLC0415

    if target.url is not None:
        yield from server(target.url)
        return
    yield from ports(target.settings)
    if target.database is not None:
        yield from postgres_store(target.database)
        return
    yield from disk(target.data or Path(), target.settings)
    if target.data is not None:
        yield from embedded_store(target.data, target.settings)
    else:
        yield ok("store", "no store was named", "name one to check it: --data DIR, --store URL, or --url of a server")
