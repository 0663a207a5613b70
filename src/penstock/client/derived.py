"""Methods made of other methods: each has the name and the class that it belongs to, and its own type of result.

So `help()`, signatures, tracebacks and errors of wrong arguments name the method that a program calls.
"""

from collections.abc import Callable
from functools import update_wrapper
from types import FunctionType
from typing import Any, TypeVar, cast, get_args

F = TypeVar("F", bound=Callable[..., Any])


def own_copy(method: F) -> F:
    """A copy of a function, whose name and result may differ."""
    source = cast("FunctionType", method)
    copy = FunctionType(source.__code__, source.__globals__, source.__name__, source.__defaults__, source.__closure__)
    copy.__kwdefaults__ = source.__kwdefaults__
    copy.__annotations__ = dict(source.__annotations__)
    copy.__doc__ = source.__doc__
    return cast("F", copy)


def item_of(kind: Any) -> Any:
    """The type of the items of a list type, or of what an iterator's type yields."""
    return get_args(kind if get_args(kind) else kind.__orig_bases__[0])[0]


class _Derived:
    """A method in the making: it is finished when its class gives it a name."""

    def __init__(self, call: Callable[..., Any], source: FunctionType) -> None:
        self.call = call
        self.source = source

    def __set_name__(self, owner: type, name: str) -> None:
        self.source.__name__, self.source.__module__ = name, owner.__module__
        self.source.__qualname__ = f"{owner.__qualname__}.{name}"
        setattr(owner, name, update_wrapper(self.call, self.source))


def derived(call: F, source: Callable[..., Any], result: Callable[[Any], Any] = lambda kind: kind) -> F:
    """A method that does `call`, with the parameters and documentation of `source`, which is a copy.

    `result` makes its type of result from that of the source.
    """
    own = cast("FunctionType", source)
    own.__annotations__["return"] = result(own.__annotations__["return"])
    return cast("F", _Derived(call, own))


def redirected(method: F, target: Callable[[Any], Any]) -> F:
    """A derived method that works on another object, which `target` finds from the first one."""
    made = cast("_Derived", method)
    call = made.call

    def redirect(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return call(target(self), *args, **kwargs)

    made.call = redirect
    return method
