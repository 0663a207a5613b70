"""CBOR, looked at without building it: where an item ends, and whether it is one at all.

Nothing is kept of an item but the keys of the maps that are open, so what an item takes is bounded by its own bytes,
whatever lengths it claims. `ITEMS_MAX` bounds the time, `DEPTH_MAX` the nesting; nothing here calls itself.
"""

from struct import unpack
from typing import Any, Final

DEPTH_MAX: Final = 64
"""Arrays, maps and tags inside one another."""
ITEMS_MAX: Final = 100_000
"""Items in one message, those inside others and the pieces of strings included."""

BREAK: Final = 0xFF
SHORT: Final = "it ends too soon"
TOO_MANY: Final = "it has more items than are allowed"

_INDEFINITE: Final = 31
_FORMATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE: Final = {0xF4: False, 0xF5: True, 0xF6: None}


class NotAnItem(Exception):
    """Bytes that are not a well-formed item within the limits, and why."""


class Other:
    """Stands for a value that is of no use where a simple one is wanted."""


OTHER: Final = Other()


def end_of(data: bytes, at: int, items_max: int = ITEMS_MAX) -> int:  # noqa: C901 - a hot loop
    """Where the item that begins here ends. A hot loop, and one function for that reason.

    A level is the items still to come in it (below 0: until a break), the keys of a map so far, and where it began.
    In maps keys and values are counted one by one, so a key comes next whenever the count is even.
    """
    size = len(data)
    left, keys, began = 1, None, at
    levels: list[tuple[int, set[int | bytes] | None, int]] = []
    key: int | bytes = 0
    items = 0
    while True:
        items += 1
        if items > items_max:
            raise NotAnItem(TOO_MANY)
        if at >= size:
            raise NotAnItem(SHORT)
        first, head = at, data[at]
        kind, value = head >> 5, head & 31
        at += 1
        if 24 <= value < 28:
            width = _WIDTHS[value]
            value = int.from_bytes(data[at : at + width], "big")
            at += width
            if at > size:
                raise NotAnItem(SHORT)
        elif value > 27 and (value < _INDEFINITE or kind in (0, 1, 6)):
            raise NotAnItem(f"byte {first} is reserved")
        if kind < 2:
            key = ~value if kind else value
        elif kind < 4:
            if head & 31 == _INDEFINITE:
                at, content, count = pieces(data, at, kind, items_max - items)
                items += count
            else:
                at, content = string(data, at, kind, value)
            if keys is not None and not left & 1:
                key = b"%d%b" % (kind, content)
        elif kind == 7:
            if head == BREAK:
                if left >= 0 or (keys is not None and left & 1):
                    raise NotAnItem(f"there is a break at byte {first}, where an item should be")
                if _is_key_due(levels[-1]):
                    key = data[began:at]
                left, keys, began = levels.pop()
            elif head & 31 == 24 and value < 32:
                raise NotAnItem(f"byte {first} is reserved")
            elif keys is not None and not left & 1:
                key = _simple_key(head & 31, value, data[first + 1 : at])
        elif value or kind == 6:
            if len(levels) >= DEPTH_MAX:
                raise NotAnItem(f"it is nested deeper than {DEPTH_MAX}")
            levels.append((left, keys, began))
            began = first
            if kind == 6:
                left, keys = 1, None
            else:
                left, keys = (-2 if head & 31 == _INDEFINITE else value * (kind - 3)), (set() if kind == 5 else None)
            continue
        else:
            key = data[first:at]
        while True:
            if keys is not None and not left & 1:
                if key in keys:
                    raise NotAnItem(f"a map has the same key twice, the second one before byte {at}")
                keys.add(key)
            left -= 1
            if left:
                break
            if not levels:
                return at
            if _is_key_due(levels[-1]):
                key = data[began:at]
            left, keys, began = levels.pop()


def string(data: bytes, at: int, kind: int, length: int) -> tuple[int, bytes]:
    """Where a string of a known length ends, and its bytes."""
    end = at + length
    if end > len(data):
        raise NotAnItem(SHORT)
    content = data[at:end]
    if kind == 3 and not content.isascii():
        _check_text(content, at)
    return end, content


def pieces(data: bytes, at: int, kind: int, items_max: int) -> tuple[int, bytes, int]:
    """Where a string ends that comes in pieces, its bytes, and how many pieces: each of its kind, of a known length."""
    found: list[bytes] = []
    while len(found) <= items_max:
        if at >= len(data):
            raise NotAnItem(SHORT)
        if data[at] == BREAK:
            return at + 1, b"".join(found), len(found)
        if data[at] >> 5 != kind or data[at] & 31 > 27:
            raise NotAnItem(f"byte {at} is inside a string, and no piece of one")
        length, at = argument(data, at)
        at, content = string(data, at, kind, length)
        found.append(content)
    raise NotAnItem(TOO_MANY)


def argument(data: bytes, at: int) -> tuple[int, int]:
    """The argument of a head that is not indefinite, and where what belongs to it begins."""
    value = data[at] & 31
    if value < 24:
        return value, at + 1
    width = _WIDTHS.get(value)
    if width is None:
        raise NotAnItem(f"byte {at} is reserved")
    end = at + 1 + width
    if end > len(data):
        raise NotAnItem(SHORT)
    return int.from_bytes(data[at + 1 : end], "big"), end


def simple_value(data: bytes, at: int, items_max: int) -> tuple[Any, int]:
    """A text, a byte string, a number, true, false or null, and where it ends; anything else is `OTHER`."""
    if at >= len(data):
        raise NotAnItem(SHORT)
    head = data[at]
    kind = head >> 5
    if kind < 2 and head & 31 < 28:
        value, end = argument(data, at)
        return (~value if kind else value), end
    if kind in (2, 3):
        end, content = _string_at(data, at, kind, items_max)
        return (content if kind == 2 else content.decode()), end
    if head in _SIMPLE:
        return _SIMPLE[head], at + 1
    return OTHER, end_of(data, at, items_max)


def _string_at(data: bytes, at: int, kind: int, items_max: int) -> tuple[int, bytes]:
    if data[at] & 31 == _INDEFINITE:
        return pieces(data, at + 1, kind, items_max)[:2]
    length, at = argument(data, at)
    return string(data, at, kind, length)


def _is_key_due(level: tuple[int, Any, int]) -> bool:
    """Whether the item inside this level is one of its keys: then its bytes are what it is compared by."""
    return level[1] is not None and not level[0] & 1


def _simple_key(info: int, value: int, number: bytes) -> bytes:
    """A float or a simple value. Floats are compared by value, whichever of the three sizes they have."""
    return b"f%r" % unpack(_FORMATS[info], number) if info in _FORMATS else b"s%d" % value


def _check_text(content: bytes, at: int) -> None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise NotAnItem(f"a text is not UTF-8 (byte {at + error.start})") from None
