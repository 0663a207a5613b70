"""Peers: how the log shows them and how often, and which of their connections count together."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address
from struct import Struct
from typing import Final

LINES_MAX: Final = 100
"""Lines about all peers in one window."""
LINES_PER_ADDRESS_MAX: Final = 10
"""Lines about the peers of one address in one window."""
WINDOW_S: Final = 60.0

IPV6_PREFIX: Final = 64
"""The first bits of an IPv6 address that a network gives to one customer, who chooses the rest at will."""

_CREDENTIALS: Final = Struct("3i")
"""Process, user and group at the other end of a local socket."""


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """How the log shows a connection's peer, and the key by which a server counts its connections.

    A peer on a local socket is a process, and counts by its user.
    """
    ours, address = transport.get_extra_info("socket"), transport.get_extra_info("peername")
    if ours is None or ours.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return shown_peer(address), network_of(address)
    found = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(found)
    return f"process {process} of user {user}", f"user {user}"


def shown_peer(address: object) -> str:
    """A peer's address as people write it."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    return str(address or "unknown")


def network_of(address: object) -> str:
    """The key by which a server counts a peer's connections: its IPv4 address, or the /64 of its IPv6 address.

    An IPv4 address that is written as IPv6 (`::ffff:10.0.0.7`) is the same as the IPv4 address.
    """
    if not isinstance(address, tuple) or not address:
        return str(address or "unknown")
    try:
        found = ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if not isinstance(found, IPv6Address):
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((found, IPV6_PREFIX), strict=False))


class PeerLog:
    """Writes lines about peers, a limited number a minute: a peer must not be able to fill the log.

    Lines beyond the limits are counted, and one line says how many there were when the minute is over.
    """

    def __init__(self, log: logging.Logger, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._name = name
        self._clock = clock
        self._since = clock()
        self._lines: Counter[str] = Counter()
        self._left_out = 0
        self._last_left_out = ""

    def write(self, level: int, network: str, message: str, *arguments: object) -> None:
        """Write a line about a peer of this network, or count it."""
        self.tick()
        if self._lines[network] < LINES_PER_ADDRESS_MAX and self._lines.total() < LINES_MAX:
            self._lines[network] += 1
            self._log.log(level, message, *arguments)
        else:
            self._left_out += 1
            self._last_left_out = network

    def tick(self) -> None:
        """Begin another minute if one is over. Servers call this now and then."""
        if self._clock() - self._since >= WINDOW_S:
            self.flush()

    def flush(self) -> None:
        """Say how many lines were left out, if any were, and begin another minute."""
        if self._left_out:
            self._log.warning(
                "%s ended %s more connections, the last one from %s; the log names %d a minute, and %d of one address",
                self._name,
                f"{self._left_out:,}",
                self._last_left_out,
                LINES_MAX,
                LINES_PER_ADDRESS_MAX,
            )
        self._since = self._clock()
        self._lines.clear()
        self._left_out = 0
