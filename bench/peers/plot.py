"""A bar chart of rates as SVG: a panel for each work, a bar for each system; the longest bar of a panel is the best."""

from collections.abc import Mapping, Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.peers.figures import MAIN, TITLES

PLOTTED: Final = ("1x1", "64x1", "1024x1", "1x1000", "read", "queue")
OURS, THEIRS = "#1f77b4", "#9aa5b1"
WIDTH, COLUMNS, MARGIN = 960, 2, 10
LABEL, VALUE, BAR, STEP, HEAD = 170, 70, 12, 16, 26


def svg(medians: Mapping[str, Mapping[str, float]], systems: Sequence[str], note: str = "") -> str:
    """The works of PLOTTED that were measured."""
    measured = ((TITLES[key], medians[key]) for key in PLOTTED if key in medians)
    panels = [(work, {name: by[name] for name in systems if name in by}) for work, by in measured]
    width, y = WIDTH // COLUMNS, 34
    title = f"Events per second: more is better. Every append is on disk before its answer.{note}"
    parts = [_text(MARGIN, 18, title, "title")]
    for first in range(0, len(panels), COLUMNS):
        row = panels[first : first + COLUMNS]
        for column, (work, by) in enumerate(row):
            x = column * width + MARGIN
            parts.append(_text(x, y + 14, str(work), "title"))
            for number, (system, value) in enumerate(by.items()):
                top = y + HEAD + number * STEP
                length = round((width - LABEL - VALUE - 2 * MARGIN) * value / max(by.values()), 1)
                colour = OURS if system.startswith(MAIN) else THEIRS
                parts.append(_text(x, top + BAR - 2, system))
                parts.append(f'<rect x="{x + LABEL}" y="{top}" width="{length}" height="{BAR}" fill="{colour}"/>')
                parts.append(_text(x + LABEL + length + 5, top + BAR - 2, f"{value:,.0f}"))
        y += HEAD + STEP * max(len(by) for _, by in row) + 14
    style = (
        "<style>text{font:11px sans-serif;fill:#222}.title{font-weight:bold;font-size:13px}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>"
    )
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img">'
    return f"{opening}{style}{''.join(parts)}</svg>\n"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(text)}</text>'
