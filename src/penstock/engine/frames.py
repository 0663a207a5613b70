"""What goes between the server and its own worker processes: a length, then a pickle. Never on a network."""

import pickle
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

_LENGTH: Final = Struct("<I")


def frame(value: Any) -> bytes:
    """One message as bytes."""
    payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


class Unframer:
    """Takes bytes where they shall lie and gives messages: pages are megabytes, so nothing is copied twice.

    Receive into `space`, then tell how many bytes came.
    """

    def __init__(self) -> None:
        self._expect(_LENGTH.size, is_length=True)

    def _expect(self, size: int, *, is_length: bool) -> None:
        self.space = memoryview(bytearray(size))
        self._whole = self.space
        self._is_length = is_length

    def received(self, count: int) -> Sequence[Any]:
        """So many bytes came into `space`; the message they complete, if they do."""
        # A generator would keep the bytes in memory while the caller handles the message.
        self.space = self.space[count:]
        if self.space:
            return ()
        whole = self._whole
        if self._is_length:
            self._expect(_LENGTH.unpack(whole)[0], is_length=False)
            return ()
        self._expect(_LENGTH.size, is_length=True)
        return [pickle.loads(whole)]  # noqa: S301 - from our own child or parent
