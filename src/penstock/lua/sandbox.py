"""A Lua state for one function: built from the `.lua` files beside this, with nothing of Python inside.

The rules: strings cross as bytes; a Lua state holds no Python object, so there is none to find; the memory cap of the
state covers all that a function makes. A state that ran out of memory is thrown away, because what is left in it is
not known.
"""

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any, Final, NoReturn

from lupa.lua54 import LuaError, LuaRuntime  # type: ignore[import-untyped]

from penstock.errors import FunctionFailed, FunctionTimedOut, ResultUnreadable
from penstock.lua.limits import LuaLimits
from penstock.model import IteratorKind

#: What a step gives: a result as CBOR, a filter's decision, nothing, or the number of a failure.
Step = Callable[[bytes, bytes | None], bytes | bool | int | None]

# The same numbers are in driver.lua.
_UNREADABLE: Final = 2
_TIMED_OUT: Final = 3
_NO_MEMORY: Final = 4


class Sandbox:
    """One function in a Lua state of its own. Raises FunctionFailed where it does not compile."""

    def __init__(self, kind: IteratorKind, source: bytes, limits: LuaLimits) -> None:
        self._limits = limits
        #: Whether the state can run another message.
        self.usable = True
        self._lua = LuaRuntime(
            encoding=None,
            source_encoding="utf-8",
            register_eval=False,
            register_builtins=False,
            attribute_filter=_no_attributes,
            max_memory=limits.memory_bytes_max,
        )
        driver = self._load()
        self._last_reason = driver[b"last_reason"]
        #: Runs the function on one message and an accumulator.
        self.step = self._compile(driver, kind, source)

    def _compile(self, driver: Any, kind: IteratorKind, source: bytes) -> Step:
        try:
            step: Step | None = driver[b"compile"](kind.value.encode(), source)
        except LuaError:
            raise self.exhausted() from None
        if step is None:
            raise FunctionFailed(self._reason())
        return step

    def failure(self, code: object) -> FunctionFailed:
        """The error that a step's answer stands for, as yet without the message's number."""
        if code == _TIMED_OUT:
            return timed_out(self._limits)
        if code == _NO_MEMORY:
            return self.exhausted()
        return (ResultUnreadable if code == _UNREADABLE else FunctionFailed)(self._reason())

    def exhausted(self) -> FunctionFailed:
        """Give the state up: it has no memory left."""
        self.usable = False
        return FunctionFailed(f"needs more than {self._limits.memory_bytes_max} bytes of memory")

    def _reason(self) -> str:
        return bytes(self._last_reason()).decode(errors="replace")

    def _load(self) -> Any:
        limits, depth = self._limits, self._limits.depth_max
        values = self._run("values")
        decoding = self._run("decoding", values, depth)
        decode, skip = decoding[b"decode"], decoding[b"skip"]
        encode = self._run("encoding", values, skip, depth, limits.encoded_bytes_max, limits.result_items_max)
        deadline = self._run("deadline", limits.call_ms_max / 1000)
        library = self._run("library", values, deadline)
        idle_kib_max = limits.input_bytes_max // 1024
        return self._run("driver", values, decode, encode, deadline, library, depth, idle_kib_max)

    def _run(self, name: str, *arguments: Any) -> Any:
        return self._lua.execute(_text(name), *arguments, name="=penstock", mode="t")


def timed_out(limits: LuaLimits) -> FunctionTimedOut:
    """A function took longer than it may."""
    return FunctionTimedOut(f"ran for more than {limits.call_ms_max} ms")


@cache
def _text(name: str) -> str:
    return files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8")


def _no_attributes(_value: object, name: object, _setting: object) -> NoReturn:
    raise AttributeError(name)
