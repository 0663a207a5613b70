"""Who owns a store's directory: a lock that the system takes back when its holder dies."""

import fcntl
import os
from pathlib import Path
from typing import Final

from penstock.errors import StoreInUse

LOCK_NAME: Final = "penstock.lock"


def make_directory(directory: Path) -> None:
    """Make a directory that is still there after a power cut: each new entry is synced into its parent."""
    missing = [place for place in (directory, *directory.parents) if not place.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for place in missing:
        parent = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def is_served(directory: Path) -> bool:
    """Whether somebody has the store open for writing."""
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def take_lock(directory: Path) -> int:
    """Own the directory as long as the descriptor is open; the system lets go of it when the process dies."""
    path = directory / LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 64, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StoreInUse(str(directory), holder or "another process") from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
    return descriptor
