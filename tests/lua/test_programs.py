"""Programs as their callers see them: outputs, state, errors and limits."""

import cbor2
import pytest
from lupa.lua54 import LuaMemoryError  # type: ignore[import-untyped]

from penstock.errors import FunctionFailed, FunctionTimedOut
from penstock.lua import LuaLimits, Program, RunResult
from tests.lua.support import FILTER, MAP, QUICK, REDUCE, failure, mapped

ONE, TWO, THREE = (cbor2.dumps(number) for number in (1, 2, 3))


def test_no_messages_give_no_outputs() -> None:
    assert Program(MAP, "return msg").run([]) == RunResult([], None, None)
    assert Program(REDUCE, "return msg").run([], ONE) == RunResult([], ONE, None)


def test_a_reduce_starts_from_nil_and_from_a_given_state() -> None:
    program = Program(REDUCE, "return (acc or 0) + msg")
    assert program.run([ONE, TWO]) == RunResult([ONE, THREE], THREE, None)
    assert program.run([ONE], TWO) == RunResult([THREE], THREE, None)


def test_an_accumulator_of_nil_is_written_as_null_and_stays_nil() -> None:
    assert Program(REDUCE, "assert(acc == nil) return nil").run([ONE, TWO]) == RunResult([b"\xf6", b"\xf6"], None, None)
    assert Program(REDUCE, "assert(acc == nil or acc == null) return null").run([ONE, TWO]).state == b"\xf6"
    assert Program(REDUCE, "assert(not acc) return false").run([ONE, TWO]).state == b"\xf4"


def test_an_error_keeps_what_came_before_it() -> None:
    for kind, state in ((MAP, None), (FILTER, None), (REDUCE, ONE)):
        ran = Program(kind, "if msg == 2 then error('no', 0) end return msg").run([ONE, TWO, THREE])
        assert ran.outputs == [ONE]
        assert ran.state == state
        assert str(ran.error) == "at message 1: no"


def test_a_timeout_keeps_what_came_before_it() -> None:
    program = Program(REDUCE, "while msg == 2 do end return msg", QUICK)
    ran = program.run([ONE, TWO, THREE])
    assert (ran.outputs, ran.state) == ([ONE], ONE)
    assert isinstance(ran.error, FunctionTimedOut)
    assert program.run([THREE], ONE) == RunResult([THREE], THREE, None)


def test_a_function_that_does_not_compile_is_refused_with_its_line() -> None:
    with pytest.raises(FunctionFailed) as caught:
        Program(MAP, "local x = 1\nreturn x +")
    assert str(caught.value) == "function:2: unexpected symbol near <eof>"
    assert caught.value.message is None


@pytest.mark.parametrize(
    ("function", "result"),
    [
        ("msg.number", 7),
        ("msg.number * 2 -- doubled", 14),
        ("-- doubled\nmsg.number * 2", 14),
        ("{msg.number}", [7]),
        ("tostring(msg.number)", "7"),
        ("(function() local x = msg.number return x end)()", 7),
        ("msg.number, 1", 7),
        ("number = 1 return number", 1),
        ("local x = msg.number; return x", 7),
        ("return msg.number;", 7),
        ("", None),
        ("-- nothing", None),
    ],
)
def test_an_expression_is_returned(function: str, result: object) -> None:
    assert mapped(function, {"number": 7}) == result


def test_an_expression_works_for_every_kind() -> None:
    assert Program(FILTER, "msg > 1").run([ONE, TWO]).outputs == [None, TWO]
    assert Program(REDUCE, "(acc or 0) + msg").run([ONE, TWO]).outputs == [ONE, THREE]


