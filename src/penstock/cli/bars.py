"""Progress bars with a rate and the time that is left: on standard error, if somebody looks at it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.cli.output import console

__all__ = ["Bar", "rate_bar"]


class Bar(Protocol):
    """Told how much is done, and of how much, if that is known; and under which name from now on."""

    def __call__(self, done: int, total: int | None, what: str | None = None) -> object:
        """Show it."""


@contextmanager
def rate_bar(what: str, *, hidden: bool = False, rated: bool = True) -> Iterator[Bar]:
    """A bar under a name; it is gone when the work is done. Without a rate if what it counts is not what is done."""
    # Rich takes long to import, and nobody who asks for help needs it.
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text  # noqa: PLC0415

    class RateColumn(ProgressColumn):
        """How much is done in a second."""

        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")

    screen = console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        *((RateColumn(),) if rated else ()),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=screen, disable=hidden or not screen.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total, what=None: progress.update(task, completed=done, total=total, description=what)
