"""Sessions of the console in the server's memory, the cookies that name them, and failed attempts to log in."""

import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from penstock.model import Credential

COOKIE: Final = "penstock_console"
ID_BYTES: Final = 32
IDLE_S_MAX: Final = 60 * 60
"""How long a session lasts without a request."""
SESSION_S_MAX: Final = 12 * 60 * 60
"""How long it lasts at most."""
SESSIONS_MAX: Final = 1000
SESSIONS_PER_PRINCIPAL_MAX: Final = 50
"""For one more, the one that was used longest ago ends."""
NOTES_MAX: Final = 1000
NOTE_CHARACTERS_MAX: Final = 2000
FAILURES_MAX: Final = 10
"""Wrong tokens from one IPv4 address or IPv6 /64 in FAILURES_S; then it has to wait."""
FAILURES_S: Final = 60.0
NETWORKS_MAX: Final = 1000

_ID: Final = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(slots=True)
class Session:
    credential: Credential
    began: float
    used: float


class Sessions:
    """All sessions of this server. Of an id only a keyed digest is kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(ID_BYTES)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """By the digest of the id; the one that was used last is at the end."""
        self._notes: OrderedDict[str, str] = OrderedDict()
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    @staticmethod
    def new_id() -> str:
        """For a browser that has none yet, so that its forms have a CSRF token."""
        return secrets.token_urlsafe(ID_BYTES)

    @staticmethod
    def is_id(text: str | None) -> bool:
        return text is not None and _ID.fullmatch(text) is not None

    def csrf(self, id: str) -> str:
        return self._digest("csrf", id)

    def is_csrf(self, id: str, sent: str) -> bool:
        return hmac.compare_digest(self.csrf(id).encode(), sent.encode(errors="replace"))

    def begin(self, credential: Credential) -> str:
        """Begin a session; its id."""
        self._expire()
        own = [key for key, one in self._sessions.items() if one.credential.principal == credential.principal]
        if len(own) >= SESSIONS_PER_PRINCIPAL_MAX:
            del self._sessions[own[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        id, now = self.new_id(), self._clock()
        self._sessions[self._digest("session", id)] = Session(credential, now, now)
        return id

    def find(self, id: str) -> Session | None:
        """The session of an id, used now; None if it has ended."""
        key, now = self._digest("session", id), self._clock()
        found = self._sessions.get(key)
        if found is None:
            return None
        if self._is_over(found, now):
            del self._sessions[key]
            return None
        found.used = now
        self._sessions.move_to_end(key)
        return found

    def end(self, id: str) -> None:
        self._sessions.pop(self._digest("session", id), None)
        self._notes.pop(self._digest("note", id), None)

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, one in self._sessions.items() if self._is_over(one, now)]:
            del self._sessions[key]

    @staticmethod
    def _is_over(one: Session, now: float) -> bool:
        return now - one.used > IDLE_S_MAX or now - one.began > SESSION_S_MAX

    def _digest(self, purpose: str, id: str) -> str:
        return hmac.new(self._key, f"{purpose} {id}".encode(), sha256).hexdigest()

    # -- what the next page says

    def note(self, id: str, sentence: str) -> None:
        """Keep a sentence for the next page of a browser."""
        key = self._digest("note", id)
        self._notes[key] = sentence[:NOTE_CHARACTERS_MAX]
        self._notes.move_to_end(key)
        if len(self._notes) > NOTES_MAX:
            self._notes.popitem(last=False)

    def take_note(self, id: str) -> str | None:
        return self._notes.pop(self._digest("note", id), None)

    # -- wrong tokens

    def wait_s(self, network: str) -> float:
        """How long a network has to wait until it may try another token; 0 if it may now."""
        count, since = self._failures.get(network, (0, 0.0))
        return max(0.0, since + FAILURES_S - self._clock()) if count >= FAILURES_MAX else 0.0

    def failed(self, network: str) -> None:
        now = self._clock()
        count, since = self._failures.get(network, (0, now))
        self._failures[network] = (count + 1, since) if now - since < FAILURES_S else (1, now)
        self._failures.move_to_end(network)
        if len(self._failures) > NETWORKS_MAX:
            self._failures.popitem(last=False)
