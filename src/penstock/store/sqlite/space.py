"""Free space: how much the disk has, and giving back what the file holds for nothing.

SQLite uses freed pages again before the file grows. Sealing frees and uses pages all the time, so a file with few free
pages is left alone: giving them back would only mean to take them again. It begins when more is free than `WORTH_BYTES`
and `WORTH_SHARE` of the file, and goes on until half of that is left.
"""

import os
from pathlib import Path
from typing import Final

from penstock.store.contract import GiveBack
from penstock.store.sqlite.database import PAGE_BYTES, Database

WORTH_BYTES: Final = 16 << 20
WORTH_SHARE: Final = 0.1
REST_SHARE: Final = 0.5
"""What of that stays free when it is done."""


def free_bytes(directory: Path) -> int | None:
    """Free space on a directory's file system; None if it is gone or does not tell."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


class GivingBack:
    """Gives free pages back in steps; knows whether it is at it."""

    def __init__(self) -> None:
        self._at_it = False

    def step(self, db: Database, op: GiveBack) -> int:
        """Give back up to so many bytes; how many are left that are worth it."""
        if not (before := self._worth(db)):
            return 0
        db.command(f"PRAGMA incremental_vacuum({max(1, min(op.bytes_max, before) // PAGE_BYTES)})")
        return self._worth(db)

    def _worth(self, db: Database) -> int:
        free = db.pragma("freelist_count") * PAGE_BYTES
        limit = max(WORTH_BYTES, int(WORTH_SHARE * PAGE_BYTES * db.pragma("page_count")))
        rest = int(limit * REST_SHARE)
        self._at_it = free > (rest + PAGE_BYTES if self._at_it else limit)
        return free - rest if self._at_it else 0
