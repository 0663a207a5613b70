"""A byte-level fuzzer target for the Remits codec: `python -m tests.fuzz.remits --seconds 60 --seed 1`.

`fuzz_one` takes any bytes, so that other fuzzers can drive it too. They are what comes on a connection, frames and all,
but for the first byte, which says in what pieces it comes. Each message is also checked by itself, as CBOR.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from penstock.wire.remits.cbor import check_message, first_invalid
from tests.wire.remits_checks import check, reference
from tests.wire.remits_samples import SAMPLES

MESSAGES = [
    bytes.fromhex(text)
    for text in (
        "a4 6161 01 6162 fb3ff8000000000000 6163 83 01 20 f6 6164 a2 6178 00 6179 f4",
        "a3 01 02 20 03 f93c00 04",
        "bf 6161 9f 01 7f 6162 6163 ff ff 6162 5f 41 00 42 01 02 ff ff",
        "c1 1a 514b67b0",
        "d9 0102 83 c2 41 05 d8 25 50 00112233445566778899aabbccddeeff d8 1d 00",
        "a2 82 01 02 03 a1 61 61 05 c0 61 62",
        "78 20 c3a4c3b6c3bc c3a4c3b6c3bc c3a4c3b6c3bc c3a4c3b6c3bc c3a4c3b6c3bc 6162",
        "81 81 81 81 80",
    )
]


def fuzz_one(data: bytes) -> None:
    """Whatever the bytes are, all frames are answered. Anything else is raised: a find."""
    _answers(data)


def check_cbor(data: bytes) -> bool:
    """Whether these bytes are a message; that every way to find out says the same."""
    valid = reference(data)
    assert (check_message(data) is None) == valid
    assert (first_invalid([data]) is None) == valid
    assert (first_invalid([b"\x00", data, b"\x60"]) is None) == valid
    # Cut in two, it is two messages only if each half is one.
    half = len(data) // 2
    assert (first_invalid([data[:half], data[half:]]) is None) == (reference(data[:half]) and reference(data[half:]))
    return valid


def split(data: bytes) -> list[bytes]:
    """The pieces: of as many bytes as the first one says, or all at once."""
    size = data[0] if data and data[0] else len(data) + 1
    return [data[at : at + size] for at in range(1, len(data), size)]


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """So many variations, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _mutated(data, chance)


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    """Fuzz so many rounds, or so long; a line that says how it went. A find is raised after it was shown."""
    chance = random.Random(seed)
    corpus = [bytes([7 * number % 11]) + sample.sent for number, sample in enumerate(SAMPLES)]
    began, done, seen = time.monotonic(), 0, Counter[str]()
    while (count is None or done < count) and (seconds is None or time.monotonic() - began < seconds):
        kind, data = _made(chance, corpus)
        try:
            seen.update(_answers(data) if kind == "frames" else [f"CBOR {check_cbor(data)}"])
        except BaseException:
            print(f"remits: seed {seed}, round {done}, {kind}: {data.hex()}", file=sys.stderr)
            raise
        done += 1
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(seen.items()))
    return f"remits: {done} rounds in {time.monotonic() - began:.1f} s, seed {seed}, no finds ({kinds})"


def _made(chance: random.Random, corpus: list[bytes]) -> tuple[str, bytes]:
    if chance.randrange(2):
        return "CBOR", _mutated(chance.choice(MESSAGES), chance, chance.choice(MESSAGES))
    data = _mutated(chance.choice(corpus), chance, chance.choice(corpus)[1:])
    if chance.randrange(3):
        data = _with_length(data)
    return "frames", data + chance.choice(corpus)[1:]


def _answers(data: bytes) -> list[str]:
    return check(split(data))


def _with_length(data: bytes) -> bytes:
    """Mend the first frame's length, so that what was changed is its payload."""
    return data[:1] + (len(data) - 5).to_bytes(4, "big") + data[5:] if len(data) > 6 else data


def _mutated(data: bytes, chance: random.Random, other: bytes = b"") -> bytes:
    """A few small changes."""
    bytes_ = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        at = chance.randrange(len(bytes_) + 1)
        length = chance.choice((1, 1, 2, 4, 16))
        kind = chance.randrange(6)
        if kind == 0 and at < len(bytes_):
            bytes_[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(bytes_):
            bytes_[at] = chance.choice(
                b"\x00\x17\x18\x1b\x40\x5f\x60\x7f\x80\x9f\xa0\xa1\xbf\xc0\xc1\xdb\xf6\xf8\xfb\xff"
            )
        elif kind == 2:
            bytes_[at:at] = chance.randbytes(length)
        elif kind == 3:
            del bytes_[at : at + length]
        elif kind == 4:
            bytes_[at:at] = bytes_[at : at + length]
        else:
            cut = chance.randrange(len(other) + 1)
            bytes_[at:at] = other[cut : cut + 4 * length]
    return bytes(bytes_)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fuzz the Remits codec.")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(run(options.seed, count=options.rounds, seconds=options.seconds))


if __name__ == "__main__":
    main()
