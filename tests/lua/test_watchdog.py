"""What hides inside one of Lua's C functions is noticed, and what was done before it is kept."""

import json
import subprocess
import sys

import cbor2
import pytest

from penstock.errors import FunctionTimedOut
from penstock.lua import LuaLimits, Program, RunResult
from tests.lua.support import FILTER, MAP

# A worker process in small: it passes on what it has and ends.
WORKER = """
import json, os, sys
import cbor2
from penstock.lua import LuaLimits, Program
from penstock.model import IteratorKind

def stuck(ran):
    outputs = [cbor2.loads(output) for output in ran.outputs]
    report = [outputs, ran.state.hex(), type(ran.error).__name__, ran.error.message]
    os.write(1, json.dumps(report).encode())
    os._exit(7)

function = f"if msg == 3 then {sys.argv[1]} end return (acc or 0) + msg"
program = Program(IteratorKind.REDUCE, function, LuaLimits(call_ms_max=100, grace_ms_max=100))
program.run([cbor2.dumps(number) for number in range(6)], None, stuck)
"""

CATASTROPHES = {
    "find": "local a = ('a'):rep(60) a:find(('a?'):rep(60) .. a)",
    "match": "(('a'):rep(30000)):match('.-.-.-.-b')",
    "gsub": "(('a'):rep(30000)):gsub('.-.-.-.-b', '')",
    "gmatch": "for _ in (('a'):rep(30000)):gmatch('.-.-.-.-b') do end",
    "rep of nothing": "(''):rep(1 << 62)",
    "move of nothing": "table.move({}, 1, 1 << 62, 2)",
    "in pcall in a coroutine": "coroutine.wrap(function() pcall(string.match, ('a'):rep(30000), '.-.-.-.-b') end)()",
}


@pytest.mark.parametrize("body", CATASTROPHES.values(), ids=CATASTROPHES.keys())
def test_a_stuck_message_is_reported_with_all_that_was_done(body: str) -> None:
    worker = subprocess.run([sys.executable, "-c", WORKER, body], capture_output=True, timeout=60)
    assert worker.returncode == 7, worker.stderr
    assert json.loads(worker.stdout) == [[0, 1, 3], "03", "FunctionTimedOut", 3]


def slow(size: int) -> str:
    return f"local a = ('a'):rep({size}) if msg == 1 then a:find(('a?'):rep({size}) .. a) end return true"


def test_a_call_does_not_return_while_it_is_reported_as_stuck() -> None:
    reports: list[RunResult] = []
    messages = [b"\x00", b"\x01", b"\x02"]
    program = Program(FILTER, slow(22), LuaLimits(call_ms_max=10, grace_ms_max=10))
    ran = program.run(messages, None, reports.append)
    # This one only took long: a caller that does not end the process gets the rest.
    assert ran.outputs == messages
    (report,) = reports
    assert report.outputs == messages[:1]
    assert isinstance(report.error, FunctionTimedOut)
    assert report.error.message == 1


def test_a_call_that_takes_long_over_many_messages_is_not_stuck() -> None:
    reports: list[RunResult] = []
    limits = LuaLimits(call_ms_max=100, grace_ms_max=100)
    ran = Program(MAP, "for i = 1, 5e4 do end return msg", limits).run([b"\x01"] * 600, None, reports.append)
    assert (len(ran.outputs), ran.error, reports) == (600, None, [])


def test_the_watchdog_serves_call_after_call() -> None:
    program = Program(MAP, "return msg")
    reports: list[RunResult] = []
    for number in range(200):
        message = cbor2.dumps(number)
        assert program.run([message], None, reports.append) == RunResult([message], None, None)
    assert reports == []
