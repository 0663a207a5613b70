"""The hosts of a URL: servers of one store, of which a client uses one at a time."""

import os
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from penstock.errors import BadUrl, CannotConnect, ConnectionLost, PenstockError, TlsFailed

CONNECT_S_MAX: Final = 10.0
"""How long one attempt to connect may take. Another one follows while the call has time left."""
HOST_S_MAX: Final = 3.0
"""How long a host may take while others are left to try."""
HOSTS_MAX: Final = 16
"""Hosts in one URL."""


class Host(NamedTuple):
    """A host of a URL, and a URL with this host alone."""

    name: str
    port: int
    url: str

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


HostFailure = tuple[Host, CannotConnect | TlsFailed]


class Hosts:
    """An attempt to connect tries them in turn, from the one that the client used last.

    After a lost connection it begins with the next one. Threads may share it.
    """

    def __init__(self, url: str, hosts: Sequence[Host]) -> None:
        self.url = url
        self._hosts = tuple(hosts)
        self._first = 0

    def turns(self, until: float, now: Callable[[], float]) -> Iterator[tuple[Host, float]]:
        """Each host, and the time at which its turn ends: with others left, its share of the time until then."""
        first = self._first
        order = self._hosts[first:] + self._hosts[:first]
        for left, host in zip(range(len(order), 0, -1), order, strict=True):
            start = now()
            yield host, start + (CONNECT_S_MAX if left == 1 else min(HOST_S_MAX, (until - start) / left))

    def use(self, host: Host) -> None:
        """The client is connected to this one."""
        self._first = self._hosts.index(host)

    def leave(self, host: Host) -> None:
        """The connection to this one is lost."""
        if self._hosts[self._first] == host:
            self._first = (self._first + 1) % len(self._hosts)

    def error(self, failures: Sequence[HostFailure]) -> CannotConnect | TlsFailed:
        """One error for an attempt that has failed at each of these hosts."""
        if len(failures) == 1 == len(self._hosts):
            return failures[0][1]
        reasons = "; ".join(f"{host}: {error.reason}" for host, error in failures)
        is_lasting = all(isinstance(error, TlsFailed) for _, error in failures)
        return (TlsFailed if is_lasting else CannotConnect)(self.url, reasons)


def unanswered_error(host: Host) -> CannotConnect:
    return CannotConnect(host.url, "the server does not answer")


def attempt_error(host: Host, error: OSError | PenstockError) -> PenstockError:
    """Why a host cannot be connected to. Nothing was sent to it."""
    if isinstance(error, TimeoutError):
        return unanswered_error(host)
    if isinstance(error, OSError):
        # What asyncio says has the address, but not what is wrong with it.
        number = 0 if isinstance(error, ssl.SSLError) else error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        return CannotConnect(host.url, reason.lower())
    return unsent_error(error)


def unsent_error(ended: PenstockError) -> PenstockError:
    """The error for a request that was not sent because its connection has ended: its outcome is known."""
    return CannotConnect(ended.url, ended.reason) if isinstance(ended, ConnectionLost) else ended


def host_urls(url: str) -> list[str]:
    """A URL for each host that a URL names. Raises BadUrl."""
    scheme, _, rest = url.partition("://")
    places = re.split("[/?#]", rest, maxsplit=1)[0]
    if "," not in places or "@" in places:
        return [url]
    names = places.split(",")
    if len(names) > HOSTS_MAX:
        raise BadUrl(url, f"it names {len(names)} hosts, and may name {HOSTS_MAX}")
    return [f"{scheme}://{name}{rest[len(places) :]}" for name in names]
