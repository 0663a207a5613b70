"""What one program may use. Every number is a limit with its unit in its name."""

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20

#: What Lua and the library take for themselves, with room to work.
MEMORY_BYTES_MIN: Final = MIB


@dataclass(frozen=True, slots=True)
class LuaLimits:
    """Limits of one program. Times are CPU time of the process, so a busy machine stops nobody."""

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
