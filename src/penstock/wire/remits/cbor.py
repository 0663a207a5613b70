"""CBOR validation: whether a message is exactly one valid item, and where an item ends.

Valid means: well-formed by RFC 8949 to the last byte; texts are UTF-8; no map has a key twice; at most `DEPTH_MAX` deep
and `ITEMS_MAX` items. Tags are not interpreted. Two keys are the same if they are the same number of the same kind (1
and 1.0 differ), the same simple value, the same text or the same bytes, however they are encoded. Keys that are arrays,
maps or tagged are compared byte by byte.

`end_of` decides. It builds nothing: it keeps only the keys of open maps, so its memory is bounded by the message's own
bytes. It is slow, so cbor2 checks messages first, many at once, in a way that accepts only what `end_of` accepts:

- cbor2 does not notice bytes behind an item. So it reads messages as one array, each followed by a mark that no sender
  can know. Every second item must be the mark: then each message is what lies between two of them.
- It does not interpret tags: each becomes the same text, so that a tag in front of a mark does not count as a mark.
- Only texts and bytes may be keys: others can be chosen so that their hashes collide, and 1, 1.0 and true are equal in
  Python. Messages with other keys go to `end_of`.
- Its objects take up to 70 times a message's bytes. `BUILT_BYTES_MAX` bounds that; longer messages go to `end_of`.
"""

from collections.abc import Sequence
from secrets import token_bytes
from struct import Struct, unpack
from typing import Any, Final

from cbor2 import CBORDecodeError, loads

DEPTH_MAX: Final = 64
"""Nested arrays, maps and tags."""
ITEMS_MAX: Final = 100_000
"""Items in one message, with nested items and chunks of strings."""

BREAK: Final = 0xFF
SHORT: Final = "it ends too soon"
TOO_MANY: Final = "it has more items than are allowed"

_INDEFINITE: Final = 31
_FORMATS: Final = {25: ">e", 26: ">f", 27: ">d"}
_WIDTHS: Final = {24: 1, 25: 2, 26: 4, 27: 8}
_SIMPLE: Final = {0xF4: False, 0xF5: True, 0xF6: None}
BUILT_BYTES_MAX: Final = 64 * 1024
"""Bytes of messages that cbor2 decodes at once."""
GROUP_MAX: Final = 64
"""Messages that cbor2 decodes as one array."""

TAGS_MAX: Final = 1024
"""Tags in one array; messages with more go to `end_of`."""

# Without the byte that stands before it: so no bytes that lie partly before a mark can be the mark.
_MARK: Final = token_bytes(16).replace(b"\x50", b"\x51")
_MARK_ITEM: Final = b"\x50" + _MARK
_ARRAY: Final = Struct(">BI")
_ARRAY_HEAD: Final = 0x9A
_MAP: Final = 5
_STRINGS: Final = (2, 3)
_TAGS: Final = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""The tags that cbor2 interprets."""


class NotAnItem(Exception):
    """The bytes are not a well-formed item within the limits, and why."""


OTHER: Final = object()
"""Stands for a value that is not simple."""


def end_of(data: bytes, at: int, items_max: int = ITEMS_MAX) -> int:  # noqa: C901 - a hot loop
    """Where the item that begins here ends. One function because it is a hot loop.

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
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise NotAnItem(f"a text is not UTF-8 (byte {at + error.start})") from None
    return end, content


def pieces(data: bytes, at: int, kind: int, items_max: int) -> tuple[int, bytes, int]:
    """Where a string in chunks ends, its bytes, and how many chunks: each of its kind, of a known length."""
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
        if head & 31 == _INDEFINITE:
            end, content, _ = pieces(data, at + 1, kind, items_max)
        else:
            length, start = argument(data, at)
            end, content = string(data, start, kind, length)
        return (content if kind == 2 else content.decode()), end
    if head in _SIMPLE:
        return _SIMPLE[head], at + 1
    return OTHER, end_of(data, at, items_max)


def _is_key_due(level: tuple[int, Any, int]) -> bool:
    """Whether the item inside this level is one of its keys: then its bytes are compared."""
    return level[1] is not None and not level[0] & 1


def _simple_key(info: int, value: int, number: bytes) -> bytes:
    """A float or a simple value. Floats are compared by value, whichever of the three sizes they have."""
    return b"f%r" % unpack(_FORMATS[info], number) if info in _FORMATS else b"s%d" % value


# --- the fast check by cbor2 -------------------------------------------------------------------------------------


class _Tags:
    """Turns tags into texts, up to a limit: cbor2 calls Python for each."""

    def __init__(self) -> None:
        self._left = TAGS_MAX

    def __call__(self, _value: object, _immutable: bool) -> str:
        self._left -= 1
        if self._left < 0:
            raise CBORDecodeError("too many tags")
        return ""


def check_message(data: bytes) -> str | None:
    """Why this is not exactly one valid CBOR item within the limits, or None if it is."""
    if _is_plain(data):
        return None
    try:
        end = end_of(data, 0)
    except NotAnItem as error:
        return str(error)
    return None if end == len(data) else f"it ends at byte {end}, and more follows"


def first_invalid(messages: Sequence[bytes]) -> tuple[int, str] | None:
    """The index of the first message that is not one valid CBOR item, and why; None if all are valid."""
    for start in range(0, len(messages), GROUP_MAX):
        group = messages[start : start + GROUP_MAX]
        if _is_plain_group(group):
            continue
        for index, message in enumerate(group, start):
            if reason := check_message(message):
                return index, reason
    return None


def plainly_valid(messages: Sequence[bytes]) -> bool:
    """Whether cbor2 accepts all of these. If not, `first_invalid` decides."""
    groups = (messages[start : start + GROUP_MAX] for start in range(0, len(messages), GROUP_MAX))
    return all(_is_plain_group(group) or all(map(_is_plain, group)) for group in groups)


def _is_plain_group(group: Sequence[bytes]) -> bool:
    # A string in chunks could contain a mark and end in the next message: a group must have none.
    return sum(map(len, group)) <= BUILT_BYTES_MAX and _are_valid(group, allow_indefinite=False)


def _is_plain(data: bytes) -> bool:
    has_other_keys = len(data) > 1 and data[0] >> 5 == _MAP and data[1] >> 5 not in _STRINGS
    return len(data) <= BUILT_BYTES_MAX and not has_other_keys and _are_valid([data], allow_indefinite=True)


def _are_valid(group: Sequence[bytes], *, allow_indefinite: bool) -> bool:
    """Whether cbor2 accepts all of these. False does not mean that one is invalid."""
    head, tagged = _ARRAY.pack(_ARRAY_HEAD, 2 * len(group)), _Tags()
    try:
        items = loads(
            head + _MARK_ITEM.join(group) + _MARK_ITEM,
            max_depth=DEPTH_MAX + 1,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
            allow_indefinite=allow_indefinite,
            tag_hook=tagged,
            semantic_decoders=dict.fromkeys(_TAGS, tagged),
        )
    except CBORDecodeError:
        return False
    marks: int = items[1::2].count(_MARK)
    return marks == len(group)
