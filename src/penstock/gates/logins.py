"""The senders on a connection: the connection itself, and behind a broker each sender by its routing frames.

A sender that has shown no token has the principal of its connection: that of a certificate or key, or that of its gate.
A broker's token stands for the broker alone, not for the senders behind it. If a principal has too many connections,
the sender gets an error that says how long to wait, and each of its requests checks this again.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from penstock.engine import Engine
from penstock.engine.access import Login
from penstock.engine.engine import FIELD_BYTES
from penstock.errors import LimitExceeded, NotAuthenticated, PenstockError
from penstock.model import Identity
from penstock.tcp import CloseReason, TcpSession

SENDERS_MAX: Final = 1024
"""Senders that the server remembers behind one connection. It first forgets the one that was silent for longest."""
SENDER_BYTES_MAX: Final = 4096
"""The routing frames of one sender, each with its overhead. ZeroMQ's have up to 255 bytes, and each broker adds one."""
REFUSALS_MAX: Final = 10
"""Wrong tokens that a connection may show before the server ends it."""


class Logins:
    def __init__(
        self,
        engine: Engine,
        session: TcpSession,
        gate: str,
        replaced: Callable[[Login, Login | None], None] = lambda _before, _now: None,
    ) -> None:
        """`replaced` is called for a sender that has another principal from now on, or none. Its connection goes on."""
        self._access = engine.access
        self._session = session
        session.names = self.names
        self._replaced = replaced
        self._refusals = 0
        self._fixed: str | None = getattr(engine.settings, f"{gate.replace('-', '_')}_as")
        self._ids: Sequence[str] = ()
        self._base: Login | None = self._arrive()
        """The sender without a token; None if the connection has shown one, so that no message needs this sender."""
        self._is_broker = False
        """Whether messages came with routing frames."""
        self._own: Login | None = None
        self._behind: OrderedDict[tuple[bytes, ...], Login] = OrderedDict()

    def names(self) -> Sequence[str]:
        """The principals on the connection: its own, and those that brokers speak for."""
        logins = (self._own or self._base, *self._behind.values())
        return list(dict.fromkeys(login.principal.name for login in logins if login is not None))

    def _arrive(self) -> Login:
        return self._access.arrive(self._fixed, self._ended, self._ids)

    def of(self, routing: Sequence[bytes]) -> Login:
        """The sender of a message with these routing frames."""
        if not routing:
            login = self._own or self._base
            return login if login is not None and login.refusal is None else self._itself()
        self._is_broker = True
        key = tuple(routing) if self._behind else ()
        found = self._behind.get(key)
        if found is None:
            return self._itself()
        self._behind.move_to_end(key)
        return found

    def _itself(self) -> Login:
        """The sender of messages on this connection without a token."""
        base = self._base
        if base is None or base.refusal is not None:
            if base is not None:
                self._access.leave(base)
            base = self._base = self._arrive()
        return base

    def secured(self, ids: Sequence[str]) -> bool:
        """Note that the connection has shown a certificate or key. Returns whether it stands for a principal."""
        self._ids = ids
        if ids and self._base is not None:
            self._access.leave(self._base)
            self._base = self._arrive()
        return self._access.knows(ids)

    def authenticate(self, token: str, routing: Sequence[bytes] = ()) -> Identity | PenstockError:
        """Take a token, at any time and again. After an error the sender keeps the principal that it had."""
        key = tuple(routing)
        if (size := sum(FIELD_BYTES + len(frame) for frame in key)) > SENDER_BYTES_MAX:
            return LimitExceeded("sender_bytes_max", size, SENDER_BYTES_MAX)
        before = self._behind.get(key) if key else self._own
        if not key and before is None and not self._is_broker:
            before = self._base
        try:
            found = self._access.by_token(token, self._ended, before)
        except PenstockError as error:
            if isinstance(error, NotAuthenticated) and not routing:
                self._refusals += 1
                if self._refusals >= REFUSALS_MAX:
                    self._session.leave(CloseReason.UNAUTHENTICATED)
            return error
        if not key:
            if before is self._base:
                # This connection no longer counts for the principal of its gate or certificate.
                self._base = None
            self._own = found
        else:
            self._behind[key] = found
            self._behind.move_to_end(key)
        if before is not None:
            self._leave(before, found)
        if len(self._behind) > SENDERS_MAX:
            self._leave(self._behind.popitem(last=False)[1], None)
        return self._access.identity(found)

    def _leave(self, before: Login, now: Login | None) -> None:
        self._access.leave(before)
        self._replaced(before, now)

    def identity(self, login: Login) -> Identity:
        return self._access.identity(login)

    def _ended(self, login: Login) -> None:
        """A principal was revoked or changed, or a credential has expired."""
        key = next((key for key, behind in self._behind.items() if behind is login), None)
        if key is not None:
            del self._behind[key]
        elif login is self._base and self._own is not None:
            # The connection goes on with its token.
            self._base = None
        else:
            self._session.end(CloseReason.REVOKED)
            return
        self._replaced(login, None)

    def close(self) -> None:
        """The connection is gone."""
        for login in (self._base, self._own, *self._behind.values()):
            if login is not None:
                self._access.leave(login)
        self._behind.clear()
        self._own = None
