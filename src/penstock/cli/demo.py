"""`penstock demo`: the product in a minute, as a server with a small living shop on it that one can watch.

However it ends, the server is stopped first and everything of the shop is gone, but for a store that was given a place.
"""

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connecting import telling
from penstock.cli.options import directory
from penstock.cli.output import console, counted, print_line
from penstock.settings import TABLE, load

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.demo import Host, Shop, Snapshot

__all__ = ["demo_command"]

LOOK_S: Final = 1.0
"""How often what goes on is shown."""
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INSISTING: Final = 3
"""So many signals end it at once, whatever it is doing."""


def gate(name: str) -> Any:
    """Where a gate of the server is: an option as `penstock serve` has it."""
    row = TABLE[name]
    meaning = f"{row.help} (default: {row.default or 'none'})"
    return typer.Option(row.flag, help=meaning, metavar="VALUE", show_default=False)


def demo_command(
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            help="keep the store in this directory; otherwise it is gone in the end",
            metavar="DIR",
            show_default=False,
            parser=directory,
        ),
    ] = None,
    mq: Annotated[str | None, gate("mq")] = None,
    http: Annotated[str | None, gate("http")] = None,
    res: Annotated[str | None, gate("res")] = None,
    remits: Annotated[str | None, gate("remits")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds", help="end after so long; otherwise at Ctrl-C", metavar="N", min=0, show_default=False
        ),
    ] = None,
) -> None:
    """Run a server with a small living shop to watch: orders, payments, two packers, an iterator.

    It prints what can be tried in another terminal, and then what goes on. Where a port is taken, it says which one it
    has instead. Ctrl-C closes the shop, and the exit code is 0.
    """
    flags = {"mq": mq, "http": http, "res": res, "remits": remits}
    with telling(), stopping() as asked:
        from penstock.demo import Host  # noqa: PLC0415 - a server takes long to import, and help needs none

        with Host(data, load(flags, os.environ)) as host:
            introduce(host)
            if not asked.stop:
                asyncio.run(kept(host, asked, seconds))
            farewell = f"the shop is closed; its store is in {host.data}"
    print_line("the shop is closed, and its store is gone" if data is None else farewell)


# --- how it ends ----------------------------------------------------------------------------------------------


class Asked:
    """Whether somebody wants it to end, and who is to be told then."""

    def __init__(self) -> None:
        self.stop = 0
        self.tell: Callable[[], object] = lambda: None

    def came(self, _number: int, _frame: FrameType | None) -> None:
        """A signal."""
        self.stop += 1
        if self.stop >= INSISTING:
            raise KeyboardInterrupt
        self.tell()


