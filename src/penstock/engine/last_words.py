"""How a job that will never return ends its process: it sends its answer from another thread and is gone.

Lua can be stuck inside one C function, where nothing but the end of the process stops it. What the job had done until
then shall not be lost, so it is answered first, with the word that this worker stays no longer.
"""

import os
from collections.abc import Callable
from typing import Any, Final, NoReturn

from penstock.engine.answers import Answer, frame_answer

EXIT_CODE: Final = 3

_connection: list[Callable[[bytes], object]] = []


def connected(send: Callable[[bytes], object]) -> None:
    """The worker's way to the server."""
    _connection[:] = [send]


def answer_and_leave(result: Any) -> NoReturn:
    """Answer the present job and end the process, whatever its other threads do."""
    try:
        for send in _connection:
            send(frame_answer(Answer(succeeded=True, result=result, stays=False)))
    finally:
        os._exit(EXIT_CODE)
