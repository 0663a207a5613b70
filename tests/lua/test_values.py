"""How CBOR and Lua values stand for each other."""

import math
from typing import Any

import cbor2
import pytest

from penstock.errors import FunctionFailed, ResultUnreadable
from penstock.lua import LuaLimits, Program
from tests.lua.support import FILTER, failure, mapped, mapped_bytes


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("return nil", None),
        ("return null", None),
        ("return true", True),
        ("return 1", 1),
        ("return 1.0", 1.0),
        ("return -1", -1),
        ("return 10 // 3", 3),
        ("return 10 / 2", 5.0),
        ("return math.maxinteger", 2**63 - 1),
        ("return math.mininteger", -(2**63)),
        ("return 1/0", math.inf),
        ("return 'grün'", "grün"),
        ("return '\\xff\\x00'", b"\xff\x00"),
        ("return bytes('text')", b"text"),
        ("return bytes(bytes('text'))", b"text"),
        ("return {1, 'two', null}", [1, "two", None]),
        ("return {a = 1, b = {c = 2}}", {"a": 1, "b": {"c": 2}}),
        ("return {[2] = 'b'}", {2: "b"}),
        ("return {1, nil, 3}", {1: 1, 3: 3}),
        ("return {[1.5] = 1, [true] = 2, [bytes('k')] = 3, [null] = 4}", {1.5: 1, True: 2, b"k": 3, None: 4}),
        ("return {}", []),
        ("return array()", []),
        ("return map()", {}),
        ("return map({'a', 'b'})", {1: "a", 2: "b"}),
        ("return array({1, nil, 3})", [1, None, 3]),
        ("return 1, 2, 3", 1),
        ("", None),
    ],
)
def test_a_result_becomes_cbor(function: str, expected: object) -> None:
    result = mapped(function)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("function", "message", "expected"),
    [
        ("return #msg", b"abc", 3),
        ("return tostring(msg) .. 'd'", b"abc", "abcd"),
        ("return msg == bytes('abc')", b"abc", True),
        ("return msg == 'abc'", b"abc", False),
        ("return msg[bytes('k')]", {b"k": 7}, 7),
        ("return msg[1] == msg[2]", [2**70, 2**70], True),
        ("return msg.a == null", {"a": None}, True),
        ("return msg.b == null", {"a": None}, False),
        ("return msg.b == nil", {"a": None}, True),
        ("return #msg", [None, None, 3], 3),
        ("msg[2] = nil return msg", [1, 2, 3], [1, None, 3]),
        ("msg[3] = nil return msg", [1, 2, 3], [1, 2]),
        ("msg[#msg + 1] = 4 return msg", [], [4]),
        ("msg.name = 'x' return msg", [], {"name": "x"}),
        ("msg[1] = 'x' return msg", {}, {1: "x"}),
        ("msg.a = nil return msg", {"a": 1}, {}),
        ("return array(msg)", {1: "a", 2: "b"}, ["a", "b"]),
        ("return map(msg)", ["a", "b"], {1: "a", 2: "b"}),
        ("return setmetatable(msg, {__index = {b = 2}}).b", {"a": 1}, 2),
        ("return setmetatable(msg, {__index = {b = 2}})", {}, {}),
        ("return {math.type(msg.i), math.type(msg.f)}", {"i": 1, "f": 1.0}, ["integer", "float"]),
    ],
)
def test_a_message_is_a_lua_value(function: str, message: object, expected: object) -> None:
    assert mapped(function, message) == expected


def test_type_names_what_lua_does_not_have() -> None:
    message: list[object] = [None, b"", 2**64, cbor2.CBORTag(99, 1), [], {}, cbor2.undefined]
    names = "local names = {} for index, value in ipairs(msg) do names[index] = type(value) end return names"
    assert mapped(names, message) == ["null", "bytes", "opaque", "opaque", "table", "table", "opaque"]


@pytest.mark.parametrize(
    "item", ["c11a514b67b0", "1bffffffffffffffff", "3bffffffffffffffff", "f7", "e0", "f8ff", "c0c1c200"]
)
def test_opaque_items_pass_through_byte_by_byte(item: str) -> None:
    assert mapped_bytes("return {msg}", bytes.fromhex(item)).hex() == "81" + item