@contextmanager
def stopping() -> Iterator[Asked]:
    """While this lasts, signals ask for an end that leaves nothing behind."""
    asked = Asked()
    # Who runs it under nohup wants it to go on when the terminal is closed.
    is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in SIGNALS if number is not signal.SIGHUP or not is_detached]
    before = {number: signal.signal(number, asked.came) for number in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- what goes on ---------------------------------------------------------------------------------------------


async def kept(host: "Host", asked: Asked, seconds: float | None) -> None:
    """Keep the shop open until somebody wants it closed or the time is up."""
    from penstock.client import aconnect  # noqa: PLC0415
    from penstock.demo import Shop  # noqa: PLC0415

    loop, closed = asyncio.get_running_loop(), asyncio.Event()
    asked.tell = lambda: loop.call_soon_threadsafe(closed.set)
    if asked.stop:
        closed.set()
    try:
        async with aconnect(host.url) as client:
            shop = Shop(client)
            await shop.open()
            if seconds is not None:
                loop.call_later(seconds, closed.set)
            await both(shop.run(closed), watched(shop, closed))
    finally:
        asked.tell = lambda: None


async def both(shop: Any, watching: Any) -> None:
    """The shop and those who watch it; if one of them fails, the other ends too."""
    tasks = [asyncio.create_task(shop), asyncio.create_task(watching)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watched(shop: "Shop", closed: asyncio.Event) -> None:
    """Show what goes on until the shop is closed: on a terminal in one place, otherwise line by line."""
    began = time.monotonic()
    with shown_snapshots() as show:
        is_closed = False
        while not is_closed:
            show(await shop.now(), time.monotonic() - began)
            is_closed = await happens(closed, LOOK_S)


async def happens(event: asyncio.Event, seconds: float) -> bool:
    """Whether something happens within so long; as soon as it does."""
    try:
        return await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False


@contextmanager
def shown_snapshots() -> Iterator[Callable[["Snapshot", float], None]]:
    """How snapshots are shown: given each, and the seconds since the beginning."""
    screen = console()
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield print_snapshot
        return
    from rich.live import Live  # noqa: PLC0415

    with Live(console=screen, auto_refresh=False) as live:
        yield lambda snapshot, _age: live.update(snapshot_table(snapshot), refresh=True)


def print_snapshot(snapshot: "Snapshot", age: float) -> None:
    """What goes on, in a line."""
    packed = ", ".join(f"{name} {count}" for name, count in snapshot.shipped.items())
    orders = f"{counted(snapshot.placed, 'order')} placed, {snapshot.paid} paid, {snapshot.declined} declined"
    shipped = f"{sum(snapshot.shipped.values())} shipped ({packed})"
    rest = f"{snapshot.behind} behind in the queue, {counted(sum(snapshot.visits.values()), 'visit')}"
    print_line(f"{age:5.0f} s  {orders}, {shipped}, {rest}, {counted(snapshot.events, 'event')}")
    sys.stdout.flush()


def snapshot_table(snapshot: "Snapshot") -> "Table":
    """What goes on, for a terminal."""
    from rich.table import Table  # noqa: PLC0415

    declined = f"{counted(snapshot.declined, 'payment')} declined"
    packed = "   ".join(f"{name} {count}" for name, count in snapshot.shipped.items())
    pages = sorted(snapshot.visits.items(), key=lambda each: (-each[1], each[0]))
    rows = {
        "orders": f"{snapshot.placed} placed   {snapshot.paid} paid   {declined}",
        "shipped": f"{packed}   {counted(snapshot.dropped, 'time')} a packer dropped a box",
        "queue": f"{snapshot.behind} behind",
        "visits": "   ".join(f"{page} {count}" for page, count in pages),
        "history": counted(snapshot.events, "event"),
    }
    made = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(style="bold")
    made.add_column(no_wrap=True)
    for name, value in rows.items():
        made.add_row(name, value)
    return made


# --- what to try ----------------------------------------------------------------------------------------------


def introduce(host: "Host") -> None:
    """Say where the shop is, and what can be tried in another terminal."""
    for gate, address in host.taken.items():
        print_line(f"{address} is taken, so {gate} is elsewhere")
    print_line(f"a shop is open at {host.url}, with health and metrics at {host.http}")
    print_line(f"its store is in {host.data}{' until it closes' if host.is_temporary else ''}")
    for line in ("", "in another terminal:", "", *(f"  {each}" for each in lines_to_try(host)), ""):
        print_line(line)
    print_line("Ctrl-C closes the shop")
    print_line("")
    sys.stdout.flush()


def lines_to_try(host: "Host") -> Iterator[str]:
    """Commands that work as they stand."""
    from penstock.demo import CONTEXT, ITERATOR  # noqa: PLC0415

    asking = f"--url {host.url}"
    yield f"{program()} tail -f {CONTEXT} {asking}"
    yield f"{program()} read {CONTEXT} order-1 {asking}"
    yield f"{program()} queue list {asking}"
    yield f"{program()} iterator next {ITERATOR} --from -1 {asking}"
    sql = "select type, count(*) from events group by type order by type"
    yield f"{program()} sql {shlex.quote(sql)} --data {shlex.quote(str(host.data))}"


def program() -> str:
    """How this command can be run again, as somebody would type it."""
    if shutil.which("penstock"):
        return "penstock"
    called = Path(sys.argv[0])
    return shlex.quote(str(called)) if called.name == "penstock" else f"{shlex.quote(sys.executable)} -m penstock"
