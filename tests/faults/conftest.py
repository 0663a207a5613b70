"""Engines whose workers start fast."""

from tests.nursery import fast_workers, nursery, real_workers

__all__ = ["fast_workers", "nursery", "real_workers"]
