"""Upkeep of a store: `penstock verify`, `backup`, `backups`, `restore` and `migrate-store`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from penstock.backup import Manifest, back_up, chain, check_all, copy_store, open_place, restore_backup
from penstock.cli.connection import error_line, opened, store_errors
from penstock.cli.options import AsJson, NewData, NewStore, argument, new_store_url, option
from penstock.cli.output import (
    counted,
    fail,
    print_document,
    print_line,
    print_result,
    print_table,
    progress_bar,
    size,
)
from penstock.errors import PenstockError
from penstock.store import Store, shown_place, store_url
from penstock.store.contract import Finding, Progressed
from penstock.terminal import one_line, print_error

PLACES = "sqlite:///DIR, postgresql://…, or a directory"

PathArgument = Annotated[Path, argument("PATH", "a folder, or one file if its name ends in .tar")]


def verify_command(url: str, as_json: AsJson = False) -> None:
    """Check a whole store: checksums, positions, sequences, queues and subscriptions.

    A server may have the store open. The command prints each problem on a line, and then ends with exit code 1.
    """
    events = 0
    found: list[Finding] = []
    with opened(url) as store, progress_bar() as bar:

        def progress(done: int, total: int) -> None:
            # The check itself counts the events: a damaged store may not be able to.
            nonlocal events
            events = total
            bar(done, total)

        for finding in findings(store, progress):
            found.append(finding)
            if not as_json:
                print_line(one_line(f"{finding.where}: {finding.what}"))
    if as_json:
        print_document({"events": events, "ok": not found, "findings": [finding._asdict() for finding in found]})
    elif not found:
        print_line(f"{counted(events, 'event')}, nothing wrong")
    if found:
        fail(f"{counted(len(found), 'problem')} in this store")


def findings(store: Store, progress: Progressed) -> Iterator[Finding]:
    """All problems of a store, including one that ends the check early."""
    try:
        with store_errors():
            yield from store.verify(progress)
    except PenstockError as error:
        yield Finding("store", error_line(error))
    except (TypeError, ValueError) as error:
        # A damaged file can hold any value in any column, a number or broken text where bytes should be.
        yield Finding("store", f"holds an impossible value: {error}")


def backup_command(url: str, path: PathArgument, as_json: AsJson = False) -> None:
    """Back up a store to a folder, or to one file. A server may have the store open.

    The first backup writes everything, later ones what is new.
    """
    with opened(url) as store, open_place(path, write=True) as place, progress_bar() as bar:
        written = back_up(store, place, bar)
    manifest, new = written.manifest, {"new_events": written.new_events, "new_bytes": written.new_bytes}
    events = f"{written.new_events:,} new of {counted(manifest.head, 'event')}"
    line = f"backup {manifest.number}: {events}, {size(written.new_bytes)} written"
    print_result({**_manifest_document(manifest), **new}, line, as_json=as_json)


def _manifest_document(manifest: Manifest) -> dict[str, Any]:
    return {
        "number": manifest.number,
        "created": manifest.created,
        "store_id": manifest.store,
        "timeline": manifest.timeline,
        "head": manifest.head,
        "bytes": manifest.bytes,
    }


def backups_command(
    path: PathArgument,
    verify: Annotated[bool, option("--verify", "read all files and check every byte")] = False,
    as_json: AsJson = False,
) -> None:
    """List the backups in a folder or file."""
    with store_errors(), open_place(path, write=False) as place:
        if verify:
            with progress_bar() as bar:
                found = check_all(place, bar)
        else:
            found = list(chain(place))
        if place.doubt:
            print_error(f"{path}: {place.doubt}; the next backup repairs that")
    if as_json:
        print_document([_manifest_document(manifest) for manifest in found])
        return
    rows = [(one.number, one.created, one.timeline, one.head, size(one.bytes)) for one in found]
    print_table(("#backup", "created", "#timeline", "#events", "#size"), rows, empty="no backups")


def restore_command(
    path: PathArgument,
    data: NewData = None,
    store: NewStore = None,
    number: Annotated[int | None, option("--number", "restore this backup, not the newest", "N", min=1)] = None,
    replace: Annotated[bool, option("--replace", "replace the store that is there")] = False,
    as_json: AsJson = False,
) -> None:
    """Restore a store from a backup. No server may have a store open in that place.

    The command checks the whole backup before it changes anything. The restored store is on a new timeline, and events
    that were erased after the backup stay erased.
    """
    url = new_store_url(data, store)
    with store_errors(), open_place(path, write=False) as place:
        restored = restore_backup(place, url, progress_bar, number=number, replace=replace)
    if restored.is_ledger_lost:
        print_error(
            "the store that was replaced is damaged: events that were erased after the last backup may be back; "
            "erase them again",
        )
    where = {"store": shown_place(store)} if store else {"data": str(data)}
    events = f"{restored.events:,} events, now on timeline {restored.timeline}"
    line = f"restored backup {restored.number}: {events}, {counted(restored.erasures, 'erasure')} replayed"
    print_result({**restored._asdict(), **where}, line, as_json=as_json)


def migrate_command(
    source: Annotated[str, argument("SRC", f"the store: {PLACES}")],
    target: Annotated[str, argument("DST", f"an empty place: {PLACES}")],
    as_json: AsJson = False,
) -> None:
    """Move a whole store from SQLite to PostgreSQL, or back. No server may have it open meanwhile.

    The copy is the same store, on the same timeline. The source stays as it is and must not be served any more. If the
    command is interrupted, run it again to continue. It compares the copy with the source.
    """
    source, target = (text if "://" in text else store_url(Path(text)) for text in (source, target))
    with store_errors():
        copied = copy_store(source, target, progress_bar)
    before, after = shown_place(source), shown_place(target)
    document = {
        "source": before,
        "target": after,
        "store_id": copied.identity.id,
        "timeline": copied.identity.timeline,
        "events": copied.events,
        "new_events": copied.new_events,
        "tables": copied.tables,
    }
    new = "" if copied.new_events == copied.events else f" ({copied.new_events:,} of them now)"
    moved = f"moved {counted(copied.events, 'event')}{new} and {counted(sum(copied.tables.values()), 'row')} of state"
    line = f"{moved}, and compared them. Serve {after} from now on, and do not serve {before} again"
    print_result(document, line, as_json=as_json)
