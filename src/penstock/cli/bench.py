"""`penstock bench`: load on a running server, and its throughput and latencies.

Latencies are counted in buckets that are 2 % wide, so that a long run takes no more memory than a short one.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from penstock.cli.connection import address_of
from penstock.cli.options import AsJson, Url, option
from penstock.cli.output import console, counted, print_document, print_line, print_table, refuse, stop_command
from penstock.cli.signals import INTERRUPTED
from penstock.client import AsyncClient, aconnect
from penstock.errors import PenstockError
from penstock.model import check_context, new_event
from penstock.tcp import new_loop

SECONDS: Final = 10.0
CLIENTS_MAX: Final = 1000
BATCH_EVENTS_MAX: Final = 10_000
BODY_BYTES_MAX: Final = 8 << 20
BUCKET: Final = 1.02
"""The ratio of the limits of two neighbouring buckets."""
REFRESH_S: Final = 0.25
PERCENTILES: Final = (50.0, 90.0, 99.0, 99.9)
EVENT_TYPE: Final = "Benched"


def bench_command(
    clients: Annotated[
        int,
        option(
            "--clients",
            "clients, each with one connection; for more than 250 raise mq_connections_per_address_max",
            min=1,
            max=CLIENTS_MAX,
        ),
    ] = 8,
    batch: Annotated[int, option("--batch", "events in one append", min=1, max=BATCH_EVENTS_MAX)] = 10,
    body_bytes: Annotated[int, option("--body-bytes", "bytes of an event's body", min=0, max=BODY_BYTES_MAX)] = 256,
    seconds: Annotated[float | None, option("--seconds", "how long (default: 10, without --events)", min=0.1)] = None,
    events: Annotated[int | None, option("--events", "end after this many events", "N", min=1)] = None,
    context: Annotated[str | None, option("--context", "where to write (default: a new context)", "NAME")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Put a running server under load: append events, and print throughput and latencies.

    The events are written into a new context, whose name is in the result, and stay there.
    """
    if context is not None and (reason := check_context(context)):
        refuse(f"--context {reason}")
    if seconds is None and events is None:
        seconds = SECONDS
    name = context or f"bench-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    load = Load(name, batch, body_bytes, seconds, events)
    was_interrupted = load.run(address_of(url), clients)
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
    else:
        print_line(
            f"{counted(load.events, 'event')} in {counted(commits, 'append')} of {counted(clients, 'client')} in "
            f"{load.seconds:.1f} s, written into context {load.context}, where they stay"
        )
        print_line(f"{rate:,.0f} events/s, {commits / load.seconds if load.seconds else 0:,.0f} appends/s")
        print_table(("latency", "#ms"), [(name, f"{value:,.2f}") for name, value in times.items()], empty="")
    if was_interrupted:
        stop_command("interrupted", INTERRUPTED)


class Latencies:
    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        self._buckets[math.ceil(math.log(max(seconds, 1e-9), BUCKET))] += 1
        self.count += 1
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, percent: float) -> float:
        """The duration in seconds that this percentage did not exceed; 0 if there are none."""
        wanted, seen = math.ceil(self.count * percent / 100), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(BUCKET**bucket, self.longest_s)
        return 0.0


class Load:
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

    def run(self, url: str, clients: int) -> bool:
        try:
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(self._run(url, clients))
        except KeyboardInterrupt:
            return True
        finally:
            self.seconds = time.perf_counter() - self._begun if self._begun else 0.0
        return False

    async def _run(self, url: str, clients: int) -> None:
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
                    # All clients fail for the same reason: report the first.
                    raise failed.exceptions[0] from None
                finally:
                    watching.cancel()
                    with suppress(asyncio.CancelledError):
                        await watching

    async def _append(self, client: AsyncClient, stream: str) -> None:
        body = b'"' + b"x" * (self.body_bytes - 2) + b'"' if self.body_bytes > 1 else b"1" * self.body_bytes
        task = asyncio.current_task()
        # If the answer of an append arrives together with Ctrl-C, the append returns without an error.
        while (count := self._next()) and not (task and task.cancelling()):
            made = [new_event(EVENT_TYPE, body) for _ in range(count)]
            begun = time.perf_counter()
            await client.append(self.context, stream, made)
            self.latencies.add(time.perf_counter() - begun)
            self.events += count

    def _next(self) -> int:
        """The number of events of the next append; 0 at the end."""
        if self._seconds_max is not None and time.perf_counter() - self._begun >= self._seconds_max:
            return 0
        left = self.batch if self._events_max is None else self._events_max - self._begun_events
        count = min(self.batch, left)
        self._begun_events += count
        return count

    async def _watch(self, show: Any) -> None:
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
    from rich.live import Live  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    screen = console(stderr=True)
    if not screen.is_terminal:
        yield lambda _: None
        return
    with Live(console=screen, transient=True, auto_refresh=False) as live:
        yield lambda text: live.update(Text(text), refresh=True)
