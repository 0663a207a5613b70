"""`penstock doctor`: checks of this machine, a store or a server, with advice."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

import typer

from penstock.cli.connection import LOCAL, named_address
from penstock.cli.options import AsJson, Config, StoreData, StoreUrl, Url
from penstock.cli.output import Painted, counted, has_colours, print_document, print_line
from penstock.doctor import CheckResult, Target, examine
from penstock.settings import resolve
from penstock.settings.sources import without_password

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


def _target(url: str | None, data: str | None, store: str | None, config: Path | None) -> Target:
    address = named_address(url, data, store, config)
    settings = resolve({"data": data, "store": store}, os.environ, config).settings
    if address is None:
        return Target(settings, os.environ)
    # A client would create a store that is not there.
    if address.startswith(SQLITE):
        return Target(settings, os.environ, data=Path(address.removeprefix(SQLITE)))
    if address.startswith(LOCAL):
        return Target(settings, os.environ, database=address)
    # Missing libraries are a finding.
    with suppress(ImportError):
        from penstock.client.transport import transport_to  # noqa: PLC0415

        transport_to(address)
    return Target(settings, os.environ, url=address)


def _printed(findings: Iterable[CheckResult]) -> Iterator[CheckResult]:
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
