"""Upkeep of a store: `penstock verify`, `backup`, `backups`, `restore`, `migrate-store`, `erase` and `erasures`."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from penstock.backup import Manifest, back_up, chain, check_all, copy_store, open_place, restore_backup
from penstock.cli.connection import address_of, by_flag, connected, error_line, opened, store_errors
from penstock.cli.options import URL_ENVIRONMENT, AsJson, Data, NewData, NewStore, Url, argument, new_store_url, option
from penstock.cli.output import (
    agreed,
    console,
    counted,
    fail,
    print_document,
    print_line,
    print_result,
    print_table,
    progress_bar,
    refuse,
    size,
    stop_command,
)
from penstock.cli.signals import INTERRUPTED
from penstock.cli.stats import all_pages
from penstock.client import Client
from penstock.engine.jobs import erasure_info
from penstock.errors import PenstockError
from penstock.model.times import datetime_of
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
    that were erased after the backup stay erased. Principals are those of the store that is replaced, else those of the
    newest backup.
    """
    url = new_store_url(data, store)
    with store_errors(), open_place(path, write=False) as place:
        restored = restore_backup(place, url, progress_bar, number=number, replace=replace)
    if restored.is_ledger_lost:
        print_error(
            "the store that was replaced is damaged: events that were erased after the last backup may be back; "
            "erase them again"
        )
    if restored.access_backup is not None:
        print_error(
            f"principals and tokens are those of backup {restored.access_backup}: "
            "revoke again what was revoked after it (penstock access list)"
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


# --- erasures -------------------------------------------------------------------------------------------------

ServerUrl = Annotated[
    str | None,
    option(
        "--url",
        "the server of the store, or the store itself; there is no default, so that nothing is erased by mistake",
        "penstock://HOST:PORT",
        envvar=URL_ENVIRONMENT,
    ),
]


def erase_command(
    stream: Annotated[str | None, option("--stream", "erase all events of a stream", "CONTEXT/STREAM")] = None,
    subject: Annotated[str | None, option("--subject", "erase events whose headers name this subject", "TEXT")] = None,
    context: Annotated[str | None, option("--context", "with --subject: only in this context", "CONTEXT")] = None,
    url: ServerUrl = None,
    data: Data = None,
    yes: Annotated[bool, option("--yes", "do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase events for good: their types, headers and bodies leave every file of the store.

    Ids, sequences, positions and times stay. The command returns when everything is gone. Copies made before, such as
    backups, still have the events.
    """
    if (stream is None) == (subject is None):
        refuse("say what to erase: either --stream CONTEXT/STREAM or --subject TEXT")
    if stream is not None and (context is not None or "/" not in stream):
        refuse("--stream names a stream as CONTEXT/STREAM; --context can be combined with --subject only")
    if by_flag(url) if data is not None else url is None:
        refuse("say where: either --url penstock://HOST:PORT or --data DIR")
    if not yes and not sys.stdin.isatty():
        refuse("an erasure cannot be undone: use --yes to erase without a question")
    with connected(url, data) as client:
        if not yes and not agreed(_question(client, stream, subject, context)):
            fail("nothing was erased")
        before = max((info.id for info in client.erasures()), default=0)
        try:
            if stream is not None:
                of, _, name = stream.partition("/")
                events = client.erase_stream(of, name)
            else:
                events = _erase_subject(client, subject or "", context)
            with console(stderr=True).status("waiting until the erasure is finished"):
                client.wait_erased()
        except KeyboardInterrupt:
            rest = "the events found so far are hidden and will be erased; run the command again for the others"
            stop_command(f"interrupted: {rest}", INTERRUPTED)
        damaged = sum(info.damaged for info in client.erasures() if info.id > before)
    line = f"erased {counted(events, 'event')}{'' if damaged else '; the erasure is finished'}"
    print_result(
        {"events": events, "damaged": damaged}, line if events else "there was nothing to erase", as_json=as_json
    )
    if damaged:
        records = counted(damaged, "damaged record")
        fail(
            f"{records} could not be rewritten and may hold erased data that no reader gets; penstock verify names them"
        )


def _question(client: Client, stream: str | None, subject: str | None, context: str | None) -> str:
    if stream is None:
        place = "all contexts" if context is None else f"context {context}"
        return f"Erase all events in {place} whose headers name the subject {subject!r} for good?"
    context, _, name = stream.partition("/")
    events = next((info.events for info in client.streams(context, name) if info.name == name), 0)
    return f"Erase the {counted(events, 'event')} of stream {name} in context {context} for good?"


def _erase_subject(client: Client, subject: str, context: str | None) -> int:
    events, head = 0, client.stats().head
    with progress_bar() as bar:
        for step in client.erase_subject_steps(subject, context):
            events += step.events
            bar(min(step.next - 1, head), head)
    return events


def erasures_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List what was erased, oldest first, and whether it has left all files."""
    if data is None:
        with connected(url) as client:
            found = list(client.erasures())
    else:
        with opened(address_of(url, data)) as store:
            found = [erasure_info(one) for one in all_pages(store.erasures, 0, lambda erasure: erasure.id)]
    if as_json:
        times = [{"requested": _time(info.requested), "finished": _time(info.finished)} for info in found]
        print_document([{**asdict(info), **of} for info, of in zip(found, times, strict=True)])
        return
    rows = [
        (
            info.id,
            f"{info.context}/{info.stream}" if info.stream is not None else "single events, or output",
            info.events,
            _short_time(info.requested),
            "not yet" if info.finished is None else _short_time(info.finished),
        )
        for info in found
    ]
    print_table(("#id", "what", "#events", "requested", "finished"), rows, empty="nothing was erased")


def _time(ticks: int | None) -> str | None:
    return None if ticks is None else datetime_of(ticks).isoformat(timespec="seconds")


def _short_time(ticks: int) -> str:
    return f"{datetime_of(ticks):%Y-%m-%d %H:%M:%SZ}"
