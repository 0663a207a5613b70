"""The event loop that connections run on."""

import asyncio


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, which is much faster, where there is one."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
