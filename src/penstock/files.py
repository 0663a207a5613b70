"""Names of files that somebody else gives: where a file may be written, and what a path in a manifest may name."""

import os
from pathlib import Path
from typing import Final

SYSTEM: Final = ("/dev", "/proc")
"""Where links are that lead to standard output and other open files."""


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
