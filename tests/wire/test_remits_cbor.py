"""What a message is: exactly one valid CBOR item. Bombs are refused in bounded memory, and nobody forges a mark."""

import subprocess
import sys
from typing import Any

import pytest
from cbor2 import CBORTag, dumps
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.remits import cbor
from penstock.wire.remits.cbor import (
    BUILT_BYTES_MAX,
    DEPTH_MAX,
    GROUP_MAX,
    ITEMS_MAX,
    TOO_MANY,
    check_message,
    first_invalid,
    plainly_valid,
)
from tests.fuzz.remits import MESSAGES, check_cbor, mutations
from tests.wire.remits_checks import reference


def words(text: str) -> list[str]:
    return text.split()


# From RFC 8949, appendix A and, for what is not well-formed, appendix F.
WELL_FORMED = words("""
00 01 0a 17 1818 1819 1864 1903e8 1a000f4240 1b000000e8d4a51000 1bffffffffffffffff c249010000000000000000
3bffffffffffffffff c349010000000000000000 20 29 3863 3903e7 f90000 f98000 f93c00 fb3ff199999999999a f93e00 f97bff
fa47c35000 fa7f7fffff fb7e37e43c8800759c f90001 f90400 f9c400 fbc010666666666666 f97c00 f97e00 f9fc00 fa7f800000
fa7fc00000 faff800000 fb7ff0000000000000 fb7ff8000000000000 fbfff0000000000000 f4 f5 f6 f7 f0 f8ff
c074323031332d30332d32315432303a30343a30305a c11a514b67b0 c1fb41d452d9ec200000 d74401020304 d818456449455446
d82076687474703a2f2f7777772e6578616d706c652e636f6d 40 4401020304 60 6161 6449455446 62225c 62c3bc 63e6b0b4
64f0908591 80 83010203 8301820203820405 98190102030405060708090a0b0c0d0e0f101112131415161718181819 a0 a201020304
a26161016162820203 826161a161626163 a56161614161626142616361436164614461656145 5f42010243030405ff
7f657374726561646d696e67ff 9fff 9f018202039f0405ffff 9f01820203820405ff 83018202039f0405ff 83019f0203ff820405
9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff bf61610161629f0203ffff 826161bf61626163ff
bf6346756ef563416d7421ff
""")
NOT_WELL_FORMED = words("""
18 19 1a 1b 1901 1a0102 1b01020304050607 38 58 78 98 9a01ff00 b8 d8 f8 f900 fa0000 fb000000 41 61 5affffffff00
5bffffffffffffffff010203 7affffffff00 7b7fffffffffffffff010203 81 818181818181818181 8200 a1 a20102 a100 a2000000 c0
5f4100 7f6100 9f 9f0102 bf bf01020102 819f 9f8000 9f9f9f9f9fffffffff 9f819f819f9fffffff
1c 1d 1e 3c 3d 3e 5c 5d 5e 7c 7d 7e 9c 9d 9e bc bd be dc dd de fc fd fe
f800 f801 f818 f81f 5f00ff 5f21ff 5f6100ff 5f80ff 5fa0ff 5fc000ff 5fe0ff 7f4100ff 5f5f4100ffff 7f7f6100ffff
ff 81ff 8200ff a1ff a1ff00 a100ff a20000ff 9f81ff 9f829f819f9fffffffff bf00ff bf000000ff 1f 3f df
""")
BAD = [
    ("", "it ends too soon"),
    ("0000", "it ends at byte 1, and more follows"),
    ("00ff", "it ends at byte 1, and more follows"),
    ("a1", "it ends too soon"),
    ("61ff", "a text is not UTF-8 (byte 1)"),
    ("63eda080", "a text is not UTF-8 (byte 1)"),
    ("7f61c361bcff", "a text is not UTF-8 (byte 2)"),
    ("1c", "byte 0 is reserved"),
    ("82001f", "byte 2 is reserved"),
    ("f81f", "byte 0 is reserved"),
    ("5f6100ff", "byte 1 is inside a string, and no piece of one"),
    ("81ff", "there is a break at byte 1, where an item should be"),
    ("a2616100616101", "a map has the same key twice, the second one before byte 6"),
]
SAME_KEYS = [
    ("01", "1801"),
    ("01", "1b0000000000000001"),
    ("20", "3800"),
    ("6161", "7f6161ff"),
    ("6161", "7801 61"),
    ("4161", "5f404161ff"),
    ("f93c00", "fb3ff0000000000000"),
    ("f97e00", "fa7fc00000"),
    ("f6", "f6"),
    ("f4", "f4"),
    ("f0", "f0"),
    ("820102", "820102"),
    ("a10102", "a10102"),
    ("c100", "c100"),
    ("9f01ff", "9f01ff"),
]
OTHER_KEYS = [
    "01",
    "20",
    "f93c00",
    "f5",
    "6101",
    "4101",
    "8101",
    "c101",
    "f90000",
    "f98000",
    "f6",
    "f4",
    "00",
    "a10101",
]

