"""`penstock erase`: events that must go for good. `penstock erasures`: what has gone, and what is still going.

Both work through a running server (`--url`), or on a store that nobody serves (`--data`); `erasures` reads one that is
served as well.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer
from rich import box
from rich.table import Table

from penstock.cli.connecting import URL_ENVIRONMENT, Data, Url, address_of, by_flag, telling
from penstock.cli.output import (
    INTERRUPTED,
    AsJson,
    agreed,
    complain,
    console,
    counted,
    print_document,
    print_line,
    refuse,
)
from penstock.cli.stats import all_pages
from penstock.cli.stores import complaining, opened
from penstock.cli.verify import progress_bar
from penstock.client import Client, connect
from penstock.engine.jobs import erasure_info
from penstock.errors import StoreInUse
from penstock.model import ErasureInfo
from penstock.model.times import datetime_of
from penstock.store import store_url

__all__ = ["erase_command", "erasures_command"]

CONNECT_S_MAX: Final = 30.0
"""How long a server may take to answer one request."""

Place = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="a running server, or another address for clients; no other is taken unless it is said",
        metavar="penstock://HOST:PORT",
        envvar=URL_ENVIRONMENT,
    ),
]


def erase_command(
    stream: Annotated[
        str | None, typer.Option("--stream", help="erase all events of a stream", metavar="CONTEXT/STREAM")
    ] = None,
    subject: Annotated[
        str | None, typer.Option("--subject", help="erase events whose headers name this subject", metavar="TEXT")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="with --subject: of this context only", metavar="CONTEXT")
    ] = None,
    url: Place = None,
    data: Data = None,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase events for good: their types, headers and bodies leave every file of the store.

    Ids, sequences, positions and times stay. It returns when all is gone. Copies that were made before, backups among
    them, still have it.
    """
    wanted = Wanted.of(stream, subject, context)
    address = place_of(url, data)
    if not yes and not sys.stdin.isatty():
        refuse("this cannot be undone: say --yes to erase without being asked")
    with complaining(), connected(address, data) as client:
        if not yes and not agreed(wanted.question(client)):
            raise typer.Exit(complain("nothing was erased", 1))
        before = max((info.id for info in client.erasures()), default=0)
        with telling_of_interruption():
            events = wanted.erase(client)
            with console(stderr=True).status("waiting until the erasure is finished"):
                client.wait_erased()
        damaged = sum(info.damaged for info in client.erasures() if info.id > before)
    conclude(events, damaged, as_json)


def erasures_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List what was erased, oldest first, and whether it has left all files."""
    with telling():
        address = address_of(url, data)
        found = list(listed(address, data))
    if as_json:
        print_document([document(info) for info in found])
    elif found:
        console().print(erasure_table(found))
    else:
        print_line("nothing was erased")


class Wanted(NamedTuple):
    """What is to be erased: a stream, or what names a subject."""

    context: str | None
    stream: str
    subject: str | None

    @classmethod
    def of(cls, stream: str | None, subject: str | None, context: str | None) -> "Wanted":
        """What the flags say; they must say one thing."""
        if (stream is None) == (subject is None):
            refuse("say what to erase: either --stream CONTEXT/STREAM or --subject TEXT")
        if stream is None:
            return cls(context, "", subject)
        of, slash, name = stream.partition("/")
        if context is not None or not slash:
            refuse("--stream names a stream as CONTEXT/STREAM; --context goes with --subject")
        return cls(of, name, None)

    def question(self, client: Client) -> str:
        """What somebody is asked before it is done."""
        if self.subject is None:
            assert self.context is not None
            infos = client.streams(self.context, self.stream)
            events = next((info.events for info in infos if info.name == self.stream), 0)
            return f"Erase the {counted(events, 'event')} of stream {self.stream} in context {self.context} for good?"
        place = "all contexts" if self.context is None else f"context {self.context}"
        return f"Erase all events in {place} whose headers name the subject {self.subject!r} for good?"

    def erase(self, client: Client) -> int:
        """Do it; how many events it was."""
        if self.subject is None:
            assert self.context is not None
            return client.erase_stream(self.context, self.stream)
        events, head = 0, client.stats().head
        with progress_bar() as bar:
            for step in client.erase_subject_steps(self.subject, self.context):
                events += step.events
                bar(min(step.next - 1, head), head)
        return events


def place_of(url: str | None, data: Path | None) -> str:
    """Where to connect to. Nothing is erased where nobody has said it: the flags, or the variable, name one place."""
    if data is not None and not by_flag(url):
        return store_url(data)
    if url is None or data is not None:
        refuse("say where: either --url penstock://HOST:PORT or --data DIR")
    return url


@contextmanager
def telling_of_interruption() -> Iterator[None]:
    """Ctrl-C undoes nothing, and whoever pressed it should know."""
    try:
        yield
    except KeyboardInterrupt:
        reason = "interrupted: what was found by then is hidden and will be gone; say it again for the rest"
        raise typer.Exit(complain(reason, INTERRUPTED)) from None


@contextmanager
def connected(address: str, data: Path | None) -> Iterator[Client]:
    """A client; a store must be there already, and must not be served."""
    if data is not None:
        with opened(address):
            pass
    try:
        client = connect(address, timeout=CONNECT_S_MAX)
    except StoreInUse as error:
        raise typer.Exit(complain(f"{error}; erase through it: --url penstock://HOST:PORT", 1)) from None
    with client:
        yield client


def listed(address: str, data: Path | None) -> Iterator[ErasureInfo]:
    """The whole ledger."""
    if data is None:
        with connect(address, timeout=CONNECT_S_MAX) as client:
            yield from client.erasures()
    else:
        with opened(address) as store:
            yield from map(erasure_info, all_pages(store.erasures, 0, lambda erasure: erasure.id))


def conclude(events: int, damaged: int, as_json: bool) -> None:
    """Say what came of it; it has failed if something of it may be left."""
    if as_json:
        print_document({"events": events, "damaged": damaged})
    elif not events:
        print_line("there was nothing to erase")
    else:
        rest = "" if damaged else "; the erasure is finished"
        print_line(f"erased {events:,} event{'s' * (events != 1)}{rest}")
    if damaged:
        records = "1 damaged record" if damaged == 1 else f"{damaged:,} damaged records"
        reason = f"{records} could not be rewritten and may hold some of it; nobody can read it, and verify names it"
        raise typer.Exit(complain(reason, 1))


def document(info: ErasureInfo) -> dict[str, Any]:
    """An entry of the ledger, for programs."""
    return {**asdict(info), "requested": _time(info.requested), "finished": _time(info.finished)}


def erasure_table(found: list[ErasureInfo]) -> Table:
    """The ledger, for people."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("id", "what", "events", "requested", "finished"):
        is_number, is_text = column in ("id", "events"), column == "what"
        table.add_column(column, justify="right" if is_number else "left", overflow="fold", no_wrap=not is_text)
    for info in found:
        what = f"{info.context}/{info.stream}" if info.stream is not None else "events one by one, or output"
        times = (_short_time(info.requested), _short_time(info.finished))
        table.add_row(str(info.id), what, f"{info.events:,}", *times)
    return table


def _time(ticks: int | None) -> str | None:
    return None if ticks is None else datetime_of(ticks).isoformat(timespec="seconds")


def _short_time(ticks: int | None) -> str:
    return "not yet" if ticks is None else f"{datetime_of(ticks):%Y-%m-%d %H:%M:%SZ}"
