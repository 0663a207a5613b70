"""docs/protocols/res01.md is right: its examples are run, and nothing of the codec is missing from it.

An example is a block fenced with "frames" and its title; it has one frame per line, hex or "-" for an empty one, then
what it is. A line of hex alone belongs to the frame before it. An empty line divides messages. A title that ends in
"answer" is what the message of that title is answered.
"""

import re
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from penstock import model
from penstock.engine.jobs import TIES_BYTES_MAX, TIES_MAX, TIES_POSITIONS_MAX
from penstock.errors import PenstockError, VersionConflict, WriterBusy
from penstock.model import Append, GetStats, Reply, Request
from penstock.wire.codes import ERROR_CODES, Res01Code
from penstock.wire.res01.commands import BINARY_COMMANDS, TEXT_COMMANDS, Hello
from penstock.wire.res01.fields import BINARY_SCALARS, NUMBER_BYTES_MAX, TEXT_SCALARS, TIME_BYTES_MAX
from penstock.wire.res01.messages import decode
from penstock.wire.res01.schema import SUBSCRIPTIONS_MAX
from scripts.res01_page import commands_table, page_with_table
from tests.wire.checks import message_of
from tests.wire.samples import LEGACY, SAMPLES, STAMP, TICKS, Sample, sample

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocols" / "res01.md").read_text(encoding="utf-8")
BLOCK: Final = re.compile(r"^```frames (.+)\n((?:.*\n)*?)```$", re.MULTILINE)
LINE: Final = re.compile(r"(-|[0-9a-f]+) +(.+)")
GUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RELATIVES: Final = {"FW": "FE", "SW": "SQ", "AW": "AQ", "FF": "FE", "SF": "SQ"}
"""Commands whose fields are those of another one, to which their section refers."""
CONFLICT: Final = VersionConflict("shop", "order-1", 1, 4)


def frame(line: str) -> bytes:
    """The frame that a line shows; what the line says of it must be so."""
    found = LINE.fullmatch(line)
    assert found, line
    shown, what = found.groups()
    frame = b"" if shown == "-" else bytes.fromhex(shown)
    if text := re.search(r'"(.*)"$', what):
        assert frame.decode() == text[1]
    elif number := re.search(r"= (-?\d+)$", what):
        assert int.from_bytes(frame, "little", signed=True) == int(number[1])
    elif guid := GUID.search(what):
        assert UUID(guid[0]).bytes_le == frame
    else:
        assert what.endswith(("empty", "as stored", "all zeros", "routing frame"))
        assert (not frame) == what.endswith("empty")
    return frame


def whole_lines(part: str) -> list[str]:
    lines: list[str] = []
    for line in part.splitlines():
        if re.fullmatch("[0-9a-f]+", line):
            shown, what = lines[-1].split(" ", 1)
            lines[-1] = f"{shown}{line} {what}"
        else:
            lines.append(line)
    return lines


def messages(block: str) -> list[list[bytes]]:
    return [[frame(line) for line in whole_lines(part)] for part in block.split("\n\n")]


EXAMPLES: Final = {title: messages(block) for title, block in BLOCK.findall(PAGE)}

# What the page shows besides the samples: what it asks for, and the replies that give the answers.
Outcome = tuple[tuple[Request, ...], list[Reply | PenstockError]]
OTHERS: Final[dict[str, Outcome]] = {
    "envelope": (sample("QS").requests, [model.EventPage([], 1, True)]),
    "AC binary without events": ((), []),
    "QS of an original text client": (sample("QS").requests, [model.EventPage([], 1, True)]),
    "short": ((), []),
    "protocol": ((), []),
}
# Answers to a message that is shown elsewhere on the page.
MORE_ANSWERS: Final[dict[str, tuple[str, PenstockError]]] = {
    "ER answer": ("AC", CONFLICT),
    "ER binary answer": ("AC binary", CONFLICT),
    "AC 001 busy answer": ("AC", WriterBusy(10000)),
}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)
def test_an_example_asks_for_and_is_answered_what_the_page_shows(sample: Sample) -> None:
    # Older results differ in their answers only.
    (message,) = EXAMPLES[sample.command if sample.is_legacy else sample.title]
    exchange = decode(message, legacy=sample.is_legacy)
    assert exchange.requests == sample.requests
    assert exchange.answers(sample.replies) == EXAMPLES[f"{sample.title} answer"]


@pytest.mark.parametrize("title", OTHERS)
def test_what_else_the_page_shows_is_so(title: str) -> None:
    requests, replies = OTHERS[title]
    (message,) = EXAMPLES[title]
    exchange = decode(message)
    assert exchange.requests == requests
    assert exchange.answers(replies) == EXAMPLES[f"{title} answer"]


@pytest.mark.parametrize("title", MORE_ANSWERS)
def test_the_errors_that_the_page_shows_are_so(title: str) -> None:
    asked, error = MORE_ANSWERS[title]
    (message,) = EXAMPLES[asked]
    exchange = decode(message, legacy=LEGACY in title)
    assert isinstance(exchange.requests[0], Append)
    assert exchange.answers([error]) == EXAMPLES[title]


def test_every_example_of_the_page_is_run() -> None:
    titles = {sample.title for sample in SAMPLES if not sample.is_legacy} | set(OTHERS)
    answers = {f"{sample.title} answer" for sample in SAMPLES} | {f"{title} answer" for title in OTHERS}
    assert set(EXAMPLES) == titles | answers | set(MORE_ANSWERS) | {"HI", "AB", "PEN1 ER answer"}
    assert len(BLOCK.findall(PAGE)) == PAGE.count("```frames") == len(EXAMPLES)


