"""The formats, how a file's name tells its format, and what can be wrong with a file."""

from enum import StrEnum
from pathlib import PurePath
from typing import Final

from penstock.errors import PenstockError

STANDARD: Final = "-"
"""In place of a path: standard input or output."""


class Format(StrEnum):
    """What a file is written in."""

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
    """A file that cannot be read or written, whatever is in it."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BrokenFile(PenstockError):
    """Something in a file is not an event. Nothing of the file was imported."""

    path: str
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, {self.place}: {self.reason}; nothing of this file was imported"


class Flaw(ValueError):
    """What a reader finds wrong in a file that it does not know the name of."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}")
        self.place = place
        self.reason = reason


def format_of(path: str, given: Format | None) -> Format:
    """The format of a file: as it is given, or as the end of its name says. JSON lines in a pipe. Or FileRefused."""
    if given is not None:
        return given
    if path == STANDARD:
        return Format.JSONL
    name = PurePath(path)
    # Two endings: `orders.cloudevents.jsonl`, as some editors know the last one only.
    for suffix in name.suffixes[-2:]:
        if suffix.lower() in _SUFFIXES:
            return _SUFFIXES[suffix.lower()]
    known = ", ".join(sorted(_SUFFIXES))
    raise FileRefused(path, f"its name does not end in one of {known}; say --format {'|'.join(Format)}")
