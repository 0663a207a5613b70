"""`penstock doctor`: whether all is well with this machine, a store or a server, and what to do if it is not."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli.connecting import Url, by_flag, telling
from penstock.cli.options import Config, Data, StoreUrl
from penstock.cli.output import (
    AsJson,
    Painted,
    counted,
    has_colours,
    print_document,
    print_line,
    refuse,
)
from penstock.settings import ResolvedSettings, Settings, resolve
from penstock.settings.loading import without_password

if TYPE_CHECKING:
    from penstock.doctor import Finding, Patient

__all__ = ["doctor_command"]

SQLITE: Final = "sqlite:///"
LOCAL: Final = (SQLITE, "postgresql://", "postgres://")
"""What addresses of stores begin with, to which no server is needed."""
COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red"}
STATUS_COLUMNS: Final = 7
CHECK_COLUMNS: Final = 15


def doctor_command(
    data: Data = None,
    store: StoreUrl = None,
    url: Url = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, Java, ports, the disk and a store, and say what to do.

    With --data or --store a store is looked at, which may be in use meanwhile; with --url a running server. Nothing is
    changed: one small file is written, to see how fast the disk syncs, and removed. The exit code is 1 if there is a
    problem; a warning is none.
    """
    from penstock.doctor import examine  # noqa: PLC0415 - it takes a moment, and help needs none of it

    findings = examine(patient(url, data, store, config))
    found = list(findings) if as_json else list(told(findings))
    problems, warnings = (sum(finding.status == status for finding in found) for status in ("problem", "warning"))
    if as_json:
        print_document({"ok": not problems, "checks": [document(finding) for finding in found]})
    else:
        print_line(conclusion(problems, warnings))
    raise typer.Exit(1 if problems else 0)


def patient(url: str | None, data: str | None, store: str | None, config: Path | None) -> "Patient":
    """What is to be looked at. A flag beats the variable that names a server, and that beats the settings."""
    if sum((by_flag(url), data is not None, store is not None)) > 1:
        refuse("only one of --url, --data and --store can be given")
    with telling():
        resolved = resolve({"data": data, "store": store}, os.environ, config)
        if url is not None and data is None and store is None:
            return of_address(resolved.settings, url)
        return of_store(placed(resolved))


def of_address(settings: Settings, url: str) -> "Patient":
    """A look at what `--url` names. A store is not opened as a client would do it, who makes one that is not there."""
    from penstock.doctor import Patient  # noqa: PLC0415

    if url.startswith(LOCAL):
        return of_store(replace(settings, data=None, store=url))
    # Libraries that are missing are a finding of their own, with what to do.
    with suppress(ImportError):
        from penstock.client.transport import transport_to  # noqa: PLC0415

        transport_to(url)
    return Patient(settings, os.environ, url=url)


def placed(resolved: ResolvedSettings) -> Settings:
    """The settings with one of `data` and `store`, if one is better placed."""
    if resolved.settings.data is None or resolved.settings.store is None:
        return resolved.settings
    # What serves stores takes long to import.
    from penstock.cli.serve import one_store  # noqa: PLC0415

    return one_store(resolved)


def of_store(settings: Settings) -> "Patient":
    """A look at the store that the settings name, if they name one."""
    from penstock.doctor import Patient  # noqa: PLC0415

    if settings.store is None:
        return Patient(settings, os.environ, data=settings.data)
    if settings.data is not None:
        refuse("only one of --data and --store can be given")
    if settings.store.startswith(SQLITE):
        return Patient(settings, os.environ, data=Path(settings.store.removeprefix(SQLITE)))
    return Patient(settings, os.environ, database=settings.store)


# --- what it says ---------------------------------------------------------------------------------------------


def told(findings: Iterable["Finding"]) -> Iterator["Finding"]:
    """Tell people of findings as they come, and pass them on."""
    colours = has_colours()
    for finding in findings:
        for line in lines(finding):
            print_line(*line, colours=colours)
        sys.stdout.flush()
        yield finding


def lines(finding: "Finding") -> Iterator[tuple[str | Painted, ...]]:
    """A finding for people: what it is, and below it what to do."""
    status = Painted(f"{finding.status:<{STATUS_COLUMNS}}", COLOURS[finding.status])
    yield status, f"  {finding.check:<{CHECK_COLUMNS}}  {fit(finding.message)}"
    if finding.advice is not None:
        yield " " * (STATUS_COLUMNS + CHECK_COLUMNS + 4), Painted("→", "dim"), f" {fit(finding.advice)}"


def fit(text: str) -> str:
    """A sentence in one line, without passwords."""
    return " ".join(str(without_password(text)).split())


def document(finding: "Finding") -> dict[str, object]:
    """A finding for programs."""
    return {name: without_password(value) for name, value in asdict(finding).items()}


def conclusion(problems: int, warnings: int) -> str:
    """All of it in a line."""
    if not problems and not warnings:
        return "nothing is wrong"
    return f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}"
