"""The same work at two servers that run side by side, in turns.

Only ratios count: the other server and the clients take part of the machine, and what else it does changes from window
to window. Each ratio is of two windows that follow each other; which server begins alternates.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from bench.report import Report
from bench.usage import Meter

LOOK_S = 3600.0
"""The meter looks when it is asked: the servers' processes stay the same."""
S = TypeVar("S")


class Window(NamedTuple):
    rate: float
    done: float
    core_s: float
    """Core-seconds of the server."""


def compare(
    report: Report,
    sides: Mapping[str, tuple[int, S]],
    works: Mapping[str, Callable[[S], float]],
    rounds: int,
    unit: str = "a second",
    goal: float | None = None,
) -> None:
    """Report the rates of two sides (a server's pid, and what a work gets), and the second's part of the first's.

    A work returns a rate. The goal is the least part, in percent.
    """
    (first, (one, _)), (second, (other, _)) = sides.items()
    meters = {first: Meter(one, look_s=LOOK_S), second: Meter(other, look_s=LOOK_S)}
    try:
        for name, work in works.items():
            windows: dict[str, list[Window]] = {first: [], second: []}
            for number in range(rounds):
                for side in (first, second) if number % 2 == 0 else (second, first):
                    windows[side].append(_window(work, sides[side][1], meters[side]))
            for side, found in windows.items():
                report.figure(f"{name}, {side}", statistics.median(window.rate for window in found), unit)
            pairs = list(zip(windows[first], windows[second], strict=True))
            what = f"{name}, {second} of {first}"
            _parts(report, what, [100 * b.rate / a.rate for a, b in pairs], goal)
            costs = {
                side: sum(one.core_s for one in found) / sum(one.done for one in found)
                for side, found in windows.items()
            }
            # A clock tick is too coarse for one window.
            if costs[second]:
                report.figure(f"  {what}, by processor time", 100 * costs[first] / costs[second], "%")
    finally:
        for meter in meters.values():
            meter.stop()


def _window(work: Callable[[S], float], side: S, meter: Meter) -> Window:
    before, began = meter.used(), time.perf_counter()
    rate = work(side)
    done = rate * (time.perf_counter() - began)
    return Window(rate, done, meter.used().since(before).core_s)


def _parts(report: Report, name: str, parts: list[float], goal: float | None = None) -> None:
    report.figure(name, statistics.median(parts), f"% ({min(parts):.0f} to {max(parts):.0f})", goal=goal)
