"""Runs the same work against every system and writes a table, JSON and a plot.

`python -m bench.peers [SYSTEM …] [--rounds 5] [--seconds 3] [--quick] [--recovery] [--out DIR]`

Rounds are interleaved: each round starts every system on an empty directory, one after the other, so that a change of
the machine's mood reaches all of them. Figures are medians. Each client runs in a process of its own, and the CPU of
both sides is read from /proc. After each round the number of stored events is compared with what was acknowledged.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.peers.plot import svg
from bench.peers.systems import SYSTEMS, Load, System, call
from bench.usage import Meter

BODIES: Final = (200, 2000)
FOLLOWED: Final = 1000
CONSUMERS: Final = 4
RECOVERY_EVENTS: Final = 5_000_000
READ_EVENTS: Final = 200_000
"""How many events are there to be read, if the system can write them in time."""
FILL_ROUNDS_MAX: Final = 3
MAIN: Final = "Penstock"


class Figure(NamedTuple):
    """One measurement: the rate or latency, and microseconds of CPU per event on both sides."""

    value: float
    server_us: float | None = None
    client_us: float | None = None


class Failed(Exception):
    """A system could not do its work, or has lost events."""


Figures = dict[str, dict[str, list[Figure]]]
"""By work, then by system: one figure for each round."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"some of: {', '.join(SYSTEMS)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="one round, half a second each, for a first look")
    parser.add_argument("--recovery", action="store_true", help="also: kill servers that hold 5 million events")
    parser.add_argument("--dir", type=Path, default=Path(), help="where the data goes: the disk you want to know about")
    parser.add_argument("--out", type=Path, default=Path("bench-peers"), help="where table, JSON and plot go")
    arguments = parser.parse_args()
    unknown = set(arguments.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f"no system {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    rounds, seconds = (1, 0.5) if arguments.quick else (arguments.rounds, arguments.seconds)
    systems = [system() for name, system in SYSTEMS.items() if name in (arguments.systems or SYSTEMS)]
    for system in list(systems):
        if reason := system.missing():
            print(f"{system.name} is left out: install {reason}")
            systems.remove(system)
    figures: Figures = defaultdict(lambda: defaultdict(list))
    for number in range(rounds):
        for system in list(systems):
            try:
                _round(system, arguments.dir, seconds, figures, large=number == 0)
            except Failed as error:
                print(f"{system.name} is left out from here on: {error}")
                systems.remove(system)
            print(f"round {number + 1} of {rounds}: {system.name}", file=sys.stderr, flush=True)
    if arguments.recovery:
        for system in systems:
            _recovery(system, arguments.dir, figures)
    arguments.out.mkdir(parents=True, exist_ok=True)
    table = _table(figures, [system.name for system in systems])
    (arguments.out / "peers.md").write_text(table)
    (arguments.out / "peers.json").write_text(json.dumps(figures, indent=1))
    (arguments.out / "peers.svg").write_text(svg(_medians(figures), [s.name for s in systems if s.durable]))
    print(table)
    print(_ratios(figures, systems))


# --- measuring --------------------------------------------------------------------------------------------------


def _round(system: System, place: Path, seconds: float, figures: Figures, *, large: bool) -> None:
    """All work once, on an empty directory."""

    def record(work: str, figure: Figure) -> None:
        figures[work][system.name].append(figure)

    with _directory(place) as directory, system.server(directory) as (url, pid):
        meter = None if pid is None else Meter(os.getsid(pid))
        stored = 0
        for writers, events in ((1, 1), (64, 1), (1024, 1), (1, 1000)):
            if writers <= system.writers_max:
                load = Load(writers, events, BODIES[0], seconds)
                stored += _append(system, url, load, meter, record)
        if system.writers_max >= 64:
            stored += _append(system, url, Load(64, 1, BODIES[0], seconds, in_flight=16), meter, record)
        for _ in range(FILL_ROUNDS_MAX):
            if stored < READ_EVENTS:
                stored += _measured(system.append, (url, Load(1, 1000, BODIES[0], seconds)), meter)[0]
        read, elapsed, cpu = _measured(system.read_all, (url,), meter)
        if read.events != stored or system.count(url) != stored:
            raise Failed(f"it stores {read.events} events where {stored} were acknowledged")
        record("read everything, events/s", Figure(read.events / elapsed, *_each(cpu, read.events)))
        if system.streams:
            one, elapsed, cpu = _measured(system.read_stream, (url, "order-0"), meter)
            record("read one stream, events/s", Figure(one.events / elapsed, *_each(cpu, one.events)))
        if system.queue:
            taken, elapsed, cpu = _measured(system.consume, (url, CONSUMERS, min(stored, READ_EVENTS)), meter)
            record(f"queue, {CONSUMERS} consumers, events/s", Figure(taken / elapsed, *_each(cpu, taken)))
        waits = sorted(_measured(system.follow, (url, FOLLOWED), meter)[0]) if _follows(system) else []
        for name, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)) if waits else ():
            record(f"append to follower {name}, ms", Figure(1000 * waits[int(share * len(waits))]))
        if large:
            used = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
            record("bytes on disk per event", Figure(used / stored))
            if meter is not None:
                record("server memory, MiB", Figure(meter.used().memory_bytes / (1 << 20)))
            for_large = Load(1, 1000, BODIES[1], seconds)
            _append(system, url, for_large, meter, record)
        if meter is not None:
            meter.stop()


