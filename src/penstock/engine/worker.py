"""A worker process: reads on behalf of the server, so that no read holds up an append.

It is started by the pool with one end of a socket pair as its file descriptor, gets its store, then jobs one
at a time, and ends when the other end is closed. Run as `python -m penstock.engine.worker FD NICENESS`.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.engine import jobs, memory, worker_protocol  # noqa: F401 - most jobs are of these, so load them first
from penstock.engine.worker_protocol import JobAnswer, Opening, Unframer, frame, frame_answer
from penstock.errors import PenstockError, StoreError, Unexpected, drop_traceback
from penstock.store import Store, open_reader
from penstock.store.urls import SQLITE
from penstock.terminal import LogLines

log = logging.getLogger(__name__)


def main(descriptor: int, niceness: int) -> None:
    """Serve jobs until the server closes the socket."""
    # Ctrl-C and a stop reach the whole process group; the server decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Both were blocked from the beginning, so that none could come before this.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    # Where cores are scarce, a catch-up read gives way to appends.
    os.nice(niceness)
    memory.settle()
    # A server that was killed cannot close the socket as it should.
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):
        worker_protocol.connected(connection.sendall)
        worker = Worker()
        unframer = Unframer()
        while worker.stays and (count := connection.recv_into(unframer.space)):
            for message in unframer.received(count):
                for piece in worker.answer(message):
                    connection.sendall(piece)
                # Otherwise an idle worker keeps its last message and answer in memory.
                del message, piece


class Worker:
    """Holds the open store between jobs."""

    def __init__(self) -> None:
        self.stays = True
        self._opening = Opening("", runs_lua=False)
        self._store: Store | None = None
        self._missing: list[str] | None = None

    def answer(self, message: Any) -> Sequence[bytes | memoryview]:
        """Carry out one message: the store to begin with, then (function, arguments)."""
        if isinstance(message, Opening):
            self._opening = message
            if message.runs_lua:
                # The first job opens the store again, and reports the error if there still is one.
                with suppress(PenstockError):
                    self._open()
            answer = JobAnswer(True, self._missing or [], True)
        else:
            answer = self._done(*message)
        self.stays = answer.stays
        return [frame_answer(answer)] if self._opening.runs_lua else frame(tuple(answer))

    def _done(self, function: Callable[..., Any], arguments: Sequence[Any]) -> JobAnswer:
        try:
            return JobAnswer(True, function(self._open(), *arguments), True)
        except PenstockError as error:
            drop_traceback(error)
            # The connection may be left in the middle of something; the next job gets a new one.
            return JobAnswer(False, error, self._close() if isinstance(error, StoreError) else True)
        except Exception as error:
            log.exception("a job failed")
            return JobAnswer(False, Unexpected(repr(error)), self._close())

    def _open(self) -> Store:
        if self._store is None:
            connects = not self._opening.url.startswith(SQLITE)
            if not connects:
                self._confine(Path(self._opening.url.removeprefix(SQLITE)))
            self._store = open_reader(self._opening.url)
            if connects:
                self._confine()
        return self._store

    def _confine(self, *places: Path) -> None:
        """Called before a file is opened, which makes it read-only, or after connecting, which is impossible later."""
        if self._opening.runs_lua and self._missing is None:
            # Imported here because readers need none of it, and Lua workers need it before they lose access to files.
            from penstock.engine import iterator_jobs  # noqa: F401, PLC0415
            from penstock.engine.confinement import confine, python_places  # noqa: PLC0415
            from penstock.lua.program import WATCHDOG  # noqa: PLC0415

            self._missing = confine([*places, *python_places()], WATCHDOG.start)

    def _close(self) -> bool:
        """Close the store; whether it can be opened again."""
        store, self._store = self._store, None
        if store is not None:
            store.close()
        return self._missing is None or self._opening.url.startswith(SQLITE)


if __name__ == "__main__":
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(asctime)s worker %(process)d %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    main(*map(int, sys.argv[1:]))
