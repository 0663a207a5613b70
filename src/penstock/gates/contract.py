"""The interface of all gates, and their addresses: beyond loopback only with encryption and principals.

An address is `HOST:PORT`; ZeroMQ writes `tcp://HOST:PORT`, or `ipc://PATH` for a local socket.

A server starts its engine, then its gates, and prints their addresses. To stop, it tells all gates to accept nothing
more, then stops the engine, which answers all requests in flight, then stops the gates, which send those answers and
close.
"""

import asyncio
import os
import shlex
import socket
import stat
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from penstock.engine import Engine
from penstock.engine.traffic import Traffic
from penstock.errors import CannotListen, NotLoopback
from penstock.gates.tls import ServerTls
from penstock.settings import Settings, host_and_port
from penstock.tcp import CloseReason, TcpLimits, TcpServer, TcpSession, shown_peer

TCP: Final = "tcp://"
IPC: Final = "ipc://"
EMBEDDED: Final = "sqlite:///"

S = TypeVar("S", bound=TcpSession)


class Gate(Protocol):
    """An endpoint of the server, for one protocol. It runs on the server's event loop."""

    @property
    def name(self) -> str:
        """Its name, also of its flag and of its address in the ready line."""

    @property
    def address(self) -> str:
        """Where it listens, with its real port, once it has started."""

    async def start(self) -> None:
        """Listen. Raises NotLoopback or CannotListen, and then holds nothing."""

    def refuse(self) -> None:
        """Accept nothing more. Requests in flight continue."""

    async def stop(self) -> None:
        """Accept nothing more, send the last answers, close."""


class TcpGate(TcpServer[S]):
    """A gate whose connections are TCP sessions."""

    def __init__(
        self, name: str, limits: TcpLimits, engine: Engine, address: str, tls: ServerTls | None = None
    ) -> None:
        super().__init__(name, limits)
        self.engine = engine
        self.traffic = Traffic(name, engine.settings, engine.metrics)
        self.address = address
        self._server_tls = tls

    async def start(self) -> None:
        tls = self._server_tls
        check_fixed(self.engine, self.name, self.address)
        bound = await bound_socket(self.name, self.address, exposed(self.engine, is_encrypted=tls is not None))
        self.address = shown_address(bound)
        await self.listen(bound, None if tls is None else tls.current)

    async def stop(self) -> None:
        await super().stop()
        self.traffic.close()

    def opened(self, session: S) -> None:
        super().opened(session)
        self.engine.metrics.gate_sessions[self.name] = len(self._sessions)

    def closed(self, session: S) -> None:
        super().closed(session)
        self.engine.metrics.gate_sessions[self.name] = len(self._sessions)
        self.engine.metrics.gate_closed[self.name, self.reason_of(session)] += 1

    def reason_of(self, session: S) -> str:
        return session.ended or CloseReason.LOST


def limits_of(settings: Settings, gate: str, **others: int) -> TcpLimits:
    """The limits of a gate's connections, from the settings that begin with its name.

    A client may be silent for long between requests, but not within one, nor while answers wait for it.
    """
    usual, idle_ms_max = TcpLimits(), getattr(settings, f"{gate}_idle_ms_max")
    return TcpLimits(
        connections_max=getattr(settings, f"{gate}_connections_max"),
        connections_per_address_max=getattr(settings, f"{gate}_connections_per_address_max"),
        idle_ms_max=idle_ms_max,
        message_ms_max=min(idle_ms_max, usual.message_ms_max),
        stall_ms_max=min(idle_ms_max, usual.stall_ms_max),
        handshake_ms_max=settings.tls_handshake_ms_max,
        **others,
    )


def check_fixed(engine: Engine, gate: str, address: str) -> None:
    """Raise CannotListen if a gate is bound to a principal that does not exist."""
    setting = f"{gate.replace('-', '_')}_as"
    name = getattr(engine.settings, setting)
    if name is not None and engine.access.principal(name) is None:
        raise CannotListen(gate, address, f"{setting} is {name}, and there is no such principal; {_make(engine, name)}")