@pytest.mark.parametrize(
    "item", ["a1f93c0001", "a1f97e0001", "a1810001", "a1a001", "a1f601", "a1f501", "a1c10001", "a2f93c00010102"]
)
def test_maps_keep_keys_that_lua_tables_cannot_have(item: str) -> None:
    assert sorted(mapped_bytes("return msg", bytes.fromhex(item))) == sorted(bytes.fromhex(item))


def test_of_equal_keys_the_last_counts() -> None:
    assert mapped_bytes("return msg", bytes.fromhex("a3616101616202616103")).hex() == "a2616103616202"


def test_keys_come_in_one_order_in_pairs_and_in_results() -> None:
    message = {"b": 1, 10: 1, 9: 1, b"a": 1, "a": 1, False: 1, True: 1, None: 1, -0.5: 1}
    ordered = [-0.5, 9, 10, "a", "b", False, True, None, b"a"]
    listed = "local keys = {} for key in pairs(msg) do keys[#keys + 1] = key end return keys"
    stepped = (
        "local keys, key = {}, next(msg) while key ~= nil do keys[#keys + 1] = key key = next(msg, key) end return keys"
    )
    assert mapped(listed, message) == ordered
    assert mapped(stepped, message) == ordered
    assert list(mapped("return msg", message)) == ordered


def test_pairs_bears_changes_on_the_way() -> None:
    function = "for key in pairs(msg) do msg[key] = nil msg[key .. '2'] = true msg.c = nil end return msg"
    assert mapped(function, {"a": 1, "b": 2, "c": 3}) == {"a2": True, "b2": True}


def test_pairs_asks_the_metatable() -> None:
    function = """
        local sum = 0
        local own = setmetatable({}, {__pairs = function() return ipairs({7, 8}) end})
        for _, value in pairs(own) do sum = sum + value end
        return sum
    """
    assert mapped(function) == 15


def test_sort_keeps_equal_elements_in_their_order() -> None:
    function = "table.sort(msg, function(a, b) return a[1] < b[1] end) return msg"
    message = [[index * 7 % 5, index] for index in range(200)]
    assert mapped(function, message) == sorted(message, key=lambda pair: pair[0])


