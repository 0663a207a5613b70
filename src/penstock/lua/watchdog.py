"""Notices a message that is stuck inside one of Lua's C functions, where no instruction hook runs.

A thread looks at how many messages are done: Lua runs without Python's lock, so the thread runs meanwhile. It can
see that a message is stuck but cannot stop it; ending the process can. The process has one such thread, made when it
is first needed (again after a fork, which threads do not survive) and asleep while nothing is watched.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Lock, Thread
from typing import Final

from penstock.lua.limits import LuaLimits
from penstock.lua.ran import Ran, Work
from penstock.lua.sandbox import timed_out

#: How often the thread looks, in parts of the time that a message may take.
LOOKS: Final = 8


class Watch:
    """One call that is watched. `stuck` is called at most once."""

    def __init__(self, work: Work, limits: LuaLimits, stuck: Callable[[Ran], object]) -> None:
        self._work = work
        self._limits = limits
        self._stuck: Callable[[Ran], object] | None = stuck
        self._done = 0
        self._since = time.process_time()
        self._lock = Lock()
        #: How long one message may take before it counts as stuck.
        self.seconds_max = (limits.call_ms_max + limits.grace_ms_max) / 1000

    def look(self) -> None:
        """See whether another message is done; call `stuck` if none is for too long."""
        with self._lock:
            now = time.process_time()
            if len(self._work.outputs) != self._done:
                self._done, self._since = len(self._work.outputs), now
            elif now - self._since > self.seconds_max:
                self._report()

    def end(self) -> None:
        """Stop looking. Waits while `stuck` runs: the caller would answer twice otherwise."""
        with self._lock:
            self._stuck = None

    def _report(self) -> None:
        # The accumulator is set after the output is added: while no output has come, it belongs to the others.
        state = self._work.state
        if self._stuck is None or len(self._work.outputs) != self._done:
            return
        stuck, self._stuck = self._stuck, None
        error = timed_out(self._limits)
        error.message = self._done
        stuck(Ran(self._work.outputs[: self._done], state, error))


class Watchdog:
    """The thread, and what it watches."""

    def __init__(self) -> None:
        self._watches: list[Watch] = []
        self._changed = Condition()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, where there can be none later."""
        with self._changed:
            self._start()

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Watch a call for as long as a `with` block lasts."""
        with self._changed:
            self._watches.append(watch)
            self._start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._watches.remove(watch)
            watch.end()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._loop, name="lua-watchdog", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watches)
                watches = list(self._watches)
            time.sleep(min(watch.seconds_max for watch in watches) / LOOKS)
            for watch in watches:
                watch.look()


WATCHDOG: Final = Watchdog()
