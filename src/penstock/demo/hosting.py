"""Where the shop is: a server in this process, at the usual addresses or, where those are taken, at free ones."""

import errno
import socket
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from penstock.settings import Settings, host_and_port
from penstock.testing import Server, server

GATES: Final = ("http", "res", "mq", "remits")
FREE: Final = "127.0.0.1:0"
ZMQ: Final = "tcp://"


class Addresses(NamedTuple):
    """Where the gates should be, and which of those that are usual belong to somebody else."""

    chosen: dict[str, str]
    taken: dict[str, str]


def addresses(settings: Settings) -> Addresses:
    """The addresses that the settings have, and free ports instead of those that are taken."""
    chosen: dict[str, str] = {}
    taken: dict[str, str] = {}
    for gate in GATES:
        usual = getattr(settings, gate) or FREE
        if is_taken(usual):
            taken[gate] = usual
        chosen[gate] = usual if gate not in taken and getattr(settings, gate) else free(gate)
    return Addresses(chosen, taken)


def free(gate: str) -> str:
    """Any free port, as a gate's setting has it."""
    return f"{ZMQ}{FREE}" if gate == "res" else FREE


def is_taken(address: str) -> bool:
    """Whether somebody listens there. What else may be wrong with an address, the server says."""
    if address.startswith("ipc://"):
        return False
    host, number = host_and_port(address.removeprefix(ZMQ))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, number))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


class Host:
    """The server of the shop. Its store is in `data`, or in a directory that is gone when it is closed."""

    def __init__(self, data: Path | None, settings: Settings) -> None:
        where = addresses(settings)
        self.taken = where.taken
        self.is_temporary = data is None
        self._server: Server = server(data, **where.chosen)
        try:
            self.http = self._server.http
        except BaseException:
            self._server.close()
            raise

    @property
    def url(self) -> str:
        """For clients and commands."""
        return self._server.url

    @property
    def data(self) -> Path:
        """The directory of its store."""
        return self._server.data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
