"""Random CBOR: every kind of item, in every way it can be written."""

import struct

from hypothesis import strategies as st

from tests.lua.reference import canonical

UINT64 = 2**64 - 1


def head(major: int, number: int, width: int) -> bytes:
    """An item's head with its number in at least 2**width bytes (-1: in the head itself, if it fits)."""
    if width < 0 and number < 24:
        return bytes([major << 5 | number])
    size = max(width, 0, (max(number.bit_length(), 1) - 1) // 8)
    power = next(power for power in (0, 1, 2, 3) if 1 << power > size or power == 3)
    power = max(power, width)
    return bytes([major << 5 | 24 + power]) + number.to_bytes(1 << power)


WIDTHS = st.integers(-1, 3)
EDGES = st.sampled_from([0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1, 2**63, UINT64])
NUMBERS = st.one_of(st.integers(0, 30), EDGES, st.integers(0, UINT64))


def string(major: int, content: bytes, width: int) -> bytes:
    return head(major, len(content), width) + content


def chunked(major: int, parts: list[bytes]) -> bytes:
    return bytes([major << 5 | 31]) + b"".join(string(major, part, -1) for part in parts) + b"\xff"


INTEGERS = st.builds(head, st.sampled_from([0, 1]), NUMBERS, WIDTHS)
TEXTS = st.text(max_size=30).map(str.encode)
STRINGS = st.one_of(
    st.builds(string, st.just(3), TEXTS, WIDTHS),
    st.builds(string, st.just(2), st.binary(max_size=30), WIDTHS),
    st.builds(chunked, st.just(3), st.lists(TEXTS, max_size=3)),
    st.builds(chunked, st.just(2), st.lists(st.binary(max_size=9), max_size=3)),
)
FLOATS = st.one_of(
    st.floats(width=16).map(lambda value: b"\xf9" + struct.pack(">e", value)),
    st.floats(width=32).map(lambda value: b"\xfa" + struct.pack(">f", value)),
    st.floats(width=64).map(lambda value: b"\xfb" + struct.pack(">d", value)),
    st.integers(-3, 3).map(lambda value: b"\xfb" + struct.pack(">d", value)),
)
SIMPLE = st.one_of(
    st.integers(0xE0, 0xF7).map(lambda code: bytes([code])),
    st.integers(32, 255).map(lambda code: bytes([0xF8, code])),
)
LEAVES = st.one_of(INTEGERS, STRINGS, FLOATS, SIMPLE)


def array(items: list[bytes], width: int | None) -> bytes:
    return b"\x9f" + b"".join(items) + b"\xff" if width is None else head(4, len(items), width) + b"".join(items)


def mapping(pairs: list[tuple[bytes, bytes]], width: int | None) -> bytes:
    content = b"".join(key + value for key, value in pairs)
    return b"\xbf" + content + b"\xff" if width is None else head(5, len(pairs), width) + content


def tagged(number: int, width: int, item: bytes) -> bytes:
    return head(6, number, width) + item


def containers(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    lengths = st.one_of(st.none(), WIDTHS)
    pairs = st.lists(st.tuples(st.one_of(STRINGS, inner), inner), max_size=5, unique_by=lambda pair: canonical(pair[0]))
    return st.one_of(
        st.builds(array, st.lists(inner, max_size=5), lengths),
        st.builds(mapping, pairs, lengths),
        st.builds(tagged, NUMBERS, WIDTHS, inner),
    )


#: One CBOR item.
ITEMS = st.recursive(LEAVES, containers, max_leaves=12)

#: Values that every language has, for functions with a Python counterpart.
NAMES = st.sampled_from(["a", "b", "c", "d"])
VALUES: st.SearchStrategy[object] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.binary(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)
