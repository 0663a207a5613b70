"""Files: who may use those that hold events, where one may be written, and what a path in a manifest may name.

Folders and files that hold events are for their owner alone from the first byte on: 0700 and 0600, whatever the umask
is. A folder that its group may write and others may not enter (0770) is shared: new files in it are for the folder's
group too. This module does not change the umask, which belongs to all threads of the program that embeds it.
"""

import os
import stat
import uuid
from contextlib import suppress
from io import BufferedWriter
from pathlib import Path
from typing import Final, Literal

SYSTEM: Final = ("/dev", "/proc")
"""Where links are that lead to standard output and other open files."""
FOLDER: Final = 0o700
FILE: Final = 0o600
SHARED_FOLDER: Final = 0o2770
"""With the set-group-ID bit, so that files which SQLite and others create in it get the folder's group as well."""
SHARED_FILE: Final = 0o660
_GROUP: Final = 0o070
_OTHERS: Final = 0o007


# --- for the owner alone --------------------------------------------------------------------------------------


def is_shared(folder: Path) -> bool:
    """Whether a folder is for its owner and its group and closed to others; False if there is no such folder."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return mode & _GROUP == _GROUP and not mode & _OTHERS


def make_folder(folder: Path, *, shared: bool = False) -> list[Path]:
    """Create a folder, with those above it that are missing, for its owner alone; those that were missing.

    If it is `shared`, it is for the group of the folder that it is in, too.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        try:
            place.mkdir(FOLDER)
        except FileExistsError:
            if not place.is_dir():
                raise
            continue
        if shared:
            _share(place, place.parent.stat().st_gid, SHARED_FOLDER)
    if not missing and not folder.is_dir():
        folder.mkdir()  # Raises what the system says of a file in its place.
    return missing


def close_folder(folder: Path) -> None:
    """Close a folder that holds events alone to others, if it is ours and not shared; what is in it is closed then."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & (_GROUP | _OTHERS) and not is_shared(folder):
        permit(folder, stat.S_IMODE(found.st_mode) & ~(_GROUP | _OTHERS))


def private(path: str | Path, flags: int) -> int:
    """Open a file that is created for its owner or the group of a shared folder: an opener for `open`.

    One that is there and is ours is narrowed to that, too.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, FILE)
    try:
        settle(descriptor, Path(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def settle(descriptor: int, path: Path) -> None:
    """Close an open file to others, if it is ours; open it to the group of a shared folder."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return
    if is_shared(path.parent):
        _share(descriptor, path.parent.stat().st_gid, SHARED_FILE)
    elif stat.S_IMODE(found.st_mode) & ~FILE:
        permit(descriptor, FILE)


def permit(file: int | Path, mode: int) -> None:
    """Set the permissions of a file or folder. A file system without permissions may refuse that: its mount decides."""
    with suppress(OSError):
        os.chmod(file, mode)  # noqa: PTH101


def _share(file: Path | int, group: int, mode: int) -> None:
    """Let a group use a new file, by path or descriptor. The file stays private if it cannot get that group."""
    with suppress(OSError):
        if os.stat(file).st_gid != group:  # noqa: PTH116
            os.chown(file, -1, group)
        os.chmod(file, mode)  # noqa: PTH101


def created(path: Path, mode: Literal["wb", "xb", "ab"]) -> BufferedWriter:
    """Open a file to write what holds events; see `private`."""
    return open(path, mode, opener=private)


def release(file: int | Path, path: Path) -> None:
    """Give a file that is whole the permissions of the one at a path, or those that any new file gets there."""
    with suppress(OSError):
        permit(file, _mode_at(path))


def _mode_at(path: Path) -> int:
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    # Reading the umask means changing it for a moment, and an ACL of the folder may say something else. So try.
    tried = path.with_name(f".penstock-{uuid.uuid4().hex}")
    descriptor = os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        tried.unlink()


# --- names in arguments and manifests ---------------------------------------------------------------------------


def is_replaceable(path: Path) -> bool:
    """Whether a file may take the place of what is there: not of a pipe, a device, or where standard output goes."""
    if path.exists() and not path.is_file():
        return False
    return not (path.is_symlink() and any(map(path.absolute().is_relative_to, SYSTEM)))


def flaw_of(path: object) -> str | None:
    """Why a path that was read from a manifest or a plan cannot be used below a folder, or None if it can."""
    if not isinstance(path, str):
        return "is not a path"
    if "\0" in path or not path.isprintable():
        return "has control characters in it"
    if path.startswith("/"):
        return "is an absolute path"
    parts = path.split("/")
    if ".." in parts:
        return "leads out of the folder"
    return "is not in its shortest form" if "" in parts or "." in parts else None


def inside(folder: Path, path: str) -> Path:
    """A path below a folder; raises ValueError, with the reason, if that is elsewhere."""
    reason = flaw_of(path)
    if reason is not None:
        raise ValueError(reason)
    found = str(folder)
    for part in path.split("/"):
        found = f"{found}/{part}"
        if os.path.islink(found) and not _is_below(found, folder):  # noqa: PTH114 - paths are many, and Path is slow
            raise ValueError("is a link that leads out of the folder")
    return Path(found)


def _is_below(link: str, folder: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(folder))
