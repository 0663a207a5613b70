"""Which checks are made, in which order."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from penstock.doctor.findings import Finding, Status, ok
from penstock.doctor.installation import installation
from penstock.doctor.machine import machine
from penstock.doctor.spark import spark
from penstock.settings import Settings

INDISPENSABLE = ("libraries", "sqlite")
"""Without these nothing else of Penstock can be imported, and so no more be looked at."""


@dataclass(frozen=True, slots=True)
class Patient:
    """What is looked at: this machine with these settings, and at most one of a directory, a database and a server."""

    settings: Settings
    environ: Mapping[str, str]
    data: Path | None = None
    database: str | None = None
    url: str | None = None


def examine(patient: Patient) -> Iterator[Finding]:
    """Everything, in an order in which it makes sense to read it."""
    installed = list(installation(needs_postgres=patient.database is not None))
    yield from installed
    yield from spark(patient.environ)
    yield from machine(patient.settings)
    if not any(finding.status is Status.PROBLEM and finding.check in INDISPENSABLE for finding in installed):
        yield from working(patient)


def working(patient: Patient) -> Iterator[Finding]:
    """What can be looked at with an installation that works."""
    from penstock.doctor.ports import ports  # noqa: PLC0415

    if patient.url is not None:
        from penstock.doctor.servers import served  # noqa: PLC0415

        yield from served(patient.url)
        return
    yield from ports(patient.settings)
    yield from places(patient)


def places(patient: Patient) -> Iterator[Finding]:
    """Where a store is, or may come to be."""
    from penstock.doctor.disk import disk  # noqa: PLC0415
    from penstock.doctor.stores import embedded, shared  # noqa: PLC0415

    if patient.database is not None:
        yield from shared(patient.database)
        return
    yield from disk(patient.data or Path(), patient.settings)
    if patient.data is not None:
        yield from embedded(patient.data, patient.settings)
    else:
        yield ok("store", "none was named", "for a look at one: --data DIR, --store URL, or --url URL of a server")
