"""An iterator's function, compiled once and run on many messages, in a sandbox.

`Program.run` stops these, with an instruction hook that Lua cannot catch: endless loops in the function, inside
pcall, xpcall and its handler, coroutines (also very many short ones), metamethods, __close, comparators of table.sort,
callbacks of string.gsub; whatever outgrows the memory limit, deep recursion, results that are too large, deep or not
CBOR. After each of them the program can be used again.

It cannot stop time inside one C function, where no Lua instruction runs: patterns that backtrack without end
(string.find, match, gmatch, gsub), and loops of string.rep or table.move over nothing. For these `run` takes `stuck`.
The watchdog's thread calls it when a message has taken `call_ms_max` and `grace_ms_max`, with the results so far and
FunctionTimedOut for that message. `stuck` passes that on and ends the process: nothing else stops the thread inside
Lua. `run` does not return while `stuck` runs.

Times are CPU time of the whole process. Run one program at a time in a process, or they pay for each other.
"""

import ctypes
import locale
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from threading import Condition, Lock, Thread
from typing import Any, Final, NamedTuple, NoReturn

from lupa.lua54 import LuaError, LuaRuntime  # type: ignore[import-untyped]

from penstock.errors import FunctionFailed, FunctionTimedOut, ResultUnreadable
from penstock.model import IteratorKind

MIB: Final = 1 << 20

#: What Lua and the library take for themselves, with room to work.
MEMORY_BYTES_MIN: Final = MIB


@dataclass(frozen=True, slots=True)
class LuaLimits:
    """Limits of one program. Times are CPU time of the process, so they do not depend on other load."""

    #: The function itself, for one message.
    call_ms_max: int = 1000
    #: What one message may take beyond that before it counts as stuck: its decoding and encoding are in it.
    grace_ms_max: int = 1000
    #: One program's Lua state. A message and an accumulator may take up to a quarter of it each.
    memory_bytes_max: int = 64 * MIB
    #: The text of a function.
    function_bytes_max: int = MIB
    #: One result, as CBOR.
    result_bytes_max: int = 8 * MIB
    #: The values in one result: array items, map keys and map values.
    result_items_max: int = 1_000_000
    #: All results of one call of `Program.run`: it stops early where they would grow larger.
    outputs_bytes_max: int = 32 * MIB
    #: How deep arrays, maps and tags may be nested, in messages and in results.
    depth_max: int = 64

    def __post_init__(self) -> None:
        if self.memory_bytes_max < MEMORY_BYTES_MIN:
            raise ValueError(f"memory_bytes_max is {self.memory_bytes_max}, and Lua needs {MEMORY_BYTES_MIN}")

    @property
    def input_bytes_max(self) -> int:
        """One message or accumulator: handing Lua more than it has room for would end the process."""
        return self.memory_bytes_max // 4

    @property
    def encoded_bytes_max(self) -> int:
        """One result: it must also be small enough to be handed back as an accumulator."""
        return min(self.result_bytes_max, self.input_bytes_max)


class RunResult(NamedTuple):
    """The results of messages, up to the first that failed."""

    #: One per message that was run: its output as CBOR. None: the filter dropped it.
    outputs: list[bytes | None]
    #: Of a reduce: the accumulator after the last of them, as CBOR; None while it is nil.
    state: bytes | None
    #: Why message number `len(outputs)` failed; its `message` is that number.
    error: FunctionFailed | None


@dataclass(slots=True)
class Work:
    """A call that is under way. Outputs are added first, then the state is set: the watchdog reads both."""

    state: bytes | None
    outputs: list[bytes | None] = field(default_factory=list)


_CATEGORIES: Final = (locale.LC_CTYPE, locale.LC_NUMERIC, locale.LC_COLLATE)
_ALL_ON_MACOS: Final = 0x3F


@contextmanager
def plain_locale() -> Iterator[None]:
    use, plain = _locale_functions()
    before = use(plain)
    try:
        yield
    finally:
        use(before)


@cache
def _locale_functions() -> tuple[Any, int]:
    # They take less time than it takes to give Python's lock away.
    library = ctypes.PyDLL(None)
    make, use = library.newlocale, library.uselocale
    make.argtypes, make.restype = (ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p), ctypes.c_void_p
    use.argtypes, use.restype = (ctypes.c_void_p,), ctypes.c_void_p
    mask = _ALL_ON_MACOS if sys.platform == "darwin" else sum(1 << category for category in _CATEGORIES)
    made = make(mask, b"C", None)
    if not made:
        raise RuntimeError("the C library has no locale C")
    return use, made


#: Gives a result as CBOR, a filter's decision, None, or the number of a failure.
Step = Callable[[bytes, bytes | None], bytes | bool | int | None]

# The same numbers are in driver.lua.
_UNREADABLE: Final = 2
_TIMED_OUT: Final = 3
_NO_MEMORY: Final = 4


def timed_out(limits: LuaLimits) -> FunctionTimedOut:
    return FunctionTimedOut(f"ran for more than {limits.call_ms_max} ms")


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


#: How often the thread looks, in parts of the time that a message may take.
LOOKS: Final = 8


