"""An iterator's function, compiled once and run on many messages.

What `run` itself stops, by an instruction hook that cannot be caught: endless loops in the function, inside pcall,
xpcall and its handler, coroutines (also very many short ones), metamethods, __close, comparators of table.sort,
callbacks of string.gsub; whatever outgrows the memory cap, deep recursion, results that are too large, too deep or not
CBOR. After each of them the program can be used again.

What it cannot stop: time inside one C function, where no Lua instruction runs. Patterns that backtrack without end
(string.find, match, gmatch, gsub), and loops of string.rep or table.move over nothing. For these `run` takes `stuck`:
it is called from another thread, with what was done so far and FunctionTimedOut for the message that hangs, when that
message has taken `call_ms_max` and `grace_ms_max`. It is expected to pass that on and to end the process: the
thread inside Lua cannot be stopped otherwise. `run` does not return while `stuck` runs.

Times are CPU time of the whole process. Run one program at a time in a process, or they pay for each other.
"""

from collections.abc import Callable, Iterable
from typing import Final

from lupa.lua54 import LuaError  # type: ignore[import-untyped]

from penstock.errors import FunctionFailed
from penstock.lua.limits import LuaLimits
from penstock.lua.locales import plain_locale
from penstock.lua.ran import Ran, Work
from penstock.lua.sandbox import Sandbox, Step
from penstock.lua.watchdog import WATCHDOG, Watch
from penstock.model import IteratorKind

DEFAULT_LIMITS: Final = LuaLimits()
NULL: Final = b"\xf6"

#: Why a loop over messages ended before its end: a step's answer that is no result, or an error.
Failure = object


class Program:
    """A function in a Lua state of its own, for one thread. Raises FunctionFailed where it does not compile."""

    def __init__(self, kind: IteratorKind, function: str, limits: LuaLimits = DEFAULT_LIMITS) -> None:
        self._kind = kind
        self._limits = limits
        self._source = _source(function, limits)
        self._sandbox = Sandbox(kind, self._source, limits)

    def run(
        self,
        messages: Iterable[bytes],
        state: bytes | None = None,
        stuck: Callable[[Ran], object] | None = None,
    ) -> Ran:
        """Run the function on messages, each one CBOR item, up to the first that fails.

        Without an error all of them have run, unless their results have reached `outputs_bytes_max`: then there are
        fewer outputs than messages, and a caller goes on with the rest of the messages and the state.
        """
        work = Work(state)
        if stuck is None:
            return self._run(messages, work)
        with WATCHDOG.watching(Watch(work, self._limits, stuck)):
            return self._run(messages, work)

    def _run(self, messages: Iterable[bytes], work: Work) -> Ran:
        if not self._sandbox.usable:
            self._sandbox = Sandbox(self._kind, self._source, self._limits)
        try:
            with plain_locale():
                failure = _LOOPS[self._kind](self._sandbox.step, messages, work, self._limits)
        except LuaError:
            # Steps catch everything but a lack of memory for the catching itself.
            error: FunctionFailed | None = self._sandbox.exhausted()
        else:
            error = self._error(failure)
        if error is not None:
            error.message = len(work.outputs)
        return Ran(work.outputs, work.state, error)

    def _error(self, failure: Failure) -> FunctionFailed | None:
        if failure is None or isinstance(failure, FunctionFailed):
            return failure
        return self._sandbox.failure(failure)


def _source(function: str, limits: LuaLimits) -> bytes:
    try:
        source = function.encode()
    except UnicodeEncodeError as error:
        raise FunctionFailed("the function is not text") from error
    size_max = min(limits.function_bytes_max, limits.input_bytes_max)
    if len(source) > size_max:
        raise FunctionFailed(f"the function is longer than {size_max} bytes")
    return source


def _too_large(what: str, limits: LuaLimits) -> FunctionFailed:
    return FunctionFailed(f"the {what} is longer than {limits.input_bytes_max} bytes")


# The loops below are the hot ones: `make bench` measures them. Each ends with None or with a failure.


def _run_map(step: Step, messages: Iterable[bytes], work: Work, limits: LuaLimits) -> Failure:
    input_max, room = limits.input_bytes_max, limits.outputs_bytes_max
    for message in messages:
        if len(message) > input_max:
            return _too_large("message", limits)
        result = step(message, None)
        if type(result) is not bytes:
            return result
        work.outputs.append(result)
        room -= len(result)
        if room <= 0:
            break
    return None


def _run_filter(step: Step, messages: Iterable[bytes], work: Work, limits: LuaLimits) -> Failure:
    input_max, keep = limits.input_bytes_max, work.outputs.append
    for message in messages:
        if len(message) > input_max:
            return _too_large("message", limits)
        result = step(message, None)
        if result is True:
            keep(message)
        elif result is False:
            keep(None)
        else:
            return result
    return None


def _run_reduce(step: Step, messages: Iterable[bytes], work: Work, limits: LuaLimits) -> Failure:
    input_max, room = limits.input_bytes_max, limits.outputs_bytes_max
    if work.state is not None and len(work.state) > input_max:
        return _too_large("accumulator", limits)
    for message in messages:
        if len(message) > input_max:
            return _too_large("message", limits)
        result = step(message, work.state)
        if result is not None and type(result) is not bytes:
            return result
        output = NULL if result is None else result
        work.outputs.append(output)
        work.state = result
        room -= len(output)
        if room <= 0:
            break
    return None


_LOOPS: Final = {
    IteratorKind.MAP: _run_map,
    IteratorKind.FILTER: _run_filter,
    IteratorKind.REDUCE: _run_reduce,
}
