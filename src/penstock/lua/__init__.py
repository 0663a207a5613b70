"""The sandboxed Lua evaluator: runs the functions of iterators over CBOR messages."""

from penstock.lua.program import LuaLimits, Program, RunResult

__all__ = ["LuaLimits", "Program", "RunResult"]
