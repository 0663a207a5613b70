"""A worker process: reads on behalf of the server, so that no read holds up an append.

It is started by the pool with one end of a socket pair as its file descriptor, gets the store's URL, then jobs one
at a time, and ends when the other end is closed. Run as `python -m penstock.engine.worker FD NICENESS`.
"""

import gc
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from penstock.engine import jobs, last_words  # noqa: F401 - most jobs are of these: nobody shall wait for them
from penstock.engine.frames import Unframer, frame
from penstock.errors import PenstockError, StoreError, Unexpected
from penstock.store import Store, open_reader

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
    # Events are many small objects without cycles: looking for cycles among them costs more than reading them.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    # A server that was killed cannot close the socket as it should.
    with socket.socket(fileno=descriptor) as connection, suppress(ConnectionError):
        last_words.connected(connection.sendall)
        worker = Worker()
        unframer = Unframer()
        while count := connection.recv_into(unframer.space):
            for message in unframer.received(count):
                connection.sendall(worker.answer(message))
                # Otherwise an idle worker keeps its last message in memory.
                del message


class Worker:
    """Holds the open store between jobs."""

    def __init__(self) -> None:
        self._url = ""
        self._store: Store | None = None

    def answer(self, message: Any) -> bytes:
        """Carry out one message: the URL to begin with, then (function, arguments).

        The answer says whether it succeeded, what came of it, and that this worker stays.
        """
        if isinstance(message, str):
            self._url = message
            return frame((True, None, True))
        function, arguments = message
        try:
            return frame((True, function(self._open(), *arguments), True))
        except PenstockError as error:
            if isinstance(error, StoreError):
                # The connection may be left in the middle of something; the next job gets a new one.
                self._close()
            return frame((False, error, True))
        except Exception as error:
            log.exception("a job failed")
            self._close()
            return frame((False, Unexpected(repr(error)), True))

    def _open(self) -> Store:
        if self._store is None:
            self._store = open_reader(self._url)
        return self._store

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s worker %(process)d %(levelname)s %(message)s")
    main(*map(int, sys.argv[1:]))
