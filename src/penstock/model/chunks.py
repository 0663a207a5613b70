"""Cutting long sequences into chunks that fit into memory, a file or a transaction."""

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def chunked(
    items: Iterable[Item], size_of: Callable[[Item], int], bytes_max: int, items_max: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Chunks of at most so many items and bytes; a larger item has its own chunk."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        own = size_of(item)
        if chunk and (len(chunk) >= items_max or size + own > bytes_max):
            yield chunk
            chunk, size = [], 0
        chunk.append(item)
        size += own
    if chunk:
        yield chunk
