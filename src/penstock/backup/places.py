"""Places for backups: files by name, in a folder or as members of one tar.

A writer locks the place for itself, and readers lock out writers. Files are added and never changed. A killed backup
leaves files that no manifest names: readers do not see them, and the next backup removes them.
"""

import os
import tarfile
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.backup.manifest import decode_manifest
from penstock.errors import BackupDamaged, PlaceRefused, StoreError
from penstock.files import (
    atomic_write,
    close_folder,
    inside,
    is_shared,
    make_folder,
    open_file,
    read_file,
    restrict_access,
    sync_directory,
    try_lock,
)

SIGN_NAME: Final = "penstock-backup.txt"
SIGN: Final = b"Backups of a Penstock store, format 1. Restore them with: penstock restore\n"
"""Marks a place of ours. It is the first file that a backup writes."""
FILE_BYTES_MAX: Final = 2 << 30
"""No file of a backup is larger, whatever its manifest says: the reader holds it in memory."""
FOLDERS: Final = ("history", "states", "backups")
UNFINISHED: Final = ".tmp"

BLOCK: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * BLOCK)
SIGN_TIME: Final = 1_767_225_600
"""Time of the first member of every tar: the beginning of 2026, in seconds since 1970."""


class Place(ABC):
    """Files by name. `open_place` makes and closes one."""

    def __init__(self, path: Path, *, write: bool) -> None:
        self.path = path
        with system_errors(path):
            locked = self._prepare(write)
            self._descriptor = open_file(locked, os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
            try:
                if not try_lock(self._descriptor, shared=not write):
                    user = "another backup or restore is using it" if write else "another backup is being written to it"
                    raise PlaceRefused(str(path), f"{user}; wait until that has ended")
                self._begin(write)
                if write:
                    restrict_access(self._descriptor, locked)
            except BaseException:
                os.close(self._descriptor)
                raise

    @abstractmethod
    def _prepare(self, write: bool) -> Path:
        """Refuse a path that holds other things, and make it if it is missing. Returns the file to lock."""

    @abstractmethod
    def _begin(self, write: bool) -> None:
        """Check or write what marks the place as ours."""

    def check_inside(self, names: Iterable[str]) -> None:  # noqa: B027 - a tar has no links
        """Raise BackupDamaged if a file, or a folder above it, is a link that leads out of the place."""

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The names of all files, and their bytes."""

    @abstractmethod
    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        """Raises BackupDamaged if the file is missing or larger than `bytes_max`."""

    @abstractmethod
    def add(self, name: str, data: bytes) -> None:
        """Add a file. It survives a power cut after `sync`."""

    @abstractmethod
    def sync(self) -> None: ...

    @abstractmethod
    def keep_only(self, names: Collection[str]) -> None:
        """Remove all files except these, which are the files of finished backups."""

    @property
    def doubt(self) -> str | None:
        """Why the newest backup may be missing from the files, if there is a reason to think so."""
        return None

    def close(self) -> None:
        os.close(self._descriptor)

    def damaged(self, what: str, reason: str) -> BackupDamaged:
        return BackupDamaged(str(self.path), what, reason)


@contextmanager
def open_place(path: Path, *, write: bool) -> Iterator[Place]:
    """A tar if the name ends in .tar, else a folder. A writer creates it if it is missing."""
    if not write and not path.exists():
        raise PlaceRefused(str(path), "there is nothing")
    place = (Tar if path.name.endswith(".tar") else Folder)(path, write=write)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def system_errors(path: Path | str) -> Iterator[None]:
    """Raise StoreError in place of OSError."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror}") from error


class Folder(Place):
    """Files in three subfolders. Each is written under another name, synced, and then renamed."""

    def _prepare(self, write: bool) -> Path:
        self._unsynced: set[Path] = set()
        path = self.path
        if path.exists() and not path.is_dir():
            reason = "it is a file; backups go into a folder, or into a file whose name ends in .tar"
            raise PlaceRefused(str(path), reason)
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        if SIGN_NAME not in names and not write:
            raise PlaceRefused(str(path), f"it holds no backups: there is no {SIGN_NAME}")
        if SIGN_NAME not in names and names:
            raise PlaceRefused(str(path), "it holds other things than backups; name an empty folder, or a new one")
        if write:
            make_folder(path)
            close_folder(path)
        return self._at(SIGN_NAME)

    def _begin(self, write: bool) -> None:
        found = os.pread(self._descriptor, len(SIGN) + 1, 0)
        if found != SIGN and not (write and SIGN.startswith(found)):
            raise self.damaged(SIGN_NAME, "is not what was written")
        if found != SIGN:
            # The first backup begins here, or was killed as it began.
            os.pwrite(self._descriptor, SIGN, 0)
            os.fsync(self._descriptor)
            sync_directory(self.path.resolve().parent)
        if write:
            for folder in FOLDERS:
                make_folder(self._at(folder), shared=is_shared(self.path))
            sync_directory(self.path)

    def _at(self, name: str) -> Path:
        """The path of a file. Raises BackupDamaged if it is outside the folder."""
        try:
            return inside(self.path, name)
        except ValueError as error:
            raise self.damaged(name if name.isprintable() else repr(name), str(error)) from None

    def check_inside(self, names: Iterable[str]) -> None:
        for name in names:
            self._at(name)

    def sizes(self) -> dict[str, int]:
        with system_errors(self.path):
            return {
                f"{folder}/{entry.name}": entry.lstat().st_size
                for folder in FOLDERS
                for entry in sorted(self._at(folder).glob("*"))
                if not entry.name.endswith(UNFINISHED)
            }

    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        try:
            return read_file(self._at(name), min(bytes_max, FILE_BYTES_MAX))
        except OSError as error:
            raise self.damaged(name, f"cannot be read: {error.strerror}") from error

    def add(self, name: str, data: bytes) -> None:
        path = self._at(name)
        with system_errors(self.path), atomic_write(path, aside=self._at(name + UNFINISHED)) as file:
            file.write(data)
        self._unsynced.add(path.parent)

    def sync(self) -> None:
        with system_errors(self.path):
            for folder in self._unsynced:
                sync_directory(folder)
        self._unsynced.clear()

    def keep_only(self, names: Collection[str]) -> None:
        with system_errors(self.path):
            for folder in FOLDERS:
                for entry in self._at(folder).iterdir():
                    if f"{folder}/{entry.name}" not in names:
                        entry.unlink()


