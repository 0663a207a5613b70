"""The sandboxed Lua evaluator: runs the functions of iterators over CBOR messages."""

from penstock.lua.program import LuaLimits, Program, Ran

__all__ = ["LuaLimits", "Program", "Ran"]