keys = st.one_of(st.integers(-(1 << 64), (1 << 64) - 1), st.text(), st.binary(), st.none())
values = st.recursive(
    st.one_of(keys, st.booleans(), st.floats(), st.integers()),
    lambda inner: st.one_of(
        st.lists(inner),
        st.dictionaries(keys, inner),
        st.builds(CBORTag, st.integers(60_000, 1 << 63), inner),
    ),
    max_leaves=30,
)
heads = st.sampled_from([bytes.fromhex(text) for text in (*WELL_FORMED, *NOT_WELL_FORMED) if len(text) < 20])
soup = st.lists(st.one_of(heads, st.binary(max_size=3)), max_size=12).map(b"".join)


@pytest.mark.parametrize("text", WELL_FORMED)
def test_what_is_well_formed_is_a_message(text: str) -> None:
    assert check_cbor(bytes.fromhex(text))


@pytest.mark.parametrize("text", NOT_WELL_FORMED)
def test_what_is_not_well_formed_is_no_message(text: str) -> None:
    assert not check_cbor(bytes.fromhex(text))


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_message_that_is_none_is_told_why(text: str, reason: str) -> None:
    assert check_message(bytes.fromhex(text)) == reason
    assert first_invalid([b"\x00", bytes.fromhex(text)]) == (1, reason)


@pytest.mark.parametrize(("one", "other"), SAME_KEYS)
def test_a_key_is_the_same_however_it_is_written(one: str, other: str) -> None:
    for text in (f"a2 {one} 00 {other} 00", f"bf {one} 00 {other} 00 ff", f"81 c1 a3 {one} 80 6178 a0 {other} 00"):
        assert not check_cbor(bytes.fromhex(text))


def test_keys_of_different_kinds_are_different_keys() -> None:
    pairs = "".join(f"{key} 00" for key in OTHER_KEYS)
    assert check_cbor(bytes.fromhex(f"{0xA0 + len(OTHER_KEYS):x} {pairs}"))


def test_the_same_key_in_different_maps_is_fine() -> None:
    assert check_cbor(bytes.fromhex("a2 6161 a1 6161 00 6162 82 a1 6161 00 a1 01 a1 01 00"))


@pytest.mark.parametrize("tag", [0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 1004, 55799])
def test_what_a_tag_means_is_nobodys_concern(tag: int) -> None:
    meanings: list[Any] = [b"", "[", 1 << 63, [], [1, 0], [1, 1], {}, float("nan")]
    for value in meanings:
        data = dumps(CBORTag(tag, value))
        assert check_cbor(data)
        assert check_cbor(b"\xa1" + data + b"\x00")


# --- limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", [b"\x81", b"\x9f", b"\xa1\x00", b"\xc1", b"\xa1\x61x"])
def test_a_message_may_be_nested_so_deep_and_no_deeper(opening: bytes) -> None:
    for depth in (DEPTH_MAX, DEPTH_MAX + 1):
        data = opening * depth + b"\x00" + b"\xff" * (depth if opening == b"\x9f" else 0)
        assert check_cbor(data) == (depth == DEPTH_MAX)


@pytest.mark.parametrize("item", [b"\x00", b"\x80", b"\x61x", b"\xf9\x00\x00"])
def test_a_message_may_have_so_many_items_and_no_more(item: bytes) -> None:
    for count in (ITEMS_MAX - 1, ITEMS_MAX):
        data = b"\x9a" + count.to_bytes(4, "big") + item * count
        assert check_message(data) == (None if count < ITEMS_MAX else TOO_MANY)


