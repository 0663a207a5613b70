"""The console that tables and progress bars are drawn on. It needs Rich, which takes long to import."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

from penstock.terminal import escape

PIPED_COLUMNS: Final = 100_000
"""How wide tables may be where there is no terminal."""


class Screen(Console):
    """A console that escapes all texts: only Rich can move the cursor or paint."""

    def render_str(self, text: str, **given: Any) -> Text:
        """Escape a cell, a heading or a line before its columns are counted."""
        return super().render_str(escape(text), **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape texts that Rich did not pass through `render_str`, as in progress bars."""
        for piece in super().render(renderable, options):
            if piece.control or piece.text == "\n":
                yield piece
            else:
                yield piece._replace(text="\n".join(map(escape, piece.text.split("\n"))))


def screen(*, stderr: bool = False) -> Screen:
    """Standard output or error: as wide as the terminal, or as wide as what is drawn. Nothing is markup."""
    given: dict[str, Any] = {"stderr": stderr, "highlight": False, "markup": False, "emoji": False}
    found = Screen(**given)
    return found if found.is_terminal else Screen(**given, width=PIPED_COLUMNS)


class Bar(Protocol):
    """Shows how much is done, out of how much if that is known, and optionally a new description."""

    def __call__(self, done: int, total: int | None, what: str | None = None) -> None:
        """Update the bar."""


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")


@contextmanager
def progress_bar(what: str = "events", *, hidden: bool = False, rated: bool = True) -> Iterator[Bar]:
    """A progress bar on standard error with the rate and the time left, if standard error is a terminal.

    Pass `rated=False` where the bar counts something else than the work, such as positions.
    """
    console = screen(stderr=True)
    rate = (RateColumn(),) if rated else ()
    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, what=None: progress.update(task, completed=done, total=total, description=what)
