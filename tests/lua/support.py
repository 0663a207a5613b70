"""Short ways to run functions in tests."""

from typing import Any

import cbor2

from penstock.errors import FunctionFailed
from penstock.lua import LuaLimits, Program
from penstock.model import IteratorKind

MAP, FILTER, REDUCE = IteratorKind.MAP, IteratorKind.FILTER, IteratorKind.REDUCE

#: Short enough for a quick test; the watchdog is not meant to notice anything.
QUICK = LuaLimits(call_ms_max=60, grace_ms_max=60_000)


def mapped(function: str, message: object = None) -> Any:
    """What a map function makes of one value."""
    return cbor2.loads(mapped_bytes(function, cbor2.dumps(message)))


def mapped_bytes(function: str, message: bytes) -> bytes:
    ran = Program(MAP, function).run([message])
    assert ran.error is None, ran.error
    (output,) = ran.outputs
    assert output is not None
    return output


def failure(function: str, message: object = None, limits: LuaLimits = QUICK) -> FunctionFailed:
    """How a map function fails at one value, twice: a program can be used after an error."""
    program = Program(MAP, function, limits)
    first, second = (program.run([cbor2.dumps(message)]) for _ in range(2))
    for ran in (first, second):
        assert ran.outputs == []
        assert ran.error is not None
        assert ran.error.message == 0
    assert first.error is not None
    assert type(first.error) is type(second.error)
    return first.error
