"""What a name may be: non-empty UTF-8 without NUL, within a length in bytes."""

from typing import Final

CONTEXT_BYTES_MAX: Final = 255
STREAM_BYTES_MAX: Final = 512
TYPE_BYTES_MAX: Final = 1024
NAME_BYTES_MAX: Final = 512
"""Subscribers, queues, producers, logs, iterators."""
RESERVED_JOBS: Final = "penstock:"
"""How the names of jobs begin that the server itself stages: the output of iterators."""


def _reason(name: str, limit: int) -> str | None:
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if not length:
        return "is empty"
    if length > limit:
        return f"has {length} bytes; at most {limit} are allowed"
    return "contains a NUL character" if "\0" in name else None


def check_context(name: str) -> str | None:
    """Why this cannot be a context's name, or None if it can."""
    return _reason(name, CONTEXT_BYTES_MAX)


def check_stream(name: str) -> str | None:
    """Why this cannot be a stream's name, or None if it can."""
    return _reason(name, STREAM_BYTES_MAX)


def check_type(name: str) -> str | None:
    """Why this cannot be an event's type, or None if it can."""
    return _reason(name, TYPE_BYTES_MAX)


def check_name(name: str) -> str | None:
    """Why this cannot name a subscriber, queue, producer, log or iterator, or None if it can."""
    return _reason(name, NAME_BYTES_MAX)


def check_job(name: str) -> str | None:
    """Why this cannot name a job that stages events, or None if it can."""
    if name.startswith(RESERVED_JOBS):
        return f"begins with {RESERVED_JOBS}, as only jobs of the server itself do"
    return _reason(name, NAME_BYTES_MAX)
