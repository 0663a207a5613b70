"""Functions that mean harm get an error in time, and neither their own program nor another one suffers."""

import time

import cbor2
import pytest
from lupa.lua54 import LuaRuntime  # type: ignore[import-untyped]

from penstock.errors import FunctionFailed, FunctionTimedOut
from penstock.lua import LuaLimits, Program
from penstock.model import IteratorKind
from tests.lua.support import MAP, QUICK, REDUCE, failure, mapped

ENDLESS = {
    "loop": "while true do end",
    "goto": "::again:: goto again",
    "pcall": "while true do pcall(function() while true do end end) end",
    "caught once": "pcall(function() while true do end end) return 1",
    "nested pcall": "local function f() pcall(f) pcall(f) end f()",
    "xpcall": "xpcall(function() while true do end end, function() while true do end end) return 1",
    "handler": "return xpcall(error, function() while true do end end)",
    "coroutine": "coroutine.resume(coroutine.create(function() while true do end end)) return 1",
    "wrapped coroutine": "pcall(coroutine.wrap(function() while true do end end)) return 1",
    "pcall in a coroutine": "coroutine.wrap(function() while true do pcall(error) end end)()",
    "many short coroutines": "while true do coroutine.wrap(function() for i = 1, 9000 do end end)() end",
    "nested short coroutines": """
        local function f(depth)
            if depth == 0 then return end
            for i = 1, 1000 do coroutine.wrap(f)(depth - 1) end
        end
        f(20)
    """,
    "__close": "do local x <close> = setmetatable({}, {__close = function() while true do end end}) end",
    "__close after the limit": """
        local x <close> = setmetatable({}, {__close = function() while true do end end})
        while true do end
    """,
    "__close in a coroutine": """
        coroutine.wrap(function()
            local x <close> = setmetatable({}, {__close = function() while true do end end})
            while true do end
        end)()
    """,
    "__index": "return setmetatable({}, {__index = function() while true do end end}).x",
    "__eq": "local t = setmetatable({}, {__eq = function() while true do end end}) return t == {}",
    "__concat": "return 'x' .. setmetatable({}, {__concat = function() while true do end end})",
    "__tostring": "return tostring(setmetatable({}, {__tostring = function() while true do end end}))",
    "__tostring in format": "return ('%s'):format(setmetatable({}, {__tostring = function() while true do end end}))",
    "__pairs": "for _ in pairs(setmetatable({}, {__pairs = function() while true do end end})) do end",
    "__len": "return #setmetatable({}, {__len = function() while true do end end})",
    "comparator": "table.sort({3, 2, 1}, function() while true do end end)",
    "sort of long equal text": """
        local list, text = {}, ("x"):rep(1000000)
        for index = 1, 100000 do list[index] = text end
        table.sort(list)
    """,
    "sort of many numbers": """
        local list = {}
        for index = 1, 500000 do list[index] = index * 7919 % 500009 end
        while true do table.sort(list) end
    """,
    "__lt in sort": """
        local hostile = {__lt = function() while true do end end}
        table.sort({setmetatable({}, hostile), setmetatable({}, hostile)})
    """,
    "gsub callback": "return (('x'):gsub('x', function() while true do end end))",
    "gmatch": "for _ in ('x'):gmatch('') do while true do end end",
    "endless iterator": "for _ in function() return 1 end do end",
}

HEAVY = {
    "string bomb": "return ('x'):rep(1e9)",
    "doubling string": "local s = 'x' while true do s = s .. s end",
    "doubling string in pcall": "local s = 'x' while true do pcall(function() s = s .. s end) end",
    "table bomb": "local t = {} for i = 1, 1e9 do t[i] = i end",
    "nested tables": "local t = {} while true do t = {t} end",
    "coroutines": "local t = {} while true do t[#t + 1] = coroutine.create(error) end",
    "concat bomb": "local t = {} for i = 1, 1000 do t[i] = ('x'):rep(1e5) end return table.concat(t)",
    "format bomb": "local s = 'x' while true do s = ('%s%s'):format(s, s) end",
    "gsub bomb": "local s = ('x'):rep(1e4) return (s:gsub('x', s))",
    "big globals": "x = {} while true do x = {x} end",
}

ROOMY = LuaLimits(call_ms_max=10_000, memory_bytes_max=16 << 20)


def check_that_all_is_well(program: Program) -> None:
    assert program.run([cbor2.dumps({"well": True})]).outputs == [cbor2.dumps(1)]
    assert mapped("return msg.a", {"a": 1}) == 1


@pytest.mark.parametrize("body", ENDLESS.values(), ids=ENDLESS.keys())
def test_an_endless_loop_is_stopped(body: str) -> None:
    program = Program(MAP, f"if msg.well then return 1 end\n{body}", QUICK)
    started = time.process_time()
    ran = program.run([cbor2.dumps({})])
    assert isinstance(ran.error, FunctionTimedOut)
    assert ran.error.reason == "ran for more than 60 ms"
    assert time.process_time() - started < 20
    check_that_all_is_well(program)


@pytest.mark.parametrize("body", HEAVY.values(), ids=HEAVY.keys())
def test_a_memory_bomb_is_stopped(body: str) -> None:
    program = Program(MAP, f"if msg.well then return 1 end\n{body}", ROOMY)
    ran = program.run([cbor2.dumps({})])
    assert type(ran.error) is FunctionFailed
    assert ran.error.reason == "needs more than 16777216 bytes of memory"
    check_that_all_is_well(program)


