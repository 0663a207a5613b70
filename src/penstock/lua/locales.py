"""Lua compares, folds and prints text as the C library does, and that goes by the locale: here always by the plain one.

Otherwise `a < b`, `upper`, `%a` and `tostring(1.5)` would depend on the environment of a server or a Spark worker, and
on what a program that embeds this has called. Only the calling thread is changed, and only for a while.
"""

import ctypes
import locale
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

_CATEGORIES: Final = (locale.LC_CTYPE, locale.LC_NUMERIC, locale.LC_COLLATE)
_ALL_ON_MACOS: Final = 0x3F


@contextmanager
def plain_locale() -> Iterator[None]:
    """The locale "C" for this thread."""
    use, plain = _functions()
    before = use(plain)
    try:
        yield
    finally:
        use(before)


@cache
def _functions() -> tuple[Any, int]:
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