# --- nothing is missing ---------------------------------------------------------------------------------------


def heading(command: str) -> str:
    """The section of a command."""
    found = re.search(rf"^## (?:\w\w, )*{command}(?:, \w\w)*: .*\n((?:(?!#).*\n|###.*\n)*)", PAGE, re.MULTILINE)
    assert found, command
    return found[1]


@pytest.mark.parametrize("command", sorted(TEXT_COMMANDS))
def test_every_command_has_its_section_with_its_answer_and_an_example(command: bytes) -> None:
    section = heading(command.decode())
    answer = TEXT_COMMANDS[command].answer.code.decode()
    assert f"**{answer}**" in section or f"`{answer}`" in section
    assert f"```frames {command.decode()}\n" in section
    assert (f"```frames {command.decode()} binary\n" in section) == (command in BINARY_COMMANDS)


def test_the_table_at_the_top_is_that_of_the_codec() -> None:
    assert page_with_table(PAGE) == PAGE, "run make docs"
    assert commands_table() in PAGE


def test_a_hello_and_an_error_of_our_own_dialect_look_as_the_page_shows() -> None:
    (hello,) = EXAMPLES["HI"]
    assert hello == [b"", *message_of(Hello(1, "example"), b"1")]
    assert decode([b"", *message_of(GetStats(), b"1")]).answers([CONFLICT]) == EXAMPLES["PEN1 ER answer"]


def test_a_commit_in_columns_looks_as_the_page_shows() -> None:
    event = model.NewEvent(bytes(range(16)), 5250191779318622791, "OrderPlaced", None, b"{}")
    (message,) = EXAMPLES["AB"]
    assert message == [b"", *message_of(Append("shop", "order-1", (event,), model.ANY), b"1")]


def test_every_code_is_in_the_table_of_codes() -> None:
    section = PAGE.split("\n## Errors")[1].split("### Which")[0]
    rows = {int(code) for code in re.findall(r"^\| (-?\d+) \|", section, re.MULTILINE)}
    assert rows == set(Res01Code)


def test_every_error_is_in_the_table_with_its_code() -> None:
    section = PAGE.split("### Which error is which code")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (-?\d+) \| (.+) \|$", section, re.MULTILINE)
    shown = {(name, int(code)) for code, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert shown == {(kind.__name__, code) for kind, (code, _) in ERROR_CODES.items()}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)
def test_every_field_that_an_error_can_name_is_on_the_page(sample: Sample) -> None:
    message, section = sample.message(), heading(sample.command)
    if sample.command in RELATIVES:
        section += heading(RELATIVES[sample.command])
    for length in range(4, len(message)):
        (answer,) = decode(message[:length]).answers([])
        field = answer[5].decode().split(" ")[0]
        assert re.search(rf"\b{field}\b", section), field


# --- fields ---------------------------------------------------------------------------------------------------


def test_the_guids_of_the_page_have_the_layout_it_says() -> None:
    rows = re.findall(rf"^\| `({GUID.pattern})` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert len(rows) == 3
    assert [UUID(guid).bytes_le.hex() for guid, _ in rows] == [shown for _, shown in rows]


def test_the_datetimes_of_the_page_are_read_and_written_as_it_says() -> None:
    assert f"is {TICKS} ticks" in PAGE
    rows = re.findall(r"^\| [\w ,]+ \| `(\d\d)` \| `(-?\d+)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
    assert [int(bits, 2) for bits, _, _ in rows] == [0, 1, 2, 3]
    for bits, text, binary in rows:
        stamp = TEXT_SCALARS.read_stamp(text.encode(), "Timestamp")
        assert stamp == BINARY_SCALARS.read_stamp(bytes.fromhex(binary), "Timestamp") == int(bits, 2) << 62 | TICKS
        assert TEXT_SCALARS.write_stamp(stamp).decode() == text
        assert BINARY_SCALARS.write_stamp(stamp).hex() == binary


def test_the_iso_times_of_the_page_are_understood() -> None:
    shown = re.findall(r"`(2024-05-06[^`]*)`", PAGE)
    assert len(shown) == 3
    assert {TEXT_SCALARS.read_stamp(text.encode(), "Timestamp") for text in shown[:2]} == {STAMP}
    TEXT_SCALARS.read_stamp(shown[2].encode(), "Timestamp")


def test_the_limits_of_the_page_are_those_of_the_codec() -> None:
    assert f"| subscriptions in one RS, FE, PS or SS | {SUBSCRIPTIONS_MAX:,} |" in PAGE
    assert f"| {NUMBER_BYTES_MAX}, {TIME_BYTES_MAX}; longer ones are not parsed |" in PAGE


def test_the_page_has_the_limits_of_ties() -> None:
    assert f"| {TIES_MAX:,} and {TIES_BYTES_MAX >> 20} MiB |" in PAGE
    rules = PAGE.split("### What a repeated PS does")[1].split("\n## ")[0]
    assert re.search(rf"up to {TIES_MAX:,}\s+events and {TIES_BYTES_MAX >> 20} MiB", rules)
    assert f"more than {TIES_POSITIONS_MAX:,} positions further on" in rules
