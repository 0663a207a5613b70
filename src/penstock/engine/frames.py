"""What goes between the server and its own worker processes: a length, then a pickle. Never on a network.

What processes answer that run Lua is no pickle; see `penstock.engine.answers`.
"""

import pickle
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

BYTES_MAX: Final = (1 << 32) - 1
_LENGTH: Final = Struct("<I")


class Opening(NamedTuple):
    """What a worker gets first: its store, and whether it will run Lua.

    One that does gives up its rights, answers what the system does not let it give up, and answers in a form that
    cannot run anything in the server (`penstock.engine.answers`).
    """

    url: str
    runs_lua: bool


class Unreadable(Exception):
    """A message that nobody we have started would send."""


def frame(value: Any) -> bytes:
    """One message as bytes."""
    return framed(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))


def framed(payload: bytes) -> bytes:
    """One message whose bytes are made already."""
    return _LENGTH.pack(len(payload)) + payload


class Unframer:
    """Takes bytes where they shall lie and gives messages: pages are megabytes, so nothing is copied twice.

    Receive into `space`, then tell how many bytes came.
    """

    def __init__(self, load: Callable[[memoryview], Any] = pickle.loads, bytes_max: int = BYTES_MAX) -> None:
        self._load = load
        self._bytes_max = bytes_max
        self._expect(_LENGTH.size, is_length=True)

    def _expect(self, size: int, *, is_length: bool) -> None:
        self.space = memoryview(bytearray(size))
        self._whole = self.space
        self._is_length = is_length

    def received(self, count: int) -> Sequence[Any]:
        """So many bytes came into `space`; the message they complete, if they do; Unreadable if it is too long."""
        # A generator would keep the bytes in memory while the caller handles the message.
        self.space = self.space[count:]
        if self.space:
            return ()
        whole = self._whole
        if self._is_length:
            (size,) = _LENGTH.unpack(whole)
            if not 0 < size <= self._bytes_max:
                raise Unreadable(f"it has {size} bytes")
            self._expect(size, is_length=False)
            return ()
        self._expect(_LENGTH.size, is_length=True)
        return [self._load(whole)]
