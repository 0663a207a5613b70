"""A place for backups that is a folder: each file is written under another name, synced, and then renamed."""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from penstock.backup.places import FILE_BYTES_MAX, SIGN, SIGN_NAME, Place, lock, open_sign, told
from penstock.errors import PlaceRefused
from penstock.files import atomic_write, close_folder, inside, is_shared, make_folder, read_file, settle, sync_directory

FOLDERS: Final = ("history", "states", "backups")
_UNFINISHED: Final = ".tmp"


class Folder(Place):
    """Files in a folder and its three subfolders."""

    def __init__(self, path: Path, *, write: bool) -> None:
        super().__init__(path)
        self._fresh: set[Path] = set()
        with told(path):
            _check(path, write=write)
            if write:
                make_folder(path)
                close_folder(path)
            self._sign = open_sign(self._at(SIGN_NAME), write=write)
        try:
            with told(path):
                lock(path, self._sign, write=write)
                self._begin(write)
                if write:
                    settle(self._sign, self._at(SIGN_NAME))
        except BaseException:
            os.close(self._sign)
            raise

    def _begin(self, write: bool) -> None:
        found = os.pread(self._sign, len(SIGN) + 1, 0)
        if found != SIGN and not (write and SIGN.startswith(found)):
            raise self.damaged(SIGN_NAME, "is not what was written")
        if found != SIGN:
            # The first backup begins here, or was killed as it began.
            os.pwrite(self._sign, SIGN, 0)
            os.fsync(self._sign)
            sync_directory(self.path.resolve().parent)
        if write:
            for folder in FOLDERS:
                make_folder(self._at(folder), shared=is_shared(self.path))
            sync_directory(self.path)

    def _at(self, name: str) -> Path:
        """Where a file is; raises BackupDamaged if that is not inside the folder."""
        try:
            return inside(self.path, name)
        except ValueError as error:
            raise self.damaged(name if name.isprintable() else repr(name), str(error)) from None

    def check_inside(self, names: Iterable[str]) -> None:
        for name in names:
            self._at(name)

    def sizes(self) -> dict[str, int]:
        with told(self.path):
            return {
                f"{folder}/{entry.name}": entry.lstat().st_size
                for folder in FOLDERS
                for entry in sorted(self._at(folder).glob("*"))
                if not entry.name.endswith(_UNFINISHED)
            }

    def read(self, name: str, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        try:
            return read_file(self._at(name), min(bytes_max, FILE_BYTES_MAX))
        except OSError as error:
            raise self.damaged(name, f"cannot be read: {error.strerror}") from error

    def add(self, name: str, data: bytes) -> None:
        path = self._at(name)
        with told(self.path), atomic_write(path, aside=self._at(name + _UNFINISHED)) as file:
            file.write(data)
        self._fresh.add(path.parent)

    def sync(self) -> None:
        with told(self.path):
            for folder in self._fresh:
                sync_directory(folder)
        self._fresh.clear()

    def keep_only(self, names: Collection[str]) -> None:
        wanted = set(names)
        with told(self.path):
            for folder in FOLDERS:
                for entry in self._at(folder).iterdir():
                    if f"{folder}/{entry.name}" not in wanted:
                        entry.unlink()

    def close(self) -> None:
        os.close(self._sign)


def _check(path: Path, *, write: bool) -> None:
    """Refuse what is not ours."""
    if path.exists() and not path.is_dir():
        raise PlaceRefused(str(path), "it is a file; backups go into a folder, or into a file whose name ends in .tar")
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    if SIGN_NAME in names:
        return
    if not write:
        raise PlaceRefused(str(path), f"it holds no backups: there is no {SIGN_NAME}")
    if names:
        raise PlaceRefused(str(path), "it holds other things than backups; name an empty folder, or a new one")