@pytest.mark.parametrize("function", ["return \udc80", "return 1 -- " + "x" * (1 << 20)])
def test_a_function_that_is_no_text_or_too_long_is_refused(function: str) -> None:
    with pytest.raises(FunctionFailed, match="the function is"):
        Program(MAP, function)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("\nerror('boom')", "function:2: boom"),
        ("error('boom', 0)", "boom"),
        ("error('boom', 2)", "boom"),
        ("error({code = 1})", "an error of type table"),
        ("error()", "an error of type nil"),
        ("error(12)", "12"),
        ("return msg.amount > 10", "function:1: attempt to index a null value"),
        ("local t = {} return t.amount > 10", "function:1: attempt to compare number with nil"),
        ("return nothing.x", "function:1: attempt to index a nil value (global 'nothing')"),
        ("return ('x'):nothing()", "function:1: attempt to call a nil value (method 'nothing')"),
        ("coroutine.wrap(function() error('inside') end)()", "function:1: inside"),
        ("return coroutine.yield(1)", "attempt to yield from outside a coroutine"),
    ],
)
def test_errors_say_what_lua_says(function: str, reason: str) -> None:
    assert failure(function).reason == reason


def test_a_long_error_is_cut() -> None:
    assert failure("error(('x'):rep(1e6), 0)").reason == "x" * 500


def test_pcall_and_xpcall_catch_what_functions_raise() -> None:
    function = """
        local ok, problem = pcall(error, {code = 7})
        local again, text = xpcall(error, function(e) return 'handled ' .. e end, 'x')
        local both, sum = xpcall(function(a, b) return a + b end, error, 1, 2)
        local bad, why = xpcall(error, function(e) error('worse', 0) end)
        return {ok, problem.code, again, text, both, sum, bad, why}
    """
    ran = Program(MAP, function).run([ONE])
    expected = [False, 7, False, "handled x", True, 3, False, "worse"]
    assert ran == RunResult([cbor2.dumps(expected)], None, None)


def test_coroutines_work() -> None:
    function = """
        local squares = coroutine.wrap(function(n)
            for i = 1, n do coroutine.yield(i * i) end
            return 'done'
        end)
        local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) error(b, 0) end)
        return {squares(2), squares(), squares(), {coroutine.resume(co, 1)}, {coroutine.resume(co, 'x')},
            coroutine.status(co)}
    """
    ran = Program(MAP, function).run([ONE])
    assert ran == RunResult([cbor2.dumps([1, 4, "done", [True, 2], [False, "x"], "dead"])], None, None)


def test_outputs_stop_where_they_grow_too_large() -> None:
    limits = LuaLimits(outputs_bytes_max=250)
    message = cbor2.dumps("x" * 98)
    assert Program(MAP, "return msg", limits).run([message] * 5) == RunResult([message] * 3, None, None)
    assert Program(REDUCE, "return msg", limits).run([message] * 5) == RunResult([message] * 3, message, None)


def test_what_a_filter_keeps_does_not_count_as_growth() -> None:
    messages = [cbor2.dumps("x" * 98)] * 5
    assert Program(FILTER, "return true", LuaLimits(outputs_bytes_max=1)).run(messages).outputs == messages


def test_many_messages_do_not_fill_the_memory() -> None:
    program = Program(
        MAP, "junk = {} for i = 1, 200 do junk[i] = {i} end return bytes(msg)", LuaLimits(memory_bytes_max=1 << 20)
    )
    messages = [cbor2.dumps(f"{number}" * 100) for number in range(3000)]
    ran = program.run(messages)
    assert ran.error is None
    assert len(ran.outputs) == 3000


def test_too_little_memory_for_lua_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_bytes_max is 1000"):
        LuaLimits(memory_bytes_max=1000)


def test_a_function_that_takes_too_much_memory_to_compile_is_refused() -> None:
    with pytest.raises(FunctionFailed, match="memory"):
        Program(MAP, "x = {" + "{}," * 80_000 + "}", LuaLimits(memory_bytes_max=1 << 20))


def test_a_lua_state_that_fails_outside_of_the_function_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(message: bytes, state: bytes | None) -> bytes:
        raise LuaMemoryError

    program = Program(MAP, "return msg")
    monkeypatch.setattr(program, "_step", step)
    assert "memory" in str(program.run([ONE]).error)
    assert program.run([ONE]) == RunResult([ONE], None, None)
