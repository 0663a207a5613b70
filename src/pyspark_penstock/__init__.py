"""Makes Spark find the data source `penstock` by itself: it looks for packages whose names begin with `pyspark_`."""

from penstock.spark.source import PenstockSource as DefaultSource

__all__ = ["DefaultSource"]
