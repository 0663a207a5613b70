"""One seed for a whole run: `PENSTOCK_TEST_SEED=… make test` takes the same random steps again."""

import os
import random
from functools import cache


@cache
def run_seed() -> int:
    """The seed of this run: what PENSTOCK_TEST_SEED says, or else a random number."""
    return int(os.environ.get("PENSTOCK_TEST_SEED") or random.SystemRandom().randrange(1 << 32))


def rng(name: str) -> random.Random:
    """Dice for one test, by its name: other tests do not change what they throw."""
    return random.Random(f"{run_seed()} {name}")
