"""Logs of CBOR messages, and iterators over them."""

from datetime import UTC, datetime
from typing import Any

import cbor2
import pytest

import penstock
from penstock import Client
from penstock.errors import (
    FunctionFailed,
    InvalidRequest,
    IteratorExists,
    IteratorNotFound,
    LogNotFound,
    NotCbor,
    PenstockError,
)

VALUES = [
    1,
    -5,
    2.5,
    "text",
    b"bytes",
    None,
    True,
    [1, [2]],
    {"a": {"b": []}},
    1 << 70,
    datetime(2024, 1, 1, tzinfo=UTC),
]


@pytest.fixture
def log(context: str, way: Any) -> str:
    """The name of a log that no other test uses."""
    return f"log-{context}-{way.scheme}-{way.flavour}"


def test_a_log_keeps_values_in_order(client: Client, log: str) -> None:
    readings = client.log(log)
    readings.create()
    readings.append(VALUES)
    readings.append(iter(["one", "more"]))
    readings.append([])
    found = [cbor2.loads(event.body) for event in client.read_stream("remits", log)]
    assert found == [*VALUES, "one", "more"]
    summary = readings.show()
    assert (summary.log, summary.messages, summary.iterators) == (log, len(VALUES) + 2, [])


def test_making_and_deleting_a_log_twice_is_fine(client: Client, log: str) -> None:
    for _ in range(2):
        client.log(log).create()
    assert log in client.logs()
    client.log(log).append([1])
    for _ in range(2):
        client.log(log).delete()
    assert log not in client.logs()
    client.log(log).create()
    assert client.log(log).show().messages == 0


def test_a_log_that_is_not_there_is_said_to_be_missing(client: Client, log: str) -> None:
    with pytest.raises(LogNotFound):
        client.log(log).show()
    with pytest.raises(LogNotFound):
        client.log(log).append([1])
    with pytest.raises(LogNotFound):
        client.iterator(f"i-{log}").create(log, "map", "return msg")


@pytest.mark.parametrize("value", [object(), {1, object()}, lambda: None])
def test_what_has_no_place_in_cbor_is_not_appended(client: Client, log: str, value: object) -> None:
    client.log(log).create()
    with pytest.raises(NotCbor) as caught:
        client.log(log).append(["fine", value])
    assert caught.value.index == 1
    assert client.log(log).show().messages == 0


def test_only_cbor_gets_into_a_log(client: Client, log: str) -> None:
    client.log(log).create()
    with pytest.raises(PenstockError):
        client.append("remits", log, [penstock.event("cbor", b"\xff\xff")])
    assert client.log(log).show().messages == 0


def test_an_iterator_maps_filters_and_reduces(client: Client, log: str) -> None:
    client.log(log).create()
    client.log(log).append([{"n": number} for number in range(1, 11)])
    functions = {"map": "return msg.n * 2", "filter": "return msg.n > 8", "reduce": "return (acc or 0) + msg.n"}
    results: dict[str, list[Any]] = {
        "map": [2 * number for number in range(1, 11)],
        "filter": [{"n": 9}, {"n": 10}],
        "reduce": [1, 3, 6, 10, 15, 21, 28, 36, 45, 55],
    }
    for kind, function in functions.items():
        for indexed in (False, True):
            iterator = client.iterator(f"{kind}-{indexed}-{log}")
            iterator.create(log, kind, function, indexed=indexed)
            assert list(iterator) == results[kind]
            assert iterator.next(-1, 1) == results[kind][-1:]
            assert iterator.next(1, 1) == results[kind][1:2]
            assert iterator.next(100, 1) == []
    assert len(client.iterators(log)) == 6
    assert set(client.iterators(log)) <= set(client.iterators())
    assert client.iterators("no such log") == []


def test_an_iterator_goes_on_with_what_comes(client: Client, log: str) -> None:
    client.log(log).create()
    iterator = client.iterator(f"doubled-{log}")
    iterator.create(log, "map", "return msg * 2", indexed=True)
    client.log(log).append(range(2500))
    assert list(iterator) == [2 * number for number in range(2500)]
    assert [len(page) for page in iterator.pages(500)] == [1000, 1000]
    client.log(log).append([7])
    assert iterator.next(2500) == [14]


def test_an_iterator_has_one_definition(client: Client, log: str) -> None:
    client.log(log).create()
    iterator = client.iterator(f"once-{log}")
    for _ in range(2):
        iterator.create(log, "map", "return msg")
    with pytest.raises(IteratorExists):
        iterator.create(log, "map", "return 1")
    iterator.delete(log)
    with pytest.raises(IteratorNotFound):
        iterator.delete(log)
    with pytest.raises(IteratorNotFound):
        iterator.next()


def test_an_iterator_shows_what_it_is(client: Client, log: str) -> None:
    client.log(log).create()
    client.log(log).append([1, 2, 3])
    iterator = client.iterator(f"shown-{log}")
    with pytest.raises(IteratorNotFound):
        iterator.show()
    iterator.create(log, "filter", "return msg > 1", indexed=True)
    assert list(iterator) == [2, 3]
    shown = iterator.show()
    assert (shown.name, shown.log, shown.over, shown.kind) == (f"shown-{log}", log, "log", "filter")
    assert (shown.function, shown.indexed, shown.items, shown.behind) == ("return msg > 1", True, 2, 0)


def test_a_function_that_fails_says_where(client: Client, log: str) -> None:
    client.log(log).create()
    client.log(log).append([1, 2, "three", 4])
    iterator = client.iterator(f"failing-{log}")
    iterator.create(log, "map", "return msg + 0 * #tostring(msg) + (msg == 'three' and nil or 0)")
    with pytest.raises(FunctionFailed):
        list(iterator)
    with pytest.raises(FunctionFailed):
        client.iterator(f"broken-{log}").create(log, "map", "return return")
    with pytest.raises(InvalidRequest, match="map, filter, reduce"):
        client.iterator(f"kind-{log}").create(log, "fold", "return msg")
