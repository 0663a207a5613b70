"""Penstock: one event store and durable log, several wire protocols in front, Spark behind."""

__version__ = "0.1.0.dev0"
__all__ = ["__version__"]