@pytest.mark.parametrize(
    "message",
    [
        [],
        [3, 1, 2],
        [2.5, -1.5, 0.0, -0.0, 7.25],
        ["b", "a", "", "ä", "Z", "b"],
        ["x" * 1000 + str(number) for number in range(50, 0, -1)],
        [number * 7919 % 100_003 for number in range(100_000)],
        [number * 7919 % 100_003 / 7 + 1 for number in range(40_000)],
        [str(number * 7919 % 100_003) for number in range(40_000)],
    ],
)
def test_sort_without_a_comparator_goes_by_less_than(message: list[Any]) -> None:
    def by_bytes(value: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    assert mapped("table.sort(msg) return msg", message) == sorted(message, key=by_bytes)


def test_sort_without_a_comparator_keeps_equal_numbers_in_their_order() -> None:
    message = [kind(number % 3) for number in range(500) for kind in (int, float)]
    result = mapped("table.sort(msg) return msg", message)
    assert [(value, type(value)) for value in result] == [(value, type(value)) for value in sorted(message)]


def test_sort_goes_by_metamethods() -> None:
    function = """
        local order = {__lt = function(a, b) return a.n < b.n end}
        local list = {}
        for index, n in ipairs(msg) do list[index] = setmetatable({n = n, index = index}, order) end
        local seen = setmetatable({}, {
            __len = function() return #list end,
            __index = function(_, index) return list[index] end,
            __newindex = function(_, index, item) list[index] = item end,
        })
        table.sort(seen)
        local result = {}
        for index, item in ipairs(list) do result[index] = {item.n, item.index} end
        return result
    """
    message = [number * 7 % 5 for number in range(200)]
    assert mapped(function, message) == [list(pair) for pair in sorted(zip(message, range(1, 201), strict=True))]


def test_an_order_that_contradicts_itself_sorts_somehow_and_loses_nothing() -> None:
    message = list(range(300))
    result = mapped("table.sort(msg, function(a, b) return true end) return msg", message)
    assert sorted(result) == message
    mixed = [float("nan") if number % 3 == 0 else number for number in range(300)]
    result = mapped("table.sort(msg) return msg", mixed)
    assert sorted(map(str, result)) == sorted(map(str, mixed))


def test_what_cannot_be_compared_is_told_and_the_table_stays_as_it_was() -> None:
    function = "local ok, problem = pcall(table.sort, msg) return {ok, problem, msg}"
    assert mapped(function, [3, 2, "x", 1]) == [False, "attempt to compare number with string", [3, 2, "x", 1]]
    assert failure("table.sort({{}, {}})").reason == "attempt to compare two table values"


@pytest.mark.parametrize("made", ["{}", "function() end", "coroutine.create(print)"])
def test_two_keys_that_have_no_order_are_refused(made: str) -> None:
    made = made.replace("print", "error")
    function = f"""
        local t = {{[{made}] = 1, a = 2, [1] = 3}}
        local count = 0
        for _ in pairs(t) do count = count + 1 end
        t[{made}] = 4
        return {{count, next(t) == 1, next(t, 1) == "a", select(2, pcall(pairs, t)), select(2, pcall(next, t, "a"))}}
    """
    kind = made.split("(")[0].replace("{}", "table").replace("coroutine.create", "thread")
    reason = f" has no order for two keys of type {kind}; use numbers or text as keys"
    assert mapped(function) == [3, True, True, f"pairs{reason}", f"next{reason}"]


def test_one_key_of_each_type_that_has_no_order_is_fine() -> None:
    function = """
        local t, seen = {[{}] = 1, [function() end] = 2, [coroutine.create(error)] = 3, x = 0}, {}
        for _, value in pairs(t) do seen[#seen + 1] = value end
        return seen
    """
    assert mapped(function) == [0, 1, 2, 3]


def test_errors_do_not_name_lines_of_the_library() -> None:
    assert (
        mapped("return {pcall(string.format, '%d', 'x')}")[1]
        == "bad argument #2 to 'format' (number expected, got string)"
    )
    assert mapped("return {pcall(function() local x = pairs(1) end)}")[1].startswith("function:1: bad argument #1")


@pytest.mark.parametrize("value", [None, False])
def test_a_filter_drops_what_is_null_or_false(value: object) -> None:
    assert Program(FILTER, "return msg").run([cbor2.dumps(value)]).outputs == [None]


@pytest.mark.parametrize("value", [True, 0, "", [], {}, b"", cbor2.undefined])
def test_a_filter_keeps_everything_else(value: object) -> None:
    message = cbor2.dumps(value)
    assert Program(FILTER, "return msg").run([message]).outputs == [message]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("return function() end", "a function has no place in CBOR"),
        ("return {a = {coroutine.create(error)}}", "a thread has no place in CBOR"),
        ("return {[{}] = 1}", "a table cannot be the key of a map"),
        ("return {[error] = 1}", "a function has no place in CBOR"),
        ("local t = {} t.t = t return t", "the result is nested more than 64 deep, or in itself"),
        ("local t = {} for i = 1, 64 do t = {t} end return t", "the result is nested more than 64 deep, or in itself"),
        ("local t = msg for i = 1, 64 do t = {t} end return t", "the result is nested more than 64 deep, or in itself"),
        ("local t = {} for i = 1, 60 do t = {t, t} end return t", "the result has more than 1000 items"),
        ("return ('x'):rep(1000)", "the result takes more than 1000 bytes"),
        ("return array({[1e9 // 1 | 0] = 1})", "the result has more than 1000 items"),
    ],
)
def test_what_has_no_place_in_cbor_is_unreadable(function: str, reason: str) -> None:
    limits = LuaLimits(result_bytes_max=1000, result_items_max=1000)
    error = failure(function, cbor2.CBORTag(99, [1]), limits)
    assert isinstance(error, ResultUnreadable)
    assert error.reason == reason


