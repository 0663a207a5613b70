"""The engine carries out requests: group commit, reads, subscriptions, queues, logs and iterators, worker processes.

The engine is loaded when it is first used: its workers need only the jobs that they do.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.engine.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from penstock.engine import engine  # noqa: PLC0415

        return getattr(engine, name)
    raise AttributeError(f"module 'penstock.engine' has no attribute {name!r}")
