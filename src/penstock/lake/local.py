"""A lake in a folder of this machine."""

import ctypes
import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from penstock.errors import LakeDamaged, LakeInUse, PlaceRefused
from penstock.files import (
    FOLDER,
    created,
    inside,
    is_shared,
    lock_owner,
    make_folder,
    owned_lock,
    permit,
    read_file,
    sync_directory,
)
from penstock.lake.manifests import ASIDE, LOCK, OWN, folder_of, is_passed_over
from penstock.lake.places import LakePlace, aside_name, owner, parts_of, shown_owner

DOCUMENT_BYTES_MAX: Final = 1 << 30
"""Bytes of a manifest or a plan, enough for millions of files."""

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_CANNOT: Final = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
"""Errors of systems and file systems that cannot exchange two names."""
_BESIDE: Final = ".penstock-aside"
_LOST: Final = "lost+found"
"""A system folder at the top of a file system, which only root may read."""
FOLDER_MODES: Final = 0o2777
FILE_MODES: Final = 0o666
"""The permissions of a lake's folder that its folders and files get."""


def path_of_url(url: str) -> str:
    parts = parts_of(url)
    if parts.netloc not in ("", "localhost"):
        raise PlaceRefused(url, "it is on another machine; a file URL is file:///PATH")
    return unquote(parts.path)


