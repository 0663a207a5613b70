"""Iterators against a real server: what they are, what they give page by page, and how they fail at a message."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest

from tests.gates.remits_client import (
    ITERATOR_ADD,
    ITERATOR_DELETE,
    ITERATOR_LIST,
    ITERATOR_NEXT,
    MESSAGE_ADD,
    Failure,
    Remits,
    frame,
    fresh,
    request,
)
from tests.gates.serving import Served

PAGE = (Path(__file__).parents[2] / "docs" / "protocols" / "remits.md").read_text(encoding="utf-8")
PAGE_ITEMS = 100
PAGE_BYTES = 65_536
SERVER_FLAGS = (
    *("--page-events-max", str(PAGE_ITEMS), "--page-bytes-max", str(PAGE_BYTES)),
    *("--iterator-call-ms-max", "100"),
)

both = pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])


@pytest.fixture
def remits(server: Served) -> Iterator[Remits]:
    with Remits(server.remits) as connected:
        yield connected


@pytest.fixture
def log(remits: Remits) -> str:
    """A log of its own for each test."""
    return remits.log_add(fresh())


# ---------------------------------------------------------------- which there are


def test_the_same_iterator_again_is_fine_and_another_of_its_name_is_not(remits: Remits, log: str) -> None:
    same = {"log_name": log, "iterator_name": fresh(), "iterator_type": "map", "iterator_func": "return msg"}
    for again in (same, {**same, "indexed": False}, {**same, "indexed": None}):
        remits.ask(ITERATOR_ADD, again).ok()
    named = {key: value for key, value in same.items() if key != "iterator_type"}
    remits.ask(ITERATOR_ADD, {**named, "iterator_kind": "map"}).ok()
    another: list[dict[str, Any]] = [
        {"iterator_type": "filter"},
        {"iterator_func": "return msg "},
        {"indexed": True},
        {"log_name": remits.log_add(fresh())},
    ]
    for change in another:
        assert remits.ask(ITERATOR_ADD, {**same, **change}).failure().code == 1
    remits.add(log, 1)
    assert remits.all(str(same["iterator_name"])) == [1]


def test_iterators_are_listed_by_their_log_or_all(remits: Remits, log: str) -> None:
    another = remits.log_add(fresh())
    later, earlier = (remits.iterator_add(log, "map", "return msg", name=fresh(name)) for name in "ba")
    elsewhere = remits.iterator_add(another, "map", "return msg")
    assert remits.iterator_list(log) == [earlier, later]
    assert remits.iterator_list(another) == [elsewhere]
    assert remits.iterator_list(fresh()) == []
    everything = remits.iterator_list()
    assert everything == sorted(everything)
    assert {earlier, later, elsewhere} <= set(everything)
    for payload in (b"", b"\xa0", cbor2.dumps({"log_name": None})):
        assert remits.ask_frame(frame(ITERATOR_LIST, payload)).values() == everything


@both
def test_an_iterator_is_deleted_by_its_own_log_only(remits: Remits, log: str, indexed: bool) -> None:
    remits.add(log, 1, 2)
    iterator = remits.iterator_add(log, "map", "return msg", indexed=indexed)
    assert remits.all(iterator) == [1, 2]
    for wrong in (remits.log_add(fresh()), fresh(), iterator):
        assert remits.ask(ITERATOR_DELETE, {"log_name": wrong, "iterator_name": iterator}).failure().code == 2
    assert remits.all(iterator) == [1, 2]
    remits.iterator_delete(log, iterator)
    assert remits.iterator_list(log) == []
    for code in (ITERATOR_DELETE, ITERATOR_NEXT):
        fields = {"log_name": log, "iterator_name": iterator, "message_id": 0, "count": 0}
        assert remits.ask(code, fields).failure().code == 2
    # Its name is free for another, which begins at the beginning.
    remits.iterator_add(log, "reduce", "return (acc or 0) + msg", indexed=indexed, name=iterator)
    assert remits.all(iterator) == [1, 3]


def test_a_function_that_does_not_compile_makes_no_iterator(remits: Remits, log: str) -> None:
    with pytest.raises(Failure) as caught:
        remits.iterator_add(log, "map", "return 1\nreturn (")
    assert caught.value.code == 4
    assert "2" in caught.value.detail
    assert remits.iterator_list(log) == []


@both
def test_an_expression_is_a_function_as_in_the_original(remits: Remits, log: str, indexed: bool) -> None:
    iterator = remits.iterator_add(log, "map", "msg.number", indexed=indexed)
    remits.add(log, {"number": 1}, {"number": 2})
    assert remits.all(iterator) == [1, 2]


def test_the_go_client_gets_byte_strings_as_it_knows_them(remits: Remits, log: str) -> None:
    (recipe,) = re.findall(r"`(local s, m = .*?)`", PAGE)
    iterator = remits.iterator_add(log, "map", recipe)
    remits.add(log, b"\x00\xffA", b"")
    assert remits.next_items(iterator, 0, 2) == [bytes.fromhex("a301000218ff031841"), b"\xa0"]


def test_what_differs_from_the_original_is_as_the_page_says(remits: Remits, log: str) -> None:
    missing = {"log_name": fresh(), "iterator_name": fresh(), "iterator_type": "map", "iterator_func": "msg"}
    assert remits.ask(ITERATOR_ADD, missing).failure().code == 0
    iterator = remits.iterator_add(log, "map", "error('no')")
    remits.add(log, 1)
    fields = {"iterator_name": iterator, "message_id": 0, "count": 1}
    failure = remits.ask(ITERATOR_NEXT, fields).failure()
    assert (failure.code, failure.detail) == (4, "at message 0: function:1: no")


# ---------------------------------------------------------------- pages


@both
def test_ordinals_are_those_of_the_output(remits: Remits, log: str, indexed: bool) -> None:
    iterator = remits.iterator_add(log, "filter", "return msg % 2 == 1", indexed=indexed)
    assert remits.next(iterator, 0, 10) == []
    assert remits.next(iterator, -1, 10) == []
    remits.add(log, *range(20))
    assert remits.next(iterator, 0, 3) == [1, 3, 5]
    assert remits.next(iterator, 9, 3) == [19]
    assert remits.next(iterator, -1, 1) == [19]
    assert remits.next(iterator, -1, 100) == [19]
    for beyond in (10, 11, 1 << 40, (1 << 62) - 1):
        assert remits.next(iterator, beyond, 10) == []
    for ordinal in (0, -1, 5, 1000):
        assert remits.next(iterator, ordinal, 0) == []
    for wrong in (-2, -(1 << 63)):
        with pytest.raises(Failure, match="error 11"):
            remits.next(iterator, wrong, 1)
    assert remits.next(iterator, 0, (1 << 63) - 1) == list(range(1, 20, 2))


@both
@pytest.mark.parametrize("kind", ["map", "filter", "reduce"])
def test_a_huge_count_gives_pages_within_the_limits(remits: Remits, log: str, kind: str, indexed: bool) -> None:
    count = 3 * PAGE_ITEMS + 7
    remits.add(log, *({"n": n} for n in range(count)))
    function = "return msg" if kind != "reduce" else "return {n = acc and acc.n + 1 or 0}"
    iterator = remits.iterator_add(log, kind, function, indexed=indexed)
    page = remits.next(iterator, 0, (1 << 63) - 1)
    assert 0 < len(page) <= PAGE_ITEMS
    assert remits.all(iterator, 1 << 40) == [{"n": n} for n in range(count)]
    assert remits.all(iterator, 13) == [{"n": n} for n in range(count)]
    assert remits.next(iterator, count - 3, 100) == [{"n": n} for n in range(count - 3, count)]


@both
def test_long_items_come_in_short_pages_and_the_longest_alone(remits: Remits, log: str, indexed: bool) -> None:
    sizes = [*[PAGE_BYTES // 3] * 5, 3 * PAGE_BYTES, 10, 2 * PAGE_BYTES]
    remits.add(log, *map(bytes, sizes))
    iterator = remits.iterator_add(log, "map", "return msg", indexed=indexed)
    found: list[bytes] = []
    while page := remits.next(iterator, len(found), 1000):
        assert len(page) == 1 or sum(map(len, page)) <= PAGE_BYTES
        found += page
    assert list(map(len, found)) == sizes
    assert len(remits.last(iterator)) == sizes[-1]


@pytest.mark.parametrize(
    ("kind", "function", "expected"),
    [
        ("map", "return {n = msg.n * 2, tag = msg.tag}", [{"n": 2 * n, "tag": "abc"[n % 3]} for n in range(250)]),
        ("map", "if msg.n % 5 ~= 0 then return nil end return msg.n", [None if n % 5 else n for n in range(250)]),
        ("filter", "return msg.tag == 'a'", [{"n": n, "tag": "a"} for n in range(0, 250, 3)]),
        ("filter", "return null", []),
        ("filter", "return msg.n == 249", [{"n": 249, "tag": "a"}]),
        ("reduce", "return (acc or 0) + msg.n", [n * (n + 1) // 2 for n in range(250)]),
        # The accumulator begins anew after every seventh message.
        (
            "reduce",
            "if msg.n % 7 == 6 then return nil end return (acc or 0) + 1",
            [None if n % 7 == 6 else n % 7 + 1 for n in range(250)],
        ),
        (
            "reduce",
            "acc = acc or map() acc[msg.tag] = (acc[msg.tag] or 0) + 1 return acc",
            [{tag: (n + 3 - at) // 3 for at, tag in enumerate("abc") if n >= at} for n in range(250)],
        ),
    ],
)
def test_plain_and_indexed_give_the_same_at_every_ordinal(
    remits: Remits, log: str, kind: str, function: str, expected: list[Any]
) -> None:
    plain = remits.iterator_add(log, kind, function)
    indexed = remits.iterator_add(log, kind, function, indexed=True)
    for start in range(0, 250, 50):
        remits.add(log, *({"n": n, "tag": "abc"[n % 3]} for n in range(start, start + 50)))
        assert remits.all_items(plain, 17) == remits.all_items(indexed, 23)
    assert remits.all(indexed) == expected
    assert remits.next(plain, -1) == remits.next(indexed, -1) == expected[-1:]
    singly = [remits.next_items(plain, ordinal, 1) for ordinal in reversed(range(len(expected) + 1))]
    assert singly == [remits.next_items(indexed, ordinal, 1) for ordinal in reversed(range(len(expected) + 1))]


@both
def test_a_message_is_seen_by_the_next_request_also_when_both_are_pipelined(
    remits: Remits, log: str, indexed: bool
) -> None:
    iterator = remits.iterator_add(log, "reduce", "return (acc or 0) + 1", indexed=indexed)
    asked = request(ITERATOR_NEXT, iterator_name=iterator, message_id=-1, count=1)
    remits.send((request(MESSAGE_ADD, log_name=log, message=b"\x01") + asked) * 50)
    for number in range(1, 51):
        remits.receive().ok()
        assert remits.receive().values() == [number]


# ---------------------------------------------------------------- values

VALUES: list[Any] = [
    *(0, 23, 24, 255, 256, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200),
    *(-1, -24, -25, -(1 << 63), -(1 << 63) - 1, -(1 << 64), -(1 << 64) - 1, -(1 << 200)),
    *(0.0, -0.0, 0.5, 3.0, 1e300, 5e-324, math.inf, -math.inf, math.nan),
    *("", "text", "é日本🙂", "a\0b", b"", b"bytes", bytes(range(256))),
    *(True, False, None, cbor2.undefined, cbor2.CBORSimpleValue(0), cbor2.CBORSimpleValue(255)),
    *([], [[]], [1, [2, [3]]], [None, None], ["", b"", {}, []], list(range(300))),
    *({}, {"": {}}, {"a": []}, {"a": None}, {1: "one", 2: "two"}, {-1: 1}, {1.5: 1}, {b"k": "v"}, {False: 0, True: 1}),
    *({None: 1}, {(1, 2): 3}, {"10": 1, 10: 2}, {1 << 64: 1}, {cbor2.undefined: 1}, {"deep": {"er": [{"x": b"\0"}]}}),
    *(
        cbor2.CBORTag(4242, "x"),
        cbor2.CBORTag(99_999, [1, {"a": cbor2.CBORTag(5555, b"")}]),
        [cbor2.CBORTag(777, None)],
    ),
]


def canonical(value: Any) -> bytes:
    """The same bytes for equal values of the same types, and for no others."""
    return cbor2.dumps(value, canonical=True)


@both
@pytest.mark.parametrize("kind", ["map", "filter", "reduce"])
def test_every_kind_of_value_comes_back_as_it_was(remits: Remits, log: str, kind: str, indexed: bool) -> None:
    remits.add(log, *VALUES)
    iterator = remits.iterator_add(log, kind, "return msg" if kind != "filter" else "return true", indexed=indexed)
    found = remits.all(iterator)
    assert [canonical(value) for value in found] == [canonical(value) for value in VALUES]


@both
def test_functions_see_values_and_say_what_theirs_are(remits: Remits, log: str, indexed: bool) -> None:
    remits.add(log, {"bytes": b"ab", "null": None, "big": 1 << 70})
    function = """
        return {
            types = {type(msg.bytes), type(msg.null), type(msg.big), type(msg.missing)},
            text = tostring(msg.bytes), back = bytes("ab"), same = msg.bytes == bytes("ab"),
            none = array(), empty = map(), null = msg.null, big = msg.big,
        }
    """
    expected = {
        "types": ["bytes", "null", "opaque", "nil"],
        "text": "ab",
        "back": b"ab",
        "same": True,
        "none": [],
        "empty": {},
        "null": None,
        "big": 1 << 70,
    }
    assert remits.all(remits.iterator_add(log, "map", function, indexed=indexed)) == [expected]


@both
def test_globals_do_not_outlive_a_message(remits: Remits, log: str, indexed: bool) -> None:
    remits.add(log, 1, 2, 3)
    assert remits.all(remits.iterator_add(log, "map", "x = (x or 0) + 1 return x", indexed=indexed)) == [1, 1, 1]


# ---------------------------------------------------------------- failing at a message

FAILING = {
    4: "if msg == 7 then error('no sevens') end return msg",
    5: "if msg == 7 then return error end return msg",
    34: "if msg == 7 then while true do end end return msg",
}


@both
@pytest.mark.parametrize("kind", ["map", "reduce"])
@pytest.mark.parametrize("code", FAILING)
def test_what_comes_before_a_failing_message_stays_readable(
    remits: Remits, log: str, code: int, kind: str, indexed: bool
) -> None:
    remits.add(log, *range(10))
    iterator = remits.iterator_add(log, kind, FAILING[code], indexed=indexed)
    for _ in range(2):
        assert remits.next(iterator, 0, 7) == list(range(7))
        assert remits.next(iterator, 0, 10) == list(range(7))
        assert remits.next(iterator, 6, 1) == [6]
        for count in (1, 3):
            with pytest.raises(Failure) as caught:
                remits.next(iterator, 7, count)
            assert caught.value.code == code
            assert "at message 7" in caught.value.detail
    if kind == "reduce":
        for ordinal in (8, -1):
            with pytest.raises(Failure, match=f"error {code} .*at message 7"):
                remits.next(iterator, ordinal, 1)
    else:
        # A map's items do not depend on one another.
        assert remits.next(iterator, 8, 5) == [8, 9]
        assert remits.last(iterator) == 9


@both
def test_a_failing_filter_tells_the_number_of_the_message_not_of_the_item(
    remits: Remits, log: str, indexed: bool
) -> None:
    remits.add(log, *range(100), "not a number", *range(100))
    iterator = remits.iterator_add(log, "filter", "return msg % 10 == 0", indexed=indexed)
    assert remits.next(iterator, 0, 1000) == list(range(0, 100, 10))
    for ordinal in (10, 11, -1):
        with pytest.raises(Failure, match=r"error 4 .*at message 100: "):
            remits.next(iterator, ordinal, 1)


def test_an_error_that_is_long_or_no_text_is_told_in_bounds(remits: Remits, log: str) -> None:
    remits.add(log, 1)
    for function in ("error(('x'):rep(1e6))", "error('\\xff\\xfe')", "error({})", "error(nil)", "error(null)"):
        with pytest.raises(Failure) as caught:
            remits.all(remits.iterator_add(log, "map", function))
        assert caught.value.code == 4
        assert len(caught.value.detail) <= 4096


# ---------------------------------------------------------------- chains


def test_iterators_read_the_output_of_indexed_ones(remits: Remits, log: str) -> None:
    doubled = remits.iterator_add(log, "map", "return msg * 2", indexed=True)
    large = remits.iterator_add(doubled, "filter", "return msg > 10", indexed=True)
    total = remits.iterator_add(large, "reduce", "return (acc or 0) + msg", indexed=True)
    plain = remits.iterator_add(large, "reduce", "return (acc or 0) + msg")
    for number in range(10):
        remits.add(log, number)
        expected = [2 * n for n in range(number + 1) if 2 * n > 10]
        assert remits.next(total, -1) == remits.next(plain, -1) == ([sum(expected)] if expected else [])
        assert remits.all(large) == expected
    assert remits.iterator_list(doubled) == [large]
    assert remits.log_show(log)["iterators"] == [doubled]
    remits.iterator_delete(log, doubled)
    assert not {doubled, large, total, plain} & set(remits.iterator_list())


def test_nothing_reads_the_output_of_a_plain_iterator(remits: Remits, log: str) -> None:
    plain = remits.iterator_add(log, "map", "return msg")
    with pytest.raises(Failure, match="error 0"):
        remits.iterator_add(plain, "map", "return msg")


def test_a_cycle_is_refused(remits: Remits, log: str) -> None:
    itself = fresh("itself")
    with pytest.raises(Failure, match="error 11"):
        remits.iterator_add(itself, "map", "return msg", indexed=True, name=itself)
    first = remits.iterator_add(log, "map", "return msg", indexed=True)
    second = remits.iterator_add(first, "map", "return msg", indexed=True)
    third = remits.iterator_add(second, "map", "return msg", indexed=True)
    for name, over in ((first, third), (first, second), (second, third), (first, first)):
        with pytest.raises(Failure, match="error 11"):
            remits.iterator_add(over, "map", "return msg", indexed=True, name=name)
    remits.add(log, "still")
    assert remits.all(third) == ["still"]


def test_an_error_above_is_told_to_those_below(remits: Remits, log: str) -> None:
    remits.add(log, 1, 2, "three")
    above = remits.iterator_add(log, "reduce", "return (acc or 0) + msg", indexed=True)
    for indexed in (False, True):
        below = remits.iterator_add(above, "map", "return -msg", indexed=indexed)
        assert remits.next(below, 0, 10) == [-1, -3]
        with pytest.raises(Failure, match=f"error 4 .*{above}.*at message 2"):
            remits.next(below, 2, 1)


def test_a_log_goes_before_an_iterator_of_its_name(remits: Remits, log: str) -> None:
    remits.add(log, "of the log")
    name = remits.log_add(fresh("same"))
    remits.add(name, "of the other log")
    remits.iterator_add(log, "map", "return msg", indexed=True, name=name)
    over = remits.iterator_add(name, "map", "return msg")
    assert remits.all(over) == ["of the other log"]
    assert remits.all(name) == ["of the log"]
