"""The sandboxed Lua evaluator: runs the functions of iterators over CBOR messages."""

from penstock.lua.limits import LuaLimits
from penstock.lua.program import Program
from penstock.lua.ran import Ran

__all__ = ["LuaLimits", "Program", "Ran"]
