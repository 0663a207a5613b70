"""A place for backups that is one file: a plain tar with the same files as members.

Backups are appended, over the two empty blocks that end a tar. Whatever comes after the last manifest is what a backup
that was killed has left; the next one cuts it off. Whether such a rest is that, or damage, cannot always be told: if
there is one, a restore asks which backup is meant.
"""

import os
import tarfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from penstock.backup.manifests import decode
from penstock.backup.places import FILE_BYTES_MAX, SIGN, SIGN_NAME, Place, lock, open_sign, told
from penstock.errors import BackupDamaged, PlaceRefused
from penstock.files import settle, sync_directory

BLOCK: Final = tarfile.BLOCKSIZE
END: Final = bytes(2 * BLOCK)
SIGN_TIME: Final = 1_767_225_600
"""The time of the first member, which is the same in all places: the beginning of 2026, in seconds since 1970."""


class Tar(Place):
    """Members of a tar."""

    def __init__(self, path: Path, *, write: bool) -> None:
        super().__init__(path)
        with told(path):
            if path.is_dir():
                raise PlaceRefused(str(path), "it is a folder, and a name that ends in .tar means a file")
            is_new = not path.exists()
            self._file = os.fdopen(open_sign(path, write=write), "r+b" if write else "rb")
        try:
            with told(path):
                lock(path, self._file.fileno(), write=write)
                self._begin(is_new, write)
                if write:
                    settle(self._file.fileno(), path)
        except BaseException:
            self._file.close()
            raise

    def _begin(self, is_new: bool, write: bool) -> None:
        self._members: dict[str, tuple[int, int]] = {}
        self._end, self._is_clean = 0, False
        if is_new:
            sync_directory(self.path.resolve().parent)
        sign = _member(SIGN_NAME, SIGN, SIGN_TIME)
        start = os.pread(self._file.fileno(), len(sign), 0)
        if not sign.startswith(start):
            raise PlaceRefused(str(self.path), "it is not a file of backups; name another, or one that is not there")
        if start != sign and write:
            # The first backup begins here, or was killed as it began.
            self._file.truncate(0)
            self._append(sign)
        self._scan()

    def _scan(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        for name, start, length in self._headers(size):
            self._members[name] = (start, length)
            self._end = start + length + _padding(length)
        rest = os.pread(self._file.fileno(), len(END) + 1, self._end)
        self._is_clean = rest == END

    def _headers(self, size: int) -> Iterator[tuple[str, int, int]]:
        """Members, as long as they follow one another and are whole."""
        at = 0
        while at + BLOCK <= size:
            block = os.pread(self._file.fileno(), BLOCK, at)
            header = _parsed(block)
            if header is None:
                return
            name, length = header
            end = at + BLOCK + length
            # Of the last one the padding may be missing: nothing of it is lost then.
            if end > size or any(os.pread(self._file.fileno(), _padding(length), end)):
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
        with told(self.path):
            data = os.pread(self._file.fileno(), length, start)
        if len(data) != length:
            raise self.damaged(name, "is cut off")
        return data

    def add(self, name: str, data: bytes) -> None:
        with told(self.path):
            start = self._end + BLOCK
            self._append(_member(name, data, int(time.time())))
            self._members[name] = (start, len(data))

    def _append(self, block: bytes) -> None:
        _write_all(self._file.fileno(), block, self._end)
        self._end += len(block)

    def sync(self) -> None:
        with told(self.path):
            _write_all(self._file.fileno(), END, self._end)
            self._file.truncate(self._end + len(END))
            os.fsync(self._file.fileno())

    def keep_only(self, names: Collection[str]) -> None:
        wanted = {*names, SIGN_NAME}
        kept = [(start, name) for name, (start, _) in self._members.items() if name in wanted]
        last = max(kept)[1]
        start, length = self._members[last]
        end = start + length + _padding(length)
        if self._has_manifest_after(end):
            raise self.damaged("what follows its last good backup", "cannot be read; use another file")
        self._members = {name: place for name, place in self._members.items() if name in wanted}
        self._end = end
        with told(self.path):
            self._file.truncate(end)

    def _has_manifest_after(self, at: int) -> bool:
        """Whether a whole manifest lies behind something that cannot be read: then it is damage, and is not cut off."""
        while block := os.pread(self._file.fileno(), BLOCK, at):
            if block.startswith(b"backups/") and self._is_manifest(block, at + BLOCK):
                return True
            at += BLOCK
        return False

    def _is_manifest(self, block: bytes, start: int) -> bool:
        header = _parsed(block)
        if header is None:
            return False
        name, length = header
        # The length is what a damaged file says: it may be any.
        length = min(length, os.fstat(self._file.fileno()).st_size - start, FILE_BYTES_MAX)
        try:
            decode(str(self.path), name, os.pread(self._file.fileno(), length, start))
        except BackupDamaged:
            return False
        return True

    def close(self) -> None:
        self._file.close()


def _padding(length: int) -> int:
    return -length % BLOCK


def _header(name: str, length: int, mtime: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = length, mtime
    return info.tobuf(tarfile.USTAR_FORMAT)


def _member(name: str, data: bytes, mtime: int) -> bytes:
    return _header(name, len(data), mtime) + data + bytes(_padding(len(data)))


def _parsed(block: bytes) -> tuple[str, int] | None:
    """Name and length, if a block is the header of a member exactly as it is written here."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        return (info.name, info.size) if _header(info.name, info.size, int(info.mtime)) == block else None
    except (tarfile.HeaderError, UnicodeError, ValueError):
        return None


def _write_all(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written
