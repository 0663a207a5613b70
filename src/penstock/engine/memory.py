"""Memory of the server's own processes, which live long and handle many small objects and some large messages."""

import ctypes
import gc
from contextlib import suppress
from typing import Final

NEW_OBJECTS_MAX: Final = 50_000
"""New objects between two looks for cycles. Requests and events are many, short-lived and without cycles: reference
counts free them. The default of 700 would only interrupt the work, longest when most is in flight."""
KEPT_BYTES: Final = 16 << 20
"""Free memory that the process keeps. To return that of a large message to the system, and to get it again for the
next one, takes a tenth of the time of a read."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def settle() -> None:
    """Call this when the process has made everything that it keeps."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS_MAX, 20, 50)
    # Only glibc has these.
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
