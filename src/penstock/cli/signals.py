"""Ctrl-C, SIGTERM and SIGHUP: the one place where commands handle signals.

By default Ctrl-C and SIGTERM end a command at once, and its temporary files are removed. Commands that have to finish
something first use `stop_signals` or `interruptible`. Exit codes are those of shells: 128 and the signal's number.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

SIGNALLED: Final = 128
"""Shells add this to the number of a signal that ended a command."""
INTERRUPTED: Final = SIGNALLED + signal.SIGINT
TERMINATED: Final = SIGNALLED + signal.SIGTERM
WAIT_S_MAX: Final = 3600.0
"""The longest wait that is passed to the system at once: it does not accept every number of seconds."""


def exit_on_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does: temporary files are removed. The second SIGTERM kills it."""

    def end(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.exit(TERMINATED)

    # A shell can have started the command with SIGTERM ignored; that stays.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def ignore_interrupts() -> None:
    """Ignore further Ctrl-Cs while the process ends: they would print a traceback."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Only the main thread may set handlers, and only the main thread is interrupted.
        return


@contextmanager
def exit_on_second_interrupt() -> Iterator[None]:
    """After a Ctrl-C in the body, cleaning up may take its time; the next Ctrl-C ends the process at once."""
    try:
        yield
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
        raise


class StopSignals:
    """The signals received so far, for a command that finishes what is in flight before it stops."""

    def __init__(self, interrupt_at: int) -> None:
        self.received: list[int] = []
        self.on_signal: Callable[[], object] = lambda: None
        """Called in the signal handler, for code that waits elsewhere, such as an event loop."""
        self._interrupt_at = interrupt_at
        self._read, self._write = os.pipe()

    @property
    def is_set(self) -> bool:
        return bool(self.received)

    @property
    def exit_code(self) -> int:
        return SIGNALLED + (self.received or [signal.SIGINT])[-1]

    def wait(self, seconds: float) -> bool:
        """Wait. Returns False, at once, when a signal is received."""
        deadline = time.monotonic() + seconds
        while not self.received and (left := deadline - time.monotonic()) > 0:
            # Handlers may interrupt code that holds a lock, so they wake this with a pipe instead of an event.
            select.select([self._read], [], [], min(left, WAIT_S_MAX))
        return not self.received

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Note a signal; the one numbered `interrupt_at` raises KeyboardInterrupt."""
        self.received.append(number)
        if len(self.received) == self._interrupt_at:
            raise KeyboardInterrupt
        if len(self.received) == 1:
            os.write(self._write, b".")
            self.on_signal()

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)


@contextmanager
def stop_signals(*, interrupt_at: int = 2, hangup: bool = False) -> Iterator[StopSignals]:
    """Collect Ctrl-C and SIGTERM, and SIGHUP if asked, instead of ending the command.

    Signals before `interrupt_at` only set a flag. That one raises KeyboardInterrupt, because the work in flight may
    hang. Later ones are ignored until the process ends: cleaning up is not interrupted again.
    """
    stop = StopSignals(interrupt_at)
    numbers = [signal.SIGINT, signal.SIGTERM]
    # nohup ignores SIGHUP, and the command then goes on when its terminal is closed.
    if hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    former = {number: signal.signal(number, stop.handle) for number in numbers}
    try:
        yield stop
    finally:
        if len(stop.received) < interrupt_at:
            for number, handler in former.items():
                signal.signal(number, handler)
            stop.close()


@contextmanager
def interruptible(message: str, *, interrupt_at: int = 1) -> Iterator[StopSignals]:
    """End the command with a message and the signal's exit code when signal number `interrupt_at` is received."""
    from penstock.cli.output import stop_command  # noqa: PLC0415 - typer takes long to import

    with stop_signals(interrupt_at=interrupt_at) as stop:
        try:
            yield stop
        except KeyboardInterrupt:
            stop_command(message, stop.exit_code)
