"""Ways to damage a file, as Hypothesis strategies: of its bytes, and of a document that is in it.

A mutation is drawn without the file: it says where by numbers that fit every file. So one strategy serves all kinds of
files, and what Hypothesis prints of a failure can be copied into an `@example`.
"""

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

PLACES: Final = 1 << 16
"""Places in a file are parts of its length, in so many steps."""
DEEP: Final = 100_000
"""Levels of brackets that no parser should follow."""
_DEEP: Final = "@deep@"
_DIGITS: Final = "@digits@"
_RAW: Final = {f'"{_DEEP}"': "[" * DEEP + "]" * DEEP, f'"{_DIGITS}"': "9" * 5000}
"""Stand-ins for bytes that no value writes."""

VALUES: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 2, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 1 << 64, -(1 << 63), 10**400),
    *(0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "\0",
        "a\nb",
        "\x1b[31m",
        "\ud800",
        "\u202e",
        "x" * 100_000,
        "..",
        "../../precious",
        "/etc/passwd",
        "file://[",
    ),
    *("9999-12-31T23:59:59Z", "²", "NaN", "null"),
    *([], {}, [[]], [{}], [None], [1, 2], {"": None}, {"a": 1}, "@deep@", "@digits@"),
)
"""Values of wrong types for a document."""
TOO_DEEP: Final = VALUES.index("@deep@")


# --- bytes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip:
    """Other bits in one byte."""

    place: int
    bits: int

    def of(self, data: bytes) -> bytes:
        at = self.place * len(data) // PLACES
        return data[:at] + bytes([data[at] ^ self.bits]) + data[at + 1 :] if data else data


@dataclass(frozen=True)
class Cut:
    """Nothing from here on."""

    place: int

    def of(self, data: bytes) -> bytes:
        return data[: self.place * len(data) // PLACES]


@dataclass(frozen=True)
class Lose:
    """Some bytes less."""

    place: int
    count: int

    def of(self, data: bytes) -> bytes:
        at = self.place * len(data) // PLACES
        return data[:at] + data[at + self.count :]


@dataclass(frozen=True)
class Repeat:
    """Some bytes twice."""

    place: int
    count: int

    def of(self, data: bytes) -> bytes:
        at = self.place * len(data) // PLACES
        return data[: at + self.count] + data[at:]


@dataclass(frozen=True)
class Put:
    """Other bytes in the place of as many."""

    place: int
    new: bytes

    def of(self, data: bytes) -> bytes:
        at = self.place * len(data) // PLACES
        return data[:at] + self.new + data[at + len(self.new) :]


@dataclass(frozen=True)
class Insert:
    """More bytes."""

    place: int
    new: bytes

    def of(self, data: bytes) -> bytes:
        at = self.place * len(data) // PLACES
        return data[:at] + self.new + data[at:]


Change = Flip | Cut | Lose | Repeat | Put | Insert
_PLACE: Final = st.integers(0, PLACES - 1)
_TOKENS: Final = st.sampled_from(
    (
        b"\0",
        b"\xff",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\n",
        b"\r",
        b'"',
        b"[" * 2000,
    )
)
_BYTES: Final = st.binary(min_size=1, max_size=16) | _TOKENS
CHANGES: Final[st.SearchStrategy[list[Change]]] = st.lists(
    st.one_of(
        st.builds(Flip, _PLACE, st.integers(1, 255)),
        st.builds(Cut, _PLACE),
        st.builds(Lose, _PLACE, st.integers(1, 600)),
        st.builds(Repeat, _PLACE, st.integers(1, 600)),
        st.builds(Put, _PLACE, _BYTES),
        st.builds(Insert, _PLACE, _BYTES),
    ),
    min_size=1,
    max_size=3,
)
"""Some changes, one after the other."""


def changed(data: bytes, changes: Sequence[Change]) -> bytes:
    """A file's bytes after all changes."""
    for each in changes:
        data = each.of(data)
    return data


# --- lines ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """Two lines, of which the second goes, comes twice, or changes places with the first."""

    how: str
    first: int
    second: int

    def of(self, data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        if not lines:
            return data
        first, second = self.first % len(lines), self.second % len(lines)
        if self.how == "swap":
            lines[first], lines[second] = lines[second], lines[first]
        elif self.how == "twice":
            lines.insert(first, lines[second])
        else:
            del lines[second]
        return b"".join(lines)


LINES: Final = st.builds(Lines, st.sampled_from(("lose", "twice", "swap")), st.integers(0, 99), st.integers(0, 99))


# --- documents ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """Something in a document is another value, is gone, is there twice, or has another name."""

    how: str
    place: int
    value: int = 0

    def of(self, document: Any) -> Any:
        places = list(_places(document))
        if not places:
            return VALUES[self.value % len(VALUES)]
        holder, key = places[self.place % len(places)]
        if self.how == "value":
            holder[key] = copy.deepcopy(VALUES[self.value % len(VALUES)])
        elif self.how == "lose":
            del holder[key]
        elif self.how == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif self.how == "twice":
            holder[f"{key}2"] = copy.deepcopy(holder[key])
        else:
            other, there = places[self.value % len(places)]
            value = copy.deepcopy(other[there])
            holder[key] = value
        return document


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Where something is in a document: what holds it, and under which key."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        yield node, key
        yield from _places(value)


EDITS: Final[st.SearchStrategy[list[Edit]]] = st.lists(
    st.builds(
        Edit,
        st.sampled_from(("value", "value", "value", "lose", "twice", "other")),
        st.integers(0, 1000),
        st.integers(0, len(VALUES) - 1),
    ),
    min_size=1,
    max_size=3,
)
"""Some edits, one after the other."""


def edited(document: Any, edits: Sequence[Edit]) -> Any:
    """A document after all edits; the one that was given stays as it is."""
    document = copy.deepcopy(document)
    for each in edits:
        document = each.of(document)
    return document


def raw(data: bytes) -> bytes:
    """JSON in which what cannot be written from a value is put in its place."""
    for stand_in, text in _RAW.items():
        data = data.replace(stand_in.encode(), text.encode())
    return data


def as_json(document: Any, dump: Callable[[Any], str] = json.dumps) -> bytes:
    """A document as JSON, with whatever no writer would write."""
    return raw(dump(document).encode())


def spoilt(data: bytes, changes: Sequence[Change] | Sequence[Edit]) -> bytes:
    """A file with JSON after changes of its bytes or edits of its document. If it has none, a value is in its place."""
    if not isinstance(changes[0], Edit):
        return changed(data, changes)  # type: ignore[arg-type]
    try:
        document = json.loads(data)
    except ValueError:
        return as_json(VALUES[changes[0].value % len(VALUES)])
    return as_json(edited(document, changes))  # type: ignore[arg-type]
