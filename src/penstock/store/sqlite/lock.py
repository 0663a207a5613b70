"""Who owns a store's directory, and who reads it: locks that the system takes back when their holder dies.

The lock's file names the owner, and says while the owner recovers from a failed write. Recovery needs a write-ahead log
that nobody reads, so readers look there from time to time and give up what they read.
"""

import os
from pathlib import Path
from typing import Final

from penstock.errors import StoreInUse
from penstock.files import lock_owner, make_folder, open_file, sync_directory, try_lock

LOCK_NAME: Final = "penstock.lock"
RECOVERING: Final = ", recovering"
LOCKS: Final = Path("/proc/locks")
READ_LOCKS: Final = range(123, 128)
"""The bytes of SQLite's shared memory file that readers of the write-ahead log lock."""


def make_directory(directory: Path, *, shared: bool = False) -> None:
    """Make a directory that is still there after a power cut: each new entry is synced into its parent."""
    for place in make_folder(directory, shared=shared):
        sync_directory(place.parent)


def is_served(directory: Path) -> bool:
    """Whether somebody has the store open for writing."""
    return lock_owner(directory / LOCK_NAME) is not None


def take_lock(directory: Path) -> int:
    """Own the directory as long as the descriptor is open; the system lets go of it when the process dies."""
    path = directory / LOCK_NAME
    while True:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        if not try_lock(descriptor):
            holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise StoreInUse(str(directory), holder or "another process")
        if _is_at(path, descriptor):
            write_owner(descriptor)
            return descriptor
        # Its owner has removed it meanwhile: a lock on it keeps nobody out.
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def write_owner(descriptor: int, *, recovering: bool = False) -> None:
    """Say in the lock's file who has it, and whether readers are in the way."""
    text = f"process {os.getpid()}{RECOVERING if recovering else ''}\n".encode()
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))


def is_recovering(directory: Path) -> bool:
    """Whether the owner of a store waits for readers to go."""
    try:
        text = (directory / LOCK_NAME).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rstrip().endswith(RECOVERING) and is_served(directory)


def readers_of(shared_memory: Path) -> list[str]:
    """Other processes that read a write-ahead log, by number and name, where the system tells."""
    try:
        of_file, locks = shared_memory.stat(), LOCKS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    # "1: POSIX ADVISORY READ 1234 fe:00:5678 123 123"; the file is not opened, because closing it would drop our locks.
    place = f"{os.major(of_file.st_dev):02x}:{os.minor(of_file.st_dev):02x}:{of_file.st_ino}"
    words = (line.split() for line in locks)
    found = {int(word[4]) for word in words if len(word) == 8 and word[5] == place and int(word[6]) in READ_LOCKS}
    return [f"process {process} ({_name_of(process)})" for process in sorted(found - {os.getpid()})]


def _name_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "its name is not known"
