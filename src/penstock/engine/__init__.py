"""What a request means: group commit, subscriptions, queues, and the worker processes."""

from penstock.engine.engine import Answer, Engine

__all__ = ["Answer", "Engine"]
