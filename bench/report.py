"""Prints figures as they come and a one-line summary at the end; puts tables into a page of the docs."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


class Report:
    """Figures by name; those with a goal appear in the summary."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self.tables: dict[str, str] = {}
        """Markdown, by section."""
        self._section = ""
        self._goals: dict[str, tuple[float, float]] = {}

    def section(self, name: str) -> None:
        """Begin a group of figures."""
        self._section = name
        print(f"\n== {name}", flush=True)

    def figure(self, name: str, value: float, unit: str, *, goal: float | None = None) -> None:
        """One figure; with a goal, whether it was reached."""
        self.figures[name] = value
        mark = ""
        if goal is not None:
            self._goals[name] = (value, goal)
            mark = f"   goal {_number(goal)}: {'reached' if value >= goal else 'MISSED'}"
        print(f"{name:<62} {_number(value):>12} {unit}{mark}", flush=True)

    def table(self, columns: Mapping[str, Mapping[str, Sequence[float]]], note: str = "") -> None:
        """A table of the section: for each column the values by row. A cell is a median with the least and the most."""
        rows = dict.fromkeys(row for by_row in columns.values() for row in by_row)
        lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
        for row in rows:
            lines.append(f"| {row} | {' | '.join(spread(by_row.get(row, ())) for by_row in columns.values())} |")
            for column, by_row in columns.items():
                if by_row.get(row):
                    self.figures[f"{row}, {column}"] = statistics.median(by_row[row])
        self.tables[self._section] = "\n".join([f"{machine()} {note}".strip(), "", *lines])
        print(self.tables[self._section], flush=True)

    def note(self, text: str) -> None:
        """A line for people."""
        print(f"   {text}", flush=True)

    def summary(self) -> None:
        """The last line."""
        missed = [name for name, (value, goal) in self._goals.items() if value < goal]
        reached = len(self._goals) - len(missed)
        tail = f"; missed: {', '.join(missed)}" if missed else ""
        print(f"\nsummary: {reached} of {len(self._goals)} goals reached{tail}")
        sys.stdout.flush()


def spread(values: Sequence[float]) -> str:
    """The median, then the smallest and the largest value."""
    if not values:
        return "–"
    shown = short(statistics.median(values))
    return shown if len(values) == 1 else f"{shown} ({short(min(values))} to {short(max(values))})"


def short(value: float) -> str:
    """A number with three digits or more."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> str:
    """When and where something is measured."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown make")
    return (
        f"{time.strftime('%d %B %Y')}, {os.cpu_count()} cores of {model.strip()}, {platform.system()}"
        f" {platform.release()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def replace_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the two marks of a section, `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`."""
    before, opening, rest = page.read_text(encoding="utf-8").partition(f"<!-- bench:{name} -->\n")
    _old, closing, after = rest.partition(f"<!-- /bench:{name} -->")
    if not opening or not closing:
        raise ValueError(f"{page} has no section {name}; add its two marks")
    page.write_text(f"{before}{opening}\n{text.strip()}\n\n{closing}{after}", encoding="utf-8")
