"""Copying once more what checkpoints have copied from the WAL into the file.

SQLite counts pages as copied before it syncs the file, and when that sync fails it does not copy them again. But
after a failed sync the system may have dropped what it was to write, and the next sync succeeds all the same: the
WAL would then be used again from its beginning while the file lacks pages. So after a failed checkpoint, and when a
store is opened, the pages that count as copied are written once more, and synced, before anything else is copied.

That disturbs nobody: each page gets what it has already, the newest version among the frames that were copied. Pages
beyond the file's end, which was given back meanwhile, are left out.
"""

from pathlib import Path
from struct import Struct
from typing import Final

import apsw

# https://www.sqlite.org/fileformat2.html#the_write_ahead_log
HEADER_BYTES: Final = 32
FRAME_HEADER_BYTES: Final = 24
_FRAME: Final = Struct(">II")
"""The page's number; in the last frame of a commit the file's size in pages, else 0."""


def copy_again(path: Path, vfs: str | None, frames: int, page_bytes: int) -> None:
    """Write the pages of the WAL's first frames into the file, and sync it."""
    # Through SQLite's own files: closing one of our own would drop the locks this process has on it.
    wal = _file(f"{path}-wal", vfs, apsw.SQLITE_OPEN_WAL)
    file = _file(str(path), vfs, apsw.SQLITE_OPEN_MAIN_DB)
    try:
        for number, offset in _newest(wal, frames, page_bytes).items():
            file.xWrite(wal.xRead(page_bytes, offset), (number - 1) * page_bytes)
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()
        wal.xClose()


def sync(path: Path, vfs: str | None) -> None:
    """Sync the file."""
    file = _file(str(path), vfs, apsw.SQLITE_OPEN_MAIN_DB)
    try:
        file.xSync(apsw.SQLITE_SYNC_FULL)
    finally:
        file.xClose()


def _newest(wal: apsw.VFSFile, frames: int, page_bytes: int) -> dict[int, int]:
    """Where in the WAL the newest version of each page begins, by the page's number."""
    newest: dict[int, int] = {}
    pages = 0
    for frame in range(frames):
        offset = HEADER_BYTES + frame * (FRAME_HEADER_BYTES + page_bytes)
        number, size = _FRAME.unpack(wal.xRead(_FRAME.size, offset))
        newest[number] = offset + FRAME_HEADER_BYTES
        pages = size or pages
    return {number: at for number, at in newest.items() if number <= pages}


def _file(name: str, vfs: str | None, kind: int) -> apsw.VFSFile:
    return apsw.VFSFile(vfs or "", name, [kind | apsw.SQLITE_OPEN_READWRITE, 0])
