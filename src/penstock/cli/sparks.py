"""What commands that run on Spark have in common: a session with what was asked for, and how Ctrl-C ends them."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import complain, refuse

if TYPE_CHECKING:
    from penstock.spark.sessions import Start

__all__ = ["AGAIN", "Conf", "Master", "ending", "interruptible", "options_of", "session"]

LOOK_S: Final = 0.1
"""Seconds between two looks whether somebody wants an end."""
SIGNALLED: Final = 128
"""What shells add to the number of a signal that ended a command."""
MASTER_OPTION: Final = "spark.master"
AGAIN: Final = "interrupted: run the same command again, and it goes on"

Master = Annotated[str | None, typer.Option("--master", help="Spark's master (default: this machine)", metavar="M")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", help="an option of Spark's; may be given often", metavar="KEY=VALUE")
]


def session(name: str, master: str | None, conf: list[str] | None) -> AbstractContextManager["Start"]:
    """A Spark session with what was asked for, shown under a name. It is started when there is something to do."""
    from penstock.spark.sessions import MASTER, late_session  # noqa: PLC0415

    return late_session(name, MASTER, options_of(conf, master))


def _is_no_echo(record: logging.LogRecord) -> bool:
    """Whether this is not what Py4J says of a JVM that is gone: it says so to the root, and raises an error as well."""
    return "py4j" not in record.pathname


def options_of(conf: list[str] | None, master: str | None = None) -> dict[str, str]:
    """What `--conf` and `--master` say; what is said here goes before what is in files."""
    return dict(_option(each) for each in conf or ()) | ({MASTER_OPTION: master} if master is not None else {})


def _option(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        refuse(f"--conf is {text!r}: it must be KEY=VALUE")
    return key, value


@contextmanager
def ending() -> Iterator[Callable[[float], bool]]:
    """Waits so many seconds for Ctrl-C or SIGTERM; whether there was one. The first interrupts nothing else.

    The second one ends the command: what is under way may hang.
    """
    # An Event may not be set by a handler that interrupts the one who waits for it.
    signals: list[int] = []

    def is_ending(wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while not signals and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(LOOK_S, left))
        return bool(signals)

    with _handled(signals, interrupting=2):
        try:
            yield is_ending
        except KeyboardInterrupt:
            raise typer.Exit(complain(AGAIN, SIGNALLED + (signals or [signal.SIGINT])[-1])) from None


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end a command. Only the first does: those who are impatient do not disturb how it ends."""
    signals: list[int] = []
    with _handled(signals, interrupting=1):
        try:
            yield
        except KeyboardInterrupt:
            raise typer.Exit(complain(message, SIGNALLED + (signals or [signal.SIGINT])[0])) from None


@contextmanager
def _handled(signals: list[int], *, interrupting: int) -> Iterator[None]:
    """Note Ctrl-C and SIGTERM; only the one of this number interrupts, also if others come until the process ends."""

    # An interrupted JVM is gone, and what Py4J says of that is no news.
    logging.getLogger().addFilter(_is_no_echo)

    def handle(number: int, _: Any) -> None:
        signals.append(number)
        if len(signals) == interrupting:
            raise KeyboardInterrupt

    kept = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in kept.items() if not signals else ():
            signal.signal(number, former)
