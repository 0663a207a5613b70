"""`penstock erase`: events that must go for good. `penstock erasures`: what was erased, and what is in progress.

Both work through a running server (`--url`), or on a store that no server has open (`--data`); `erasures` also reads
one that a server has open.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from penstock.cli.connection import address_of, by_flag, exit_on_error, opened, store_error_line
from penstock.cli.options import URL_ENVIRONMENT, AsJson, Data, Url, option
from penstock.cli.output import (
    agreed,
    console,
    counted,
    fail,
    print_document,
    print_result,
    print_table,
    progress_bar,
    refuse,
    stop_command,
)
from penstock.cli.signals import INTERRUPTED
from penstock.cli.stats import all_pages
from penstock.client import Client, connect
from penstock.engine.jobs import erasure_info
from penstock.errors import StoreInUse
from penstock.model.times import datetime_of
from penstock.store import store_url

CONNECT_S_MAX: Final = 30.0
"""How long a server may take to answer one request."""

NamedUrl = Annotated[
    str | None,
    option(
        "--url",
        "a running server, or another address for clients; there is no default",
        "penstock://HOST:PORT",
        envvar=URL_ENVIRONMENT,
    ),
]


def erase_command(
    stream: Annotated[str | None, option("--stream", "erase all events of a stream", "CONTEXT/STREAM")] = None,
    subject: Annotated[str | None, option("--subject", "erase events whose headers name this subject", "TEXT")] = None,
    context: Annotated[str | None, option("--context", "with --subject: only in this context", "CONTEXT")] = None,
    url: NamedUrl = None,
    data: Data = None,
    yes: Annotated[bool, option("--yes", "do not ask")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase events for good: their types, headers and bodies leave every file of the store.

    Ids, sequences, positions and times stay. The command returns when everything is gone. Copies made before, such as
    backups, still have the events.
    """
    erasure = Erasure.of(stream, subject, context)
    address = _named_address(url, data)
    if not yes and not sys.stdin.isatty():
        refuse("an erasure cannot be undone: use --yes to erase without a question")
    with exit_on_error(store_error_line):
        if data is not None:
            # The client would create a store that is not there.
            with opened(address):
                pass
        try:
            client = connect(address, timeout=CONNECT_S_MAX)
        except StoreInUse as error:
            fail(f"{error}; erase through it: --url penstock://HOST:PORT")
        with client:
            if not yes and not agreed(erasure.question(client)):
                fail("nothing was erased")
            before = max((info.id for info in client.erasures()), default=0)
            try:
                events = erasure.run(client)
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


class Erasure(NamedTuple):
    """Names what to erase: a stream, or the events of a subject."""

    context: str | None
    stream: str
    subject: str | None

    @classmethod
    def of(cls, stream: str | None, subject: str | None, context: str | None) -> "Erasure":
        if (stream is None) == (subject is None):
            refuse("say what to erase: either --stream CONTEXT/STREAM or --subject TEXT")
        if stream is None:
            return cls(context, "", subject)
        of, slash, name = stream.partition("/")
        if context is not None or not slash:
            refuse("--stream names a stream as CONTEXT/STREAM; --context can be combined with --subject only")
        return cls(of, name, None)

    def question(self, client: Client) -> str:
        if self.subject is None:
            assert self.context is not None
            infos = client.streams(self.context, self.stream)
            events = next((info.events for info in infos if info.name == self.stream), 0)
            return f"Erase the {counted(events, 'event')} of stream {self.stream} in context {self.context} for good?"
        place = "all contexts" if self.context is None else f"context {self.context}"
        return f"Erase all events in {place} whose headers name the subject {self.subject!r} for good?"

    def run(self, client: Client) -> int:
        if self.subject is None:
            assert self.context is not None
            return client.erase_stream(self.context, self.stream)
        events, head = 0, client.stats().head
        with progress_bar() as bar:
            for step in client.erase_subject_steps(self.subject, self.context):
                events += step.events
                bar(min(step.next - 1, head), head)
        return events


def _named_address(url: str | None, data: Path | None) -> str:
    """The address to connect to. There is no default: nothing is erased where the user did not name it."""
    if data is not None and not by_flag(url):
        return store_url(data)
    if url is None or data is not None:
        refuse("say where: either --url penstock://HOST:PORT or --data DIR")
    return url


def erasures_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List what was erased, oldest first, and whether it has left all files."""
    with exit_on_error():
        address = address_of(url, data)
        if data is None:
            with connect(address, timeout=CONNECT_S_MAX) as client:
                found = list(client.erasures())
        else:
            with opened(address) as store:
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
