"""The history as a Spark table: the data source `penstock`, and functions for notebooks. docs/spark.md is the guide.

This needs `penstock[spark]` and Java 17. Names load on first use, because child processes of tasks need no Spark.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.spark.notebook import VARIANT, events, typed
    from penstock.spark.source import PenstockSource
else:
    _HOMES = {"penstock.spark.notebook": ("VARIANT", "events", "typed"), "penstock.spark.source": ("PenstockSource",)}
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["VARIANT", "PenstockSource", "events", "typed"]
