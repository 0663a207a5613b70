"""docs/protocols/remits.md is right: its examples are run, and nothing of the codec is missing from it.

An example is a block fenced with "bytes" and its title; it has a field or an item per line, hex and then what it is. A
line of hex alone belongs to the line before it. A title that ends in "answer" is what the frame of that title is
answered.
"""

import re
from pathlib import Path
from typing import Any, Final

import pytest
from cbor2 import loads

from penstock.settings import Settings
from penstock.wire.codes import NEVER_SENT, RemitsCode
from penstock.wire.remits.cbor import DEPTH_MAX, ITEMS_MAX
from penstock.wire.remits.frames import Parser
from penstock.wire.remits.operations import (
    DETAIL_CHARACTERS_MAX,
    FIELD_ITEMS_MAX,
    FIELDS_MAX,
    OPERATIONS,
    decode,
    refusal_frame,
)
from tests.wire.remits_answers import CODES, NAMES
from tests.wire.remits_checks import one_frame
from tests.wire.remits_samples import SAMPLES, Sample

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocols" / "remits.md").read_text(encoding="utf-8")
BLOCK: Final = re.compile(r"^```bytes (.+)\n((?:.*\n)*?)```$", re.MULTILINE)
LINE: Final = re.compile(r"([0-9a-f]+) +(.+)")
CONSTANTS: Final = {"true": True, "false": False, "null": None}
LOST: Final = {"short": 9, "long": 32}
"""What ends a connection: answered by the parser's code, with no frame decoded."""


def shown(line: str) -> bytes:
    """The bytes that a line shows; what the line says of them must be so."""
    found = LINE.fullmatch(line)
    assert found, line
    data, what = bytes.fromhex(found[1]), found[2]
    if number := re.search(r"= (\d+)$", what):
        assert int.from_bytes(data, "big") == int(number[1])
    elif opening := re.fullmatch(r"(map|array) of (\d+)", what):
        assert data == bytes([(0xA0 if opening[1] == "map" else 0x80) + int(opening[2])])
    else:
        assert loads(data) == _value(what)
    return data


def _value(what: str) -> Any:
    if what in CONSTANTS:
        return CONSTANTS[what]
    if text := re.fullmatch(r'"(.*)"', what):
        return text[1]
    if data := re.fullmatch(r"h'(.*)'", what):
        return bytes.fromhex(data[1])
    number = re.fullmatch(r"number (-?\d+)", what)
    assert number, what
    return int(number[1])


def whole_lines(block: str) -> list[str]:
    lines: list[str] = []
    for line in block.splitlines():
        if re.fullmatch("[0-9a-f]+", line):
            hexadecimal, what = lines[-1].split(" ", 1)
            lines[-1] = f"{hexadecimal}{line} {what}"
        else:
            lines.append(line)
    return lines


EXAMPLES: Final = {title: b"".join(map(shown, whole_lines(block))) for title, block in BLOCK.findall(PAGE)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)
def test_an_example_asks_for_and_is_answered_what_the_page_shows(sample: Sample) -> None:
    exchange = decode(one_frame(EXAMPLES[sample.title]))
    assert exchange.request == sample.request
    assert exchange.answer(sample.reply) == EXAMPLES[f"{sample.title} answer"]


@pytest.mark.parametrize("title", LOST)
def test_what_ends_a_connection_is_answered_as_the_page_shows(title: str) -> None:
    parser = Parser(1 << 20)
    assert parser.receive(EXAMPLES[title]) == []
    assert parser.lost is not None
    assert parser.lost.code == LOST[title]
    assert refusal_frame(parser.lost.code) == EXAMPLES[f"{title} answer"]


def test_every_example_of_the_page_is_run() -> None:
    titles = {sample.title for sample in SAMPLES} | set(LOST)
    assert set(EXAMPLES) == titles | {f"{title} answer" for title in titles}
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```bytes") == len(EXAMPLES)


# --- nothing is missing ---------------------------------------------------------------------------------------


def section(code: int) -> str:
    found = re.search(rf"^## {code}: (.+)\n((?:(?!## ).*\n?)*)", PAGE, re.MULTILINE)
    assert found, code
    assert found[1] == OPERATIONS[code].name
    return found[2]


@pytest.mark.parametrize("code", sorted(OPERATIONS))
def test_every_operation_has_its_section_with_its_fields_and_an_example(code: int) -> None:
    text = section(code)
    assert set(re.findall(r"^\| (\w+) \| [\w ]+ \| .*\|$", text, re.MULTILINE)) - {"field"} == OPERATIONS[code].known
    assert f"```bytes {OPERATIONS[code].name}\n" in text
    assert f"```bytes {OPERATIONS[code].name} answer\n" in text


def test_every_operation_is_in_the_table_at_the_top_with_its_kind_of_answer() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\w ]+) \| (info|data) \|", PAGE.split("## Frames")[0], re.MULTILINE)
    assert {int(code): name for code, name, _ in rows} == {code: each.name for code, each in OPERATIONS.items()}
    for _, name, kind in rows:
        assert EXAMPLES[f"{name} answer"][4] == {"info": 1, "data": 2}[kind]


def test_every_code_is_in_the_table_of_errors_with_its_name() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \| (.*) ?\|$", PAGE, re.MULTILINE)
    rows = [row for row in rows if not row[2].startswith("`")]
    assert {int(code): name for code, name, _, _ in rows} == NAMES
    sent = set(RemitsCode) - NEVER_SENT
    assert {int(code) for code, _, when, _ in rows if not when.startswith("never sent")} == sent
    assert {int(code) for code, _, _, connection in rows if connection.startswith("ends")} == set(LOST.values())


def test_every_error_is_in_the_table_with_its_code() -> None:
    table = PAGE.split("### Which error is which code")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", table, re.MULTILINE)
    shown = {(name, int(code)) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == {(kind.__name__, code) for kind, code in CODES.items()}


def test_the_limits_of_the_page_are_those_of_the_codec() -> None:
    for limit in (DEPTH_MAX, ITEMS_MAX, FIELDS_MAX, FIELD_ITEMS_MAX, DETAIL_CHARACTERS_MAX):
        assert re.search(rf"^\| .+ \| {limit:,} \| .+ \|$", PAGE, re.MULTILINE), limit


def test_the_settings_that_the_page_names_exist() -> None:
    limits = PAGE.split("\n## Limits")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+_max)`", limits))
    assert named <= set(Settings.__dataclass_fields__)
