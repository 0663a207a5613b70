"""What was measured, as tables, ratios and lists. Every figure is a median with its smallest and largest value."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bench.report import short, spread

MAIN: Final = "Penstock"
BODIES: Final = {"": 200, " 2k": 2000}
"""Bytes of bodies, by the ending of a work's key."""


class Figure(NamedTuple):
    """One measurement: a rate, a time or a size, and microseconds of CPU per event on both sides."""

    value: float
    server_us: float | None = None
    client_us: float | None = None


Figures = Mapping[str, Mapping[str, Sequence[Figure]]]
"""By the key of a work, then by the name of a system: one figure for each round."""


class Work(NamedTuple):
    key: str
    table: str
    title: str
    unit: str = "events/s"

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit == "events/s"

    def __str__(self) -> str:
        return f"{self.table.partition(', ')[0]}: {self.title}"


_APPENDS: Final = {
    "1x1": "1 × 1",
    "64x1": "64 × 1",
    "1024x1": "1,024 × 1",
    "1x1000": "1 × 1,000",
    "64x1x16": "64 × 1, 16 in flight",
    "1024x1x16": "1,024 × 1, 16 in flight",
}
_READS: Final = {
    "read": "everything, as events",
    "arrow": "everything, as Arrow",
    "stream": "one stream",
    "queue": "a queue, 4 consumers",
}
_LARGE: Final = {
    "1x1 2k": "1 × 1",
    "64x1 2k": "64 × 1",
    "1x1000 2k": "1 × 1,000",
    "read 2k": "read everything, as events",
}
APPENDS, READS, LARGE = "Appends, writers × events in a commit", "Reads", "Bodies of 2,000 bytes"
FOLLOWER, COSTS = "From the call of an append to a follower", "What it takes"
WORKS: Final = (
    *(Work(key, APPENDS, title) for key, title in _APPENDS.items()),
    *(Work(key, READS, title) for key, title in _READS.items()),
    *(Work(key, LARGE, title) for key, title in _LARGE.items()),
    *(Work(f"follow {part}", FOLLOWER, part, "ms") for part in ("p50", "p99", "p99.9")),
    Work("disk", COSTS, "on disk for each event", "bytes"),
    Work("memory", COSTS, "memory after the work", "MiB"),
    Work("idle", COSTS, "idle after the start", "% of a core"),
    Work("idle memory", COSTS, "memory after the start", "MiB"),
    Work("idle later", COSTS, "idle after the work", "% of a core"),
    Work("recovery", COSTS, "ready after SIGKILL", "s"),
)
TITLES: Final = {work.key: work for work in WORKS}


class Bar(NamedTuple):
    """How many times as fast Penstock should be: as the best durable peer, or as one of them at its own work."""

    work: str
    times: float
    peer: str | None = None
    their_work: str | None = None


BARS: Final = (
    Bar("1x1", 1.0),
    Bar("64x1", 2.0),
    Bar("1024x1", 2.0),
    Bar("1x1000", 2.0, "UmaDB"),
    Bar("read", 1.2, "UmaDB"),
    Bar("arrow", 3.0, "UmaDB", "read"),
)
LIMITS: Final = {"idle": 0.5, "idle memory": 150.0}
"""What an idle server of ours may take."""


class Ratio(NamedTuple):
    """Penstock next to a peer; above 1 Penstock is better."""

    work: Work
    ours: float
    peer: str
    theirs: float
    bar: float | None = None

    @property
    def times(self) -> float:
        return self.ours / self.theirs if self.work.is_rate else self.theirs / self.ours

    @property
    def verdict(self) -> str:
        return "" if self.bar is None else f"{self.bar:g} {'reached' if self.times >= self.bar else 'MISSED'}"

    def __str__(self) -> str:
        verdict = f" ({self.verdict})" if self.verdict else ""
        return f"{self.work} {self.times:.2f} of {self.peer}{verdict}"


def medians(figures: Figures) -> dict[str, dict[str, float]]:
    return {
        work: {system: statistics.median(figure.value for figure in found) for system, found in by.items()}
        for work, by in figures.items()
    }


