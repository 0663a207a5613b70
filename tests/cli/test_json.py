"""Events as JSON and back, and what a terminal gets to see of strangers' texts."""

import io
import json
import logging
import string
import sys
import unicodedata
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.append import event_of, json_flaw
from penstock.cli.output import json_text
from penstock.event_json import Defaults, event_document
from penstock.interchange.formats import from_json_lines
from penstock.model import Event
from penstock.model.times import TICKS_MAX, stamp_of, text_of_ticks, ticks_of_text
from penstock.terminal import LogLines, escape, escape_document, escape_python

JOINERS = "\u200c\u200d"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
bodies = (
    st.binary(max_size=30)
    | texts.map(str.encode)
    | values.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
)
headers = (
    st.none()
    | names
    | st.dictionaries(texts, values, max_size=3).map(
        lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    )
)
events = st.builds(
    Event,
    position=st.integers(1),
    context=names,
    stream=names,
    sequence=st.integers(1),
    id=st.binary(min_size=16, max_size=16),
    stamp=st.integers(0, TICKS_MAX).map(stamp_of),
    type=names,
    headers=headers,
    body=bodies,
    recorded=st.integers(0, TICKS_MAX),
    commit=st.just(bytes(16)),
)


@given(events)
def test_an_event_comes_back_from_its_json_as_it_was(event: Event) -> None:
    line = json_text(event_document(event))
    context, stream, found = event_of(line.encode())
    assert (context, stream) == (event.context, event.stream)
    assert found == (event.id, event.stamp, event.type, event.headers, event.body)


@given(events)
def test_the_json_of_an_event_is_one_line_without_control_characters(event: Event) -> None:
    line = json_text(event_document(event))
    assert "\n" not in line
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in line)
    line.encode()


@pytest.mark.parametrize(
    ("body", "member"),
    [
        (b'{"a": 1}', "body"),
        (b"null", "body"),
        (b"", "text"),
        (b"plain", "text"),
        (b"NaN", "text"),
        (b"1e999", "text"),
        (b'{"a": 1, "a": 2}', "text"),
        (rb'"\ud800"', "text"),
        (b"[" * 100_000, "text"),
        (b"9" * 5000, "text"),
        (b"\xff", "base64"),
    ],
)
def test_a_body_is_json_where_nothing_of_it_is_lost(body: bytes, member: str) -> None:
    event = Event(1, "c", "s", 1, bytes(16), stamp_of(0), "T", None, body, 0, bytes(16))
    document = event_document(event)
    assert [name for name in ("body", "text", "base64") if name in document] == [member]
    assert event_of(json_text(document).encode()).event.body in (body, body.replace(b" ", b""))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "it is not a JSON object"),
        ({"type": "T"}, "stream is missing"),
        ({"stream": "s"}, "type is missing"),
        ({"stream": 1, "type": "T"}, "stream is 1, where text belongs"),
        ({"stream": "", "type": "T"}, "stream is missing"),
        ({"stream": "a\0b", "type": "T"}, "stream contains a NUL character"),
        ({"stream": "s", "type": "T" * 2000}, "type has 2000 bytes; at most 1024 are allowed"),
        ({"stream": "s", "type": "T", "id": "x"}, "id is 'x', which is no UUID"),
        ({"stream": "s", "type": "T", "id": 7}, "id is 7, where text belongs"),
        ({"stream": "s", "type": "T", "timestamp": "x"}, "timestamp is 'x', not a time such as"),
        ({"stream": "s", "type": "T", "time": 7}, "time is 7, where text belongs"),
        ({"stream": "s", "type": "T", "headers": 7}, "headers is 7, where text belongs"),
        ({"stream": "s", "type": "T", "text": 7}, "text is 7, where text belongs"),
        ({"stream": "s", "type": "T", "base64": "ä"}, "base64 is not base64"),
        ({"stream": "s", "type": "T", "text": "\ud800"}, "it has half of a surrogate pair"),
        ({"stream": "s", "type": "T", "body": 1, "text": ""}, "text is there together with body"),
        ({"stream": "s", "type": "T", "\x1b[31m": 1}, "is no member of an event"),
    ],
)
def test_what_is_no_event_is_said_to_be_none_and_why(document: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=r".+") as found:
        event_of(json.dumps(document).encode(), "shop")
    assert reason in json_flaw(found.value)


