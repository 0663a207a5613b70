"""`penstock lake`: the history as Parquet files that any engine reads."""

import sys
from typing import Annotated, Final

import typer

from penstock.cli.options import AGAIN, AsJson, Conf, Master, NewData, NewStore, new_store_url, option, session
from penstock.cli.output import (
    counted,
    fail,
    print_document,
    print_fields,
    print_line,
    print_lines,
    print_result,
    progress_bar,
    refuse,
    size,
)
from penstock.cli.signals import interruptible
from penstock.cli.sql import (
    INTERRUPTION,
    AllowDir,
    FileOption,
    Memory,
    Output,
    OutputFormat,
    SpillDir,
    Statement,
    format_of,
    limits_of,
    statement_of,
    write_answer,
)
from penstock.errors import LakeInUse
from penstock.files import is_replaceable
from penstock.lake.archiver import Archived, Archiver
from penstock.lake.compaction import compact
from penstock.lake.restore import restore_lake
from penstock.lake.verification import status, verify
from penstock.settings.table import size as size_of
from penstock.terminal import print_error

APP_NAME: Final = "penstock lake"
INTERVAL_S: Final = 10.0
LOCK_WAIT_S: Final = 60.0
"""How long a compaction waits for the lock that an archive with --follow holds."""
DIFFERENCES_PRINTED_MAX: Final = 1000

lake_app = typer.Typer(no_args_is_help=True)

Url = Annotated[str, option("--url", "the store: sqlite:///DIR, postgresql://… or penstock://HOST:PORT", "URL")]
Lake = Annotated[str, option("--lake", "a folder, or a URL such as s3://BUCKET/FOLDER", "LAKE")]


