"""`penstock demo`: a server with a small shop on it. However the command ends, the server stops first."""

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.options import directory, option
from penstock.cli.output import console, counted, print_line
from penstock.cli.signals import StopSignals, stop_signals
from penstock.client import aconnect
from penstock.demo import CONTEXT, ITERATOR, Shop, Snapshot, gate_addresses
from penstock.errors import PenstockError
from penstock.settings import TABLE, load
from penstock.testing import Server, server

if TYPE_CHECKING:
    from rich.table import Table

REFRESH_S: Final = 1.0
KILL_SIGNALS: Final = 3
"""This many signals end the command at once, whatever it is doing."""


def _gate(name: str) -> Any:
    """The option of a gate's address, as `penstock serve` has it."""
    row = TABLE[name]
    help_ = f"{row.help} (default: {row.default or 'none'})"
    return typer.Option(row.flag, help=help_, metavar="VALUE")


def demo_command(
    data: Annotated[
        Path | None,
        option(
            "--data", "keep the store in this directory (default: it is removed at the end)", "DIR", parser=directory
        ),
    ] = None,
    mq: Annotated[str | None, _gate("mq")] = None,
    http: Annotated[str | None, _gate("http")] = None,
    res: Annotated[str | None, _gate("res")] = None,
    remits: Annotated[str | None, _gate("remits")] = None,
    seconds: Annotated[
        float | None, option("--seconds", "end after this time (default: at Ctrl-C)", "N", min=0)
    ] = None,
) -> None:
    """Run a server with a small shop on it to watch: orders, payments, two packers, an iterator.

    The command prints what to try in another terminal, and then the state of the shop every second. If a port is in
    use, it takes a free one. Ctrl-C closes the shop, and the exit code is 0.
    """
    flags = {"mq": mq, "http": http, "res": res, "remits": remits}
    with stop_signals(interrupt_at=KILL_SIGNALS, hangup=True) as stop:
        addresses, taken = gate_addresses(load(flags, os.environ))
        # A first start is slow on a small machine, and its log would be in the middle of what is shown.
        with server(data, **addresses, slow_request_ms=0) as host:
            for gate, address in taken.items():
                print_line(f"{address} is in use, so {gate} has another port")
            _introduce(host, is_temporary=data is None)
            if not stop.is_set:
                asyncio.run(_keep_open(host, stop, seconds))
    print_line(
        "the shop is closed, and its store is removed"
        if data is None
        else f"the shop is closed; its store is in {data}"
    )


async def _keep_open(host: Server, stop: StopSignals, seconds: float | None) -> None:
    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    stop.on_signal = lambda: loop.call_soon_threadsafe(closed.set)
    if stop.is_set:
        closed.set()
    try:
        async with aconnect(host.url) as client:
            shop = Shop(client)
            await shop.open()
            if seconds is not None:
                loop.call_later(seconds, closed.set)
            running, began = asyncio.create_task(shop.run()), time.monotonic()
            try:
                with shown_snapshots() as show:
                    while not closed.is_set() and not running.done():
                        show(await shop.snapshot(), time.monotonic() - began)
                        with suppress(TimeoutError):
                            await asyncio.wait_for(closed.wait(), REFRESH_S)
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
    except* (PenstockError, OSError) as failed:
        # The shop's tasks fail for the same reason: report the first.
        raise failed.exceptions[0] from None
    finally:
        stop.on_signal = lambda: None


@contextmanager
def shown_snapshots() -> Iterator[Callable[[Snapshot, float], None]]:
    """A function that shows a snapshot: in place on a terminal, otherwise as a line."""
    screen = console()
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield print_snapshot
        return
    from rich.live import Live  # noqa: PLC0415

    with Live(console=screen, auto_refresh=False) as live:
        yield lambda snapshot, _age: live.update(snapshot_table(snapshot), refresh=True)


def print_snapshot(snapshot: Snapshot, age: float) -> None:
    packed = ", ".join(f"{name} {count}" for name, count in snapshot.shipped.items())
    orders = f"{counted(snapshot.placed, 'order')} placed, {snapshot.paid} paid, {snapshot.declined} declined"
    shipped = f"{sum(snapshot.shipped.values())} shipped ({packed})"
    rest = f"{snapshot.behind} behind in the queue, {counted(sum(snapshot.visits.values()), 'visit')}"
    print_line(f"{age:5.0f} s  {orders}, {shipped}, {rest}, {counted(snapshot.events, 'event')}")
    sys.stdout.flush()


def snapshot_table(snapshot: Snapshot) -> "Table":
    from rich.table import Table  # noqa: PLC0415

    declined = f"{counted(snapshot.declined, 'payment')} declined"
    packed = "   ".join(f"{name} {count}" for name, count in snapshot.shipped.items())
    pages = sorted(snapshot.visits.items(), key=lambda each: (-each[1], each[0]))
    made = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column(no_wrap=True)
    made.add_row("orders", f"{snapshot.placed} placed   {snapshot.paid} paid   {declined}")
    made.add_row("shipped", f"{packed}   {counted(snapshot.dropped, 'time')} a packer dropped a box")
    made.add_row("queue", f"{snapshot.behind} behind")
    made.add_row("visits", "   ".join(f"{page} {count}" for page, count in pages))
    made.add_row("history", counted(snapshot.events, "event"))
    return made


def _introduce(host: Server, *, is_temporary: bool) -> None:
    """Print where the shop is, and commands that work as they stand in another terminal."""
    called = Path(sys.argv[0])
    program = shlex.quote(str(called)) if called.name == "penstock" else f"{shlex.quote(sys.executable)} -m penstock"
    if shutil.which("penstock"):
        program = "penstock"
    sql = "select type, count(*) from events group by type order by type"
    print_line(f"a shop is open at {host.url}, with health and metrics at {host.http}")
    print_line(f"its store is in {host.data}{' until it closes' if is_temporary else ''}")
    for line in (
        "",
        "in another terminal:",
        "",
        f"  {program} tail -f {CONTEXT} --url {host.url}",
        f"  {program} read {CONTEXT} order-1 --url {host.url}",
        f"  {program} queue list --url {host.url}",
        f"  {program} iterator next {ITERATOR} --from -1 --url {host.url}",
        f"  {program} sql {shlex.quote(sql)} --data {shlex.quote(str(host.data))}",
        "",
        "Ctrl-C closes the shop",
        "",
    ):
        print_line(line)
    sys.stdout.flush()
