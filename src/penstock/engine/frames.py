"""What goes between the server and its own worker processes: a length, then a pickle. Never on a network."""

import pickle
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

_LENGTH: Final = Struct("<I")


def frame(value: Any) -> bytes:
    """One message as bytes."""
    payload = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(payload)) + payload


class Unframer:
    """Bytes as they come, messages as they are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def receive(self, data: bytes) -> Iterator[Any]:
        """Take bytes; yield the messages they complete."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            if len(buffer) < end:
                return
            payload = bytes(memoryview(buffer)[_LENGTH.size : end])
            del buffer[:end]
            yield pickle.loads(payload)  # noqa: S301 - from our own child or parent
