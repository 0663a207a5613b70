"""`python -m tests.cluster.command …` is the command line with ranges so small that a small store makes many tasks."""

from penstock.cli import main
from penstock.lake import archiver as lake_archiver
from penstock.spark.builds import SparkBuild

if __name__ == "__main__":
    lake_archiver.RANGE_BYTES = 1  # type: ignore[misc]
    SparkBuild.run.__defaults__ = (1000,)
    main()
