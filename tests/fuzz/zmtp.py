"""A byte-level fuzzer target for the ZMTP codec: `python -m tests.fuzz.zmtp --seconds 60 --seed 1`.

`fuzz_one` takes any bytes, so that other fuzzers can drive it too. The first byte says how long the chunks are in which
the others come, 0 for all at once. The others are handshakes of all versions and frames behind them, a little changed.
"""

import random
from collections.abc import Iterator
from typing import Final

from tests.fuzz.streams import command_line, mutated, run_streams
from tests.wire.zmtp_checks import (
    HANDSHAKES,
    MORE,
    check,
    command,
    cut_at,
    frame,
    greeting_2,
    greeting_3,
    message,
    ping,
    properties,
    ready,
)

STARTS: Final = [
    *HANDSHAKES.values(),
    greeting_2(3) + frame(b"identity"),
    greeting_3(0) + ready(b"REQ", b"identity"),
    greeting_3(1) + command(b"READY", properties(Socket_Type=b"ROUTER", Resource=b"a/b", X_Long=bytes(300))),
    greeting_3(1, b"PLAIN"),
]
FRAMES: Final = [
    message([b"a"]),
    message([b"", b"Res01", b"GS", b"1"]),
    message([bytes(200), b"", bytes(50)]),
    message([bytes(270), b"b"]),
    frame(b"a", MORE) + ping(10, b"context") + frame(b"b"),
    frame(b"", MORE) * 19 + frame(b""),
    frame(b"ab", MORE) * 7,
    command(b"PONG"),
    command(b"SUBSCRIBE", b"a"),
]
CORPUS: Final = [start + b"".join(FRAMES[at::3]) for start in STARTS for at in range(3)]


def fuzz_one(data: bytes) -> None:
    """Whatever the bytes are, they are read within the limits. Anything else is raised: a find."""
    _outcome(data)


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """So many variations, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _mutated(data, chance)


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    """Fuzz so many streams of bytes, or so long; a line that says how it went."""
    return run_streams("zmtp", seed, _stream, _outcome, count, seconds)


def _stream(chance: random.Random) -> bytes:
    stream = chance.choice(STARTS) + b"".join(chance.choices(FRAMES, k=chance.choice((0, 1, 2, 4))))
    return bytes([chance.choice((0, 0, 1, 2, 7, 64))]) + _mutated(stream, chance)


def _outcome(data: bytes) -> list[str]:
    size, stream = data[0] if data else 0, data[1:]
    outcome = check(cut_at(stream, range(size, len(stream), size) if size else ()))
    kinds = ["message" if isinstance(event, list) else type(event).__name__.lower() for event in outcome.events]
    return kinds if kinds and kinds[-1] in ("oversize", "violation") else [*kinds, "open"]


def _mutated(data: bytes, chance: random.Random) -> bytes:
    return mutated(data, chance, b"\x00\x01\x02\x03\x04\x05\x06\x07\x7f\xff", FRAMES)


if __name__ == "__main__":
    command_line("Fuzz the ZMTP codec.", run)
