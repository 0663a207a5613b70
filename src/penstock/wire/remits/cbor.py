"""Whether a message is exactly one valid CBOR item.

Valid is: well-formed as RFC 8949 has it, to the last byte; texts are UTF-8; no map has a key twice; no deeper than
`DEPTH_MAX` and no more items than `ITEMS_MAX`. What tags mean is nobody's concern here. Keys are the same when they are
the same number of the same kind (1 and 1.0 are two keys), the same simple value, the same text or the same bytes,
however they are written; keys that are arrays, maps or tagged, when they are the same byte by byte.

`scanning.end_of` decides. It is slow, so most messages never get there: cbor2 looks at them first, many at once, and
what it takes, the scanner would take too. It is used so that this holds:

- It does not notice bytes behind an item. So messages are read as one array, each with a mark behind it that nobody
  outside can know. Every second item must be the mark: then each message is what lies between two of them.
- Tags are not interpreted, but become one and the same text, so that a tag in front of a mark is not taken for a mark.
- Only texts and bytes may be keys: others can be chosen so that their hashes collide, and 1, 1.0 and true are equal in
  Python. Messages with other keys go to the scanner.
- What it builds takes up to 70 times a message's bytes. `BUILT_BYTES_MAX` bounds that; longer messages go to the
  scanner, which builds nothing.
"""

from collections.abc import Sequence
from functools import partial
from secrets import token_bytes
from struct import Struct
from typing import Final

from cbor2 import CBORDecodeError, loads

from penstock.wire.remits.scanning import DEPTH_MAX, NotAnItem, end_of

BUILT_BYTES_MAX: Final = 64 * 1024
"""Bytes of messages that are built as objects at once."""
GROUP_MAX: Final = 64
"""Messages that are read as one."""

# Without the byte that stands before it: so no bytes that lie partly before a mark can be the mark.
TAGS_MAX: Final = 1024
"""Tags in messages that are read as one; those with more go to the scanner."""

_MARK: Final = token_bytes(16).replace(b"\x50", b"\x51")
_MARK_ITEM: Final = b"\x50" + _MARK
_ARRAY: Final = Struct(">BI")
_ARRAY_HEAD: Final = 0x9A
_MAP: Final = 5
_STRINGS: Final = (2, 3)
_TAGS: Final = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
"""Those that cbor2 interprets by itself."""


class _Tags:
    """Takes tags for texts, and not too many of them: for each, cbor2 has to call Python."""

    def __init__(self) -> None:
        self._left = TAGS_MAX

    def __call__(self, _value: object, _immutable: bool) -> str:
        self._left -= 1
        if self._left < 0:
            raise CBORDecodeError("too many tags")
        return ""


_read = partial(loads, max_depth=DEPTH_MAX + 1, allow_duplicate_keys=False, strict_hashable_types=True)


def check_message(data: bytes) -> str | None:
    """Why this is not exactly one valid CBOR item within the limits, or None if it is."""
    return None if _is_plain(data) else _scanned(data)


def first_invalid(messages: Sequence[bytes]) -> tuple[int, str] | None:
    """The first of these that is not one valid CBOR item: its number from 0 on, and why. None if all are."""
    for start in range(0, len(messages), GROUP_MAX):
        group = messages[start : start + GROUP_MAX]
        if _is_plain_group(group):
            continue
        for index, message in enumerate(group, start):
            if reason := check_message(message):
                return index, reason
    return None


def plainly_valid(messages: Sequence[bytes]) -> bool:
    """Whether cbor2 takes all of these, so that nobody has to scan them. If not, `first_invalid` knows."""
    groups = (messages[start : start + GROUP_MAX] for start in range(0, len(messages), GROUP_MAX))
    return all(_is_plain_group(group) or all(map(_is_plain, group)) for group in groups)


def _is_plain_group(group: Sequence[bytes]) -> bool:
    # A string in pieces could swallow a mark and end in the next message: in groups there must be none.
    return sum(map(len, group)) <= BUILT_BYTES_MAX and _are_valid(group, allow_indefinite=False)


def _is_plain(data: bytes) -> bool:
    return not _is_unusual(data) and _are_valid([data], allow_indefinite=True)


def _is_unusual(data: bytes) -> bool:
    """Whether this must go to the scanner in any case: it is long, or a map whose first key is no string."""
    return len(data) > BUILT_BYTES_MAX or (len(data) > 1 and data[0] >> 5 == _MAP and data[1] >> 5 not in _STRINGS)


def _are_valid(group: Sequence[bytes], *, allow_indefinite: bool) -> bool:
    """Whether cbor2 finds nothing wrong with any of these; not that something is wrong if it does."""
    head, tagged = _ARRAY.pack(_ARRAY_HEAD, 2 * len(group)), _Tags()
    try:
        items = _read(
            head + _MARK_ITEM.join(group) + _MARK_ITEM,
            allow_indefinite=allow_indefinite,
            tag_hook=tagged,
            semantic_decoders=dict.fromkeys(_TAGS, tagged),
        )
    except CBORDecodeError:
        return False
    marks: int = items[1::2].count(_MARK)
    return marks == len(group)


def _scanned(data: bytes) -> str | None:
    try:
        end = end_of(data, 0)
    except NotAnItem as error:
        return str(error)
    return None if end == len(data) else f"it ends at byte {end}, and more follows"
