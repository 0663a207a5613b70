"""Which kind of place a path names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.backup.folders import Folder
from penstock.backup.places import Place
from penstock.backup.tars import Tar
from penstock.errors import PlaceRefused

TAR: Final = ".tar"


@contextmanager
def open_place(path: Path, *, write: bool) -> Iterator[Place]:
    """A place for backups: one file if its name ends in .tar, else a folder. To write, it is made if it is missing."""
    if not write and not path.exists():
        raise PlaceRefused(str(path), "there is nothing")
    place: Place = Tar(path, write=write) if path.name.endswith(TAR) else Folder(path, write=write)
    try:
        yield place
    finally:
        place.close()
