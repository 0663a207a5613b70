"""Events as JSON and back, and what a terminal gets to see of strangers' texts."""

import io
import json
import string
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.events import BadEvent, event_document, event_of, ticks_of_text
from penstock.cli.output import iso, json_text, shown
from penstock.interchange.lines import from_json_lines
from penstock.interchange.rows import Defaults
from penstock.model import Event
from penstock.model.ticks import TICKS_MAX, stamp_of

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
    context, stream, found = event_of(json.loads(line))
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
    assert event_of(json.loads(json_text(document))).event.body in (body, body.replace(b" ", b""))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ([], "it is no JSON object"),
        ({"type": "T"}, "stream is missing"),
        ({"stream": "s"}, "type is missing"),
        ({"stream": 1, "type": "T"}, "stream is 1, where a text belongs"),
        ({"stream": "", "type": "T"}, "stream is empty"),
        ({"stream": "a\0b", "type": "T"}, "stream contains a NUL character"),
        ({"stream": "s", "type": "T" * 2000}, "type has 2000 bytes; at most 1024 are allowed"),
        ({"stream": "s", "type": "T", "id": "x"}, 'id is "x", where a UUID belongs'),
        ({"stream": "s", "type": "T", "id": 7}, "id is 7, where a UUID belongs"),
        ({"stream": "s", "type": "T", "timestamp": "x"}, 'timestamp is "x", where a time like'),
        ({"stream": "s", "type": "T", "time": 7}, "timestamp is 7, where a time like"),
        ({"stream": "s", "type": "T", "headers": 7}, "headers are neither an object nor a text"),
        ({"stream": "s", "type": "T", "text": 7}, "text is 7, where a text belongs"),
        ({"stream": "s", "type": "T", "base64": "ä"}, "base64 is not base64"),
        ({"stream": "s", "type": "T", "text": "\ud800"}, "text is not Unicode"),
        ({"stream": "s", "type": "T", "body": 1, "text": ""}, "body and text are both there"),
        ({"stream": "s", "type": "T", "\x1b[31m": 1}, "is unknown; an event has"),
    ],
)
def test_what_is_no_event_is_said_to_be_none_and_why(document: Any, reason: str) -> None:
    with pytest.raises(BadEvent) as found:
        event_of(document, "shop")
    assert reason in str(found.value)


@pytest.mark.parametrize("end", ["Z", "", "local", "+02:00"])
def test_the_same_line_is_the_same_event_when_it_is_imported(end: str) -> None:
    members = {"context": "c", "stream": "s", "type": "T", "event_id": str(UUID(int=7)), "recorded": None}
    line = json.dumps({**members, "time": f"2026-11-15T06:00:00.5{end}", "body": {"a": 1}})
    (imported,) = from_json_lines(io.BytesIO(line.encode()), Defaults())
    assert tuple(event_of(json.loads(line))) == tuple(imported)


@given(st.integers(0, TICKS_MAX))
def test_a_time_comes_back_from_its_text(ticks: int) -> None:
    assert ticks_of_text(iso(ticks)) == ticks


@pytest.mark.parametrize(
    "text", ["", "2026", "2026-11-15T25:00:00Z", "2026-11-15T06:00:00.Zx", "0001-01-01T00:00:00+01:00"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whoever asks says what was wrong
        ticks_of_text(text)


def test_times_have_zones_and_fractions() -> None:
    assert iso(ticks_of_text("2026-11-15T07:00:00.5+01:00")) == "2026-11-15T06:00:00.5Z"
    assert iso(ticks_of_text("2026-11-15T06:00:00z")) == "2026-11-15T06:00:00Z"


@given(st.text())
def test_nothing_that_is_shown_moves_a_terminal(text: str) -> None:
    found = shown(text)
    found.encode()
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in found)
    if set(text) <= set(string.ascii_letters + string.digits + " äöü"):
        assert found == text
