"""What holds for any message: values come back equal, and functions do what their Python counterparts do."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lua import Program, RunResult
from tests.lua.reference import canonical
from tests.lua.strategies import ITEMS, NAMES, VALUES
from tests.lua.support import FILTER, MAP, REDUCE

IDENTITY = Program(MAP, "return msg")
OTHER_IDENTITY = Program(MAP, "return msg")
REBUILD = Program(
    MAP,
    """
    local function copy(value)
        if type(value) ~= "table" then return value end
        local result = map()
        for key, item in pairs(value) do result[key] = copy(item) end
        return result
    end
    return copy(msg)
    """,
)

AMOUNTS = st.lists(st.fixed_dictionaries({"name": NAMES, "amount": st.integers(-100, 100)}), max_size=30)


def outputs(ran: RunResult) -> list[Any]:
    assert ran.error is None, ran.error
    return [None if output is None else cbor2.loads(output) for output in ran.outputs]


@given(ITEMS)
def test_return_msg_gives_back_an_equal_value(item: bytes) -> None:
    ran = IDENTITY.run([item])
    assert ran.error is None
    assert ran.outputs[0] is not None
    assert canonical(ran.outputs[0]) == canonical(item)


@given(ITEMS)
def test_two_programs_give_the_same_bytes(item: bytes) -> None:
    assert IDENTITY.run([item]) == OTHER_IDENTITY.run([item])


@given(VALUES)
def test_return_msg_gives_back_what_another_library_wrote(value: object) -> None:
    assert outputs(IDENTITY.run([cbor2.dumps(value)])) == [value]


@given(st.dictionaries(st.one_of(NAMES, st.integers(-5, 5), st.binary(max_size=2)), VALUES, max_size=6))
def test_pairs_visits_every_key_and_value(value: dict[object, object]) -> None:
    def copied(value: object) -> object:
        if isinstance(value, list):
            return {index: copied(item) for index, item in enumerate(value, 1)}
        return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value

    assert outputs(REBUILD.run([cbor2.dumps(value)])) == [copied(value)]


@given(st.binary(max_size=40))
def test_garbage_is_an_error_or_a_value_and_never_more(data: bytes) -> None:
    ran = IDENTITY.run([data])
    assert len(ran.outputs) == (ran.error is None)


MAPS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("return msg.amount * 2", lambda msg: msg["amount"] * 2),
    ("return {msg.name, msg.amount}", lambda msg: [msg["name"], msg["amount"]]),
    ("msg.name = nil return msg", lambda msg: {"amount": msg["amount"]}),
    ("return msg.amount // 7 .. msg.name:upper()", lambda msg: f"{msg['amount'] // 7}{msg['name'].upper()}"),
]


@pytest.mark.parametrize(("function", "expected"), MAPS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_map_does_what_its_python_counterpart_does(function: str, expected: Callable[[Any], Any]) -> None:
    program = Program(MAP, function)

    @given(AMOUNTS)
    def check(messages: list[dict[str, Any]]) -> None:
        assert outputs(program.run([cbor2.dumps(message) for message in messages])) == list(map(expected, messages))

    check()


@given(AMOUNTS, st.integers(-100, 100))
def test_a_filter_keeps_the_very_bytes_of_what_its_python_counterpart_keeps(
    messages: list[dict[str, Any]], least: int
) -> None:
    data = [cbor2.dumps(message) for message in messages]
    ran = Program(FILTER, f"return msg.amount >= {least}").run(data)
    expected = [item if message["amount"] >= least else None for item, message in zip(data, messages, strict=True)]
    assert ran == RunResult(expected, None, None)


SUMS = Program(
    REDUCE,
    "acc = acc or map()\nacc[msg.name] = (acc[msg.name] or 0) + msg.amount\nreturn acc",
)


def add(totals: dict[str, int], message: dict[str, Any]) -> dict[str, int]:
    return totals | {message["name"]: totals.get(message["name"], 0) + message["amount"]}


@given(AMOUNTS)
def test_a_reduce_does_what_its_python_counterpart_does(messages: list[dict[str, Any]]) -> None:
    ran = SUMS.run([cbor2.dumps(message) for message in messages])
    nothing: dict[str, int] = {}
    expected = list(accumulate(messages, add, initial=nothing))[1:]
    assert outputs(ran) == expected
    assert (ran.state and cbor2.loads(ran.state)) == (expected[-1] if expected else None)


@given(AMOUNTS, st.lists(st.integers(1, 5), max_size=10))
def test_messages_in_batches_give_what_they_give_at_once(messages: list[dict[str, Any]], sizes: list[int]) -> None:
    data = [cbor2.dumps(message) for message in messages]
    parts: list[bytes | None] = []
    state, at = None, 0
    for size in [*sizes, len(data)]:
        ran = SUMS.run(data[at : at + size], state)
        parts, state, at = parts + ran.outputs, ran.state, at + size
    assert (parts, state, None) == SUMS.run(data)
