"""The process in which `penstock iterator try` runs a function: one that loops or takes all memory ends only this.

Standard input has one CBOR item: the kind, the function and the messages. Standard output gets one: the result of each
message (null where a filter drops it) up to the first that failed, and its error. If the function does not compile,
null stands in place of the results.
"""

import os
import sys

import cbor2

from penstock.errors import FunctionFailed
from penstock.lua import Program, RunResult
from penstock.model import IteratorKind


def main() -> None:
    kind, function, messages = cbor2.loads(sys.stdin.buffer.read())
    try:
        program = Program(IteratorKind(kind), function)
    except FunctionFailed as error:
        answer(None, str(error))
        return
    outputs: list[bytes | None] = []
    state: bytes | None = None

    def abandon(ran: RunResult) -> None:
        # The function hangs where nothing can stop it: answer, and end the process.
        answer([*outputs, *ran.outputs], None if ran.error is None else ran.error.reason)
        os._exit(0)

    while len(outputs) < len(messages):
        ran = program.run(messages[len(outputs) :], state, abandon)
        outputs += ran.outputs
        state = ran.state
        if ran.error is not None:
            answer(outputs, ran.error.reason)
            return
    answer(outputs, None)


def answer(outputs: list[bytes | None] | None, error: str | None) -> None:
    sys.stdout.buffer.write(cbor2.dumps([outputs, error]))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
