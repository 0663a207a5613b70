"""Progress bars with a rate and the time that is left: on standard error, if somebody looks at it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Bar", "rate_bar"]

Bar = Callable[[int, int | None], object]
"""Told how much is done, and of how much, if that is known."""


@contextmanager
def rate_bar(what: str, *, hidden: bool = False) -> Iterator[Bar]:
    """A bar under a name; it is gone when the work is done."""
    # Rich takes long to import, and nobody who asks for help needs it.
    from rich.console import Console  # noqa: PLC0415
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

    console = Console(stderr=True, markup=False, highlight=False)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
