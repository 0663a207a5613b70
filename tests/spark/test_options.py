"""The options of a read: what they mean, and what is said of those that mean nothing."""

import json
import pickle
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.history.columns import COLUMNS
from penstock.history.options import POSITION_MAX, ReadOptions
from penstock.model import EventFilter, ticks_of_datetime
from penstock.model.address import token_of
from penstock.spark.sink import WriteOptions

URL = "sqlite:///data"
NAMES = [each.metadata["option"] for each in fields(ReadOptions)]
PAGE = (Path(__file__).parent.parent.parent / "docs" / "spark.md").read_text(encoding="utf-8")


def test_only_the_url_is_needed() -> None:
    options = ReadOptions.of({"url": URL})
    assert options == ReadOptions(URL, None, "", None, COLUMNS, 1, POSITION_MAX, None, None, None, None)
    assert options.wanted == EventFilter()


def test_all_options_are_understood_in_any_case() -> None:
    given = {
        "url": "penstock://host:8472",
        "CONTEXT": "007",
        "filter": "order-",
        "type": "Placed, Paid",
        "columns": "text,position",
        "startposition": "5",
        "endPosition": "1_000",
        "starttime": "2024-05-01",
        "endTime": "2024-05-01T14:00:00+02:00",
        "maxEventsPerTrigger": "10",
        "partitionBytes": "1MiB",
        "pushFilters": "true",
    }
    assert ReadOptions.of(given) == ReadOptions(
        "penstock://host:8472",
        "007",
        "order-",
        ("Placed", "Paid"),
        ("text", "position"),
        5,
        1000,
        ticks_of_datetime(datetime(2024, 5, 1, tzinfo=UTC)),
        ticks_of_datetime(datetime(2024, 5, 1, 12, tzinfo=UTC)),
        10,
        1 << 20,
        push_filters=True,
    )
    assert {name.lower() for name in given} == {name.lower() for name in NAMES} - {"token"}


def test_a_token_goes_with_the_url_into_tasks_and_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ReadOptions, WriteOptions):
        options = kind.of({"url": "penstock://host:8472", "TOKEN": "id.secret"})
        travelled = pickle.loads(pickle.dumps(options))
        assert (travelled, token_of(travelled.url), token_of(options.url)) == (options, "id.secret", "id.secret")
        assert "secret" not in f"{options} {options.url} {options.url!r} {json.dumps(options.url)} {asdict(options)}"
        assert token_of(kind.of({"url": URL}).url) is None
        monkeypatch.setenv("PENSTOCK_TOKEN", "of.driver")
        assert token_of(kind.of({"url": URL}).url) == "of.driver"
        assert token_of(kind.of({"url": URL, "token": "id.secret"}).url) == "id.secret"
        monkeypatch.delenv("PENSTOCK_TOKEN")
        with pytest.raises(InvalidRequest, match="token has characters") as refused:
            kind.of({"url": URL, "token": "my secret"})
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["sqlite:///data", "postgresql://host/db", "penstock://host:1", "zmq+tcp://host:1"])
def test_a_store_or_a_server_can_be_named(url: str) -> None:
    assert ReadOptions.of({"url": url}).url == url


BAD = [
    ("context", "", "is ''"),
    ("context", "x" * 300, "has 300 bytes"),
    ("filter", "a\0b", "contains a NUL"),
    ("type", "Placed,,Paid", "names with commas"),
    ("type", "", "names with commas"),
    ("columns", "position,id", "names 'id', which is no column"),
    ("columns", "text,text", "names text twice"),
    ("startPosition", "-1", "from 0 to"),
    ("startPosition", "first", "'first'"),
    ("endPosition", str(1 << 63), "from 0 to"),
    ("startTime", "yesterday", "'yesterday'"),
    ("endTime", "2024-13-01", "such as 2024-05-01T12:00:00Z"),
    ("maxEventsPerTrigger", "0", "from 1 to"),
    ("partitionBytes", "much", "'much'"),
    ("partitionBytes", "0", "'0'"),
    ("pushFilters", "perhaps", "'perhaps'"),
]


@pytest.mark.parametrize(("name", "value", "said"), BAD)
def test_a_bad_value_is_told_with_the_name_of_its_option(name: str, value: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ReadOptions.of({"url": URL, name.lower(): value})
    assert str(caught.value).startswith(f"option {name} is ")
    assert said in str(caught.value)


@pytest.mark.parametrize("url", ["", "data", "sqlite:///", "sqlite://data", "mysql://me:secret@host/db"])
def test_a_bad_url_is_told_without_its_password(url: str) -> None:
    with pytest.raises(InvalidRequest, match="option url is not usable: it must be sqlite:///DIR") as caught:
        ReadOptions.of({"url": url})
    assert "secret" not in str(caught.value)


def test_a_missing_url_is_told() -> None:
    with pytest.raises(InvalidRequest, match="option url is missing"):
        ReadOptions.of({"context": "shop"})


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("contxt", "did you mean context?"),
        ("startposition_", "did you mean startPosition?"),
        ("zzz", "there are url, "),
    ],
)
def test_an_unknown_option_is_told_with_what_it_may_have_been(name: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=f"option {name} is unknown; ") as caught:
        ReadOptions.of({"url": URL, name: "1"})
    assert said in str(caught.value)


def test_every_option_and_column_is_documented() -> None:
    assert [name for name in (*NAMES, *COLUMNS) if f"| `{name}` |" not in PAGE] == []
