"""The history as a Spark table: the data source `penstock`, and what notebooks need. docs/spark.md is the guide.

This needs `penstock[spark]` and Java 17.
"""

from penstock.spark.notebook import VARIANT, events, typed
from penstock.spark.source import PenstockSource

__all__ = ["VARIANT", "PenstockSource", "events", "typed"]