@pytest.mark.parametrize("end", ["Z", "", "local", "+02:00"])
def test_the_same_line_is_the_same_event_when_it_is_imported(end: str) -> None:
    members = {"context": "c", "stream": "s", "type": "T", "event_id": str(UUID(int=7)), "recorded": None}
    line = json.dumps({**members, "time": f"2026-11-15T06:00:00.5{end}", "body": {"a": 1}})
    (imported,) = from_json_lines(io.BytesIO(line.encode()), Defaults())
    assert tuple(event_of(line.encode())) == tuple(imported)


@given(st.integers(0, TICKS_MAX))
def test_a_time_comes_back_from_its_text(ticks: int) -> None:
    assert ticks_of_text(text_of_ticks(ticks)) == ticks


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-11-15T25:00:00Z", "2026-11-15T06:00:00.Zx", "0001-01-01T00:00:00+01:00"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever asks says what was wrong
        ticks_of_text(text)


def test_times_have_zones_and_fractions() -> None:
    assert text_of_ticks(ticks_of_text("2026-11-15T07:00:00.5+01:00")) == "2026-11-15T06:00:00.5Z"
    assert text_of_ticks(ticks_of_text("2026-11-15T06:00:00z")) == "2026-11-15T06:00:00Z"


# --- what people read -----------------------------------------------------------------------------------------

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
ALLOWED = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
"""Format characters that are seen: they enclose or underline the digits behind them. Hieroglyphs have some as well."""


def unseen(text: str) -> list[str]:
    """What nobody should be sent; joiners are looked at apart."""
    found = [letter for letter in text if unicodedata.category(letter) in UNSEEN and letter not in ALLOWED]
    return [letter for letter in found if letter not in JOINERS and not "\U00013430" <= letter <= "\U0001345f"]


def test_every_character_that_cannot_be_seen_is_escaped() -> None:
    every = "".join(map(chr, range(0x110000)))
    assert unseen(escape(every)) == []
    assert set(unseen(escape_document(every))) == {"\n"}
    blank = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
    assert [letter for letter in blank if escape(letter) == letter] == []


@given(st.text())
def test_nothing_that_is_shown_moves_a_terminal(text: str) -> None:
    found = escape(text)
    found.encode()
    assert unseen(found) == []
    assert escape(found) == found
    if set(text) <= set(string.ascii_letters + string.digits + " äöü"):
        assert found == text


@given(st.lists(texts, max_size=3))
def test_a_document_that_is_shown_means_the_same(values: list[str]) -> None:
    for indent in (None, 2):
        text = json.dumps(values, ensure_ascii=False, indent=indent)
        found = escape_document(text)
        assert unseen(found.replace("\n", "")) == []
        assert json.loads(found) == values


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("نامه\u200cها", "نامه\u200cها"),
        ("👩\u200d🔬 ❤️\u200d🔥", "👩\u200d🔬 ❤️\u200d🔥"),
        ("क्\u200dष", "क्\u200dष"),
        ("a\xa0b\u3000c é ☃", "a\xa0b\u3000c é ☃"),
        ("ad\u200dmin", r"ad\u200dmin"),
        ("ж\u200cж", r"ж\u200cж"),
        ("👩\u200d\u200d🔬", r"👩\u200d\u200d🔬"),
        ("👩\u200d", r"👩\u200d"),
        ("\u200d🔬", r"\u200d🔬"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\udcff", r"\udcff"),
        ("\U000e0041", r"\U000e0041"),
    ],
)
def test_joiners_stay_where_they_join(text: str, found: str) -> None:
    assert escape(text) == found


def test_what_python_itself_says_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    escape_python()
    try:
        raise ValueError("\x1b[31m\nno")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    assert logging.lastResort is not None
    logging.lastResort.handle(logging.makeLogRecord({"msg": "iterator \x1b[31m"}))
    said = capsys.readouterr().err
    assert said.startswith("Traceback")
    assert said.endswith("ValueError: \\x1b[31m\nno\niterator \\x1b[31m\n")


def test_a_record_of_a_log_is_one_line_without_control_characters() -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogLines("%(levelname)s %(message)s"))
    log = logging.Logger("test")  # noqa: LOG001 - nobody else shall hear of it
    log.addHandler(handler)
    try:
        raise ValueError("\x1b[31m\nno")
    except ValueError:
        log.exception("iterator %s could not be built", "\x1b]0;owned\x07\u202e")
    line = written.getvalue()
    assert line.startswith(r"ERROR iterator \x1b]0;owned\x07\u202e could not be built | Traceback")
    assert line.endswith(r"ValueError: \x1b[31m | no" + "\n")
    assert line.count("\n") == 1
    assert unseen(line) == ["\n"]
