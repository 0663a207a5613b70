"""How pages are rendered: templates, how texts and figures are shown, and small charts.

Every text that a template prints has characters that hide or turn text made visible, as on terminals, before it is
escaped for HTML. `exact` leaves them as they are.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from markupsafe import escape as html

from penstock import __version__, terminal
from penstock.console.static_files import static
from penstock.console.visit import url
from penstock.model.times import TICKS_PER_SECOND, text_of_ticks

TEMPLATES: Final = Path(__file__).parent / "templates"
UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
SPARK_WIDTH: Final = 300
SPARK_HEIGHT: Final = 60


def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        finalize=_visible,
    )
    filters: dict[str, Callable[..., Any]] = {
        "ago": ago,
        "bytes": bytes_text,
        "clock": clock,
        "document": lambda text: html(terminal.escape_document(text)),
        "duration": duration,
        "exact": html,
        "n": lambda number: f"{number:,}",
        "rate": rate,
        "sentence": sentence,
    }
    made.filters |= filters
    made.globals |= {"static": static, "url": url, "version": __version__, "sparkline": sparkline}
    # A global, so that a part that is rendered alone has it, too.
    made.globals["ui"] = made.get_template("macros.html").module
    return made


def _visible(value: Any) -> Any:
    return terminal.escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def sentence(text: str) -> str:
    """Words of the server as a sentence of a page."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?', '!')) else '.'}"


def bytes_text(size: int) -> str:
    amount, unit = float(size), UNITS[0]
    for unit in UNITS:  # noqa: B007 - the last one is used
        if amount < 1024:
            break
        amount /= 1024
    return f"{size:,} bytes" if unit == UNITS[0] else f"{amount:.1f} {unit}"


def rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def duration(ms: float) -> str:
    """A time span for people, with two units at most."""
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 and ms != int(ms) else f"{ms:.0f} ms"
    seconds = int(ms // 1000)
    for size, unit, part, smaller in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit} {rest} {smaller}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def ago(unix_ms: float) -> str:
    ms = 1000 * time.time() - unix_ms
    return "just now" if ms < 1000 else f"{duration(ms)} ago"


def clock(ticks: int, digits: int = 7) -> Markup:
    """A time in UTC, with so many digits of the second. The script adds what it is where the reader is."""
    seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
    day, _, moment = text_of_ticks(seconds * TICKS_PER_SECOND).removesuffix("Z").partition("T")
    shown = f"{fraction:07}"
    zone = " UTC" if digits == len(shown) else ""
    return Markup('<time datetime="{0}T{1}.{2}Z">{0} {1}{3}{4}</time>').format(
        day, moment, shown[:3], f".{shown[:digits]}" if digits else "", zone
    )


def sparkline(values: Sequence[float]) -> Markup:
    """A line without axes, for readers without scripts; the page says its last value as text."""
    if len(values) < 2:
        return Markup("")
    top = max(values) or 1.0
    step = SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 6) * value / top:.1f}" for at, value in enumerate(values)
    )
    return Markup(
        '<svg class="spark" viewBox="0 0 {0} {1}" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        '<polygon points="0,{1} {2} {0},{1}"/><polyline points="{2}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, points)