def _append(system: System, url: str, load: Load, meter: Meter | None, record: Callable[[str, Figure], None]) -> int:
    done, elapsed, cpu = _measured(system.append, (url, load), meter)
    name = f"{load.writers:,} × {load.events:,}"
    if load.in_flight > 1:
        name += f", {load.in_flight} in flight"
    if load.body_bytes != BODIES[0]:
        name += f", {load.body_bytes:,} bytes"
    record(f"{name}, events/s", Figure(done / elapsed, *_each(cpu, done)))
    return int(done)


def _follows(system: System) -> bool:
    return type(system).follow is not System.follow


def _measured(work: Callable[..., Any], arguments: tuple[Any, ...], meter: Meter | None) -> tuple[Any, float, Any]:
    """What a function returns in a process of its own, how long it took there, and the CPU of both sides."""
    before = meter.used().core_s if meter is not None else 0.0
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=call, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        result, elapsed, client = ours.recv()
    except EOFError:
        raise Failed(f"{work.__qualname__} failed") from None
    process.join()
    server = meter.used().core_s - before if meter is not None else None
    return result, elapsed, (server, client)


def _each(cpu: tuple[float | None, float], events: int) -> tuple[float | None, float]:
    server, client = cpu
    return (None if server is None else 1e6 * server / max(events, 1)), 1e6 * client / max(events, 1)


def _recovery(system: System, place: Path, figures: Figures) -> None:
    """Seconds from the start of a server that was killed with many events to its first answer."""
    if type(system).count is System.count:
        return
    with _directory(place) as directory:
        stored = 0
        with system.server(directory) as (url, pid):
            if pid is None:
                return
            while stored < RECOVERY_EVENTS:
                stored += int(_measured(system.append, (url, Load(1, 1000, BODIES[0], 5.0)), None)[0])
            os.killpg(os.getsid(pid), signal.SIGKILL)
        begun = time.perf_counter()
        with system.server(directory) as (url, pid):
            found = system.count(url)
            figures["recovery after SIGKILL, s"][system.name].append(Figure(time.perf_counter() - begun))
        if found < stored:
            raise SystemExit(f"{system.name} lost {stored - found} events")


@contextmanager
def _directory(place: Path) -> Iterator[Path]:
    """An empty directory that PostgreSQL's user can reach, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="bench-peers-", dir=place)).absolute()
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# --- reporting --------------------------------------------------------------------------------------------------


def _medians(figures: Figures) -> dict[str, dict[str, float]]:
    return {
        work: {system: statistics.median(figure.value for figure in found) for system, found in by.items()}
        for work, by in figures.items()
    }


def _table(figures: Figures, systems: list[str]) -> str:
    """Markdown: medians with their spread, then CPU per event."""
    lines = [f"| | {' | '.join(systems)} |", f"|---|{'---|' * len(systems)}"]
    for work, by in figures.items():
        lines.append(f"| {work} | {' | '.join(_cell(by.get(system, [])) for system in systems)} |")
    lines += ["", "CPU in microseconds per event, server / client:", "", *lines[:2]]
    for work, by in figures.items():
        if any(figure.client_us is not None for found in by.values() for figure in found):
            lines.append(f"| {work} | {' | '.join(_cpu(by.get(system, [])) for system in systems)} |")
    return "\n".join(lines) + "\n"


def _cell(found: list[Figure]) -> str:
    if not found:
        return "–"
    values = sorted(figure.value for figure in found)
    middle = statistics.median(values)
    shown = _shown(middle)
    return shown if len(values) == 1 else f"{shown} ({_shown(values[0])}–{_shown(values[-1])})"


def _cpu(found: list[Figure]) -> str:
    if not found or found[0].client_us is None:
        return "–"
    client = statistics.median(figure.client_us or 0.0 for figure in found)
    servers = [figure.server_us for figure in found if figure.server_us is not None]
    return f"{_shown(statistics.median(servers)) if servers else '–'} / {_shown(client)}"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def _ratios(figures: Figures, systems: Sequence[System]) -> str:
    """The last line: Penstock's rate to that of the best durable peer, for each work that has a rate."""
    peers = [system.name for system in systems if system.durable and not system.name.startswith(MAIN)]
    parts = []
    for work, by in _medians(figures).items():
        best = max((by[peer] for peer in peers if peer in by), default=None)
        if work.endswith("events/s") and best and MAIN in by:
            parts.append(f"{work.removesuffix(', events/s')} {by[MAIN] / best:.2f}")
    return f"Penstock to the best peer: {'; '.join(parts)}"


if __name__ == "__main__":
    main()
