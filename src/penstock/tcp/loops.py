"""The event loop that connections run on."""

import asyncio
import os


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which is much faster, where there is one.

    It ends the whole process when it closes a file that has the number of a standard one, as the first one has that is
    opened in a process whose standard input or output are closed. There it is Python's.
    """
    if not has_standard_files():
        return asyncio.new_event_loop()
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def has_standard_files() -> bool:
    """Whether standard input, output and error are open."""
    try:
        for number in range(3):
            os.fstat(number)
    except OSError:
        return False
    return True
