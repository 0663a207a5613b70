"""Nothing of a call lasts until the next."""

import cbor2
import pytest

from penstock.lua import Program
from tests.lua.support import FILTER, MAP, REDUCE, failure

NUMBERS = [cbor2.dumps(number) for number in range(3)]

# Each tries to count its calls.
LEAKS = [
    "n = (n or 0) + 1 return n",
    "_ENV.n = (_ENV.n or 0) + 1 return n",
    "local old = n _ENV = setmetatable({}, {__index = _ENV}) n = 1 return (old or 0) + 1",
    "local seen = _ENV ~= nil _ENV = nil return seen and 1",
    "table.insert(_ENV, 1) return #_ENV",
    "table.move({1, 2}, 1, 1, #_ENV + 1, _ENV) return #_ENV",
    "function count() n = (n or 0) + 1 return n end return count()",
    "co = co or coroutine.wrap(function() local n = 0 while true do n = n + 1 coroutine.yield(n) end end) return co()",
    "acc = (acc or 0) + 1 return acc",
    "pcall(function() string.n = 1 end) return string.n or 1",
    "pcall(function() rawset(string, 'n', 2) end) return string.n or 1",
    "pcall(function() map(string) end) return #string + 1",
    "pcall(function() null.n = 2 end) return 1",
    "pcall(rawset, bytes('x'), 1, 2) return rawlen(bytes('x')) + 1",
    "pcall(table.insert, bytes('x'), 2) return rawlen(bytes('x')) + 1",
    "pcall(setmetatable, string, {__index = {n = 2}}) return string.n or 1",
    "pcall(function() getmetatable('').__index.n = 2 end) return ('').n or 1",
    "local old = pairs pairs = nil return old and 1",
    "local f = tostring tostring = function() return 'no' end return f(1) == '1' and 1",
]


@pytest.mark.parametrize("function", LEAKS)
def test_a_call_leaves_nothing_behind(function: str) -> None:
    ran = Program(MAP, function).run(NUMBERS)
    assert ran.error is None
    assert ran.outputs == [b"\x01"] * 3


def test_a_failed_call_leaves_nothing_behind() -> None:
    program = Program(MAP, "if msg == 0 then n = 1 error('no') end return n == nil")
    assert program.run(NUMBERS).error is not None
    assert program.run(NUMBERS[1:]).outputs == [b"\xf5"] * 2


@pytest.mark.parametrize("library", ["string", "table", "math", "utf8", "coroutine"])
def test_library_tables_cannot_be_changed(library: str) -> None:
    assert failure(f"{library}.x = 1").reason == "function:1: the library cannot be changed"
    assert failure(f"rawset({library}, 'x', 1)").reason == "function:1: cannot change a protected table"
    assert failure(f"setmetatable({library}, {{}})").reason == "function:1: cannot change a protected metatable"
    assert "table expected" in failure(f"map({library})").reason


def test_an_accumulator_is_what_its_cbor_says_from_message_to_message() -> None:
    # What is one table in two places, or has a metatable, is not after it was written down: in any batch.
    function = """
        if acc == nil then
            local shared = setmetatable({}, {__index = {n = 5}})
            return {a = shared, b = shared}
        end
        acc.a.n = (acc.a.n or 0) + 1
        return acc
    """
    ran = Program(REDUCE, function).run(NUMBERS)
    assert [cbor2.loads(output or b"") for output in ran.outputs] == [
        {"a": [], "b": []},
        {"a": {"n": 1}, "b": []},
        {"a": {"n": 2}, "b": []},
    ]


def test_a_filter_that_changes_its_message_keeps_the_message_as_it_was() -> None:
    message = cbor2.dumps({"a": 1})
    assert Program(FILTER, "msg.a = 2 return msg").run([message]).outputs == [message]
