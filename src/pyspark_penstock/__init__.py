"""Registers the data source `penstock`: Spark looks for packages whose names begin with `pyspark_`."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
