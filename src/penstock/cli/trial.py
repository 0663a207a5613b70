"""A process of its own in which a function is tried: it may loop or eat memory, and only this process ends.

Standard input has one CBOR item: the kind, the function and the messages. Standard output gets one: what came of each
message (null where a filter drops it) up to the first that failed, and why that failed. If the function does not
compile, it is null in place of what came of messages.
"""

import os
import sys
from functools import partial
from typing import Any

import cbor2

from penstock.errors import FunctionFailed
from penstock.lua import Program, Ran
from penstock.model import IteratorKind


def main() -> None:
    """Run the function and answer."""
    kind, function, messages = cbor2.loads(sys.stdin.buffer.read())
    try:
        program = Program(IteratorKind(kind), function)
    except FunctionFailed as error:
        answer(None, str(error))
        return
    outputs: list[bytes | None] = []
    state: bytes | None = None
    while len(outputs) < len(messages):
        ran = program.run(messages[len(outputs) :], state, partial(leave, outputs))
        outputs += ran.outputs
        state = ran.state
        if ran.error is not None:
            answer(outputs, ran.error.reason)
            return
    answer(outputs, None)


def answer(outputs: list[bytes | None] | None, error: str | None) -> None:
    """Say what came of it."""
    said: list[Any] = [outputs, error]
    sys.stdout.buffer.write(cbor2.dumps(said))
    sys.stdout.buffer.flush()


def leave(before: list[bytes | None], ran: Ran) -> None:
    """The function is stuck where nothing can stop it: answer, and end the process."""
    answer([*before, *ran.outputs], None if ran.error is None else ran.error.reason)
    os._exit(0)


if __name__ == "__main__":
    main()