@pytest.mark.parametrize(
    "body",
    [
        "local function f() return 1 + f() end return f()",
        "local function f(...) return f(1, ...) + 1 end return f()",
        "return setmetatable({}, {__index = function(t, k) return t[k] end}).x",
        "local function f() return coroutine.wrap(f)() end return f()",
        "local t = {} return setmetatable(t, {__index = t}).x",
        "return ('x'):find(('('):rep(40))",
    ],
)
def test_deep_recursion_fails(body: str) -> None:
    program = Program(MAP, f"if msg.well then return 1 end\n{body}", LuaLimits(call_ms_max=10_000))
    ran = program.run([cbor2.dumps({})])
    assert type(ran.error) is FunctionFailed
    assert len(ran.error.reason) <= 500
    check_that_all_is_well(program)


@pytest.mark.parametrize(
    "name",
    [
        *("os", "io", "debug", "package", "require", "load", "loadstring", "loadfile", "dofile", "collectgarbage"),
        *("python", "lupa", "print", "warn", "_G", "module", "setfenv", "getfenv", "newproxy"),
        *("string.dump", "math.random", "math.randomseed", "coroutine.close"),
    ],
)
def test_what_could_do_harm_or_vary_is_not_there(name: str) -> None:
    assert mapped(f"return {name} == nil") is True


def test_bytecode_is_refused() -> None:
    bytecode = LuaRuntime(encoding="latin-1").eval("string.dump(function() return 1 end)")
    with pytest.raises(FunctionFailed, match="unexpected symbol"):
        Program(MAP, bytecode)


def test_the_metatable_of_strings_is_out_of_reach() -> None:
    assert mapped("return getmetatable('')") is False
    assert "index a boolean value" in failure("getmetatable('').__index = {}").reason
    assert "protected" in failure("setmetatable(_ENV, {})").reason


def test_nothing_but_lua_values_can_be_found() -> None:
    lua = LuaRuntime()
    names = [
        f"{library}.{name}"
        for library in ("string", "table", "math", "utf8", "coroutine")
        for name in lua.globals()[library]
    ]
    fields = ", ".join(f"type({name})" for name in [*lua.globals(), *names])
    assert set(mapped(f"return {{{fields}}}")) == {"function", "table", "string", "number", "nil"}


def test_a_hostile_error_value_is_not_run() -> None:
    error = failure("error(setmetatable({}, {__tostring = function() while true do end end}))")
    assert error.reason == "an error of type table"


def test_a_hostile_key_or_result_is_not_run() -> None:
    hostile = "setmetatable({}, {__eq = function() while true do end end, __index = function() while true do end end})"
    assert failure(f"return {{[{hostile}] = 1}}").reason == "a table cannot be the key of a map"
    assert mapped(f"return {hostile}") == []
    assert Program(REDUCE, f"return {hostile}").run([b"\x00"]).outputs == [b"\x80"]


@pytest.mark.parametrize("name", ["__gc", "__mode"])
def test_metatables_cannot_watch_the_collector(name: str) -> None:
    assert failure(f"setmetatable({{}}, {{{name} = 'k'}})").reason == "function:1: __gc and __mode are not available"


@pytest.mark.parametrize(
    "put_in", ["metatable.__mode = 'v'", "getmetatable(t).__mode = 'v'", "rawset(t, '__mode', 'v')"]
)
@pytest.mark.parametrize("metatable", ["{}", "t"])
def test_a_table_cannot_be_made_weak_later(put_in: str, metatable: str) -> None:
    function = f"""
        local t = {{}}
        local metatable = {metatable}
        setmetatable(t, metatable)
        {put_in}
        t[1] = {{}}
        for i = 1, 200000 do local garbage = {{}} end
        return t[1] ~= nil and getmetatable(t) == metatable
    """
    assert mapped(function) is True


def test_a_finalizer_that_is_put_in_later_never_runs() -> None:
    function = """
        local metatable = {}
        setmetatable({}, metatable)
        metatable.__gc = function() while true do end end
        for i = 1, 200000 do local t = {} end
        return 1
    """
    assert mapped(function) == 1


@pytest.mark.parametrize("kind", IteratorKind)
def test_a_message_too_large_to_hand_over_is_refused(kind: IteratorKind) -> None:
    ran = Program(kind, "return msg", ROOMY).run([b"\x01", cbor2.dumps("x" * (4 << 20))])
    assert ran.outputs == [b"\x01"]
    assert str(ran.error) == "at message 1: the message is longer than 4194304 bytes"


def test_an_accumulator_too_large_to_hand_over_is_refused() -> None:
    ran = Program(REDUCE, "return 1", ROOMY).run([b"\x00"], cbor2.dumps("x" * (4 << 20)))
    assert str(ran.error) == "at message 0: the accumulator is longer than 4194304 bytes"


def test_a_large_message_is_fine_after_a_function_that_left_little_room() -> None:
    # The stack that the recursion leaves behind takes most of the memory until it is collected.
    function = """
        if type(msg) == "string" then return #msg end
        local function f(depth) return depth == 0 and 0 or 1 + f(depth - 1) end
        return f(msg)
    """
    program = Program(MAP, function, ROOMY)
    messages = [cbor2.dumps(100_000), cbor2.dumps("x" * ((4 << 20) - 5))]
    assert program.run(messages * 3).outputs == [cbor2.dumps(100_000), cbor2.dumps((4 << 20) - 5)] * 3
