"""What a program has done with messages: while it runs, and in the end."""

from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.errors import FunctionFailed


class Ran(NamedTuple):
    """What came of messages, up to the first that failed."""

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
