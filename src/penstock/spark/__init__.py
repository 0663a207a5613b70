"""The history as a Spark table: the data source `penstock`, and what notebooks need. docs/spark.md is the guide.

This needs `penstock[spark]` and Java 17. What is named here is loaded when it is first used: processes that work for
Spark's tasks need no Spark themselves.
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
