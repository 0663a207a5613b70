"""Servers that are killed and come back, and plain clients that send the same again until it is answered."""

import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from tests.gates.mq_client import Connection, MqClient
from tests.gates.remits_client import Remits
from tests.gates.res_client import PATIENCE_S, Answer
from tests.gates.res_extensions import Extended
from tests.gates.serving import Served, until

C = TypeVar("C")
FINISH_S_MAX: Final = 60.0
"""A worker that is not done by then hangs: what it waits for is a bug."""
ATTEMPT_S: Final = 0.5
"""How long a client waits before it sends the same again; twice as long each time, so that a slow server can answer."""


def free_port() -> int:
    """A port where nobody listens. Not one that the system gives to clients: theirs might connect to themselves."""
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no free port")


class Mortal:
    """A server that can be killed and comes back at the same addresses."""

    def __init__(self, data: Path) -> None:
        self._data = data
        res, mq, remits = (free_port() for _ in range(3))
        self.res, self.mq, self.remits = f"tcp://127.0.0.1:{res}", f"127.0.0.1:{mq}", f"127.0.0.1:{remits}"
        self.served = self._start()

    def _start(self) -> Served:
        return Served(self._data, "--mq", self.mq, "--remits", self.remits, res=self.res)

    def url(self, scheme: str) -> str:
        return f"penstock://{self.mq}" if scheme == "penstock" else f"zmq+{self.res}"

    def kill(self) -> None:
        """SIGKILL, then a new process."""
        self.served.process.kill()
        self.restart()

    def restart(self) -> None:
        """A stop, polite unless it was killed already, then a new process."""
        self.served.end()
        self.served = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.served.end()


class Worker(threading.Thread):
    """Somebody at work in a thread; `finish` waits for them and tells what went wrong."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work = work
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - told by finish
            self.failure = error

    def finish(self) -> None:
        self.join(FINISH_S_MAX)
        assert not self.is_alive(), "the work does not end"
        if self.failure is not None:
            raise self.failure


def reached(counted: Callable[[], int], number: int, *workers: Worker) -> None:
    """Wait until so much is done, or somebody has failed."""
    until(lambda: counted() >= number or any(worker.failure for worker in workers))


class Steady(Extended):
    """A client over ZeroMQ that asks again until it is answered, as those of a server that may die must."""

    def ask(self, command: str, *fields: bytes) -> Answer:
        attempt_s = ATTEMPT_S
        while attempt_s < PATIENCE_S:
            request = self.send(command, *fields)
            try:
                while (answer := self.receive(attempt_s)).request_id != request:
                    pass
            except TimeoutError:
                attempt_s *= 2
                continue
            return answer
        raise TimeoutError(f"no answer to {command}")


def connected(connect: Callable[[], C]) -> C:
    """Connect to a server that may be away for a while."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        try:
            return connect()
        except ConnectionError:
            assert time.monotonic() < give_up, "the server did not come back"
            time.sleep(0.05)


class SteadyMq(MqClient):
    """The same over MqFrames: it connects again when its connection is lost, and asks again."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._address = address

    def ask(self, command: str, *fields: bytes) -> Answer:
        while True:
            try:
                return self.answer_to(self.send(command, *fields))
            except ConnectionError:
                self.connection.close()
                self.connection = connected(lambda: Connection(self._address))


class SteadyRemits:
    """Adds messages to a new log. A message has no id, so it does not ask again before it has looked what is there."""

    def __init__(self, address: str, log: str) -> None:
        self.added = 0
        self._address = address
        self._log = log
        self._is_in_doubt = False
        self._remits = Remits(address)

    def add(self, message: object) -> None:
        while not self._has_added(message):
            self._is_in_doubt = True
            self._remits.close()
            self._remits = connected(lambda: Remits(self._address))
        self._is_in_doubt = False
        self.added += 1

    def _has_added(self, message: object) -> bool:
        try:
            if not self._is_in_doubt or not self._is_there():
                self._remits.add(self._log, message)
        except ConnectionError:
            return False
        return True

    def _is_there(self) -> bool:
        count = self._remits.log_show(self._log)["message_count"]
        assert count in (self.added, self.added + 1), f"{count} messages, {self.added} acknowledged"
        return bool(count > self.added)

    def close(self) -> None:
        self._remits.close()
