"""CBOR read plainly, to compare values: items become tuples that are equal exactly where the items are."""

import math
import struct
from collections.abc import Callable, Hashable
from typing import Final

FLOATS: Final = {25: ">e", 26: ">f", 27: ">d"}
BREAK: Final = 0xFF


def canonical(data: bytes) -> Hashable:
    """The one item in `data`, whatever lengths and widths it was written with."""
    item, after = _item(data, 0)
    assert after == len(data)
    return item


def _item(data: bytes, at: int) -> tuple[Hashable, int]:
    major, info = data[at] >> 5, data[at] & 31
    if major == 7:
        return _special(data, at, info)
    number, start = _number(data, at, info)
    return _READERS[major](data, start, number)


def _number(data: bytes, at: int, info: int) -> tuple[int | None, int]:
    if info < 24:
        return info, at + 1
    if info == 31:
        return None, at + 1
    assert info <= 27
    width = 1 << (info - 24)
    return int.from_bytes(data[at + 1 : at + 1 + width]), at + 1 + width


def _special(data: bytes, at: int, info: int) -> tuple[Hashable, int]:
    if info in FLOATS:
        size = 1 << (info - 24)
        (value,) = struct.unpack(FLOATS[info], data[at + 1 : at + 1 + size])
        return ("float", "nan" if math.isnan(value) else struct.pack(">d", value)), at + 1 + size
    number, after = _number(data, at, info)
    return ("simple", number), after


def _unsigned(_data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    assert number is not None
    return ("int", number), at


def _negative(_data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    assert number is not None
    return ("int", -1 - number), at


def _joined(data: bytes, at: int, number: int | None) -> tuple[bytes, int]:
    if number is not None:
        return data[at : at + number], at + number
    parts = b""
    while data[at] != BREAK:
        size, start = _number(data, at, data[at] & 31)
        assert size is not None
        parts += data[start : start + size]
        at = start + size
    return parts, at + 1


def _bytes(data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    value, after = _joined(data, at, number)
    return ("bytes", value), after


def _text(data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    value, after = _joined(data, at, number)
    return ("text", value.decode()), after


def _items(data: bytes, at: int, count: int | None) -> tuple[list[Hashable], int]:
    items: list[Hashable] = []
    while len(items) != count:
        if count is None and data[at] == BREAK:
            return items, at + 1
        item, at = _item(data, at)
        items.append(item)
    return items, at


def _array(data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    items, after = _items(data, at, number)
    return ("array", tuple(items)), after


def _map(data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    items, after = _items(data, at, None if number is None else 2 * number)
    # Of equal keys the last counts.
    return ("map", frozenset(dict(zip(items[::2], items[1::2], strict=True)).items())), after


def _tag(data: bytes, at: int, number: int | None) -> tuple[Hashable, int]:
    item, after = _item(data, at)
    return ("tag", number, item), after


_READERS: Final[list[Callable[[bytes, int, int | None], tuple[Hashable, int]]]] = [
    _unsigned,
    _negative,
    _bytes,
    _text,
    _array,
    _map,
    _tag,
]
