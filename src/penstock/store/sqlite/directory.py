"""The directory of a store: its lock, and the permissions of its files.

One process owns the directory while it holds the lock; the system releases the lock when the process dies. The lock
file names the owner, and says when the owner recovers from a failed write. Recovery needs a write-ahead log without
readers, so readers check the lock file from time to time and stop.

The files are for their owner, and with `group_access` for the group of the directory. A user who can open
`penstock.lock` or `penstock.db-shm` can lock them and so stop all writes; a user who can open the other files can read
all events. An older version may have created a store for everybody, and a copy may have lost its permissions. So a
process that opens a store for writing narrows the files that its user owns.
"""

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from penstock.errors import StoreInUse
from penstock.files import (
    SHARED_FILE,
    SHARED_FOLDER,
    is_shared,
    lock_owner,
    make_folder,
    open_file,
    sync_directory,
    try_lock,
)
from penstock.store.watermarks import KINDS, file_name

log = logging.getLogger(__name__)

FILE_NAME: Final = "penstock.db"
BESIDE: Final = tuple(f"{FILE_NAME}{ending}" for ending in ("-wal", "-shm", "-journal"))
"""Files that SQLite creates next to its database."""
LOCK_NAME: Final = "penstock.lock"
RECOVERING: Final = ", recovering"
RESTORING: Final = "restoring"
"""The folder in which a restore builds a new store. Without a store next to it, a server must not create one."""
STAGING: Final = "staging"
"""The folder in which Spark's tasks stage."""
OURS: Final = (FILE_NAME, *BESIDE, LOCK_NAME, RESTORING, STAGING, *map(file_name, KINDS))
LOCKS: Final = Path("/proc/locks")
READ_LOCKS: Final = range(123, 128)
"""The bytes of SQLite's shared memory file that readers of the write-ahead log lock."""
_SYSTEM: Final = "lost+found"
_OTHERS: Final = 0o007
_NOT_THE_OWNER: Final = 0o077
_CLASSES: Final = (0o070, 0o007)
_WRITING: Final = 0o022
_ENTERING: Final = 0o011


def make_directory(directory: Path, *, shared: bool = False) -> None:
    """Make a directory that survives a power cut: each new entry is synced into its parent."""
    for place in make_folder(directory, shared=shared):
        sync_directory(place.parent)


def is_served(directory: Path) -> bool:
    """Whether a process has the store open for writing."""
    return lock_owner(directory / LOCK_NAME) is not None


def take_lock(directory: Path) -> int:
    """Own the directory as long as the descriptor is open, or until the process dies."""
    path = directory / LOCK_NAME
    while True:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        if not try_lock(descriptor):
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreInUse(str(directory), holder or "another process")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                write_owner(descriptor)
                return descriptor
        # The previous owner has removed this file, so a lock on it protects nothing.
        os.close(descriptor)


def write_owner(descriptor: int, *, recovering: bool = False) -> None:
    """Write the owner into the lock file, and whether readers have to stop."""
    text = f"process {os.getpid()}{RECOVERING if recovering else ''}\n".encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def is_recovering(directory: Path) -> bool:
    """Whether the owner of a store waits for readers to stop."""
    try:
        text = (directory / LOCK_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rstrip().endswith(RECOVERING) and is_served(directory)


def readers_of(shared_memory: Path) -> list[str]:
    """Other processes that read a write-ahead log, by number and name, as far as the system tells."""
    try:
        of_file, locks = shared_memory.stat(), LOCKS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    # "1: POSIX ADVISORY READ 1234 fe:00:5678 123 123"; the file is not opened, because closing it would drop our locks.
    place = f"{os.major(of_file.st_dev):02x}:{os.minor(of_file.st_dev):02x}:{of_file.st_ino}"
    words = (line.split() for line in locks)
    found = {int(word[4]) for word in words if len(word) == 8 and word[5] == place and int(word[6]) in READ_LOCKS}
    names: list[str] = []
    for process in sorted(found - {os.getpid()}):
        try:
            name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            name = "its name is not known"
        names.append(f"process {process} ({name})")
    return names


class StorePath(NamedTuple):
    """The directory of a store or something in it: its name, owner, group and permissions."""

    path: Path
    name: str
    is_folder: bool
    owner: int
    group: int
    mode: int

    def wanted(self, shared: bool) -> int:
        if shared:
            return SHARED_FOLDER if self.is_folder else SHARED_FILE
        return self.mode & ~_NOT_THE_OWNER

    @classmethod
    def of(cls, path: Path, name: str, status: os.stat_result) -> Self:
        is_folder = stat.S_ISDIR(status.st_mode)
        return cls(path, name, is_folder, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode))

    @property
    def shown(self) -> str:
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
        is_foreign = place.path == directory and {entry.name for entry in directory.iterdir()} - {*OURS, _SYSTEM}
        if place.owner == os.geteuid() and not is_foreign:
            with suppress(OSError):  # The log below names what is still open.
                if shared and place.group != before[0].group:
                    os.chown(place.path, -1, before[0].group)
                if place.mode != place.wanted(shared):
                    place.path.chmod(place.wanted(shared))
    after = {place.path: place for place in _places(directory)}
    changed = [(place, after[place.path]) for place in before if place.path in after]
    changes = [f"{old.name} from {old.shown} to {new.shown}" for old, new in changed if old.shown != new.shown]
    if changes:
        whom = "its owner and its group" if shared else "its owner alone"
        log.warning("the store in %s is now for %s: changed %s", directory, whom, ", ".join(changes))
    if still := exposed(directory, shared=shared):
        names = ", ".join(f"{place.name} is {place.shown}" for place in still)
        remedy = "its file system keeps no permissions: mount it so that only the server's user can read it"
        if still[0].owner != os.geteuid():
            remedy = f"it belongs to user {still[0].owner}: run the server as that user, or chmod -R go= it"
        log.warning("other users can use the store in %s: %s; %s", directory, names, remedy)


def exposed(directory: Path, *, shared: bool) -> list[StorePath]:
    """The files of a store that other users can open. The group counts as others unless it shares the store."""
    top, *rest = _places(directory)
    unwanted = _OTHERS if shared else _NOT_THE_OWNER
    # A directory that a user cannot enter protects the files in it.
    reached = sum(each for each in _CLASSES if top.mode & each & _ENTERING) & unwanted
    found = [place for place in rest if place.mode & reached]
    # A user who can write in the directory can replace the files.
    is_open = top.mode & reached & _WRITING and not top.mode & stat.S_ISVTX
    return [top, *found] if is_open else found


def _places(directory: Path) -> list[StorePath]:
    """The directory first, then what of a store is in it. It leaves out links, which may lead elsewhere."""
    found = [StorePath.of(directory, str(directory), directory.stat())]
    for name in OURS:
        with suppress(FileNotFoundError):
            status = (directory / name).lstat()
            if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                found.append(StorePath.of(directory / name, name, status))
    return found
