"""Points that runs of plain iterators came to, so that the next page begins where the last one ended.

They are kept in memory, and only so many of so many bytes; those that were used longest ago go first. One that is
gone costs time, never a wrong answer.
"""

from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from penstock.engine.running import Point

POINT_BYTES: Final = 256
"""What a point takes beside its accumulator."""
START: Final = Point()


class Points:
    """The points of all iterators, by the iterator's number."""

    def __init__(self, points_max: int, bytes_max: int) -> None:
        self._points_max = points_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._outputs: dict[int, list[int]] = {}
        self._points: OrderedDict[tuple[int, int], Point] = OrderedDict()

    def __len__(self) -> int:
        return len(self._points)

    def add(self, iterator: int, points: Iterable[Point]) -> None:
        """Remember points. Of two with as many items, the one that has read further is the better one."""
        for point in points:
            key = (iterator, point.output)
            known = self._points.get(key)
            if known is not None and known.source >= point.source:
                self._points.move_to_end(key)
                continue
            if known is None:
                insort(self._outputs.setdefault(iterator, []), point.output)
            else:
                self._bytes -= _size(known)
            self._points[key] = point
            self._points.move_to_end(key)
            self._bytes += _size(point)
        self._shrink()

    def best(self, iterator: int, ordinal: int | None) -> Point:
        """Where to begin for an item, or for the last one (None): the nearest point before it."""
        outputs = self._outputs.get(iterator, [])
        index = len(outputs) if ordinal is None else bisect_right(outputs, ordinal)
        if not index:
            return START
        key = (iterator, outputs[index - 1])
        self._points.move_to_end(key)
        return self._points[key]

    def forget(self, iterator: int) -> None:
        """The iterator is gone."""
        for output in self._outputs.pop(iterator, []):
            self._bytes -= _size(self._points.pop((iterator, output)))

    def _shrink(self) -> None:
        while len(self._points) > self._points_max or self._bytes > self._bytes_max:
            (iterator, output), point = self._points.popitem(last=False)
            self._bytes -= _size(point)
            outputs = self._outputs[iterator]
            del outputs[bisect_right(outputs, output) - 1]
            if not outputs:
                del self._outputs[iterator]


def _size(point: Point) -> int:
    return POINT_BYTES + len(point.state or b"")
