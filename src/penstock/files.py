"""What is written under a name that somebody gives."""

from pathlib import Path
from typing import Final

SYSTEM: Final = ("/dev", "/proc")
"""Where links are that lead to standard output and other open files."""


def is_replaceable(path: Path) -> bool:
    """Whether a file may take the place of what is there: not of a pipe, a device, or where standard output goes."""
    if path.exists() and not path.is_file():
        return False
    return not (path.is_symlink() and any(map(path.absolute().is_relative_to, SYSTEM)))
