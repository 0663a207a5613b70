"""`penstock doctor`: checks of this machine, a store or a server, with advice."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from penstock.cli.connection import by_flag, exit_on_error
from penstock.cli.options import Config, StoreData, StoreUrl, Url
from penstock.cli.output import AsJson, Painted, counted, has_colours, print_document, print_line, refuse
from penstock.cli.settings import one_store
from penstock.settings import Settings, resolve
from penstock.settings.sources import without_password

if TYPE_CHECKING:
    from penstock.doctor import Finding, Target

SQLITE: Final = "sqlite:///"
COLOURS: Final = {"ok": "green", "warning": "yellow", "problem": "red"}
STATUS_COLUMNS: Final = 7
CHECK_COLUMNS: Final = 15


def doctor_command(
    data: StoreData = None, store: StoreUrl = None, url: Url = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Check Python, Java, ports, the disk and a store, and say what to do.

    With --data or --store the command checks a store, which a server may have open; with --url a running server. It
    changes nothing: it writes one small file, to measure how fast the disk syncs, and removes it. The exit code is 1 if
    there is a problem; warnings do not count.
    """
    from penstock.doctor import examine  # noqa: PLC0415 - it takes a moment, and help does not need it

    findings = examine(_target(url, data, store, config))
    found = list(findings) if as_json else list(_printed(findings))
    problems, warnings = (sum(finding.status == status for finding in found) for status in ("problem", "warning"))
    if as_json:
        checks = [{name: without_password(value) for name, value in asdict(finding).items()} for finding in found]
        print_document({"ok": not problems, "checks": checks})
    elif problems or warnings:
        print_line(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}")
    else:
        print_line("nothing is wrong")
    raise typer.Exit(1 if problems else 0)


def _target(url: str | None, data: str | None, store: str | None, config: Path | None) -> "Target":
    """Find the target. A flag wins over PENSTOCK_URL, and that over the settings."""
    from penstock.doctor import Target  # noqa: PLC0415

    if sum((by_flag(url), data is not None, store is not None)) > 1:
        refuse("only one of --url, --data and --store can be given")
    with exit_on_error():
        resolved = resolve({"data": data, "store": store}, os.environ, config)
        if url is None or data is not None or store is not None:
            return _store_target(one_store(resolved))
        if url.startswith((SQLITE, "postgresql://", "postgres://")):
            # A client would create a store that is not there.
            return _store_target(replace(resolved.settings, data=None, store=url))
        # Missing libraries are a finding.
        with suppress(ImportError):
            from penstock.client.transport import transport_to  # noqa: PLC0415

            transport_to(url)
        return Target(resolved.settings, os.environ, url=url)


def _store_target(settings: Settings) -> "Target":
    from penstock.doctor import Target  # noqa: PLC0415

    if settings.store is None:
        return Target(settings, os.environ, data=settings.data)
    if settings.data is not None:
        refuse("only one of --data and --store can be given")
    if settings.store.startswith(SQLITE):
        return Target(settings, os.environ, data=Path(settings.store.removeprefix(SQLITE)))
    return Target(settings, os.environ, database=settings.store)


def _printed(findings: Iterable["Finding"]) -> Iterator["Finding"]:
    """Print findings as they arrive, and pass them on."""
    colours = has_colours()
    for finding in findings:
        status = Painted(f"{finding.status:<{STATUS_COLUMNS}}", COLOURS[finding.status])
        print_line(status, f"  {finding.check:<{CHECK_COLUMNS}}  {_one_line(finding.message)}", colours=colours)
        if finding.advice is not None:
            indent = " " * (STATUS_COLUMNS + CHECK_COLUMNS + 4)
            print_line(indent, Painted("→", "dim"), f" {_one_line(finding.advice)}", colours=colours)
        sys.stdout.flush()
        yield finding


def _one_line(text: str) -> str:
    return " ".join(str(without_password(text)).split())
