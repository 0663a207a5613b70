"""`penstock bench`: load on a running server, and how it bears it.

Each client has a connection of its own, and one append under way at a time. What is written goes into a context of its
own and stays there: a history has no undo. Latencies are counted in buckets that are 2 % wide, so that a long run
takes no more memory than a short one.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connecting import Url, address_of, telling
from penstock.cli.output import (
    INTERRUPTED,
    AsJson,
    complain,
    console,
    counted,
    print_document,
    print_line,
    print_table,
    refuse,
)
from penstock.errors import PenstockError
from penstock.model import check_context

if TYPE_CHECKING:
    from penstock.client import AsyncClient

__all__ = ["Latencies", "bench_command"]

SECONDS: Final = 10.0
CLIENTS_MAX: Final = 1000
BATCH_EVENTS_MAX: Final = 10_000
BODY_BYTES_MAX: Final = 8 << 20
BUCKET: Final = 1.02
"""How much longer the latencies of one bucket may be than those of the one before."""
REFRESH_S: Final = 0.25
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
EVENT_TYPE: Final = "Benched"


def bench_command(
    clients: Annotated[
        int,
        typer.Option(
            "--clients",
            help="clients at once, each with its connection; for more than 250 raise mq_connections_per_address_max",
            min=1,
            max=CLIENTS_MAX,
        ),
    ] = 8,
    batch: Annotated[int, typer.Option("--batch", help="events in one append", min=1, max=BATCH_EVENTS_MAX)] = 10,
    body_bytes: Annotated[
        int, typer.Option("--body-bytes", help="bytes of one event's body", min=0, max=BODY_BYTES_MAX)
    ] = 256,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="how long (default: 10, without --events)", min=0.1)
    ] = None,
    events: Annotated[int | None, typer.Option("--events", help="end after so many events", metavar="N", min=1)] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="where to write; otherwise a new context", metavar="NAME")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Put a running server under load: append events, and show how many it takes and how long that takes.

    The events are written into a context of their own, whose name is in the result, and stay there.
    """
    if context is not None and (reason := check_context(context)):
        refuse(f"--context {reason}")
    if seconds is None and events is None:
        seconds = SECONDS
    name = context or f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    load = Load(name, batch, body_bytes, seconds, events)
    with telling():
        interrupted = load.put(address_of(url), clients)
    _report(load, clients, as_json)
    if interrupted:
        raise typer.Exit(complain("interrupted", INTERRUPTED))


class Latencies:
    """How long things took, in buckets."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self._buckets[math.ceil(math.log(max(seconds, 1e-9), BUCKET))] += 1
        self.count += 1
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, percent: float) -> float:
        """So many of a hundred took at most so many seconds; 0 if there were none."""
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(BUCKET**bucket, self.longest_s)
        return 0.0


class Load:
    """What is put on a server, and what came of it so far."""

    def __init__(self, context: str, batch: int, body_bytes: int, seconds: float | None, events: int | None) -> None:
        self.context = context
        self.batch = batch
        self.body_bytes = body_bytes
        self.latencies = Latencies()
        self.events = 0
        self.seconds = 0.0
        self._seconds_max = seconds
        self._events_max = events
        self._begun_events = 0
        self._begun = 0.0

    def put(self, url: str, clients: int) -> bool:
        """Put it on; whether somebody has pressed Ctrl-C."""
        from penstock.tcp import new_loop  # noqa: PLC0415

        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._run(url, clients))
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.perf_counter() - self._begun if self._begun else 0.0
        return False

    async def _run(self, url: str, clients: int) -> None:
        from penstock.client import aconnect  # noqa: PLC0415

        async with AsyncExitStack() as opened:
            all_clients = [await opened.enter_async_context(aconnect(url)) for _ in range(clients)]
            self._begun = time.perf_counter()
            with _live() as show:
                watching = asyncio.create_task(self._watch(show))
                try:
                    async with asyncio.TaskGroup() as group:
                        for number, client in enumerate(all_clients, 1):
                            group.create_task(self._append(client, f"client-{number}"))
                except* PenstockError as failed:
                    # All of them fail of the same thing: the first says what it is.
                    raise failed.exceptions[0] from None
                finally:
                    watching.cancel()
                    with suppress(asyncio.CancelledError):
                        await watching

    async def _append(self, client: "AsyncClient", stream: str) -> None:
        from penstock.model import new_event  # noqa: PLC0415

        body = b'"' + b"x" * (self.body_bytes - 2) + b'"' if self.body_bytes > 1 else b"1" * self.body_bytes
        task = asyncio.current_task()
        # An append whose answer comes in the moment of Ctrl-C returns as if nothing had happened.
        while (count := self._next()) and not (task and task.cancelling()):
            made = [new_event(EVENT_TYPE, body) for _ in range(count)]
            begun = time.perf_counter()
            await client.append(self.context, stream, made)
            self.latencies.add(time.perf_counter() - begun)
            self.events += count

    def _next(self) -> int:
        """How many events the next append has; 0 at the end."""
        if self._seconds_max is not None and time.perf_counter() - self._begun >= self._seconds_max:
            return 0
        left = self.batch if self._events_max is None else self._events_max - self._begun_events
        count = min(self.batch, left)
        self._begun_events += count
        return count

    async def _watch(self, show: Any) -> None:
        """Show how it goes, as long as somebody looks."""
        before, since = self.events, time.perf_counter()
        while True:
            await asyncio.sleep(REFRESH_S)
            now = time.perf_counter()
            rate = (self.events - before) / (now - since)
            before, since = self.events, now
            p99 = 1000 * self.latencies.percentile(99)
            show(f"{rate:,.0f} events/s  {counted(self.events, 'event')}  p99 {p99:.1f} ms  {now - self._begun:.0f} s")


@contextmanager
def _live() -> Iterator[Any]:
    """A line on standard error that changes, if somebody looks at it."""
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    with Live(console=screen, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)


# --- what came of it ------------------------------------------------------------------------------------------


def _report(load: Load, clients: int, as_json: bool) -> None:
    rate = load.events / load.seconds if load.seconds else 0.0
    commits = load.latencies.count
    times = {f"p{percent:g}": 1000 * load.latencies.percentile(percent) for percent in PERCENTILES}
    times["max"] = 1000 * load.latencies.longest_s
    if as_json:
        print_document(
            {
                "context": load.context,
                "clients": clients,
                "batch": load.batch,
                "body_bytes": load.body_bytes,
                "seconds": round(load.seconds, 3),
                "events": load.events,
                "appends": commits,
                "events_per_second": round(rate, 1),
                "appends_per_second": round(rate * commits / load.events, 1) if load.events else 0.0,
                "latency_ms": {name: round(value, 3) for name, value in times.items()},
            }
        )
        return
    print_line(
        f"{counted(load.events, 'event')} in {counted(commits, 'append')} of {counted(clients, 'client')} in "
        f"{load.seconds:.1f} s, written into context {load.context}, where they stay"
    )
    print_line(f"{rate:,.0f} events/s, {commits / load.seconds if load.seconds else 0:,.0f} appends/s")
    print_table(("latency", "#ms"), [(name, f"{value:,.2f}") for name, value in times.items()], empty="")