def test_results_within_the_limits_are_fine() -> None:
    assert mapped("local t = {} for i = 1, 63 do t = {t} end return #t") == 1
    assert len(mapped("return ('x'):rep(8 * 1024 * 1024 - 5)")) == 8 * 1024 * 1024 - 5


@pytest.mark.parametrize(("data", "reason"), [
    (b"\x81" * 65 + b"\x00", "the message is nested more than 64 deep"),
    (b"\xc1" * 65 + b"\x00", "the message is nested more than 64 deep"),
    (b"\xa1" * 65, "the message is nested more than 64 deep"),
    (b"", "the message is not one CBOR item"),
    (b"\x01\x01", "the message is not one CBOR item"),
    (b"\x9b\x7f" + b"\xff" * 7, "the message is not one CBOR item"),
    (b"\x7b" + b"\xff" * 8, "the message is not one CBOR item"),
    (b"\x5f\x61a\xff", "the message is not one CBOR item"),
    (b"\x1c", "the message is not one CBOR item"),
    (b"\xff", "the message is not one CBOR item"),
])  # fmt: skip
def test_a_message_that_cannot_be_read_fails_alone(data: bytes, reason: str) -> None:
    program = Program(FILTER, "return true")
    ran = program.run([b"\x01", data, b"\x02"])
    assert ran.outputs == [b"\x01"]
    assert isinstance(ran.error, FunctionFailed)
    assert (ran.error.reason, ran.error.message) == (reason, 1)
    assert program.run([b"\x02"]).outputs == [b"\x02"]


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("local x = array({x = 1})", "function:1: array() takes a table whose keys are 1, 2, 3 and so on"),
        ("local x = array(1)", "function:1: bad argument #1 to 'array' (table expected, got number)"),
        ("local x = map(null)", "function:1: bad argument #1 to 'map' (table expected, got null)"),
        ("local x = bytes(1)", "function:1: bad argument #1 to 'bytes' (string expected, got number)"),
        ("local x = pairs(bytes(''))", "function:1: bad argument #1 to 'pairs' (table expected, got bytes)"),
        ("local x = next(1)", "function:1: bad argument #1 to 'next' (table expected, got number)"),
        ("local x = next({}, {})", "function:1: next cannot go on from a table; use pairs"),
        ("local x = null.x", "function:1: attempt to index a null value"),
        ("local x = null + 1", "function:1: attempt to perform arithmetic on a null value (global 'null')"),
        ("local x = setmetatable(1, {})", "function:1: bad argument #1 to 'setmetatable' (table expected, got number)"),
        ("local x = setmetatable({}, 1)", "function:1: bad argument #2 to 'setmetatable' (nil or table expected)"),
        ("table.sort({}, 1)", "function:1: bad argument #2 to 'sort' (function expected)"),
        ("table.sort(1)", "function:1: bad argument #1 to 'sort' (table expected, got number)"),
        ("table.sort(bytes('x'))", "function:1: bad argument #1 to 'sort' (table expected, got bytes)"),
        ("local x = coroutine.create(1)", "function:1: bad argument #1 to 'create' (function expected, got number)"),
        ("local x = coroutine.wrap(1)", "function:1: bad argument #1 to 'wrap' (function expected, got number)"),
        ("local x = coroutine.resume(1)", "function:1: bad argument #1 to 'resume' (coroutine expected, got number)"),
        ("rawset(1, 2, 3)", "function:1: bad argument #1 to 'rawset' (table expected, got number)"),
        ("return string.format('%d', 'x')", "bad argument #2 to 'format' (number expected, got string)"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(function: str, reason: str) -> None:
    assert failure(function).reason == reason


def test_strings_are_formatted_without_addresses() -> None:
    function = "return {tostring({}), tostring(error), tostring(null), string.format('%s %s %%p', {}, bytes('b'))}"
    result: Any = mapped(function)
    assert result == ["table", "function", "null", "table b %p"]
    assert "%p" in failure("return string.format('%8p', {})").reason
    assert mapped("return tostring(setmetatable({}, {__tostring = function() return 'mine' end}))") == "mine"
