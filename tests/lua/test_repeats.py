"""The same messages give the same results, byte by byte, in every process: whatever its hash seeds, addresses, clock or
locale are."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, Self

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lua.strategies import ITEMS

LOCALE: Final = "de_DE.ISO-8859-1"
"""One that sorts, folds and prints numbers in another way than C."""

FUNCTIONS: Final = {
    "the message": "return msg",
    "keys": """
        local seen = {}
        if type(msg) ~= "table" then return null end
        for key, value in pairs(msg) do seen[#seen + 1] = key seen[#seen + 1] = value end
        return seen
    """,
    "next": """
        if type(msg) ~= "table" then return null end
        local key, value = next(msg)
        return {key == nil and null or key, value == nil and null or value}
    """,
    "own keys": """
        local made = {}
        for index = 1, 200 do made["k" .. index * 7919 % 211] = index made[index * 13 % 97] = index end
        for index = 1, 200, 3 do made["k" .. index] = nil end
        local seen = {}
        for key in pairs(made) do seen[#seen + 1] = tostring(key) end
        return {seen, made}
    """,
    "text": """
        return {
            tostring({}), tostring(error), tostring(coroutine.create(error)), tostring(coroutine.running()),
            string.format("%s %s", {}, pairs), tostring(1.5), 2.5 .. "", string.format("%.3f %g", 1.5, 2.25),
            ("\\xe4\\xc4aB"):upper(), ("\\xe4\\xc4aB"):lower(), (("\\xe4b c"):gsub("%a", "x")), tonumber("1.5"),
            "a" < "B", "ab" < "aB", "\\xe4" < "b", "a-b" < "aa",
        }
    """,
    "addresses": """
        local one, other = {}, {}
        return {
            select(2, pcall(string.format, "%p", one)), select(2, pcall(function() return one < other end)),
            select(2, pcall(function() return one .. other end)), select(2, pcall(error, one)) == one,
            tostring(select(2, pcall(pairs, {[one] = 1, [other] = 2}))), pcall(next, {[one] = 1, [other] = 2}) == true,
            select(2, pcall(table.concat, {one})), select(2, pcall(string.rep)), select(2, pcall(ipairs)),
        }
    """,
    "keys without an order": """
        local made, seen = {}, {}
        for index = 1, 9 do made[{}] = index end
        local ok = pcall(function() for _, value in pairs(made) do seen[#seen + 1] = value end end)
        return {ok, seen, select(-1, pcall(next, made))}
    """,
    "what is not there": "return {os, io, debug, package, load, collectgarbage, print, math.random, string.dump}",
    "sort": """
        local list = {}
        for index = 1, 3000 do list[index] = index % 3 == 0 and index // 7 % 5 or index // 7 % 5 * 1.0 end
        table.sort(list)
        return list
    """,
    "sort with NaN": """
        local list = {}
        for index = 1, 3000 do list[index] = index % 3 == 0 and 0 / 0 or index * 7919 % 2003 end
        return {pcall(table.sort, list), list}
    """,
    "sort of equal elements": """
        local list, order = {}, {__lt = function(a, b) return a.n < b.n end}
        for index = 1, 1000 do list[index] = setmetatable({n = index % 2, index = index}, order) end
        table.sort(list)
        return list
    """,
    "sort by contradiction": """
        local list, calls = {}, 0
        for index = 1, 1000 do list[index] = index * 7919 % 1009 end
        local ok = pcall(table.sort, list, function(a, b) calls = calls + 1 return (a + b) % 3 > 0 end)
        return {ok, calls, list}
    """,
    # An adversary (McIlroy, A Killer Adversary for Quicksort): it decides late which element is the smaller one, so
    # that partitions become unbalanced, where Lua begins to pick its pivots by the clock.
    "sort against an adversary": """
        local list, solid, candidate, gas = {}, 0, nil, 1 << 40
        local function freeze(item) solid = solid + 1 item.n = solid end
        local order = {__lt = function(a, b)
            if a.n == gas and b.n == gas then freeze(rawequal(a, candidate) and a or b) end
            if a.n == gas then candidate = a elseif b.n == gas then candidate = b end
            return a.n < b.n
        end}
        for index = 1, 4000 do list[index] = setmetatable({n = gas, index = index}, order) end
        table.sort(list)
        local seen = {}
        for index, item in ipairs(list) do seen[index] = item.index end
        return seen
    """,
    "sort of text": """
        local list = {}
        for index = 1, 500 do list[index] = ("aBcäÄz-"):sub(index % 7 + 1, index % 5 + 3) .. index % 11 end
        table.sort(list)
        return list
    """,
    "sort of what comes": """
        local list = type(msg) == "table" and msg or {msg}
        return {pcall(table.sort, list), list}
    """,
    "recursion": "local function f() return (('x'):gsub('x', f)) end return {pcall(f)}",
    "garbage": """
        for index = 1, 20000 do local t = {index, tostring(index), bytes("x" .. index)} end
        return {bytes("x") == bytes("x"), #msg == #msg}
    """,
    "errors": "error({})",
    "no place in CBOR": "return {[{}] = 1, [error] = 2}",
}


class Runner:
    """A process that runs functions."""

    def __init__(self, environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "tests.lua.runner"]
        self._process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def run(self, kind: str, function: str, messages: list[bytes]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"kind": kind, "function": function, "messages": [message.hex() for message in messages]}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def runners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Runner]]:
    """Processes that differ in all that should make no difference; in the locale too, if one can be made here."""
    environments = [{"LC_ALL": "C"}, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "7", "PYTHONMALLOC": "malloc"}]
    place = tmp_path_factory.mktemp("locales")
    if shutil.which("localedef"):
        made = subprocess.run(["localedef", "-i", "de_DE", "-f", "ISO-8859-1", place / LOCALE], capture_output=True)
        if made.returncode == 0:
            environments.append({"LC_ALL": LOCALE, "LOCPATH": str(place), "PYTHONUTF8": "1"})
    with ExitStack() as held:
        yield [held.enter_context(Runner(environment)) for environment in environments]


def same(runners: list[Runner], kind: str, function: str, messages: list[bytes]) -> Any:
    """What all of them give."""
    first, *others = (runner.run(kind, function, messages) for runner in runners)
    for other in others:
        assert other == first
    return first


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_gives_the_same_in_every_process(runners: list[Runner], function: str) -> None:
    messages = [cbor2.dumps(value) for value in ({"a": 1, "b": [1, 2.5, "x"], 3: None}, [3, 1.0, 1, 2], "text")]
    for _ in range(3):
        outputs, _, error = same(runners, "map", function, messages)
        assert len(outputs) == 3 or error != "None"


@settings(max_examples=60)
@given(
    st.sampled_from([name for name, text in FUNCTIONS.items() if "msg" in text]),
    st.sampled_from(["map", "filter", "reduce"]),
    st.lists(ITEMS, min_size=1, max_size=4),
)
def test_any_messages_give_the_same_in_every_process(
    runners: list[Runner], name: str, kind: str, messages: list[bytes]
) -> None:
    same(runners, kind, FUNCTIONS[name], messages)


def test_an_accumulator_is_the_same_in_every_process(runners: list[Runner]) -> None:
    function = """
        acc = acc or map()
        for key, value in pairs(msg) do acc[key] = (acc[key] or 0) + value end
        local keys = {}
        for key in pairs(acc) do keys[#keys + 1] = key end
        table.sort(keys, function(a, b) return acc[a] < acc[b] end)
        acc[keys[1]] = acc[keys[1]] + 1
        return acc
    """
    messages = [cbor2.dumps({f"k{number * index % 17}": index % 5 for index in range(9)}) for number in range(200)]
    outputs, state, error = same(runners, "reduce", function, messages)
    assert (len(outputs), state, error) == (200, outputs[-1], "None")
