"""Where a lake is: a folder of this machine, or a place in an object store or another file system, by its URL.

Files are written aside first, wherever a lake is. In a folder they are synced and renamed, and a day's folder is
exchanged for another in one step. An object store has neither renames nor folders, but an object is there as a whole or
not at all: files are copied to their names, and the manifest says which of them count.
"""

import errno
import os
import socket
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from penstock.errors import LakeDamaged, LakeInUse, PlaceRefused, StoreError
from penstock.files import parsed
from penstock.lake.manifests import ASIDE, MANIFEST, STAGED
from penstock.model.times import now_text
from penstock.store.urls import SQLITE

UNSEEN: Final = "on {}, where Spark runs tasks, there is no such lake; its folder must be shared by all machines"
LOOK_S: Final = 0.1
"""Seconds between two looks whether a lake is free."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LakePlace(ABC):
    """The files of a lake by their paths inside it. Made by `open_lake_place`; it holds nothing open."""

    is_everywhere: bool
    """Whether other machines find the same there, and not a folder of their own."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def check_inside(self, paths: Iterable[str]) -> None:
        """Raise LakeDamaged if a path is not inside the lake, or is a link that leads out of it.

        Every other method does so too, for the paths that it gets.
        """

    @abstractmethod
    def find(self, path: str) -> bytes | None:
        """A small file, or None if it is not there."""

    @abstractmethod
    def read(self, path: str) -> Any:
        """A file, as a buffer; raises LakeDamaged if it is not there."""

    @abstractmethod
    def opened(self, path: str) -> AbstractContextManager[Any]:
        """A file, of which only parts are read; raises LakeDamaged if it is not there."""

    @abstractmethod
    def files(self) -> dict[str, int]:
        """All files with their bytes, also those that are not events, but for what is the lake's own."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file in one step; it is safe when this returns."""

    @abstractmethod
    def stage(self, path: str, data: Any) -> str:
        """Write what is to be at a path; what to give to `publish`. May be called in any process."""

    @abstractmethod
    def publish(self, staged: Mapping[str, str]) -> None:
        """Put staged files (by path) at their paths, as far as they are not there yet."""

    @abstractmethod
    def swap(self, day: str, removed: set[str], staged: Mapping[str, str]) -> None:
        """Put staged files (by path) in the place of others of the same day, for readers of the folder in one step.

        May be done again after it was interrupted.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all that is aside. What a process that was killed has left there is nobody's."""

    @contextmanager
    def lock(self, what: str, patience_s: float = 0.0) -> Iterator[None]:
        """Have the lake alone; raises LakeInUse, which says who has it, if it is not free after some seconds."""
        deadline = time.monotonic() + patience_s
        with ExitStack() as held:
            while not self._entered(held, what, is_last=time.monotonic() >= deadline):
                time.sleep(LOOK_S)
            yield

    def _entered(self, held: ExitStack, what: str, *, is_last: bool) -> bool:
        try:
            held.enter_context(self.locked(what))
        except LakeInUse:
            if is_last:
                raise
            return False
        return True

    @abstractmethod
    def locked(self, what: str) -> AbstractContextManager[None]:
        """Have the lake alone; raises LakeInUse at once."""

    @abstractmethod
    def holder(self) -> str | None:
        """Who has it alone at this moment."""

    def missing(self, path: str) -> LakeDamaged:
        """The error that names a file."""
        return LakeDamaged(self.shown, path, "is not there")

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the system says against it, in our words."""
        try:
            yield
        except OSError as error:
            raise self.refused(error) from error

    def refused(self, error: OSError) -> StoreError:
        """An error of the system's as ours."""
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            return StoreError(f"{self.shown}: {reason}. Nothing is lost; make room, and run this again")
        return StoreError(f"{error.filename or self.shown}: {reason}")


def open_lake_place(lake: str) -> LakePlace:
    """The place of a lake: a path, a `file://` URL, or the URL of another file system."""
    # What reads object stores is loaded only if there is one.
    scheme, separator, rest = lake.partition("://")
    if not lake or (separator and not rest):
        raise PlaceRefused(lake or "''", "it is no place; say a folder, or a URL such as s3://BUCKET/FOLDER")
    if not separator or scheme == "file":
        from penstock.lake.local import LocalPlace, path_of_url  # noqa: PLC0415

        return LocalPlace(path_of_url(lake) if separator else lake)
    from penstock.lake.remote import RemotePlace  # noqa: PLC0415

    return RemotePlace(lake)


def open_seen_place(lake: str) -> LakePlace:
    """The same in a task, which may run on another machine. Raises PlaceRefused if the lake is not there."""
    place = open_lake_place(lake)
    # A folder that is missing would be made, on a disk that nobody looks at.
    if not place.is_everywhere and place.find(MANIFEST) is None:
        raise PlaceRefused(lake, UNSEEN.format(socket.gethostname()))
    return place


def parts_of(url: str) -> SplitResult:
    """The parts of a URL; raises PlaceRefused."""
    try:
        return urlsplit(url)
    except ValueError as error:
        # It may have a password in it.
        raise PlaceRefused(f"{url.partition('://')[0]}://…", f"it is no place: {error}") from None


def aside_name() -> str:
    """A new name aside."""
    return f"{ASIDE}/{uuid.uuid4().hex}{STAGED}"


def absolute(place: str) -> str:
    """A path, or the URL of a store, as it holds for processes whose working directory is another."""
    if place.startswith(SQLITE):
        return f"{SQLITE}{Path(place.removeprefix(SQLITE)).absolute()}"
    return place if "://" in place else str(Path(place).absolute())


def owner(what: str) -> dict[str, Any]:
    """Who this is, for whoever finds the lake locked."""
    return {"what": what, "host": socket.gethostname(), "pid": os.getpid(), "since": now_text()}


def shown_owner(data: bytes | None) -> str:
    """An owner in words."""
    try:
        found = parsed(data or b"")
        return f"{found['what']} of process {found['pid']} on {found['host']}, since {found['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
