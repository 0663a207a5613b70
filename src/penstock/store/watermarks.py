"""Watermarks: up to where the last backup and the last archive of a store have all events, and when that was.

The commands that back up and archive are other processes than the server, and only read the store. They leave a note
in it: an embedded store has one small file of each kind in its directory, a shared store one row.
"""

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from penstock.files import atomic_write, made_of, parsed, read_file

BACKUP: Final = "backup"
LAKE: Final = "lake"
KINDS: Final = (BACKUP, LAKE)
NOTE_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class Watermark:
    """The last backup, or the last round of an archive, of one timeline of a store."""

    kind: str
    store: str
    timeline: int
    position: int
    unix_ms: int
    """When it was complete."""


def encode(mark: Watermark) -> str:
    return json.dumps(asdict(mark))


def decode(text: bytes | str) -> Watermark | None:
    """A note; None for any other text: every user that may write the store's directory could have put it there."""
    try:
        mark = made_of(Watermark, parsed(text))
    except (ValueError, TypeError):
        return None
    return mark if mark.kind in KINDS and min(mark.timeline, mark.position, mark.unix_ms) >= 0 else None


def file_name(kind: str) -> str:
    return f"watermark-{kind}.json"


def write_file(directory: Path, mark: Watermark) -> None:
    """Put a note into a store's directory. Raises OSError if this process may not write there."""
    path = directory / file_name(mark.kind)
    # Several backups may end at once.
    with atomic_write(path, aside=path.with_name(f"{path.name}.{os.getpid()}")) as file:
        file.write(encode(mark).encode())
        if os.geteuid() == 0:
            # The server must be able to read what root has noted.
            owner = directory.stat()
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)


def read_files(directory: Path) -> list[Watermark]:
    found = []
    for kind in KINDS:
        with suppress(OSError):
            found.append(decode(read_file(directory / file_name(kind), NOTE_BYTES_MAX)))
    return [mark for mark in found if mark is not None]
