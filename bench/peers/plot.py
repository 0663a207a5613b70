"""A bar chart of rates as SVG: one group for each work, one bar for each system, as a share of the best."""

from typing import Final
from xml.sax.saxutils import escape

COLOURS: Final = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22")
WIDTH: Final = 960
BAR: Final = 14
GAP: Final = 18
LEFT: Final = 240


def svg(medians: dict[str, dict[str, float]], systems: list[str]) -> str:
    """Only works that are rates are drawn; the bar of the best system is full."""
    parts: list[str] = []
    y = 30
    for work, by in medians.items():
        if not work.endswith("events/s"):
            continue
        best = max(by.values())
        parts.append(_text(10, y + BAR, work.removesuffix(", events/s"), weight="bold"))
        for number, system in enumerate(name for name in systems if name in by):
            length = round((WIDTH - LEFT - 110) * by[system] / best, 1)
            colour = COLOURS[systems.index(system) % len(COLOURS)]
            top = y + number * (BAR + 2)
            parts.append(f'<rect x="{LEFT}" y="{top}" width="{length}" height="{BAR}" fill="{colour}"/>')
            parts.append(_text(LEFT + length + 6, top + BAR - 3, f"{by[system]:,.0f} {system}"))
        y += len([name for name in systems if name in by]) * (BAR + 2) + GAP
    title = _text(10, 18, "Events per second; the longest bar of a group is the best", weight="bold")
    style = "<style>text{font:12px sans-serif;fill:#222}@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    return f"{opening}{style}{title}{''.join(parts)}</svg>\n"


def _text(x: float, y: float, text: str, weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-weight="{weight}">{escape(text)}</text>'
