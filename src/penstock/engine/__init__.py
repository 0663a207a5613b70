"""The engine carries out requests: group commit, reads, subscriptions, queues, logs and iterators, worker processes.

The engine is loaded when it is first used: its workers need only the jobs that they do.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.engine.engine import Engine
else:
    __getattr__, __dir__ = lazy_names(__name__, {"penstock.engine.engine": ("Engine",)})

__all__ = ["Engine"]