def _make(engine: Engine, name: str) -> str:
    """How to make a principal while the server is down: it refuses to start without it."""
    if (file := engine.settings.access_file) is not None:
        return f"add it to {file}"
    add = f"penstock access add {name} GRANT --no-token {_place(engine, '--url')}"
    if engine.access.is_closed:
        return f"make it with {add}"
    return f"make an administrator with {_init(engine)}, and then {name} with {add}"


def _init(engine: Engine) -> str:
    return f"penstock access init {_place(engine, '--store')}"


def _place(engine: Engine, option: str) -> str:
    """How a command names the store. The URL of a database may have a password."""
    local = engine.url.startswith(EMBEDDED)
    return f"--data {shlex.quote(engine.url.removeprefix(EMBEDDED))}" if local else f"{option} URL"


def exposed(engine: Engine, fix: str = "--tls-cert FILE --tls-key FILE", *, is_encrypted: bool = False) -> str | None:
    """Why a gate must not listen beyond loopback, and what to do about it; None if it may. `fix` encrypts it."""
    settings, reasons = engine.settings, []
    if not (is_encrypted or settings.allow_plaintext or settings.insecure):
        reasons.append(f"in plain text: encrypt it with {fix}, or allow this with --allow-plaintext")
    if not (engine.access.is_closed or settings.allow_anonymous or settings.insecure):
        way = f"make a principal with {_init(engine)}, or allow this with --allow-anonymous"
        reasons.append(f"where any client may do everything: {way}")
    return "; and ".join(reasons) or None


async def bound_socket(gate: str, address: str, exposed: str | None) -> socket.socket:
    """A socket bound to an address of a gate; port 0 becomes a free one.

    A name may have several addresses: all must be loopback unless `exposed` is None, and the gate takes the first that
    it can bind.
    """
    if address.startswith(IPC):
        return _bind_local(gate, address)
    try:
        host, port = host_and_port(address.removeprefix(TCP))
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise CannotListen(gate, address, str(error.strerror).lower()) from error
    except (ValueError, OSError) as error:
        raise CannotListen(gate, address, str(error)) from error
    if exposed is not None and not all(is_loopback(str(sockaddr[0])) for *_, sockaddr in found):
        raise NotLoopback(gate, address, exposed)
    reason = "it has no address"
    for family, *_, sockaddr in found:
        try:
            return _bind(family, sockaddr)
        except OSError as error:
            reason = _words(error)
    raise CannotListen(gate, address, reason)


def _bind_local(gate: str, address: str) -> socket.socket:
    """A socket bound to a file that only its owner can use. It replaces a file that a dead server left there."""
    path, bound = address.removeprefix(IPC), socket.socket(socket.AF_UNIX)
    try:
        if path.startswith("@"):
            raise OSError("an abstract socket is open to every user; name a file")
        with suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.lstat(path).st_mode) and not _is_served(path):
                Path(path).unlink()
        bound.setblocking(False)
        bound.bind(path)
        # No client can connect before the socket listens.
        Path(path).chmod(0o600)
    except OSError as error:
        bound.close()
        raise CannotListen(gate, address, _words(error)) from error
    return bound


def remove_file(address: str) -> None:
    if address.startswith(IPC):
        Path(address.removeprefix(IPC)).unlink(missing_ok=True)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        # Without this, it would wait for a server whose queue of connections is full.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a numeric host."""
    address = ip_address(host)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def shown_address(bound: socket.socket) -> str:
    if bound.family == socket.AF_UNIX:
        return f"{IPC}{bound.getsockname()}"
    return shown_peer(bound.getsockname())


def _bind(family: socket.AddressFamily, sockaddr: tuple[Any, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setblocking(False)
        # A server that was just stopped leaves connections behind that block its port for a minute.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # One address, one socket: [::] does not bind the IPv4 port as well.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(sockaddr)
    except OSError:
        bound.close()
        raise
    return bound


def _words(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
