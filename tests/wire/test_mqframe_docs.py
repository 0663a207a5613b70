"""docs/protocols/mqframe.md is right: its examples are decoded and encoded, and nothing is missing from it.

An example is a block fenced with "frames" and its title; it has one frame per line: the type, the length and the
content in hex, then what it is. A line of hex alone is more content of the frame before it. A title that ends in
"answer" is what the message of that title is answered.
"""

import re
from dataclasses import fields
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

import pytest

from penstock.engine.engine import CONNECTIONS_MIN
from penstock.gates.in_flight import OUTSTANDING_MAX, UNREAD_MS_MAX
from penstock.gates.mq import limits_of
from penstock.mq import MqLimits
from penstock.settings import TABLE, Settings
from penstock.wire.mqframe import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_SENT_MAX,
    PING,
    Disconnected,
    Message,
    Parser,
    Reason,
    Violation,
    disconnect,
    encode,
)
from penstock.wire.res01.messages import FIELDS_MAX, decode_framed, split_fields
from tests.wire.samples import APPENDED, COMMIT, REQUEST_ID, sample

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocols" / "mqframe.md").read_text(encoding="utf-8")
BLOCK: Final = re.compile(r"^```frames (.+)\n((?:.*\n)*?)```$", re.MULTILINE)
LINE: Final = re.compile(r"([0-9a-f]{2})(?:  ([0-9a-f]{4})  ([0-9a-f]+))? +(\w+)(?:: (.+))?")
MORE_CONTENT: Final = re.compile(r" {10}([0-9a-f]+)")
GUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TYPES: Final = {"Empty": 1, "More": 2, "Last": 3, "EmptyLast": 4, "Command": 5, "Ping": 6}


class Frame(NamedTuple):
    """A line of the page."""

    name: str
    content: bytes
    raw: bytes


def frame(line: str) -> Frame:
    """The frame that a line shows; what the line says of it must be so."""
    found = LINE.fullmatch(line)
    assert found, line
    kind, length, shown, name, what = found.groups()
    content = bytes.fromhex(shown or "")
    assert int(kind, 16) == TYPES[name]
    if length is not None:
        assert int.from_bytes(bytes.fromhex(length), "little") == len(content)
    if text := re.search(r'"(.*)"$', what or ""):
        assert content.decode() == text[1]
    elif guid := GUID.search(what or ""):
        assert UUID(guid[0]).bytes_le == content
    elif reason := re.fullmatch(r"disconnect, reason (\d+)", what or ""):
        assert content == bytes([0, int(reason[1])])
    elif count := re.match(r"(\d+) fields", what or ""):
        assert int.from_bytes(content[:4], "little") == int(count[1])
    return Frame(name, content, bytes.fromhex(kind + (length or "")) + content)


def frames_of(block: str) -> list[Frame]:
    lines: list[str] = []
    for line in block.splitlines():
        if more := MORE_CONTENT.fullmatch(line):
            lines[-1] = re.sub(r"([0-9a-f]+)( +\w+: )", rf"\g<1>{more[1]}\2", lines[-1], count=1)
        else:
            lines.append(line)
    return [frame(line) for line in lines]


def messages_of(frames: list[Frame]) -> list[Message]:
    """The messages that frames make, by the rules of the page."""
    messages: list[Message] = [[]]
    for each in frames:
        if each.name not in ("Command", "Ping"):
            messages[-1].append(each.content)
        if each.name in ("Last", "EmptyLast"):
            messages.append([])
    return messages[:-1]


EXAMPLES: Final = {title: frames_of(block) for title, block in BLOCK.findall(PAGE)}


def raw(title: str) -> bytes:
    return b"".join(each.raw for each in EXAMPLES[title])


def message(title: str) -> Message:
    """The one message of an example, as the parser reads it."""
    (found,) = Parser(1000, 100_000).receive(raw(title))
    return found


# --- the transport --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_is_read_as_the_page_says_whole_and_byte_by_byte(title: str) -> None:
    frames, data = EXAMPLES[title], raw(title)
    for chunks in ([data], [bytes([byte]) for byte in data]):
        parser = Parser(1000, 100_000)
        messages = [found for chunk in chunks for found in parser.receive(chunk)]
        assert messages == messages_of(frames)
        assert parser.pings == [each.name for each in frames].count("Ping")
        commands = [each for each in frames if each.name == "Command"]
        assert parser.ended == (Disconnected(Reason(commands[0].content[1])) if commands else None)


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_is_written_as_the_page_shows(title: str) -> None:
    frames = [each for each in EXAMPLES[title] if each.name != "Ping"]
    if frames and frames[-1].name in ("Last", "EmptyLast"):
        assert b"".join(map(encode, messages_of(frames))) == b"".join(each.raw for each in frames)
    for each in EXAMPLES[title]:
        if each.name == "Command":
            assert disconnect(Reason(each.content[1])) == each.raw
        elif each.name == "Ping":
            assert each.raw == PING
        else:
            # As the first of two frames, or as the only one.
            others = [b"x"] if each.name in ("Empty", "More") else []
            assert encode([each.content, *others]).startswith(each.raw)


def test_every_type_of_frame_is_in_the_table_and_has_an_example() -> None:
    assert dict(re.findall(r"^\| `([A-Z]\w+)` \| (\d) \|", PAGE, re.MULTILINE)) == {
        name: str(kind) for name, kind in TYPES.items()
    }
    for name in TYPES:
        (only,) = EXAMPLES[name]
        assert only.name == name


