"""The permissions of a store's files: for their owner, and with `group_access` for the group of the directory.

A user who can open `penstock.lock` or `penstock.db-shm` can lock them, and so stop all writes; a user who can open the
other files can read all events. An older version may have created a store for everybody, and a copy may have lost its
permissions. So a process that opens a store for writing narrows the files that its user owns.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from penstock.files import SHARED_FILE, SHARED_FOLDER, is_shared
from penstock.store.sqlite.database import FILE_NAME
from penstock.store.sqlite.lock import LOCK_NAME
from penstock.store.sqlite.unfinished import RESTORING

log = logging.getLogger(__name__)

STAGING: Final = "staging"
"""The folder in which Spark's tasks stage."""
BESIDE: Final = tuple(f"{FILE_NAME}{ending}" for ending in ("-wal", "-shm", "-journal"))
"""Files that SQLite creates next to its database."""
OURS: Final = (FILE_NAME, *BESIDE, LOCK_NAME, RESTORING, STAGING)
_SYSTEM: Final = "lost+found"
_OTHERS: Final = 0o007
_NOT_THE_OWNER: Final = 0o077
_CLASSES: Final = (0o070, 0o007)
_WRITING: Final = 0o022
_ENTERING: Final = 0o011


class Place(NamedTuple):
    """The directory of a store or something in it: its name, owner, group and permissions."""

    path: Path
    name: str
    is_folder: bool
    owner: int
    group: int
    mode: int

    def wanted(self, shared: bool) -> int:
        """The permissions that it should have."""
        if shared:
            return SHARED_FOLDER if self.is_folder else SHARED_FILE
        return self.mode & ~_NOT_THE_OWNER

    @classmethod
    def of(cls, path: Path, name: str, status: os.stat_result) -> Self:
        """From what the system says of it."""
        is_folder = stat.S_ISDIR(status.st_mode)
        return cls(path, name, is_folder, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))

    @property
    def shown(self) -> str:
        """Its permissions as people write them."""
        return f"{self.mode & 0o777:04o}"


def settle_access(directory: Path, shared: bool | None = None) -> None:
    """Close a store to others, or open it to its group. The caller holds the store's lock.

    Files of another user stay as they are, and the log names the files that others can use. Without `shared`, the
    permissions of the directory tell whether its group shares the store.
    """
    shared = is_shared(directory) if shared is None else shared
    before = _places(directory)
    for place in before:
        # A directory with other things in it is not ours to close.
        if place.owner == os.geteuid() and not (place.path == directory and _holds_others(directory)):
            _settle(place, before[0].group, shared)
    after = {place.path: place for place in _places(directory)}
    changed = [(place, after[place.path]) for place in before if place.path in after]
    told = [f"{old.name} from {old.shown} to {new.shown}" for old, new in changed if old.shown != new.shown]
    if told:
        whom = "its owner and its group" if shared else "its owner alone"
        log.warning("the store in %s is now for %s: changed %s", directory, whom, ", ".join(told))
    if still := exposed(directory, shared=shared):
        names = ", ".join(f"{place.name} is {place.shown}" for place in still)
        log.warning("other users can use the store in %s: %s; %s", directory, names, _remedy(still[0]))


def exposed(directory: Path, *, shared: bool) -> list[Place]:
    """The files of a store that other users can open. The group counts as others unless it shares the store."""
    top, *rest = _places(directory)
    unwanted = _OTHERS if shared else _NOT_THE_OWNER
    # A directory that a user cannot enter protects the files in it.
    reached = sum(each for each in _CLASSES if top.mode & each & _ENTERING) & unwanted
    found = [place for place in rest if place.mode & reached]
    # A user who can write in the directory can replace the files.
    is_open = top.mode & reached & _WRITING and not top.mode & stat.S_ISVTX
    return [top, *found] if is_open else found


def _settle(place: Place, group: int, shared: bool) -> None:
    with suppress(OSError):  # The caller looks again, and logs what is still open.
        if shared and place.group != group:
            os.chown(place.path, -1, group)
        if place.mode != place.wanted(shared):
            place.path.chmod(place.wanted(shared))


def _places(directory: Path) -> list[Place]:
    """The directory first, then what of a store is in it. It leaves out links, which may lead elsewhere."""
    found = [Place.of(directory, str(directory), directory.stat())]
    for name in OURS:
        with suppress(FileNotFoundError):
            status = (directory / name).lstat()
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                found.append(Place.of(directory / name, name, status))
    return found


def _holds_others(directory: Path) -> bool:
    return bool({entry.name for entry in directory.iterdir()} - {*OURS, _SYSTEM})


def _remedy(place: Place) -> str:
    if place.owner != os.geteuid():
        return f"it belongs to user {place.owner}: run the server as that user, or chmod -R go= it"
    return "its file system keeps no permissions: mount it so that only the server's user can read it"
