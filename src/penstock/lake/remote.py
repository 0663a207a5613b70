"""A lake in an object store, or in another file system of Arrow or fsspec, by its URL.

An object is there as a whole or not at all: small ones are replaced by writing them; files are temporary first and then
copied to their names. Other file systems show half-written files, so there every file is temporary and then moved.
There are no locks: a process that works on a lake holds a lease, a file with its name and a time, and renews it. If two
take it at the same moment, each reads it again after a while, and one of them sees that it lost. A process that cannot
renew the lease in time changes nothing more.
"""

import json
import math
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import LakeDamaged, LakeInUse, PenstockError, PlaceRefused, StoreError
from penstock.files import flaw_of, parsed
from penstock.lake.manifests import ASIDE, LOCK, OWN, STAGED
from penstock.lake.places import LakePlace, aside_name, owner, parts_of, shown_owner

LEASE_S: Final = 60.0
"""How long a lease holds after its renewal. Any process may take over an older one."""
RENEWAL_S: Final = 15.0
SETTLE_S: Final = 1.0
"""How long a process waits before it reads its new lease again."""
_OBJECTS: Final = ("s3", "gcs", "abfs")
"""Object stores, by Arrow's names."""


class RemotePlace(LakePlace):
    is_everywhere = True

    def __init__(self, url: str) -> None:
        parts = parts_of(url)
        super().__init__(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
        self._fs, root = _file_system(url, self.shown)
        self._root = root.rstrip("/")
        self._has_objects = str(self._fs.type_name) in _OBJECTS
        self._until = math.inf
        """When the lease expires, by the monotonic clock."""

    def _at(self, path: str) -> str:
        """The address of a path of the lake. Raises LakeDamaged if that is not inside it."""
        if (reason := flaw_of(path)) is not None:
            raise LakeDamaged(self.shown, repr(path), reason)
        return f"{self._root}/{path}"

    def check_inside(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._at(path)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """See LakePlace. File systems of libraries have other errors than OSError."""
        try:
            with super().translated_errors():
                yield
        except PenstockError:
            raise
        except Exception as error:
            raise StoreError(f"{self.shown}: {_line(error)}") from error

    # -- reading

    def find(self, path: str) -> bytes | None:
        with self.translated_errors():
            try:
                with self._fs.open_input_file(self._at(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def _open(self, path: str) -> Any:
        return self._fs.open_input_file(self._at(path))

    def files(self) -> dict[str, int]:
        found = self._files_in("")
        return {path: size for path, size in found.items() if not path.startswith(f"{OWN}/")}

    def _files_in(self, folder: str) -> dict[str, int]:
        at = self._at(folder) if folder else self._root
        selector = fs.FileSelector(at, recursive=True, allow_not_found=True)
        with self.translated_errors():
            found = self._fs.get_file_info(selector)
        start = len(self._root) + 1
        return {info.path[start:]: info.size for info in found if info.type == fs.FileType.File and info.path[start:]}

    # -- writing

    def replace(self, path: str, data: bytes) -> None:
        self._check_lease()
        self._set(path, data, aside_name())

    def publish(self, staged: Mapping[str, str]) -> None:
        self._check_lease()
        with self.translated_errors():
            for path, aside in staged.items():
                if self._is_there(aside):
                    self._take(aside, path)
                elif not self._is_there(path):
                    raise self.missing(aside)

    def swap(self, day: str, removed: set[str], staged: Mapping[str, str]) -> None:  # noqa: ARG002 - both are there
        """See LakePlace. The old files stay until the manifest is written."""
        self.publish(staged)

    def remove(self, path: str) -> None:
        self._check_lease()
        self._delete(path)

    def clear(self) -> None:
        for path in self._files_in(ASIDE):
            self.remove(path)

    def _set(self, path: str, data: bytes, aside: str) -> None:
        with self.translated_errors():
            if self._has_objects:
                self._write(path, data)
            else:
                self._write(aside, data)
                self._take(aside, path)

    def _write(self, path: str, data: Any) -> None:
        self._make_folder(path)
        with self._fs.open_output_stream(self._at(path)) as file:
            file.write(data)

    def _take(self, aside: str, path: str) -> None:
        """Give a temporary file its name. A temporary object stays until `clear`."""
        if self._has_objects:
            self._fs.copy_file(self._at(aside), self._at(path))
            return
        self._make_folder(path)
        try:
            self._fs.move(self._at(aside), self._at(path))
        except OSError:
            if not (self._is_there(aside) and self._is_there(path)):
                raise
            # Some file systems, such as HDFS, cannot rename onto an existing file.
            self._delete(path)
            self._fs.move(self._at(aside), self._at(path))

    def _make_folder(self, path: str) -> None:
        if not self._has_objects:
            self._fs.create_dir(self._at(path).rpartition("/")[0], recursive=True)

    def _is_there(self, path: str) -> bool:
        return bool(self._fs.get_file_info(self._at(path)).type == fs.FileType.File)

    def _delete(self, path: str) -> None:
        with self.translated_errors(), suppress(FileNotFoundError):
            self._fs.delete_file(self._at(path))

    # -- the lease

    @contextmanager
    def locked(self, what: str) -> Iterator[None]:
        mine = {**owner(what), "token": uuid.uuid4().hex}
        if (holder := self.holder()) is not None:
            raise LakeInUse(self.shown, holder)
        self._renew(mine)
        over = threading.Event()
        renewal = threading.Thread(target=self._keep, args=(mine, over), daemon=True)
        try:
            time.sleep(SETTLE_S)
            if not self._has(mine):
                raise LakeInUse(self.shown, shown_owner(self.find(LOCK)))
            renewal.start()
            yield
        finally:
            over.set()
            if renewal.is_alive():
                renewal.join()
            self._until = math.inf
            # If this fails, the lease expires.
            with suppress(PenstockError):
                if self._has(mine):
                    self._delete(LOCK)

    def _renew(self, mine: Mapping[str, Any]) -> None:
        began = time.monotonic()
        # Whole seconds: a concurrent reader may get as many bytes as the old lease had.
        lease = json.dumps({**mine, "until": math.ceil(time.time() + LEASE_S)}).encode()
        self._set(LOCK, lease, f"{LOCK}.{mine['token']}{STAGED}")
        self._until = began + LEASE_S

    def _has(self, mine: Mapping[str, Any]) -> bool:
        return bool((_lease(self.find(LOCK)) or {}).get("token") == mine["token"])

    def _keep(self, mine: Mapping[str, Any], over: threading.Event) -> None:
        """Renew the lease until it is over, lost or expired. Failures are retried while it holds."""
        while not over.wait(RENEWAL_S) and time.monotonic() < self._until:
            with suppress(PenstockError):
                if not self._has(mine):
                    self._until = -math.inf
                    return
                self._renew(mine)

    def _check_lease(self) -> None:
        if time.monotonic() < self._until:
            return
        if (holder := self.holder()) is not None:
            raise LakeInUse(self.shown, holder)
        raise StoreError(f"{self.shown}: the lease on it could not be renewed. Nothing is lost; run this again")

    def holder(self) -> str | None:
        data = self.find(LOCK)
        lease = _lease(data)
        return shown_owner(data) if lease is not None and lease.get("until", 0) > time.time() else None


def _line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _lease(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = None if data is None else dict(parsed(data))
    except (ValueError, TypeError):
        return None
    # A file of another program is no lease.
    return found if found is not None and isinstance(found.get("until"), int | float) else None


def _file_system(url: str, shown: str) -> tuple[Any, str]:
    """The file system of a URL, Arrow's or fsspec's, and the path in it."""
    # Hadoop has other names for S3.
    url = re.sub("^s3[an]://", "s3://", url)
    try:
        known, root = fs.FileSystem.from_uri(url)
        return known, str(root)
    except (pa.ArrowException, OSError, ValueError) as error:
        ours = error
    try:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - not everybody has it

        found, path = fsspec.core.url_to_fs(url)
        if not isinstance(path, str):
            raise PlaceRefused(shown, "it is more than one place")
    except PenstockError:
        raise
    except Exception as error:
        # Each file system has its own errors, and the URL may have a password in it.
        reason = f"no file system is known for it: {_line(ours)}; {_line(error)}"
        raise PlaceRefused(shown, reason.replace(url, shown)) from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path
