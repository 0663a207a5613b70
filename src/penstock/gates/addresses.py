"""Addresses that gates listen on: from `host:port` to a socket, loopback only unless somebody said otherwise."""

import asyncio
import os
import socket
from ipaddress import IPv6Address, ip_address
from typing import Any

from penstock.errors import CannotListen, NotLoopback
from penstock.settings import host_and_port

Resolved = tuple[socket.AddressFamily, tuple[Any, ...]]
"""A family and an address of it, as sockets take them."""


async def bound_socket(gate: str, address: str, *, insecure: bool) -> socket.socket:
    """A socket bound to an address of a gate; port 0 becomes a free one.

    A name may have several addresses: all must be loopback, and the first that can be bound is taken.
    """
    found = await check_loopback(gate, address, insecure=insecure)
    reason = "it has no address"
    for family, sockaddr in found:
        try:
            return _bind(family, sockaddr)
        except OSError as error:
            reason = _words(error)
    raise CannotListen(gate, address, reason)


async def check_loopback(gate: str, address: str, *, insecure: bool) -> list[Resolved]:
    """The addresses that `host:port` means; raises NotLoopback if one of them is not and must be."""
    found = await resolve(gate, address)
    if not insecure and not all(is_loopback(sockaddr[0]) for _, sockaddr in found):
        raise NotLoopback(gate, address)
    return found


async def resolve(gate: str, address: str) -> list[Resolved]:
    """The addresses that `host:port` or `[host]:port` means."""
    try:
        host, port = host_and_port(address)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise CannotListen(gate, address, str(error.strerror).lower()) from error
    except (ValueError, OSError) as error:
        raise CannotListen(gate, address, str(error)) from error
    return [(family, sockaddr) for family, _, _, _, sockaddr in found]


def is_loopback(host: str) -> bool:
    """Whether a numeric host is only reachable from this machine."""
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def shown_address(bound: socket.socket) -> str:
    """Where a socket is bound, as people write it."""
    host, port, *_ = bound.getsockname()
    return f"[{host}]:{port}" if bound.family == socket.AF_INET6 else f"{host}:{port}"


def _bind(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        # A server that was just stopped leaves connections behind that would keep its port for a minute.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # One address, one socket: [::] does not take the IPv4 port along.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(sockaddr)
    except OSError:
        bound.close()
        raise
    return bound


def _words(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
