"""The history as a Spark table: the data source `penstock`, and functions for notebooks. docs/spark.md is the guide.

This needs `penstock[spark]` and Java 17. Names load on first use, because child processes of tasks need no Spark.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.notebook import VARIANT, events, typed
    from penstock.spark.source import PenstockSource

__all__ = ["VARIANT", "PenstockSource", "events", "typed"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'penstock.spark' has no attribute {name!r}")
    from penstock.spark import notebook, source  # noqa: PLC0415

    return getattr(source if name == "PenstockSource" else notebook, name)
