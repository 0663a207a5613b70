"""What the fuzzers of protocols on a stream of bytes share: small changes, a run of many streams, a command line."""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence


def mutated(data: bytes, chance: random.Random, octets: bytes, pieces: Sequence[bytes]) -> bytes:
    """A few small changes: most are still read for a while. `octets` and `pieces` mean something to the protocol."""
    bytes_ = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4, 8))):
        at = chance.randrange(len(bytes_) + 1)
        length = chance.choice((1, 1, 2, 4, 16))
        kind = chance.randrange(6)
        if kind == 0 and at < len(bytes_):
            bytes_[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(bytes_):
            bytes_[at] = chance.choice(octets)
        elif kind == 2:
            bytes_[at:at] = chance.randbytes(length)
        elif kind == 3:
            del bytes_[at : at + length]
        elif kind == 4:
            bytes_[at:at] = bytes_[at : at + length]
        else:
            bytes_[at:at] = chance.choice(pieces)
    return bytes(bytes_)


def run_streams(
    name: str,
    seed: int,
    make: Callable[[random.Random], bytes],
    outcome: Callable[[bytes], Iterable[str]],
    count: int | None = None,
    seconds: float | None = None,
    items: str = "streams",
) -> str:
    """Fuzz so many streams of bytes, or so long; a line that says how it went. A find is raised after it was shown."""
    chance = random.Random(seed)
    began, done, seen = time.monotonic(), 0, Counter[str]()
    while (count is None or done < count) and (seconds is None or time.monotonic() - began < seconds):
        data = make(chance)
        try:
            seen.update(outcome(data))
        except BaseException:
            print(f"{name}: seed {seed}, number {done} of the {items}: {data.hex()}", file=sys.stderr)
            raise
        done += 1
    kinds = ", ".join(f"{kind} {times}" for kind, times in sorted(seen.items()))
    return f"{name}: {done} {items} in {time.monotonic() - began:.1f} s, seed {seed}, no finds ({kinds})"


def command_line(description: str, run: Callable[..., str]) -> None:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(run(options.seed, seconds=options.seconds))
