"""`penstock lake`: the history as Parquet files that any engine reads."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.bars import rate_bar
from penstock.cli.options import NewData, NewStore, new_store_url
from penstock.cli.output import (
    AsJson,
    complain,
    counted,
    fail,
    print_document,
    print_line,
    print_lines,
    refuse,
    size,
)
from penstock.cli.sparks import AGAIN, Conf, Master, ending, interruptible, session
from penstock.cli.sql import (
    INTERRUPTION,
    AllowDir,
    FileOption,
    Format,
    Memory,
    Output,
    Spilling,
    Statement,
    format_of,
    limits_of,
    statement_of,
    write_answer,
)
from penstock.errors import LakeInUse
from penstock.files import is_replaceable
from penstock.settings.table import size as size_of

if TYPE_CHECKING:
    from penstock.lake.archiver import Archived, Archiver
    from penstock.lake.status import Status
    from penstock.lake.verification import Verified
    from penstock.store.contract import Progressed

__all__ = ["lake_app"]

NAME: Final = "penstock lake"
"""What Spark shows of it."""
INTERVAL_S: Final = 10.0
PATIENCE_S: Final = 60.0
"""How long a compaction waits for its turn beside an archive that follows."""
DIFFERENCES_TOLD_MAX: Final = 1000

lake_app = typer.Typer(help="Keep a store's history as Parquet files that any engine reads.", no_args_is_help=True)

Url = Annotated[
    str, typer.Option("--url", help="the store: sqlite:///DIR, postgresql://… or penstock://HOST:PORT", metavar="URL")
]
Lake = Annotated[str, typer.Option("--lake", help="a folder, or a URL such as s3://BUCKET/FOLDER", metavar="LAKE")]


@lake_app.command("archive")
def archive_command(
    url: Url,
    lake: Lake,
    follow: Annotated[bool, typer.Option("--follow", help="go on until Ctrl-C or SIGTERM")] = False,
    interval: Annotated[
        float, typer.Option("--interval", help="seconds between two rounds that follow", metavar="S", min=0.1)
    ] = INTERVAL_S,
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Bring a lake up to its store's head; it is made if it is not there. If this is killed, run it again."""
    from penstock.lake.archiver import Archiver  # noqa: PLC0415

    def catch_up(archiver: "Archiver", is_ending: Callable[[], bool] = lambda: False) -> None:
        with _bar("events") as bar:
            archived = archiver.catch_up(bar, is_ending)
        if not follow or archived.events or archived.rewritten:
            _tell(archived, as_json, many=follow)

    if not follow:
        with interruptible(AGAIN), session(NAME, master, conf) as spark:
            catch_up(Archiver(spark, url, lake))
        return
    with ending() as is_ending, session(NAME, master, conf) as spark:
        archiver = Archiver(spark, url, lake)
        _follow(lambda: catch_up(archiver, lambda: is_ending(0.0)), lambda: is_ending(interval))
    complain("stopped; all that was begun is done", 0)


def _follow(catch_up: Callable[[], None], is_over: Callable[[], bool]) -> None:
    """Catch up again and again. Who finds the lake in use waits for the next turn, and says so once."""
    is_told = False
    while True:
        try:
            catch_up()
            is_told = False
        except LakeInUse as error:
            if not is_told:
                complain(f"waiting: {error}", 0)
            is_told = True
        if is_over():
            return


def _tell(archived: "Archived", as_json: bool, *, many: bool) -> None:
    """Say what was archived; where that is said again and again, JSON has a line for each."""
    if as_json and many:
        print_lines([archived._asdict()])
    elif as_json:
        print_document(archived._asdict())
    else:
        print_line(_archived(archived))
    # Whoever follows a lake reads in a pipe what is done, when it is done.
    sys.stdout.flush()


def _archived(archived: "Archived") -> str:
    rewritten = f", {counted(archived.rewritten, 'file')} rewritten" if archived.rewritten else ""
    what = f"{archived.events:,} new of {counted(archived.head, 'event')} archived"
    return f"{what}, {counted(archived.files, 'new file')}{rewritten}"


@lake_app.command("compact")
def compact_command(
    lake: Lake,
    file_size: Annotated[
        str, typer.Option("--file-size", help="about how large files become", metavar="SIZE")
    ] = "128 MiB",
    master: Master = None,
    conf: Conf = None,
    as_json: AsJson = False,
) -> None:
    """Make few large files of many small ones. Everybody may read the lake meanwhile."""
    from penstock.lake.compaction import compact  # noqa: PLC0415

    target = _size(file_size)
    with interruptible(AGAIN), session(NAME, master, conf) as spark, _bar("events") as bar:
        done = compact(spark, lake, bar, target, patience_s=PATIENCE_S)
    if as_json:
        print_document(done._asdict())
    else:
        print_line(f"{counted(done.replaced, 'file')} became {done.made:,}; the lake has {counted(done.files, 'file')}")


