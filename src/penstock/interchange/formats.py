"""The formats of files, how to tell them by name, and the errors about files."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Final

from penstock.errors import PenstockError

STANDARD: Final = "-"
"""In place of a path: standard input or output."""
FULL: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


class Format(StrEnum):
    """The format of a file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"
    CLOUDEVENTS = "cloudevents"


_SUFFIXES: Final = {
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".parquet": Format.PARQUET,
    ".cloudevents": Format.CLOUDEVENTS,
    ".ce": Format.CLOUDEVENTS,
}


class FileRefused(PenstockError):
    """A file that cannot be read or written, whatever its content."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BrokenFile(PenstockError):
    """Part of a file is not an event. The import has sent nothing of the file."""

    path: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}; nothing of this file was imported"


class Flaw(ValueError):
    """A mistake in a file, from a reader that does not know the name of the file."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


def format_of(path: str, given: Format | None) -> Format:
    """The given format, or the one that the name ends in; JSON lines for a pipe. Raises FileRefused."""
    if given is not None:
        return given
    if path == STANDARD:
        return Format.JSONL
    # The last two suffixes: `orders.cloudevents.jsonl`, as some editors know only the last one.
    for suffix in PurePath(path).suffixes[-2:]:
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    known = ", ".join(sorted(_SUFFIXES))
    raise FileRefused(path, f"its name does not end in one of {known}; say --format {'|'.join(Format)}")


@contextmanager
def refusing(path: str | Path) -> Iterator[None]:
    """Raise FileRefused with the path that the user named in place of OSError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        rest = "; run the same command again when there is room, and it goes on" if error.errno in FULL else ""
        # A link or a pipe is in the place of a file next to it.
        name = str(error.filename) if error.errno in (errno.ELOOP, errno.EINVAL) else str(path)
        raise FileRefused(name, reason + rest) from None


@contextmanager
def named_errors(name: str | None) -> Iterator[None]:
    """Put a file's name into errors: those of an open file have none."""
    try:
        yield
    except OSError as error:
        error.filename = name
        raise