def test_the_pieces_of_strings_count_as_items() -> None:
    def in_pieces(count: int) -> bytes:
        return b"\x5f" + b"\x40" * count + b"\xff"

    assert check_message(in_pieces(ITEMS_MAX - 1)) is None
    assert check_message(in_pieces(ITEMS_MAX)) == TOO_MANY
    half = ITEMS_MAX // 2
    assert check_message(b"\x82" + in_pieces(half) + in_pieces(half - 3)) is None
    assert check_message(b"\x82" + in_pieces(half) + in_pieces(half - 2)) == TOO_MANY


@pytest.mark.parametrize("size", [BUILT_BYTES_MAX - 10, BUILT_BYTES_MAX, BUILT_BYTES_MAX + 10, 1 << 20])
def test_long_messages_are_held_to_the_same_rules(size: int) -> None:
    text = dumps("ä" * (size // 2))
    assert check_message(text) is None
    assert check_message(text + b"\x00") is not None
    assert check_message(text[:-1]) is not None
    assert check_message(text[:-1] + b"\xff") is not None
    assert check_message(dumps({"a": text, "b": 1})) is None
    assert check_message(b"\xa2\x61a" + text + b"\x61a\x00") is not None


BOMBS = {
    "a claimed string of 2^60 bytes": b"\x5b\x10" + bytes(7) + b"x" * 100,
    "a claimed text of 2^60 bytes": b"\x7b\x10" + bytes(7) + b"x" * 100,
    "a claimed array of 2^40 items": b"\x9b\x00\x00\x01" + bytes(5) + b"\x00" * 100,
    "a claimed map of 2^64 - 1 pairs": b"\xbb" + b"\xff" * 8 + b"\x61a\x00",
    "a million levels": b"\x81" * 1_000_000 + b"\x00",
    "a million endless levels": b"\x9f" * 1_000_000,
    "a million tags": b"\xc1" * 1_000_000 + b"\x00",
    "a million claims": b"\x9b" + b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff" * 100_000,
    "a million empty arrays": b"\x9a\x00\x0f\x42\x40" + b"\x80" * 1_000_000,
    "a million empty maps in an endless array": b"\x9f" + b"\xa0" * 1_000_000 + b"\xff",
    "a million pieces": b"\x7f" + b"\x60" * 1_000_000 + b"\xff",
    "a million pairs": b"\xba\x00\x0f\x42\x40" + b"".join(b"\x1a%b\x00" % n.to_bytes(4, "big") for n in range(200_000)),
}
"""None is a message; each would take far more than its bytes if it were believed."""
KEPT = {
    "a bignum of a megabyte": b"\xc2\x5a\x00\x10\x00\x00" + b"\xff" * (1 << 20),
    "a decimal fraction with a huge exponent": dumps(CBORTag(4, [(1 << 62), 1])),
    "a big float with a huge exponent": dumps(CBORTag(5, [(1 << 62), 1])),
    "shared references in a circle": dumps(CBORTag(28, [CBORTag(29, 0)])),
    "a regular expression": dumps(CBORTag(35, "(a*)*" * 1000)),
}
"""These are messages, and are not built to find that out."""


def test_bombs_are_judged_by_a_process_that_has_little_memory() -> None:
    # Memory that Rust or C takes cannot be traced; here nothing can be taken beyond what is given.
    script = """
import resource, sys
from penstock.wire.remits.cbor import check_message, first_invalid
from tests.wire.test_remits_cbor import BOMBS, KEPT
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
for name, data in {**BOMBS, **KEPT}.items():
    reasons = check_message(data), first_invalid([data]), first_invalid([data] * 3)
    assert all((reason is None) == (name in KEPT) for reason in reasons), (name, reasons)
small = [b"\\x98\\xff" + b"\\x80" * 255] * 50_000
assert first_invalid(small) is None
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=100)


# --- groups and marks -----------------------------------------------------------------------------------------


def test_messages_that_are_only_together_what_each_should_be_are_none() -> None:
    halves = ["8200|00", "82|0000", "41|00", "9f|ff", "5f|ff00", "005f|ff00", "00c1|00", "00c1|", "81|", "00|", "0000|"]
    for text in halves:
        first, second = map(bytes.fromhex, text.split("|"))
        for group in ([first, second], [b"\x00", first, second, b"\x00"], [first] * 2 + [second] * 2):
            assert first_invalid(group) is not None, group


@given(st.lists(st.one_of(soup, values.map(dumps)), max_size=5))
def test_a_group_is_valid_when_each_of_it_is(messages: list[bytes]) -> None:
    wrong = [index for index, message in enumerate(messages) if not reference(message)]
    found = first_invalid(messages)
    assert (found and found[0]) == (wrong[0] if wrong else None)
    assert not (wrong and plainly_valid(messages))


def test_part_of_a_mark_is_never_taken_for_one() -> None:
    assert cbor._MARK_ITEM.index(0x50) == cbor._MARK_ITEM.rindex(0x50) == 0


def test_a_message_that_looks_like_a_mark_is_judged_like_any_other() -> None:
    mark = dumps(b"m" * 16)
    for known in range(16):
        assert check_message(b"\x00" + cbor._MARK_ITEM[: known + 1]) is not None
        assert first_invalid([b"\x00" + cbor._MARK_ITEM[: known + 1], cbor._MARK_ITEM[known + 1 :]]) is not None
    for message in (cbor._MARK_ITEM, mark, b"\x00" + mark, b"\x00\xc1" + mark):
        assert (check_message(message) is None) == reference(message)


@pytest.mark.parametrize("count", [0, 1, GROUP_MAX - 1, GROUP_MAX, GROUP_MAX + 1, 5 * GROUP_MAX + 3])
def test_the_first_wrong_message_is_found_in_any_number_of_them(count: int) -> None:
    messages = [dumps({"n": number}) for number in range(count)]
    assert first_invalid(messages) is None
    assert first_invalid(tuple(messages)) is None
    assert first_invalid([*messages, b"\x81", b"\x82"]) == (count, "it ends too soon")


def test_unusual_messages_among_usual_ones_are_fine() -> None:
    usual, by_number, in_pieces = dumps({"a": 1}), dumps({1: 2, 2: 3}), bytes.fromhex("bf61615f4100ffff")
    long = dumps("x" * (BUILT_BYTES_MAX + 1))
    assert first_invalid([usual, by_number, in_pieces, long, usual] * 30) is None
    assert first_invalid([usual, by_number, in_pieces, long, usual] * 30 + [b""]) == (150, "it ends too soon")


def test_plain_messages_are_never_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(_data: bytes, _at: int) -> None:
        raise AssertionError

    monkeypatch.setattr(cbor, "end_of", scan)
    usual, in_pieces, long = dumps({"a": [1, "b"]}), bytes.fromhex("bf61615f4100ffff"), dumps("x" * BUILT_BYTES_MAX)
    assert plainly_valid([])
    assert plainly_valid([usual] * 200)
    assert plainly_valid([usual, in_pieces] * 40)
    assert plainly_valid([dumps("x" * (BUILT_BYTES_MAX - 10))] * 3)
    for other in (dumps({1: 2}), long, b"", b"\x81", b"\x00\x00"):
        assert not plainly_valid([usual] * 70 + [other])


# --- properties -----------------------------------------------------------------------------------------------


@given(values)
def test_what_an_encoder_writes_is_a_message(value: Any) -> None:
    assert check_cbor(dumps(value))
    assert check_cbor(dumps(value, indefinite_containers=True))


@given(values)
def test_what_is_cut_or_goes_on_is_none(value: Any) -> None:
    data = dumps(value)
    for end in range(len(data)):
        assert check_message(data[:end]) is not None
    assert check_message(data + b"\x00") is not None


@given(soup)
def test_any_bytes_are_judged_as_the_reference_judges_them(data: bytes) -> None:
    check_cbor(data)


@given(st.sampled_from(MESSAGES), st.integers(0, 1 << 32))
def test_a_message_with_bytes_changed_is_judged_as_the_reference_judges_it(data: bytes, seed: int) -> None:
    for mutated in mutations(data, seed, count=5):
        check_cbor(mutated)
