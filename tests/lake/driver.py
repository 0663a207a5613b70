"""An archive that is started to be killed: `python -m tests.lake.driver URL LAKE` follows a store in small ranges."""

import sys

from penstock.lake import archiver as lake_archiver
from penstock.lake import changes
from penstock.lake.compaction import compact
from penstock.spark.sessions import late_session
from tests.lake.support import manifest_of, quiet
from tests.spark.support import JAVA

COMPACT_AFTER = 12
"""Files that a lake may have before it is compacted."""


def main(url: str, lake: str) -> None:
    """Archive, and compact now and then, until this is killed."""
    lake_archiver.RANGE_BYTES, changes.ROUND_TASKS = 1, 4  # type: ignore[misc]
    conf = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": JAVA}
    with late_session("to-be-killed", "local[2,1000]", conf) as spark:
        while True:
            archiver = lake_archiver.Archiver(spark, url, lake)
            for _ in range(3):
                print(archiver.catch_up(quiet).head, flush=True)
            if len(manifest_of(lake).files) > COMPACT_AFTER:
                compact(spark, lake, quiet)


if __name__ == "__main__":
    main(*sys.argv[1:])
