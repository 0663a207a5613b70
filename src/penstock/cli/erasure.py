"""`penstock erase`: events that must go for good. `penstock erasures`: what was erased, and what is in progress.

Both work through a running server (`--url`), or on a store that no server has open (`--data`); `erasures` also reads
one that a server has open.
"""

import sys
from dataclasses import asdict
from typing import Annotated

from penstock.cli.connection import address_of, by_flag, connected, opened
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
from penstock.client import Client
from penstock.engine.jobs import erasure_info
from penstock.model.times import datetime_of

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
