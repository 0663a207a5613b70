"""Archives killed while appends and erasures go on: `python -m tests.soak.lake --drivers 40 --workers 10`.

Each driver archives to the same lake, and compacts it now and then. Its Python workers are killed one after the other,
and then the driver itself, all with SIGKILL, at moments that depend on the seed and on the clock. The next driver goes
on. Every few of them the lake is compared with the store, and what anybody sees who reads the folder is compared too.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from penstock.store import store_url
from tests.lake.killing import appending, kill_driver
from tests.lake.support import archive, is_same, lake_table, manifest_of, verified

ERASE_EVERY = 300
VERIFY_EVERY = 5
LIFE_S = 6.0
"""How long a driver lives at most after its first round: some come to compact."""


def main() -> None:
    """Kill, and look."""
    given = arguments()
    chance = random.Random(given.seed)
    directory = given.directory or Path(tempfile.mkdtemp(prefix="soak-lake-"))
    data, lake = directory / "data", directory / "lake"
    started, killed = time.monotonic(), 0
    with appending(data, erase_every=ERASE_EVERY):
        for number in range(1, given.drivers + 1):
            told = kill_driver(store_url(data), lake, chance.randint(0, 2 * given.workers), chance, LIFE_S)
            killed += told["workers"]
            print(f"driver {number}: {told}, {time.monotonic() - started:.0f} s", flush=True)
            if number % VERIFY_EVERY == 0:
                check_unmoved(store_url(data), lake)
    archive(store_url(data), lake)
    if not is_same(store_url(data), lake):
        sys.exit("the lake is not what the store is")
    manifest = manifest_of(lake)
    print(
        f"{given.drivers} drivers and {killed} workers killed; {manifest.rows} events of {manifest.head}, all the same"
    )
    if given.directory is None:
        shutil.rmtree(directory)


def check_unmoved(url: str, lake: Path) -> None:
    """Compare while appends go on: differences are only what was erased since, and no event is there twice."""
    archive(url, lake)
    found = verified(url, lake)
    others = [each for each in found.differences if "erased since" not in each.what]
    positions = lake_table(lake)["position"].to_pylist()
    if others or len(positions) != len(set(positions)):
        sys.exit(f"the lake is not what the store is: {others}")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.lake", description=__doc__)
    parser.add_argument("--drivers", type=int, default=40, help="how many drivers are killed")
    parser.add_argument("--workers", type=int, default=10, help="about how many workers of each are killed before it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, help="where store and lake are kept")
    return parser.parse_args()


if __name__ == "__main__":
    main()
