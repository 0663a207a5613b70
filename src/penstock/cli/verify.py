"""`penstock verify`: whether a store is what was written."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.cli.output import complain, console, counted, print_document, print_line
from penstock.cli.stores import opened
from penstock.errors import PenstockError
from penstock.server import complaint
from penstock.store import Store
from penstock.store.contract import Finding, Progressed
from penstock.terminal import one_line


def verify_command(
    url: str,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """Check a whole store: checksums, positions, sequences, queues and subscriptions.

    The store may be in use meanwhile. What is wrong is printed line by line, and the exit code is 1 then.
    """
    count = Count()
    with opened(url) as store, progress_bar() as bar:
        found = shown(findings(store, count.before(bar)), as_json)
    conclude(count.events, found, as_json)


class Count:
    """How many events were to be checked, as the check itself says it: a damaged store may not tell otherwise."""

    events = 0

    def before(self, progressed: Progressed) -> Progressed:
        """Hear of progress before somebody else does."""

        def heard(done: int, total: int) -> None:
            self.events = total
            progressed(done, total)

        return heard


def findings(store: Store, progressed: Progressed) -> Iterator[Finding]:
    """What is wrong; also what keeps the check from going on."""
    try:
        yield from store.verify(progressed)
    except PenstockError as error:
        yield Finding("store", complaint(error))
    except (TypeError, ValueError) as error:
        # A damaged file can hold any value in any column, a number or broken text where bytes should be.
        yield Finding("store", f"holds a value that cannot be: {error}")


def shown(findings: Iterator[Finding], as_json: bool) -> list[Finding]:
    """All findings; people see them as they come."""
    found: list[Finding] = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            print_line(one_line(f"{finding.where}: {finding.what}"))
    return found


def conclude(events: int, found: list[Finding], as_json: bool) -> None:
    """Say what came of it, and end with the right exit code."""
    if as_json:
        report = {"events": events, "ok": not found, "findings": [finding._asdict() for finding in found]}
        print_document(report)
    elif not found:
        print_line(f"{counted(events, 'event')}, nothing wrong")
    if found:
        things = "1 thing is" if len(found) == 1 else f"{len(found)} things are"
        raise typer.Exit(complain(f"{things} wrong with this store", 1))


@contextmanager
def progress_bar(what: str = "events") -> Iterator[Progressed]:
    """A bar on standard error, if somebody looks at it."""
    screen = console(stderr=True)
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task("events", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
