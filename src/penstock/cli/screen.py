"""Where tables and bars are drawn. It brings Rich along, which takes long to import."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from penstock.terminal import shown

__all__ = ["PIPED_COLUMNS", "Screen", "screen"]

PIPED_COLUMNS = 100_000
"""How wide tables may become where no terminal sets an end to them."""


class Screen(Console):
    """A console on which nothing but Rich itself can move the cursor or paint: texts are shown escaped."""

    def render_str(self, text: str, **given: Any) -> Text:
        """A text of a cell, a heading or a line, escaped before anybody counts its columns."""
        return super().render_str(shown(text), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """All that is drawn, in pieces: those that come ready-made, as in bars, are looked at here."""
        for piece in super().render(renderable, options):
            yield piece if piece.control or piece.text == "\n" else piece._replace(text=_fit(piece.text))


def _fit(text: str) -> str:
    return "\n".join(map(shown, text.split("\n")))


def screen(*, stderr: bool = False) -> Screen:
    """Standard output or error: as wide as the terminal, or as wide as what is drawn. No text is taken for markup."""
    given: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    found = Screen(**given)
    return found if found.is_terminal else Screen(**given, width=PIPED_COLUMNS)
