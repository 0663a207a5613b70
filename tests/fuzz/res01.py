"""A byte-level fuzzer target for the Res01 codec: `python -m tests.fuzz.res01 --seconds 60 --seed 1`.

`fuzz_one` takes any bytes, so that other fuzzers can drive it too. The first byte says whether the endpoint answers
with the older results; then come frames, each behind a byte with its length. What is left over is the last frame.
"""

import random
from collections.abc import Iterator

from tests.fuzz.streams import command_line, run_streams
from tests.wire.checks import check
from tests.wire.samples import SAMPLES


def fuzz_one(data: bytes) -> None:
    """Whatever the bytes are, the message is answered or unanswerable. Anything else is raised: a find."""
    _answers(data)


def joined(frames: list[bytes], *, legacy: bool = False) -> bytes:
    """A message as `fuzz_one` wants it. Frames are cut at 255 bytes."""
    return bytes([legacy]) + b"".join(bytes([len(frame[:255])]) + frame[:255] for frame in frames)


def split(data: bytes) -> list[bytes]:
    """The frames in what follows the first byte."""
    frames, at = [], 1
    while at < len(data):
        end = at + 1 + data[at]
        frames.append(data[at + 1 : end])
        at = end
    return frames


def mutations(data: bytes, seed: int, count: int) -> Iterator[bytes]:
    """So many variations, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield _mutated(data, chance)


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    """Fuzz so many messages, or so long; a line that says how it went. A find is raised after it was shown."""
    corpus = [joined(sample.message(b"r"), legacy=sample.is_legacy) for sample in SAMPLES]

    def make(chance: random.Random) -> bytes:
        return _mutated(chance.choice(corpus), chance, chance.choice(corpus))

    return run_streams("res01", seed, make, _answers, count, seconds, "messages")


def _answers(data: bytes) -> list[str]:
    answers = check(split(data), legacy=bool(data[:1] and data[0] & 1))
    return ["unanswerable"] if answers is None else [answer.decode() for answer in answers]


def _mutated(data: bytes, chance: random.Random, other: bytes = b"") -> bytes:
    """A few small changes: most still decode as far as the command."""
    bytes_ = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4, 8))):
        at = chance.randrange(len(bytes_) + 1)
        length = chance.choice((1, 1, 2, 4, 16))
        kind = chance.randrange(7)
        if kind == 0 and at < len(bytes_):
            bytes_[at] ^= 1 << chance.randrange(8)
        elif kind == 1 and at < len(bytes_):
            bytes_[at] = chance.choice(b"\x00\x01\x04\x08\x10\xff-0159:")
        elif kind == 2:
            bytes_[at:at] = chance.randbytes(length)
        elif kind == 3:
            del bytes_[at : at + length]
        elif kind == 4:
            bytes_[at:at] = bytes_[at : at + length]
        elif kind == 5:
            _resize_frame(bytes_, chance)
        else:
            cut = chance.randrange(len(other) + 1)
            bytes_[at:at] = other[cut : cut + 4 * length]
    return bytes(bytes_)


def _resize_frame(data: bytearray, chance: random.Random) -> None:
    """Make one frame a number, empty, or long, and leave the others what they are."""
    frames = split(bytes(data))
    if frames:
        numbers = (b"", b"0", b"-1", b"1", b"1000000", b"9" * 19, b"-" + b"9" * 19, bytes(4), bytes(8), b"\xff" * 8)
        frames[chance.randrange(len(frames))] = chance.choice((*numbers, chance.randbytes(40)))
        data[1:] = joined(frames)[1:]


if __name__ == "__main__":
    command_line("Fuzz the Res01 codec.", run)