class Tar(Place):
    """The same files as members of a plain tar.

    Backups are appended, over the two empty blocks that end a tar. Bytes after the last manifest are the remains of a
    killed backup, which the next backup cuts off, or damage. The two look alike. So if there are such bytes, a restore
    wants the number of the backup.
    """

    def _prepare(self, write: bool) -> Path:  # noqa: ARG002 - opening creates the file
        if self.path.is_dir():
            raise PlaceRefused(str(self.path), "it is a folder, and a name that ends in .tar means a file")
        self._is_new = not self.path.exists()
        return self.path

    def _begin(self, write: bool) -> None:
        self._members: dict[str, tuple[int, int]] = {}
        self._end = 0
        if self._is_new:
            sync_directory(self.path.resolve().parent)
        sign = _member(SIGN_NAME, SIGN, SIGN_TIME)
        start = os.pread(self._descriptor, len(sign), 0)
        if not sign.startswith(start):
            raise PlaceRefused(str(self.path), "it is not a file of backups; name another, or one that is not there")
        if start != sign and write:
            # The first backup begins here, or was killed as it began.
            os.ftruncate(self._descriptor, 0)
            self._append(sign)
        for name, start_at, length in self._scan():
            self._members[name] = (start_at, length)
            self._end = start_at + length + _padding(length)
        self._is_clean = os.pread(self._descriptor, len(END) + 1, self._end) == END

    def _size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _scan(self) -> Iterator[tuple[str, int, int]]:
        """Members, as long as they follow one another and are whole."""
        at, size = 0, self._size()
        while at + BLOCK <= size:
            header = _parse_header(os.pread(self._descriptor, BLOCK, at))
            if header is None:
                return
            name, length = header
            end = at + BLOCK + length
            # The last member may lack its padding: no data is lost then.
            if end > size or any(os.pread(self._descriptor, _padding(length), end)):
                return
            yield name, at + BLOCK, length
            at = end + _padding(length)

    @property
    def doubt(self) -> str | None:
        return None if self._is_clean else "its end is not what a finished backup leaves"

    def sizes(self) -> dict[str, int]:
        return {name: length for name, (_, length) in self._members.items() if name != SIGN_NAME}

    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        if name not in self._members:
            raise self.damaged(name, "is not there")
        start, length = self._members[name]
        if length > min(bytes_max, FILE_BYTES_MAX):
            raise self.damaged(name, f"has {length} bytes, more than {min(bytes_max, FILE_BYTES_MAX)}")
        with system_errors(self.path):
            data = os.pread(self._descriptor, length, start)
        if len(data) != length:
            raise self.damaged(name, "is cut off")
        return data

    def add(self, name: str, data: bytes) -> None:
        with system_errors(self.path):
            start = self._end + BLOCK
            self._append(_member(name, data, int(time.time())))
            self._members[name] = (start, len(data))

    def _append(self, block: bytes) -> None:
        self._write(block, self._end)
        self._end += len(block)

    def _write(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written

    def sync(self) -> None:
        with system_errors(self.path):
            self._write(END, self._end)
            os.ftruncate(self._descriptor, self._end + len(END))
            os.fsync(self._descriptor)

    def keep_only(self, names: Collection[str]) -> None:
        kept = {name: place for name, place in self._members.items() if name in names or name == SIGN_NAME}
        start, length = max(kept.values())
        end = start + length + _padding(length)
        if self._has_manifest_after(end):
            raise self.damaged("what follows its last good backup", "cannot be read; use another file")
        self._members, self._end = kept, end
        with system_errors(self.path):
            os.ftruncate(self._descriptor, end)

    def _has_manifest_after(self, at: int) -> bool:
        """Whether a whole manifest follows bytes that cannot be read: that is damage, which stays as it is."""
        while block := os.pread(self._descriptor, BLOCK, at):
            at += BLOCK
            header = _parse_header(block) if block.startswith(b"backups/") else None
            if header is None:
                continue
            name, length = header
            # A damaged header may give any length.
            length = min(length, self._size() - at, FILE_BYTES_MAX)
            try:
                decode_manifest(str(self.path), name, os.pread(self._descriptor, length, at))
            except BackupDamaged:
                continue
            return True
        return False


def _padding(length: int) -> int:
    return -length % BLOCK


def _header(name: str, length: int, mtime: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = length, mtime
    return info.tobuf(tarfile.USTAR_FORMAT)


def _member(name: str, data: bytes, mtime: int) -> bytes:
    return _header(name, len(data), mtime) + data + bytes(_padding(len(data)))


def _parse_header(block: bytes) -> tuple[str, int] | None:
    """Name and length, if a block is a member's header exactly as `_header` writes it."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        return (info.name, info.size) if _header(info.name, info.size, int(info.mtime)) == block else None
    except (tarfile.HeaderError, UnicodeError, ValueError):
        return None