class LocalPlace(LakePlace):
    """A folder. A writer holds a lock on a file in it as long as its process lives."""

    is_everywhere = False

    def __init__(self, path: str) -> None:
        super().__init__(path)
        if "\0" in path:
            raise PlaceRefused(repr(path), "no path has a zero in it")
        self.path = Path(path)

    def at(self, path: str) -> Path:
        """Where a path of the lake is. Raises LakeDamaged if that is not inside it."""
        try:
            return inside(self.path, path)
        except ValueError as error:
            raise LakeDamaged(self.shown, path if path.isprintable() else repr(path), str(error)) from None

    def check_inside(self, paths: Iterable[str]) -> None:
        for path in paths:
            found = self.at(path)
            if found.exists() and not (found.is_file() or found.is_dir()):
                raise LakeDamaged(self.shown, path, "is not a file")

    # -- reading

    def find(self, path: str) -> bytes | None:
        with self.translated_errors():
            try:
                return read_file(self.at(path), DOCUMENT_BYTES_MAX)
            except (FileNotFoundError, NotADirectoryError):
                return None

    def _open(self, path: str) -> Any:
        # Map the file, so that it is not in memory twice. An empty file cannot be mapped.
        at = self.at(path)
        return pa.memory_map(str(at)) if at.stat().st_size else pa.BufferReader(b"")

    def files(self) -> dict[str, int]:
        with self.translated_errors():
            if self.path.exists() and not self.path.is_dir():
                raise PlaceRefused(self.shown, "it is a file; a lake is a folder")
            return dict(_files(self.path, ""))

    # -- writing

    def replace(self, path: str, data: bytes) -> None:
        with self.translated_errors():
            target, aside = self.at(path), self.at(aside_name())
            self._create(aside, data)
            aside.replace(target)
            sync_directory(target.parent)

    def _write(self, path: str, data: Any) -> None:
        self._create(self.at(path), data)
        # A change relies on the name too.
        sync_directory(self.at(path).parent)

    def _create(self, at: Path, data: Any) -> None:
        """Create a temporary file, in a folder that only its owner may enter."""
        self.make_folder(OWN)
        make_folder(at.parent, shared=is_shared(self.path))
        try:
            with created(at, "xb") as file:
                file.write(data)
                file.flush()
                permit(file.fileno(), self._mode() & FILE_MODES)
                os.fsync(file.fileno())
        except OSError:
            # Free the space of a full disk.
            at.unlink(missing_ok=True)
            raise

    def make_folder(self, path: str) -> None:
        """Make a folder with the permissions of the lake. A new lake is for its owner only."""
        make_folder(self.path)
        for folder in make_folder(self.at(path)):
            permit(folder, self._mode())

    def _mode(self) -> int:
        """The permissions of the lake's folder, which decide who may read its files."""
        return stat.S_IMODE(self.path.stat().st_mode) & FOLDER_MODES | FOLDER

    def publish(self, staged: Mapping[str, str]) -> None:
        with self.translated_errors():
            for path, aside in staged.items():
                self.make_folder(str(Path(path).parent))
                if self.at(aside).exists():
                    self.at(aside).replace(self.at(path))
                elif not self.at(path).exists():
                    raise self.missing(aside)
            for folder in {self.at(path).parent for path in staged}:
                sync_directory(folder)
            sync_directory(self.path)

    def swap(self, day: str, removed: set[str], staged: Mapping[str, str]) -> None:
        """See LakePlace. The old folder is a temporary one then, until `clear`."""
        folder = self.at(folder_of(day))
        with self.translated_errors():
            for aside in (self._outside(), self.at(ASIDE)):
                if _before(aside / folder.name).exists() and not folder.exists():
                    _before(aside / folder.name).rename(folder)
            if not all(self.at(path).exists() for path in staged):
                built = self._beside() / folder.name
                self._build(folder, built, removed, staged)
                _exchange(built, folder)
                sync_directory(self.path)

    def _build(self, folder: Path, built: Path, removed: set[str], staged: Mapping[str, str]) -> None:
        _remove(built)
        _remove(_before(built))
        make_folder(built)
        permit(built, self._mode())
        for entry in folder.iterdir():
            if (path := f"{folder.name}/{entry.name}") not in removed:
                _link(self.at(path), built / entry.name)
        for path, aside in staged.items():
            _link(self.at(aside), built / Path(path).name)
        sync_directory(built)

    def _beside(self) -> Path:
        """Where to build a folder: next to the lake, because its files have names that readers look for.

        If that is not possible, for example because the lake is a mount point, it is inside.
        """
        outside, within = self._outside(), self.at(ASIDE)
        tried = within / uuid.uuid4().hex
        self.make_folder(OWN)
        make_folder(tried, shared=is_shared(self.path))
        try:
            make_folder(outside)
            tried.rename(outside / tried.name)
        except OSError:
            return within
        return outside

    def _outside(self) -> Path:
        whole = self.path.resolve()
        return whole.parent / f".{whole.name}{_BESIDE}"

    def remove(self, path: str) -> None:
        with self.translated_errors():
            self.at(path).unlink(missing_ok=True)
            # Remove the folder of a day without events.
            with suppress(OSError):
                self.at(path).parent.rmdir()

    def clear(self) -> None:
        with self.translated_errors():
            _remove(self.at(ASIDE))
            _remove(self._outside())

    # -- the lock

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        with ExitStack() as held:
            with self.translated_errors():
                self.make_folder(OWN)
                written = json.dumps(owner(what)).encode()
                held.enter_context(owned_lock(self.at(LOCK), written, self._in_use))
            yield

    def _in_use(self, owner: bytes) -> LakeInUse:
        return LakeInUse(self.shown, shown_owner(owner))

    def holder(self) -> str | None:
        with suppress(OSError):
            if (found := lock_owner(self.at(LOCK))) is not None:
                return shown_owner(found)
        return None


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if path == OWN:
                continue
            # Do not follow links: their targets are elsewhere, or listed anyway.
            if entry.is_dir(follow_symlinks=False) and not is_passed_over(entry.name):
                # Only root may read the system folder.
                with suppress(*(PermissionError,) if path == _LOST else ()):
                    yield from _files(folder / entry.name, f"{path}/")
            else:
                with suppress(FileNotFoundError):
                    yield path, entry.stat(follow_symlinks=False).st_size


def _remove(folder: Path) -> None:
    if folder.exists():
        # A late task may still write there. The next run removes what is left.
        shutil.rmtree(folder, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    """Link a file, or copy it where there are no links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV):
            raise
        with source.open("rb") as original, created(target, "xb") as file:
            shutil.copyfileobj(original, file)
            file.flush()
            permit(file.fileno(), stat.S_IMODE(source.stat().st_mode))
            os.fsync(file.fileno())


def _before(built: Path) -> Path:
    return built.with_name(f"{built.name}.before")


def _exchange(built: Path, folder: Path) -> None:
    """Exchange two folders: in one step, or in two where the system has no such step."""
    try:
        exchanged(built, folder)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        folder.rename(_before(built))
        built.rename(folder)


def exchanged(one: Path, other: Path) -> None:
    """Exchange two names in one step. Raises OSError with ENOSYS, EINVAL or ENOTSUP if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(other))
