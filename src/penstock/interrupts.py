"""Waiting for another thread, so that Ctrl-C is noticed.

Python notes a signal that comes in the moment before a wait begins, and tells of it when the wait ends. A wait that may
be long is therefore made of short ones.
"""

from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

T = TypeVar("T")

NOTICE_S_MAX: Final = 0.5
"""How long a Ctrl-C may go unnoticed."""


def awaited(future: "Future[T]") -> T:
    """The result of a future, as soon as it is there."""
    while not future.done():
        with suppress(TimeoutError):
            return future.result(NOTICE_S_MAX)
    return future.result()
