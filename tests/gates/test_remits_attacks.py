"""Functions that mean harm, through the gate: each gets its error, and neither the server nor anybody else suffers."""

from collections.abc import Iterator

import pytest

from tests.gates.remits_client import Failure, Remits, fresh, neighbours_are_served
from tests.gates.serving import Served

SERVER_FLAGS = (
    *("--iterator-call-ms-max", "100", "--iterator-memory-bytes-max", "16MiB"),
    # A worker that is killed is replaced as fast as the machine can; nobody is told meanwhile that the server is busy.
    *("--reader-wait-ms-max", "60000"),
)

FAILED, UNREADABLE, TIMED_OUT = 4, 5, 34

ATTACKS = {
    # without end
    "loop in pcall": (TIMED_OUT, "while true do pcall(function() while true do end end) end"),
    "loop in a coroutine": (TIMED_OUT, "coroutine.wrap(function() while true do end end)()"),
    # a pattern, which can only be stopped with its process
    "pattern": (TIMED_OUT, "return (('a'):rep(4000)):find(('.-'):rep(12) .. 'b')"),
    # without measure
    "string bomb": (FAILED, "return ('x'):rep(1e9)"),
    "table bomb": (FAILED, "local t = {} for i = 1, 1e9 do t[i] = i end"),
    "recursion": (FAILED, "local function f() return 1 + f() end return f()"),
    # out of the sandbox
    "os": (FAILED, "return os.execute('true')"),
    "load": (FAILED, "return load('return 1')()"),
    "python": (FAILED, "return python.eval('1')"),
    "the library": (FAILED, "string.rep = nil"),
    # results that have no place in CBOR
    "a function": (UNREADABLE, "return error"),
    "a table in itself": (UNREADABLE, "local t = {} t[1] = t return t"),
    "a result too long": (UNREADABLE, "return ('x'):rep(5e6)"),
}
"""A few of each kind. The tests of the evaluator have all of them."""


@pytest.fixture
def remits(server: Served) -> Iterator[Remits]:
    with Remits(server.remits) as connected:
        yield connected


@pytest.fixture(scope="module")
def log(server: Served) -> str:
    """Two messages, and between them the one that attacks begin at."""
    with Remits(server.remits) as remits:
        name = remits.log_add(fresh())
        remits.add(name, "before", "attack", "after")
        return name


def attacking(body: str) -> str:
    """A function that does harm at one message only."""
    return f"if msg ~= 'attack' then return msg end\n{body}"


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_gets_its_error_and_all_else_goes_on(server: Served, remits: Remits, log: str, attack: str) -> None:
    code, body = ATTACKS[attack]
    with neighbours_are_served(server.remits):
        iterator = remits.iterator_add(log, "map", attacking(body))
        assert remits.next(iterator, 0, 10) == ["before"]
        with pytest.raises(Failure) as caught:
            remits.next(iterator, 1, 10)
        assert caught.value.code == code
        assert "at message 1" in caught.value.detail
        assert remits.next(iterator, 2, 10) == ["after"]
        remits.iterator_delete(log, iterator)


@pytest.mark.parametrize("attack", ["loop in pcall", "pattern", "string bomb", "recursion", "os", "a function"])
def test_an_index_stops_at_an_attack_and_all_else_goes_on(
    server: Served, remits: Remits, log: str, attack: str
) -> None:
    code, body = ATTACKS[attack]
    with neighbours_are_served(server.remits):
        iterator = remits.iterator_add(log, "reduce", attacking(body), indexed=True)
        assert remits.next(iterator, 0, 10) == ["before"]
        for ordinal in (1, -1):
            with pytest.raises(Failure, match=f"error {code} .*at message 1"):
                remits.next(iterator, ordinal, 10)
        remits.iterator_delete(log, iterator)


def test_many_attacks_at_once_leave_the_others_alone(server: Served, log: str) -> None:
    with neighbours_are_served(server.remits), Remits(server.remits) as remits:
        names = [remits.iterator_add(log, "reduce", attacking("while true do end"), indexed=True) for _ in range(10)]
        assert all(remits.next(name, 0, 10) == ["before"] for name in names)
        remits.log_add(fresh())
        for name in names:
            remits.iterator_delete(log, name)


def test_a_function_that_takes_long_to_compile_or_is_too_long_is_refused(remits: Remits, log: str) -> None:
    for function in ("return " + "(" * 300 + "1" + ")" * 300, "x = 1 " * 200_000, "\x1bLua", "return \0"):
        with pytest.raises(Failure, match="error 4 "):
            remits.iterator_add(log, "map", function)
