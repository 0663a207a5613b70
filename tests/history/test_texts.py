"""Bodies as text: what is shown as it is, what as JSON, and what not at all."""

import json
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.history.columns import json_of, texts


def shown(*events: tuple[str, bytes]) -> list[str | None]:
    types, bodies = zip(*events, strict=True)
    found: list[str | None] = texts(pa.array(bodies, pa.binary()), pa.array(types, pa.string())).to_pylist()
    return found


CASES: list[tuple[str, bytes, str | None]] = [
    ("Made", b'{"a":1}', '{"a":1}'),
    ("Made", "grün".encode(), "grün"),
    ("Made", b"", ""),
    ("Made", cbor2.dumps({"a": 1}), '{"a":1}'),
    ("Made", b"\xff\xff", None),
    ("Made", cbor2.dumps({"a": 1}) + b"\0", None),
    ("Made", cbor2.dumps("hello"), "ehello"),
    ("cbor", cbor2.dumps("hello"), '"hello"'),
    ("cbor", cbor2.dumps(42), "42"),
    ("cbor", b"hello, not one item", "hello, not one item"),
    ("cbor", b"\xff\xff", None),
    # Tags of big numbers on what is no number, and on one that is too long to be written out.
    ("Made", b"\xc2\x00", "0"),
    ("cbor", b"\xc3\x61a", '"a"'),
    ("cbor", b"\xc3\x41\x05", "-6"),
    ("cbor", b"\xc2\x59\x08\x00" + b"\xff" * 2048, '"' + "_" * 2730 + '8"'),
]


@pytest.mark.parametrize(("type", "body", "text"), CASES)
def test_a_body_is_shown_as_the_rule_says(type: str, body: bytes, text: str | None) -> None:
    assert shown((type, body)) == [text]


def test_bodies_of_all_kinds_may_come_together() -> None:
    assert shown(*((type, body) for type, body, _ in CASES)) == [text for *_, text in CASES]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: "b", None: "c", b"\xff": "d", (1, 2): "e"}, '{"1":"b","null":"c","_w":"d","[1,2]":"e"}'),
        ([float("nan"), float("inf"), 1.5], "[null,null,1.5]"),
        ([cbor2.undefined, cbor2.CBORSimpleValue(99), None, False], "[null,null,null,false]"),
        ([b"", b"\xfb\xff\xfe"], '["","-__-"]'),
        (cbor2.CBORTag(1234, {"a": cbor2.CBORTag(0, "2024-05-01T12:00:00Z")}), '{"a":"2024-05-01T12:00:00Z"}'),
        ([1 << 100, -(1 << 100)], f"[{1 << 100},{-(1 << 100)}]"),
    ],
)
def test_what_json_lacks_is_shown_as_near_as_it_can_be(value: Any, text: str) -> None:
    assert json_of(cbor2.dumps(value)) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_json_has_is_shown_as_it_is(value: Any) -> None:
    assert json.loads(json_of(cbor2.dumps(value))) == value


@given(st.lists(st.tuples(st.sampled_from(["Made", "cbor"]), st.binary(max_size=30)), min_size=1, max_size=10))
def test_any_bytes_are_shown_or_not_and_never_fail(events: list[tuple[str, bytes]]) -> None:
    for (type, body), text in zip(events, shown(*events), strict=True):
        if type == "Made" and text is None:
            with pytest.raises(UnicodeDecodeError):
                body.decode()
