"""A byte-level fuzzer target for the MqFrame codec: `python -m tests.fuzz.mqframe --seconds 60 --seed 1`.

`fuzz_one` takes any bytes, so that other fuzzers can drive it too. The first byte says how long the chunks are in which
the others come, 0 for all at once.
"""

import random
from collections.abc import Iterator
from typing import Final

from tests.fuzz.streams import command_line, mutated, run_streams
from tests.wire.mqframe_checks import EMPTY, EMPTY_LAST, PING, check, command, cut_at, more, wire

CORPUS: Final = [
    wire([b"a"]),
    wire([b"a", b"", b"bc"]),
    EMPTY_LAST,
    PING + more(b"ab") + PING + EMPTY + PING + EMPTY_LAST,
    wire([b"0123456789"] * 4) * 5,
    wire([bytes(200), bytes(50)]),
    EMPTY * 19 + EMPTY_LAST,
    command(b"\0\x02"),
    wire([b"last words"]) + command(b"\0"),
]


def fuzz_one(data: bytes) -> None:
    """Whatever the bytes are, they are parsed within the limits. Anything else is raised: a find."""
    _outcome(data)


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """So many variations, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _mutated(data, chance)


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    """Fuzz so many streams of bytes, or so long; a line that says how it went."""
    return run_streams("mqframe", seed, _stream, _outcome, count, seconds)


def _stream(chance: random.Random) -> bytes:
    stream = b"".join(chance.choices(CORPUS, k=chance.choice((1, 1, 2, 4))))
    return bytes([chance.choice((0, 1, 1, 2, 3, 7, 64))]) + _mutated(stream, chance)


def _outcome(data: bytes) -> list[str]:
    size, stream = data[0] if data else 0, data[1:]
    outcome = check(cut_at(stream, range(size, len(stream), size) if size else ()))
    ended = "open" if outcome.ended is None else type(outcome.ended).__name__.lower()
    return [ended, *["message"] * len(outcome.messages), *["ping"] * outcome.pings]


def _mutated(data: bytes, chance: random.Random) -> bytes:
    return mutated(data, chance, b"\x00\x01\x02\x03\x04\x05\x06\x07\xff", CORPUS)


if __name__ == "__main__":
    command_line("Fuzz the MqFrame codec.", run)
