"""Which events name a subject, however their headers are spelled, and in how many steps they are found."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import erasures
from penstock.engine.erasures import Matches, find_subject, might_name, names_subject
from penstock.model import ANY, EventFilter, NewEvent, new_event
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteReader, SqliteStore

texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("subject"), inner, max_size=3),
    max_leaves=6,
)


def about(subject: str | None, body: str = "") -> NewEvent:
    headers = None if subject is None else json.dumps({"subject": subject})
    return new_event("Tested", body.encode(), headers)


# --- one event ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        '{"subject":"müller"}',
        '{"subject": "m\\u00fcller"}',
        '{"\\u0073ubject": "m\\u00FCller"}',
        ' {\n"a": 1, "subject"\t: "müller", "z": {"subject": "other"}} ',
        '{"ce-subject":"müller"}',
        '{"subject":"other","ce-subject":"m\\u00fcller"}',
        '{"subject":"müller","subject":"other"}',
        '{"subject":"other","subject":"müller"}',
        '{"subject":"müller","number":' + "1" * 10_000 + "}",
        '{"subject":"müller","number":1e999999,"other":NaN}',
        '{"deep":' + "[" * 100_000 + '"]"' + "]" * 100_000 + ',"subject":"müller"}',
        '{"subject":"müller","deep":' + '{"a\\"":' * 100_000 + "1" + "}" * 100_000 + "}",
    ],
)
def test_a_subject_is_found_in_every_spelling(headers: str) -> None:
    assert names_subject(headers, "müller")


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "subject: müller",
        '"müller"',
        '["subject", "müller"]',
        '{"subject":"müller2"}',
        '{"subject":"Müller"}',
        '{"subject":["müller"]}',
        '{"Subject":"müller"}',
        '{"inner":{"subject":"müller"}}',
        '{"subject":"müller"',
        '{"subject":"mu\u0308ller"}',
        "[" * 100_000 + '\\"subject müller',
        "[" * 100_000 + '{"subject":"müller"}' + "]" * 100_000,
        '{"deep":' + '{"subject":"müller","deep":' * 100_000 + "1" + "}" * 100_001,
        '{"subject":"müller","deep":' + "[" * 100_000,
        '{"subject":123}',
    ],
)
def test_what_is_only_similar_is_not_found(headers: str | None) -> None:
    assert not names_subject(headers, "müller")


def test_quotes_and_backslashes_in_a_subject_are_found() -> None:
    for subject in ('say "hi"', "C:\\x", "line\nbreak", "\0", "tab\t", "😀"):
        for ascii_only in (True, False):
            assert names_subject(json.dumps({"subject": subject}, ensure_ascii=ascii_only), subject)


@given(st.dictionaries(texts | st.just("subject"), values, max_size=4), texts.filter(bool), st.booleans())
def test_nothing_that_names_a_subject_is_passed_over(headers: dict[str, Any], subject: str, ascii_only: bool) -> None:
    for named in ({**headers, "subject": subject}, {"ce-subject": subject, **headers}):
        text = json.dumps(named, ensure_ascii=ascii_only)
        expected = subject in (named.get("subject"), named.get("ce-subject"))
        assert names_subject(text, subject) is expected
        assert might_name(text.encode(), subject) or not expected


# --- a history ------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path)


def write(store: SqliteStore, stream: str, events: list[NewEvent], context: str = "shop") -> None:
    (outcome,) = store.write([Transaction((Commit(context, stream, ANY, columns_of(events)),))])
    assert isinstance(outcome, list), outcome


def test_neighbours_become_one_range_and_streams_are_named_once(store: SqliteStore) -> None:
    write(store, "a", [about("x"), about("x"), about("y"), about(None), about("x")])
    write(store, "b", [about("x")])
    write(store, "b", [about("y")], "bank")
    write(store, "a", [about("x")])
    found = find_subject(store, "x", EventFilter(), 1)
    assert found == Matches(((1, 2), (5, 6), (8, 8)), (("shop", "a"), ("shop", "b")), 9, True)
    assert find_subject(store, "y", EventFilter("bank"), 1) == Matches(((7, 7),), (("bank", "b"),), 9, True)
    assert find_subject(store, "x", EventFilter(), 6).ranges == ((6, 6), (8, 8))
    assert find_subject(store, "z", EventFilter(), 1) == Matches((), (), 9, True)


def test_a_step_stops_where_it_has_enough_and_the_next_goes_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "RANGES_MAX", 3)
    write(store, "a", [about("x" if number % 2 else None) for number in range(1, 21)])
    position, end = 1, False
    ranges: list[tuple[int, int]] = []
    while not end:
        step = find_subject(store, "x", EventFilter(), position)
        assert len(step.ranges) <= 3
        ranges += step.ranges
        assert step.end or step.next > position
        position, end = step.next, step.end
    assert ranges == [(number, number) for number in range(1, 21, 2)]


def test_a_step_whose_time_is_up_says_where_to_go_on(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasures, "STEP_S_MAX", 0.0)
    monkeypatch.setattr(erasures, "SEARCH_LIMITS", erasures.SEARCH_LIMITS._replace(events_max=2))
    for _ in range(5):
        write(store, "a", [about(None), about("x")])
    reader = SqliteReader(tmp_path)
    position, end, steps = 1, False, 0
    ranges: list[tuple[int, int]] = []
    while not end:
        step = find_subject(reader, "x", EventFilter(), position)
        ranges += step.ranges
        position, end, steps = step.next, step.end, steps + 1
    assert (ranges, steps > 1) == ([(number, number) for number in range(2, 11, 2)], True)
    reader.close()