def _size(text: str) -> int:
    try:
        return int(size_of(1)(text))
    except ValueError as error:
        refuse(f"--file-size is {text!r}: it {error}")


@lake_app.command("verify")
def verify_command(url: Url, lake: Lake, master: Master = None, conf: Conf = None, as_json: AsJson = False) -> None:
    """Compare a lake with its store: counts and checksums of every range. Exit code 1 if anything differs."""
    from penstock.lake.verification import verify  # noqa: PLC0415

    with interruptible("interrupted"), session(NAME, master, conf) as spark, _bar("events") as bar:
        found = verify(spark, url, lake, bar)
    _conclude(found, as_json)


def _conclude(found: "Verified", as_json: bool) -> None:
    differences = found.differences
    if as_json:
        print_document({**found._asdict(), "differences": [each._asdict() for each in differences]})
    for each in differences[:DIFFERENCES_TOLD_MAX] if not as_json else ():
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
    url: Annotated[str | None, typer.Option("--url", help="the store, to see how far behind it is")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how a lake stands: how far behind, files, bytes, the last run, who is at work. Needs no Spark."""
    from penstock.lake.status import status  # noqa: PLC0415

    found = status(lake, url)
    if as_json:
        print_document(found._asdict())
        return
    for name, value in _lines(found):
        print_line(f"{name:<14}{value}")


def _lines(found: "Status") -> Iterator[tuple[str, str]]:
    yield "lake", found.lake
    yield "store", f"{found.store_id}, timeline {found.timeline}"
    yield "events", f"{found.rows:,}, up to position {found.head:,}"
    if found.behind is not None:
        erased = "; events were erased since" if found.is_erasure_pending else ""
        yield "behind", f"{counted(found.behind, 'event')}{erased}"
    yield "files", f"{found.files:,}, {size(found.bytes)}"
    if found.first_recorded is not None and found.last_recorded is not None:
        yield "recorded", f"{found.first_recorded} to {found.last_recorded}"
    yield "last run", found.last_run
    if found.in_use_by:
        yield "in use by", found.in_use_by
    if found.interrupted:
        yield "interrupted", f"{found.interrupted}; the next run sees to it"


@lake_app.command("restore")
def restore_command(
    lake: Lake,
    data: NewData = None,
    store: NewStore = None,
    as_json: AsJson = False,
) -> None:
    """Make a store of a lake alone, where there is none. It is on a new timeline. Needs no Spark."""
    from penstock.lake.restore import restore_lake  # noqa: PLC0415

    restored = restore_lake(lake, new_store_url(data, store), _bar)
    if as_json:
        print_document(restored._asdict())
        return
    erased = f" ({restored.erased:,} more are erased)" if restored.erased else ""
    events = f"{counted(restored.events, 'event')}{erased} from {counted(restored.files, 'file')}"
    print_line(f"restored {events}, now on timeline {restored.timeline}; compared with the lake")


@lake_app.command("query")
def query_command(
    statement: Statement,
    lake: Lake,
    url: Annotated[
        str | None,
        typer.Option("--url", help="the lake's store, for what is not archived yet", metavar="URL", show_default=False),
    ] = None,
    output: Output = None,
    file: FileOption = None,
    memory: Memory = "1 GiB",
    temp: Spilling = None,
    allow_dir: AllowDir = None,
) -> None:
    """Ask a lake in SQL: the table `events`. Needs no Spark.

    With --url, the answer has what the lake's store has had since as well. Other files than the lake's are read only
    below --allow-dir.
    """
    kind, limits, text = format_of(output, file), limits_of(memory, temp, allow_dir), statement_of(statement)
    from penstock.lake.query import query_lake  # noqa: PLC0415

    is_repeatable = kind is Format.TABLE or (file is not None and is_replaceable(file))
    with interruptible(INTERRUPTION):
        asked = query_lake(
            lake, url, text, lambda answer: write_answer(answer, kind, file), limits, is_repeatable=is_repeatable
        )
    if url is None:
        complain(
            f"up to position {asked.head:,}, as archived at {asked.manifest.written}; --url adds what came since", 0
        )


@contextmanager
def _bar(what: str) -> Iterator["Progressed"]:
    """A bar with the rate and the time that is left."""
    with rate_bar(what) as bar:

        def told(done: int, total: int) -> None:
            bar(done, total)

        yield told