def ratios(figures: Figures, durable: Iterable[str]) -> list[Ratio]:
    """Each work that has a bar, then each other that a durable peer did too."""
    found, peers = medians(figures), [name for name in durable if not name.startswith(MAIN)]
    result = []
    for bar in BARS:
        ours, theirs = found.get(bar.work, {}).get(MAIN), found.get(bar.their_work or bar.work, {})
        candidates = [bar.peer] if bar.peer else peers
        best = max((name for name in candidates if name in theirs), key=theirs.__getitem__, default=None)
        if ours and best:
            result.append(Ratio(TITLES[bar.work], ours, best, theirs[best], bar.times))
    for work in WORKS:
        by = found.get(work.key, {})
        better: Callable[..., str | None] = max if work.is_rate else min
        best = better((name for name in peers if by.get(name)), key=by.__getitem__, default=None)
        if by.get(MAIN) and best and not any((known.work, known.peer) == (work, best) for known in result):
            result.append(Ratio(work, by[MAIN], best, by[best]))
    return result


# --- Markdown ---------------------------------------------------------------------------------------------------


def markdown(figures: Figures, durable: Sequence[str], weaker: Sequence[str]) -> str:
    """All of it: the ratios, the tables of durable systems, what they cost in CPU, and the weaker modes."""
    parts = ["### Penstock and the best peer", _ratio_table(ratios(figures, durable), figures)]
    for table in dict.fromkeys(work.table for work in WORKS):
        works = [work for work in WORKS if work.table == table and figures.get(work.key)]
        if shown := _table(figures, works, durable, _cell):
            parts += [f"### {table}", shown]
    costly = [work for work in WORKS if work.table in (APPENDS, READS) and figures.get(work.key)]
    if shown := _table(figures, costly, durable, _cpu, unit="µs"):
        parts += ["### CPU for each event, server / client, in microseconds", shown]
    rates = [work for work in WORKS if work.table in (APPENDS, READS) and figures.get(work.key)]
    if shown := _table(figures, rates, weaker, _cell):
        parts += ["### Weaker modes, which may lose what they have acknowledged", shown]
    return "\n\n".join(parts) + "\n"


def _ratio_table(found: Sequence[Ratio], figures: Figures) -> str:
    lines = ["| work | Penstock | best peer | times as good | our goal |", "|---|---|---|---|---|"]
    for ratio in found:
        theirs = f"{short(ratio.theirs)} ({ratio.peer})"
        ours = f"{ratio.work}, {ratio.work.unit} | {short(ratio.ours)}"
        lines.append(f"| {ours} | {theirs} | {ratio.times:.2f} | {ratio.verdict} |")
    for work, value, verdict in _limits(figures):
        lines.append(f"| {work}, {work.unit} | {short(value)} | | | {verdict} |")
    return "\n".join(lines)


def _limits(figures: Figures) -> list[tuple[Work, float, str]]:
    """What an idle server of ours takes, and whether that is little enough."""
    found = ((TITLES[key], medians(figures).get(key, {}).get(MAIN), limit) for key, limit in LIMITS.items())
    return [
        (work, ours, f"under {limit:g} {'reached' if ours < limit else 'MISSED'}")
        for work, ours, limit in found
        if ours is not None
    ]


def _table(
    figures: Figures,
    works: Sequence[Work],
    systems: Sequence[str],
    cell: Callable[[Sequence[Figure]], str],
    unit: str | None = None,
) -> str:
    """A row for each system that did any of the works; nothing if none did."""
    rows = []
    for system in systems:
        found = [figures[work.key].get(system, ()) for work in works]
        if any(found):
            rows.append(f"| {system} | {' | '.join(cell(each) for each in found)} |")
    titles = " | ".join(f"{work.title}, {unit or work.unit}" for work in works)
    return "\n".join([f"| | {titles} |", f"|---|{'---|' * len(works)}", *rows]) if rows else ""


def _cell(found: Sequence[Figure]) -> str:
    return spread([figure.value for figure in found])


def _cpu(found: Sequence[Figure]) -> str:
    clients = [figure.client_us for figure in found if figure.client_us is not None]
    servers = [figure.server_us for figure in found if figure.server_us is not None]
    if not clients:
        return "–"
    return f"{short(statistics.median(servers)) if servers else '–'} / {short(statistics.median(clients))}"


def last_line(figures: Figures, durable: Sequence[str]) -> str:
    """What the bars say, then where a peer is better."""
    found = ratios(figures, durable)
    parts = [str(ratio) for ratio in found if ratio.bar is not None]
    parts += [f"{work.title} {short(ours)} {work.unit} ({verdict})" for work, ours, verdict in _limits(figures)]
    behind = [str(ratio) for ratio in found if ratio.bar is None and ratio.times < 1]
    return f"Penstock: {'; '.join(parts) or 'no ratios'}; behind in: {'; '.join(behind) or 'nothing'}"
