"""Worker processes that start fast: forked from one that has imported what they need.

Most tests of the engine start one of their own, and importing a worker's modules takes 50 times as long as a fork.
They are real processes all the same. Tests of workers themselves start them as a server does.
"""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Final, NoReturn

import pytest

from penstock.engine import worker, workers

log = logging.getLogger(__name__)

START_PROCESS: Final = workers.start_process
"""As a server does it."""


class Forked:
    """A worker process. Its parent is the nursery, so this one knows it by a descriptor."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor: int | None = descriptor

    def poll(self) -> int | None:
        if self._descriptor is not None:
            if not select.select([self._descriptor], [], [], 0)[0]:
                return None
            os.close(self._descriptor)
            self._descriptor = None
        return 0

    def kill(self) -> None:
        if self.poll() is None and self._descriptor is not None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


class Nursery:
    """The process that workers are forked from, on the side of the tests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)

    def start_process(self, descriptor: int, _niceness: int) -> Forked:
        """What `workers.start_process` does, but they stand back for nobody: on a busy machine tests wait for them."""
        with self._lock:
            socket.send_fds(self._ours, [b"fork"], [descriptor])
            answer, descriptors, _, _ = socket.recv_fds(self._ours, 100, 1)
        return Forked(int(answer), descriptors[0])

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@contextmanager
def forking(nursery: Nursery) -> Iterator[None]:
    """Engines of this process get their workers from a nursery."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "start_process", nursery.start_process)
        yield


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Started when the first test asks for it."""
    started = Nursery()
    yield started
    started.close()


@pytest.fixture(scope="module", autouse=True)
def fast_workers(nursery: Nursery) -> Iterator[None]:
    """For a conftest to import."""
    with forking(nursery):
        yield


@pytest.fixture
def real_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test whose subject is how workers start, or what is left of them in this process."""
    monkeypatch.setattr(workers, "start_process", START_PROCESS)


def main(descriptor: int) -> None:
    """Fork a worker for each message, with the socket that comes with it."""
    # What jobs need, whatever they are. Those that run Lua could not read the files of tests.
    for module in ("penstock.engine.engine", "penstock.store.postgres", "tests.engine.escapes"):
        import_module(module)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s worker %(process)d %(levelname)s %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: _reap())
    asking = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asking, 100, 1)
        if not message:
            return
        # A child that has ended keeps its number until it is reaped.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        pid = os.fork()
        if pid == 0:
            asking.close()
            _live(descriptors[0])
        handle = os.pidfd_open(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        socket.send_fds(asking, [str(pid).encode()], [handle])
        os.close(handle)
        os.close(descriptors[0])


def _live(descriptor: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    try:
        worker.main(descriptor, 0)
    except BaseException:
        log.exception("a worker failed")
        raise
    finally:
        os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main(int(sys.argv[1]))
