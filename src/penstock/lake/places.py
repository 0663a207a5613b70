"""Where a lake is: a folder of this machine, or a place in an object store or another file system, by its URL.

Files are temporary first. In a folder they are synced and renamed, and a day's folder is exchanged for another in one
step. An object store has neither renames nor folders, but an object is there as a whole or not at all: files are copied
to their names, and the manifest tells which of them count.
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

UNSEEN: Final = "on {}, where Spark runs tasks, there is no such lake; its folder must be shared by all machines"
LOCK_LOOK_S: Final = 0.1
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class LakePlace(ABC):
    """The files of a lake by their paths inside it. `open_lake_place` makes it; it holds nothing open."""

    is_everywhere: bool
    """Whether other machines see the same place."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def check_inside(self, paths: Iterable[str]) -> None:
        """Raise LakeDamaged if a path is not inside the lake, or is a link that leads out of it.

        Every other method checks its paths too.
        """

    @abstractmethod
    def find(self, path: str) -> bytes | None:
        """The bytes of a small file, or None."""

    def read(self, path: str) -> Any:
        """A file as a buffer. Raises LakeDamaged if it is missing."""
        with self.opened(path) as file:
            return file.read_buffer()

    @contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        """An open file, to read parts of it. Raises LakeDamaged if it is missing."""
        with self.translated_errors():
            try:
                file = self._open(path)
            except (FileNotFoundError, NotADirectoryError):
                raise self.missing(path) from None
            with file:
                yield file

    @abstractmethod
    def _open(self, path: str) -> Any:
        """An open file of Arrow's. Raises FileNotFoundError."""

    @abstractmethod
    def files(self) -> dict[str, int]:
        """All files with their bytes, except the lake's own documents."""

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file atomically. It is durable when this returns."""

    def stage(self, data: Any) -> str:
        """Write a temporary file; returns its name for `publish`. Any process may call this."""
        aside = aside_name()
        with self.translated_errors():
            self._write(aside, data)
        return aside

    @abstractmethod
    def _write(self, path: str, data: Any) -> None:
        """Write a temporary file. It is durable when this returns."""

    @abstractmethod
    def publish(self, staged: Mapping[str, str]) -> None:
        """Move temporary files (by path) to their paths, unless they are there already."""

    @abstractmethod
    def swap(self, day: str, removed: set[str], staged: Mapping[str, str]) -> None:
        """Replace files of a day by temporary files (by path), for readers of the folder in one step.

        It can be repeated after an interruption.
        """

    @abstractmethod
    def remove(self, path: str) -> None: ...

    @abstractmethod
    def clear(self) -> None:
        """Remove all temporary files, also those of killed processes."""

    @contextmanager
    def lock(self, what: str, patience_s: float = 0.0) -> Iterator[None]:
        """Lock the lake. Raises LakeInUse, which names the owner, if it is not free after `patience_s`."""
        deadline = time.monotonic() + patience_s
        with ExitStack() as held:
            while True:
                is_last = time.monotonic() >= deadline
                try:
                    held.enter_context(self.locked(what))
                    break
                except LakeInUse:
                    if is_last:
                        raise
                time.sleep(LOCK_LOOK_S)
            yield

    @abstractmethod
    def locked(self, what: str) -> AbstractContextManager[None]:
        """Lock the lake. Raises LakeInUse at once."""

    @abstractmethod
    def holder(self) -> str | None:
        """The process that has the lock, if any."""

    def missing(self, path: str) -> LakeDamaged:
        return LakeDamaged(self.shown, path, "is not there")

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self.refused(error) from error

    def refused(self, error: OSError) -> StoreError:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            return StoreError(f"{self.shown}: {reason}. Nothing is lost; make room, and run this again")
        return StoreError(f"{error.filename or self.shown}: {reason}")


def open_lake_place(lake: str) -> LakePlace:
    """The place of a lake: a path, a `file://` URL, or the URL of another file system."""
    # Import what is needed: object stores take a while.
    scheme, separator, rest = lake.partition("://")
    if not lake or (separator and not rest):
        raise PlaceRefused(lake or "''", "it is no place; say a folder, or a URL such as s3://BUCKET/FOLDER")
    if not separator or scheme == "file":
        from penstock.lake.local import LocalPlace, path_of_url  # noqa: PLC0415

        return LocalPlace(path_of_url(lake) if separator else lake)
    from penstock.lake.remote import RemotePlace  # noqa: PLC0415

    return RemotePlace(lake)


def open_seen_place(lake: str) -> LakePlace:
    """The same in a task, perhaps on another machine. Raises PlaceRefused if the lake is not there."""
    place = open_lake_place(lake)
    # Otherwise a task would create the folder on its own machine.
    if not place.is_everywhere and place.find(MANIFEST) is None:
        raise PlaceRefused(lake, UNSEEN.format(socket.gethostname()))
    return place


def parts_of(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        # It may have a password in it.
        raise PlaceRefused(f"{url.partition('://')[0]}://…", f"it is no place: {error}") from None


def aside_name() -> str:
    return f"{ASIDE}/{uuid.uuid4().hex}{STAGED}"


def absolute(place: str) -> str:
    """The same place for processes with another working directory."""
    return place if "://" in place else str(Path(place).absolute())


def owner(what: str) -> dict[str, Any]:
    """A description of this process for others that find the lake locked."""
    return {"what": what, "host": socket.gethostname(), "pid": os.getpid(), "since": now_text()}


def shown_owner(data: bytes | None) -> str:
    try:
        found = parsed(data or b"")
        return f"{found['what']} of process {found['pid']} on {found['host']}, since {found['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
