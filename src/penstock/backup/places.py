"""Where backups are: a place holds files by name, in a folder or in one file.

Whoever writes has the place alone, whoever reads keeps writers away. Files are added and never changed. What a backup
that was killed has left behind is in no manifest: readers do not see it, and the next backup removes it.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import BackupDamaged, PlaceRefused, StoreError
from penstock.files import open_file, try_lock

SIGN_NAME: Final = "penstock-backup.txt"
SIGN: Final = b"Backups of a Penstock store, format 1. Restore them with: penstock restore\n"
"""Tells a place of ours from all others; the first that is written."""
FILE_BYTES_MAX: Final = 2 << 30
"""No file of a backup is larger, whatever its manifest says: it would have to be in memory."""


class Place(ABC):
    """Files by name. Made by `open_place`; must be closed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check_inside(self, names: Iterable[str]) -> None:  # noqa: B027 - a single file has nothing but its own
        """Raise BackupDamaged if a file is a link that leads out of the place, or is in a folder that is one."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The names of all files, and their bytes."""

    @abstractmethod
    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        """A file; raises BackupDamaged if it is not there, or has more bytes than that."""

    @abstractmethod
    def add(self, name: str, data: bytes) -> None:
        """Add a file. It is safe after `sync`."""

    @abstractmethod
    def sync(self) -> None:
        """Make sure that all that was added is on disk."""

    @abstractmethod
    def keep_only(self, names: Collection[str]) -> None:
        """Remove what is not among these names, which are all files of finished backups."""

    @property
    def doubt(self) -> str | None:
        """Why the newest backup may not be among the files, if there is such a reason."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""

    def damaged(self, what: str, reason: str) -> BackupDamaged:
        """The error that names this place."""
        return BackupDamaged(str(self.path), what, reason)


def open_sign(path: Path, *, write: bool) -> int:
    """Open the file that tells a place of ours, and is locked; a backup creates it."""
    return open_file(path, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)


def lock(path: Path, descriptor: int, *, write: bool) -> None:
    """Have a place alone, or keep others from that, as long as the descriptor is open."""
    if not try_lock(descriptor, shared=not write):
        reason = "another backup is being written to it" if not write else "another backup or restore is using it"
        raise PlaceRefused(str(path), f"{reason}; wait until that has ended")


@contextmanager
def told(path: Path | str) -> Iterator[None]:
    """What the system says against it, in our words."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error
