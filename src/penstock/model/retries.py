"""How long a queue waits before it hands out an event again that a consumer failed to handle."""

import json
from functools import lru_cache
from typing import Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.model.events import compact

DELAY_S_MAX: Final = 30 * 24 * 3600.0
FACTOR_MAX: Final = 100.0


class RetryPolicy(NamedTuple):
    """Seconds before the first repeat, how much longer each one waits than the one before, and the longest wait.

    `jitter` is a part of each delay: 0.1 makes it up to a tenth shorter or longer.
    """

    delay: float = 1.0
    factor: float = 2.0
    cap: float = 300.0
    jitter: float = 0.1

    @staticmethod
    @lru_cache(1024)
    def parsed(text: str) -> "RetryPolicy":
        """Raises InvalidRequest."""
        if not text:
            return RetryPolicy()
        try:
            given = json.loads(text)
            policy = RetryPolicy(**{name: float(value) for name, value in given.items()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise InvalidRequest(
                "retry policy",
                f"{text[:80]!r} is none; write a JSON object of {', '.join(RetryPolicy._fields)}, or nothing",
            ) from None
        return policy.checked()

    def checked(self) -> "RetryPolicy":
        limits = {"delay": DELAY_S_MAX, "factor": FACTOR_MAX, "cap": DELAY_S_MAX, "jitter": 1.0}
        for name, most in limits.items():
            low = 1.0 if name == "factor" else 0.0
            if not low <= (value := getattr(self, name)) <= most:
                raise InvalidRequest(f"retry policy's {name}", f"is {value:g}; it must be from {low:g} to {most:g}")
        return self

    @property
    def text(self) -> str:
        return compact(self._asdict())

    def delay_ms(self, attempts: int, luck: float) -> int:
        """After so many attempts; `luck` is from -1 to 1."""
        longest = min(self.cap, DELAY_S_MAX)
        delay = min(self.delay * self.factor ** min(attempts - 1, 64), longest)
        return int(1000 * delay * (1 + self.jitter * luck))
