"""One seed for each test run: a new one every time, printed at its beginning, repeatable with `make test SEED=…`.

Hypothesis takes it, and so does everything else that is random. A failure that a seed has found becomes a fixed
example of its test (`@example`, or an entry of its table), so that every later run tries it as well.
"""

import os
import random
import secrets
from typing import Final

VARIABLE: Final = "PENSTOCK_TEST_SEED"
"""The processes of a parallel run inherit it from the one that chose it."""


def run_seed() -> int:
    """The seed of this run."""
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(1 << 32))))


def rng(name: str) -> random.Random:
    """Random numbers for one purpose, the same ones for the same seed whatever else runs."""
    return random.Random(f"{run_seed()}/{name}")
