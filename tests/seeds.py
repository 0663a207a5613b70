"""New random numbers in each test run, and the same ones again: `PENSTOCK_TEST_SEED=… make test`."""

import os
import random
from functools import cache
from typing import Final

VARIABLE: Final = "PENSTOCK_TEST_SEED"


@cache
def run_seed() -> int:
    """The seed of this run: what the environment says, or else a number chosen once."""
    return int(os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1 << 32))))


def rng(name: str) -> random.Random:
    """Random numbers for one test of this run; whoever has another name has others."""
    return random.Random(f"{run_seed()}/{name}")