class Watch:
    """One call that is watched. `stuck` is called at most once."""

    def __init__(self, work: Work, limits: LuaLimits, stuck: Callable[[RunResult], object]) -> None:
        self._work = work
        self._limits = limits
        self._stuck: Callable[[RunResult], object] | None = stuck
        self._done = 0
        self._since = time.process_time()
        self._lock = Lock()
        #: How long one message may take before it counts as stuck.
        self.seconds_max = (limits.call_ms_max + limits.grace_ms_max) / 1000

    def look(self) -> None:
        """See whether another message is done; call `stuck` if none is for too long."""
        with self._lock:
            now = time.process_time()
            # The accumulator is set after the output is added: while no output has come, it belongs to the others.
            state = self._work.state
            if len(self._work.outputs) != self._done:
                self._done, self._since = len(self._work.outputs), now
            elif now - self._since > self.seconds_max and self._stuck is not None:
                stuck, self._stuck = self._stuck, None
                error = timed_out(self._limits)
                error.message = self._done
                stuck(RunResult(self._work.outputs[: self._done], state, error))

    def end(self) -> None:
        """Stop looking. Waits while `stuck` runs: the caller would answer twice otherwise."""
        with self._lock:
            self._stuck = None


class Watchdog:
    def __init__(self) -> None:
        self._watches: list[Watch] = []
        self._changed = Condition()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread, where there can be none later."""
        with self._changed:
            self._start()

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[None]:
        """Watch a call for as long as a `with` block lasts."""
        with self._changed:
            self._watches.append(watch)
            self._start()
            self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._watches.remove(watch)
            watch.end()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._loop, name="lua-watchdog", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._watches)
                watches = list(self._watches)
            time.sleep(min(watch.seconds_max for watch in watches) / LOOKS)
            for watch in watches:
                watch.look()


WATCHDOG: Final = Watchdog()


DEFAULT_LIMITS: Final = LuaLimits()
NULL: Final = b"\xf6"

#: Why a loop over messages ended before its end: a step's answer that is no result, or an error.
Failure = object


class Program:
    """A function in its own Lua state, for one thread. Raises FunctionFailed if it does not compile."""

    def __init__(self, kind: IteratorKind, function: str, limits: LuaLimits = DEFAULT_LIMITS) -> None:
        self._kind = kind
        self._limits = limits
        try:
            self._source = function.encode()
        except UnicodeEncodeError as error:
            raise FunctionFailed("the function is not text") from error
        size_max = min(limits.function_bytes_max, limits.input_bytes_max)
        if len(self._source) > size_max:
            raise FunctionFailed(f"the function is longer than {size_max} bytes")
        self._compile()

    def _compile(self) -> None:
        """Compile the function in a new Lua state."""
        self._is_usable = True
        limits, depth = self._limits, self._limits.depth_max
        lua = LuaRuntime(
            encoding=None,
            source_encoding="utf-8",
            register_eval=False,
            register_builtins=False,
            attribute_filter=_no_attributes,
            max_memory=limits.memory_bytes_max,
        )

        def load(name: str, *arguments: Any) -> Any:
            return lua.execute(_text(name), *arguments, name="=penstock", mode="t")

        values = load("values")
        decoder = load("decoder", values, depth)
        decode, skip = decoder[b"decode"], decoder[b"skip"]
        encode = load("encoder", values, skip, depth, limits.encoded_bytes_max, limits.result_items_max)
        deadline = load("deadline", limits.call_ms_max / 1000)
        library = load("library", values, deadline)
        idle_kib_max = limits.input_bytes_max // 1024
        driver = load("driver", values, decode, encode, deadline, library, depth, idle_kib_max)
        self._last_reason = driver[b"last_reason"]
        try:
            step: Step | None = driver[b"compile"](self._kind.value.encode(), self._source)
        except LuaError:
            raise self._exhausted() from None
        if step is None:
            raise FunctionFailed(self._reason())
        #: Runs the function on one message and an accumulator.
        self._step = step

    def run(
        self, messages: Iterable[bytes], state: bytes | None = None, stuck: Callable[[RunResult], object] | None = None
    ) -> RunResult:
        """Run the function on messages, each one CBOR item, up to the first that fails.

        Without an error all of them have run, unless their results have reached `outputs_bytes_max`: then there are
        fewer outputs than messages, and a caller goes on with the rest of the messages and the state.
        """
        work = Work(state)
        if stuck is None:
            return self._run(messages, work)
        with WATCHDOG.watching(Watch(work, self._limits, stuck)):
            return self._run(messages, work)

    def _run(self, messages: Iterable[bytes], work: Work) -> RunResult:
        if not self._is_usable:
            self._compile()
        try:
            with plain_locale():
                failure = _LOOPS[self._kind](self._step, messages, work, self._limits)
        except LuaError:
            # Steps catch everything but a lack of memory for the catching itself.
            failure = _NO_MEMORY
        error = failure if failure is None or isinstance(failure, FunctionFailed) else self._error(failure)
        if error is not None:
            error.message = len(work.outputs)
        return RunResult(work.outputs, work.state, error)

    def _error(self, code: object) -> FunctionFailed:
        """The error for a step's answer, without the message's number."""
        if code == _TIMED_OUT:
            return timed_out(self._limits)
        if code == _NO_MEMORY:
            return self._exhausted()
        return (ResultUnreadable if code == _UNREADABLE else FunctionFailed)(self._reason())

    def _exhausted(self) -> FunctionFailed:
        """Give the state up: it has no memory left."""
        self._is_usable = False
        return FunctionFailed(f"needs more than {self._limits.memory_bytes_max} bytes of memory")

    def _reason(self) -> str:
        return bytes(self._last_reason()).decode(errors="replace")


def _no_attributes(_value: object, name: object, _setting: object) -> NoReturn:
    raise AttributeError(name)


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


_LOOPS: Final = {IteratorKind.MAP: _run_map, IteratorKind.FILTER: _run_filter, IteratorKind.REDUCE: _run_reduce}
