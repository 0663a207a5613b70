"""How pages show events: trees with exact numbers, CBOR, text and bytes, each up to a limit."""

import json

import cbor2
import pytest

from penstock.console import bodies
from penstock.console.bodies import Node, row, shown
from penstock.console.rendering import bytes_text, clock, duration, environment, sparkline
from penstock.console.samples import quantile
from penstock.model import Event
from penstock.model.times import ticks_of_text

RECORDED = ticks_of_text("2026-11-15T06:00:00.1234567Z")


def event(body: bytes, context: str = "shop", headers: str | None = None) -> Event:
    return Event(1, context, "s", 1, bytes(16), RECORDED, "T", headers, body, RECORDED, bytes(16))


def plain(node: Node | None) -> object:
    """A tree as lists and texts."""
    assert node is not None
    if node.kind == "object":
        return [(child.key, plain(child)) for child in node.children]
    return [plain(child) for child in node.children] if node.kind == "array" else (node.kind, node.text)


def test_numbers_of_json_keep_every_digit() -> None:
    (found,) = shown("", [event(b'{"big": 123456789012345678901234567890, "cents": 12.50, "e": 1E+400, "n": -0}')])
    assert found.form == "json"
    assert plain(found.tree) == [
        ("big", ("number", "123456789012345678901234567890")),
        ("cents", ("number", "12.50")),
        ("e", ("number", "1E+400")),
        ("n", ("number", "-0")),
    ]


def test_members_of_one_name_and_words_are_shown_as_they_are() -> None:
    (found,) = shown("", [event(b'{"a": true, "a": null, "b": [false, "x\\u202e"]}')])
    assert plain(found.tree) == [
        ("a", ("word", "true")),
        ("a", ("word", "null")),
        ("b", [("word", "false"), ("string", "x\u202e")]),
    ]


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b"[" * 100_000, b'"\\ud800"', b"\x00\x01"])
def test_what_is_no_json_has_no_tree(body: bytes) -> None:
    (found,) = shown("json", [event(body)])
    assert found.tree is None
    assert found.form != "json"


def test_a_tree_is_cut_and_says_so() -> None:
    (wide,) = shown("", [event(json.dumps(list(range(5000))).encode())])
    assert wide.tree is not None
    assert wide.is_cut
    assert len(wide.tree.children) + wide.tree.more == 5000
    assert len(wide.tree.children) < bodies.NODES_MAX
    (deep,) = shown("", [event(b"[" * 200 + b"]" * 200)])
    assert deep.is_cut
    (long,) = shown("", [event(json.dumps("x" * 10_000).encode())])
    assert long.tree is not None
    assert (len(long.tree.text), long.tree.more) == (4096, 10_000 - 4096)


def test_cbor_is_decoded_with_big_numbers() -> None:
    body = cbor2.dumps({"big": 2**70, "list": [1, None, b"\x01"]})
    (of_log,) = shown("", [event(body, "remits")])
    assert of_log.form == "cbor"
    tree = plain(of_log.tree)
    assert isinstance(tree, list)
    assert tree[0] == ("big", ("number", str(2**70)))
    (elsewhere,) = shown("", [event(body)])
    assert elsewhere.forms == ("cbor", "hex")
    (hex,) = shown("hex", [event(body)])
    assert hex.hex[0][0] == "000000"
    assert hex.hex[0][1].replace(" ", "") == body[:16].hex()


@pytest.mark.parametrize("body", [cbor2.dumps(1) + b"x", b"\x9f" * 1000, b"\xc2" * 2000])
def test_what_is_no_message_is_not_decoded(body: bytes) -> None:
    (found,) = shown("", [event(body, "remits")])
    assert "cbor" not in found.forms


def test_text_and_bytes_are_cut_and_say_by_how_much() -> None:
    text = ("ü" * 50_000).encode()
    (found,) = shown("text", [event(text)])
    assert found.text == "ü" * (bodies.TEXT_BYTES_MAX // 2)
    assert found.left_out == len(text) - bodies.TEXT_BYTES_MAX
    (hex,) = shown("hex", [event(text)])
    assert len(hex.hex) == bodies.HEX_BYTES_MAX // 16
    assert hex.left_out == len(text) - bodies.HEX_BYTES_MAX
    (large,) = shown("", [event(json.dumps("x" * bodies.JSON_BYTES_MAX).encode())])
    assert large.form == "text"


def test_the_last_character_of_a_text_may_be_cut_off() -> None:
    (found,) = shown("text", [event(b"a" * (bodies.TEXT_BYTES_MAX - 1) + "ü".encode())])
    assert found.text == "a" * (bodies.TEXT_BYTES_MAX - 1)


@pytest.mark.parametrize(
    ("body", "excerpt"),
    [(b"", ""), (b"abc", "abc"), (b"\xff\xfe", None), (b"a\0b", None), (b"x" * 1000, "x" * bodies.EXCERPT_BYTES)],
)
def test_a_list_shows_the_beginning_of_texts(body: bytes, excerpt: str | None) -> None:
    assert row(event(body)).excerpt == excerpt


def test_headers_are_a_tree_or_text() -> None:
    (tree,) = shown("", [event(b"", headers='{"user":"ann"}')])
    assert plain(tree.headers) == [("user", ("string", "ann"))]
    (text,) = shown("", [event(b"", headers="none <b>")])
    assert (text.headers, text.headers_text) == (None, "none <b>")
    (array,) = shown("", [event(b"", headers="[1]")])
    assert array.headers is None


# --- texts and figures ----------------------------------------------------------------------------------------


def test_every_text_is_escaped_and_hidden_characters_are_visible() -> None:
    template = environment().from_string('{{ text }}|{{ text|exact }}|{{ text|document }}|<i title="{{ text }}">')
    text = '<b>\x1b[31m\u202ex\n"'
    shown, exact, document, attribute = template.render(text=text).split("|")
    assert shown == "&lt;b&gt;\\x1b[31m\\u202ex\\n&#34;"
    assert exact == "&lt;b&gt;\x1b[31m\u202ex\n&#34;"
    assert document == "&lt;b&gt;\\u001b[31m\\u202ex\n&#34;"
    assert attribute == f'<i title="{shown}">'


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (1.25, "1.2 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_time_spans_have_two_units_at_most(ms: float, text: str) -> None:
    assert duration(ms) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 bytes"), (1023, "1,023 bytes"), (1024, "1.0 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_times_are_in_utc_with_the_digits_that_are_wanted() -> None:
    assert clock(RECORDED) == '<time datetime="2026-11-15T06:00:00.123Z">2026-11-15 06:00:00.1234567 UTC</time>'
    assert clock(RECORDED, 3) == '<time datetime="2026-11-15T06:00:00.123Z">2026-11-15 06:00:00.123</time>'


def test_a_small_chart_has_a_point_for_each_value() -> None:
    assert sparkline([1]) == ""
    assert str(sparkline([0, 0, 0])).count(",58.0") == 6
    assert "style" not in sparkline([1, 2])


def test_a_quantile_lies_in_its_bucket() -> None:
    before = [("0.001", 5.0), ("0.01", 5.0), ("+Inf", 5.0)]
    after = [("0.001", 55.0), ("0.01", 104.0), ("+Inf", 105.0)]
    assert quantile(0.5, before, after) == pytest.approx(0.001)
    assert quantile(0.99, before, after) == pytest.approx(0.01)
    assert quantile(0.999, before, after) == 0.01
    assert quantile(0.5, after, after) == 0
