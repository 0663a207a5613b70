"""Prints figures as they come and a one-line summary at the end; puts tables into a page of the docs."""

import sys
from pathlib import Path


class Report:
    """Figures by name; those with a goal appear in the summary."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._goals: dict[str, tuple[float, float]] = {}

    def section(self, name: str) -> None:
        """Begin a group of figures."""
        print(f"\n== {name}", flush=True)

    def figure(self, name: str, value: float, unit: str, *, goal: float | None = None) -> None:
        """One figure; with a goal, whether it was reached."""
        self.figures[name] = value
        mark = ""
        if goal is not None:
            self._goals[name] = (value, goal)
            mark = f"   goal {_number(goal)}: {'reached' if value >= goal else 'MISSED'}"
        print(f"{name:<62} {_number(value):>12} {unit}{mark}", flush=True)

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


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def replace_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the two marks of a section, `<!-- bench:NAME -->` and `<!-- /bench:NAME -->`."""
    before, opening, rest = page.read_text(encoding="utf-8").partition(f"<!-- bench:{name} -->\n")
    _old, closing, after = rest.partition(f"<!-- /bench:{name} -->")
    if not opening or not closing:
        raise ValueError(f"{page} has no section {name}; add its two marks")
    page.write_text(f"{before}{opening}\n{text.strip()}\n\n{closing}{after}", encoding="utf-8")