@lake_app.command("archive")
def archive_command(
    url: Url,
    lake: Lake,
    follow: Annotated[bool, option("--follow", "continue until Ctrl-C or SIGTERM")] = False,
    interval: Annotated[
        float, option("--interval", "seconds between two rounds of --follow", "S", min=0.1)
    ] = INTERVAL_S,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring a lake up to its store's head; a lake that does not exist is created. If this is killed, run it again."""
    with interruptible(AGAIN, interrupt_at=2 if follow else 1) as stop, session(APP_NAME, master, conf) as spark:
        archiver = Archiver(spark, url, lake)
        is_blocked = False
        while True:
            try:
                with progress_bar() as bar:
                    archived = archiver.catch_up(bar, lambda: stop.is_set)
                if not follow or archived.events or archived.rewritten:
                    _print_archived(archived, as_json, many=follow)
                is_blocked = False
            except LakeInUse as error:
                if not follow:
                    raise
                if not is_blocked:
                    print_error(f"waiting: {error}")
                is_blocked = True
            if not follow:
                return
            if not stop.wait(interval):
                break
    print_error("stopped; the last round is complete")


def _print_archived(archived: Archived, as_json: bool, *, many: bool) -> None:
    if as_json and many:
        print_lines([archived._asdict()])
    else:
        rewritten = f", {counted(archived.rewritten, 'file')} rewritten" if archived.rewritten else ""
        what = f"{archived.events:,} new of {counted(archived.head, 'event')} archived"
        line = f"{what}, {counted(archived.files, 'new file')}{rewritten}"
        print_result(archived._asdict(), line, as_json=as_json)
    # With --follow into a pipe, each round is printed when it is done.
    sys.stdout.flush()


@lake_app.command("compact")
def compact_command(
    lake: Lake,
    file_size: Annotated[str, option("--file-size", "approximate size of the new files", "SIZE")] = "128 MiB",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Merge many small files into few large ones. The lake can be read meanwhile."""
    try:
        target = int(size_of(1)(file_size))
    except ValueError as error:
        refuse(f"--file-size is {file_size!r}: it {error}")
    with interruptible(AGAIN), session(APP_NAME, master, conf) as spark, progress_bar() as bar:
        done = compact(spark, lake, bar, target, patience_s=LOCK_WAIT_S)
    line = f"{counted(done.replaced, 'file')} became {done.made:,}; the lake has {counted(done.files, 'file')}"
    print_result(done._asdict(), line, as_json=as_json)


@lake_app.command("verify")
def verify_command(url: Url, lake: Lake, master: Master = None, conf: Conf = None, as_json: AsJson = False) -> None:
    """Compare a lake with its store: counts and checksums of every range. Exit code 1 if anything differs."""
    with interruptible("interrupted"), session(APP_NAME, master, conf) as spark, progress_bar() as bar:
        found = verify(spark, url, lake, bar)
    differences = found.differences
    if as_json:
        print_document({**found._asdict(), "differences": [each._asdict() for each in differences]})
    for each in differences[:DIFFERENCES_PRINTED_MAX] if not as_json else ():
        print_line(f"positions {each.first} to {each.last} ({each.path}): {each.what}")
    if differences:
        fail(f"{counted(len(differences), 'difference')} between the lake and the store")
    if not as_json:
        behind = f"; the store has {counted(found.behind, 'event')} more" if found.behind else ""
        files = f"{counted(found.rows, 'event')} in {counted(found.files, 'file')}"
        print_line(f"{files}, up to position {found.head:,}: the same as in the store{behind}")


@lake_app.command("status")
def status_command(
    lake: Lake,
    url: Annotated[str | None, option("--url", "the store, to show the lag")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the lag, files, bytes, last run and lock of a lake. Needs no Spark."""
    found = status(lake, url)
    if as_json:
        print_document(found._asdict())
        return
    rows = {
        "lake": found.lake,
        "store": f"{found.store_id}, timeline {found.timeline}",
        "events": f"{found.rows:,}, up to position {found.head:,}",
    }
    if found.behind is not None:
        erased = "; events were erased since" if found.is_erasure_pending else ""
        rows["behind"] = f"{counted(found.behind, 'event')}{erased}"
    rows["files"] = f"{found.files:,}, {size(found.bytes)}"
    if found.first_recorded is not None and found.last_recorded is not None:
        rows["recorded"] = f"{found.first_recorded} to {found.last_recorded}"
    rows["last run"] = found.last_run
    if found.in_use_by:
        rows["in use by"] = found.in_use_by
    if found.interrupted:
        rows["interrupted"] = f"{found.interrupted}; the next run completes it"
    print_fields(rows)


@lake_app.command("restore")
def restore_command(lake: Lake, data: NewData = None, store: NewStore = None, as_json: AsJson = False) -> None:
    """Create a store from a lake alone, in an empty place. It is on a new timeline. Needs no Spark.

    A lake has no principals: if its store had some, make new ones before you serve the new store.
    """
    restored = restore_lake(lake, new_store_url(data, store), progress_bar)
    if restored.had_principals:
        print_error(
            "a lake has no principals, so the restored store is open to every client: "
            "run penstock access init before you serve it"
        )
    erased = f" ({restored.erased:,} more are erased)" if restored.erased else ""
    events = f"{counted(restored.events, 'event')}{erased} from {counted(restored.files, 'file')}"
    line = f"restored {events}, now on timeline {restored.timeline}; compared with the lake"
    print_result(restored._asdict(), line, as_json=as_json)


@lake_app.command("query")
def query_command(
    statement: Statement,
    lake: Lake,
    url: Annotated[str | None, option("--url", "the lake's store, for events not archived yet", "URL")] = None,
    output: Output = None,
    file: FileOption = None,
    memory: Memory = "1 GiB",
    temp: SpillDir = None,
    allow_dir: AllowDir = None,
) -> None:
    """Query a lake in SQL: the table `events`. Needs no Spark.

    With --url, the table also has the events of the store that are not archived yet. Statements read other files than
    the lake's only below --allow-dir.
    """
    kind, limits, text = format_of(output, file), limits_of(memory, temp, allow_dir), statement_of(statement)
    from penstock.lake.query import query_lake  # noqa: PLC0415

    is_repeatable = kind is OutputFormat.TABLE or (file is not None and is_replaceable(file))
    with interruptible(INTERRUPTION):
        asked = query_lake(
            lake, url, text, lambda answer: write_answer(answer, kind, file), limits, is_repeatable=is_repeatable
        )
    if url is None:
        archived = f"up to position {asked.head:,}, as archived at {asked.manifest.written}"
        print_error(f"{archived}; --url adds newer events")