def test_every_reason_is_in_the_table() -> None:
    section = PAGE.split("\n## The end of a connection")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| ([\w ]+) \|", section, re.MULTILINE)
    assert [(int(number), words) for number, words in rows] == [(reason.value, reason.words) for reason in Reason]


def test_every_mistake_of_the_page_is_one() -> None:
    section = PAGE.split("\n## Mistakes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([0-9a-f]+)` \| ([^,;:|]+?)(?:[,;:][^|]*)? \|$", section, re.MULTILINE)
    assert len(rows) == section.count("| `")
    for data, what in rows:
        parser = Parser(1000, 100_000)
        assert parser.receive(bytes.fromhex(data)) == []
        assert parser.ended == Violation(what)


# --- limits ---------------------------------------------------------------------------------------------------


def limit_rows() -> dict[str, tuple[int, str | None]]:
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (?:`(\w+)`|always [\d,]+)? ?\|", PAGE, re.MULTILINE)
    return {name: (int(default.replace(",", "")), setting or None) for name, default, setting in rows}


def test_every_limit_is_in_the_table_with_its_default() -> None:
    defaults = MqLimits()
    assert {name: default for name, (default, _) in limit_rows().items()} == {
        field.name: getattr(defaults, field.name) for field in fields(MqLimits)
    }


def test_the_settings_of_the_gate_set_the_limits_that_the_page_says() -> None:
    named = {name: setting for name, (_, setting) in limit_rows().items() if setting}
    assert set(named.values()) == {name for name in TABLE if re.fullmatch(r"mq_\w+_max", name)}
    values = {setting: 2000 + number for number, setting in enumerate(sorted(set(named.values())))}
    limits = limits_of(Settings(**values))  # type: ignore[arg-type]
    defaults = MqLimits(unread_ms_max=UNREAD_MS_MAX)
    assert f"| `unread_ms_max` | 0 | always {UNREAD_MS_MAX:,} |" in PAGE
    for field in fields(MqLimits):
        wanted = values[named[field.name]] if field.name in named else getattr(defaults, field.name)
        assert getattr(limits, field.name) == wanted


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"**{FRAME_BYTES_SENT_MAX:,} bytes**" in PAGE
    assert f"Accept up to {FRAME_BYTES_MAX:,}" in PAGE
    assert f"{FIELDS_MAX:,} fields are the most" in PAGE
    assert f"While {OUTSTANDING_MAX:,} are\nnot answered yet" in PAGE
    assert CONNECTIONS_MIN == 16
    assert f"more than {Settings().requests_bytes_max // CONNECTIONS_MIN >> 20} MiB (a sixteenth of\n" in PAGE
    assert Settings().mq is not None
    assert f"`{Settings().mq}`" in PAGE


# --- Res01 inside ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("title", ["AC", "AC Res01L"])
def test_an_append_is_what_the_page_shows_and_so_is_its_answer(title: str) -> None:
    framed = decode_framed(message(title), FRAME_BYTES_SENT_MAX)
    assert framed.exchange.requests == sample("AC").requests
    (answer,) = framed.exchange.answers([APPENDED])
    assert encode(framed.wrap(answer)) == raw(f"{title} answer")


@pytest.mark.parametrize("title", ["AC", "AC Res01L"])
def test_an_answer_does_with_the_leading_empty_frame_as_the_message_did(title: str) -> None:
    framed = decode_framed([b"", *message(title)], FRAME_BYTES_SENT_MAX)
    (answer,) = framed.exchange.answers([APPENDED])
    assert framed.wrap(answer) == [b"", *message(f"{title} answer")]


def test_a_res01l_message_has_the_fields_of_the_plain_one_wherever_it_is_cut() -> None:
    tag, *content = message("AC Res01L")
    joined = b"".join(content)
    assert split_fields([joined]) == message("AC")[1:]
    for place in range(1, len(joined)):
        framed = decode_framed([tag, joined[:place], joined[place:]], FRAME_BYTES_SENT_MAX)
        assert framed.exchange.requests == sample("AC").requests
    assert split_fields(message("AC Res01L answer")[1:]) == [REQUEST_ID, b"CR", COMMIT]


def test_a_malformed_res01l_message_is_answered_as_the_page_shows() -> None:
    framed = decode_framed(message("malformed Res01L"), FRAME_BYTES_SENT_MAX)
    assert framed.exchange.requests == ()
    (answer,) = framed.exchange.answers([])
    assert encode(framed.wrap(answer)) == raw("malformed Res01L answer")


def test_an_answer_that_does_not_fit_is_refused_as_the_page_shows() -> None:
    framed = decode_framed(message("QS"), FRAME_BYTES_SENT_MAX)
    assert framed.exchange.requests == sample("QS").requests
    assert encode(framed.refusal(20_000)) == raw("QS refused answer")


def test_every_example_of_the_page_is_run() -> None:
    shown = {*TYPES, "message", "messages", "ping", "disconnect", "QS", "QS refused answer"}
    shown |= {title + answer for title in ("AC", "AC Res01L", "malformed Res01L") for answer in ("", " answer")}
    assert set(EXAMPLES) == shown
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```frames") == len(EXAMPLES)
