"""A lake in an object store, or any other file system that Arrow or fsspec has, by its URL.

Objects are whole or not there, so that they are written to their names at once. There is nothing like a lock: who
works on a lake holds a lease, an object with a name and a time in it, and renews it. Two who take it in the same moment
find out, because each reads it again after a while.
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from penstock.errors import LakeInUse, PlaceRefused
from penstock.lake.layout import LOCK
from penstock.lake.places import LakePlace, owner, shown_owner

LEASE_S: Final = 60.0
"""How long a lease holds after it was renewed; who finds an older one takes it over."""
RENEWAL_S: Final = 15.0
SETTLE_S: Final = 1.0
"""How long it takes until a lease that two have taken is surely that of one."""


class RemotePlace(LakePlace):
    """A place behind a URL."""

    stages_aside = False

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        super().__init__(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
        self._fs, root = _file_system(url, self.shown)
        self._root = root.rstrip("/")
        self._is_lost = threading.Event()

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    # -- reading

    def find(self, path: str) -> bytes | None:
        """See LakePlace."""
        with self.told():
            try:
                with self._fs.open_input_file(self._at(path)) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def read(self, path: str) -> Any:
        """See LakePlace."""
        with self.told():
            try:
                with self._fs.open_input_file(self._at(path)) as file:
                    return file.read_buffer()
            except FileNotFoundError:
                raise self.missing(path) from None

    def files(self) -> dict[str, int]:
        """See LakePlace."""
        selector = fs.FileSelector(self._root, recursive=True, allow_not_found=True)
        with self.told():
            found = self._fs.get_file_info(selector)
        start = len(self._root) + 1
        return {info.path[start:]: info.size for info in found if info.type == fs.FileType.File and info.path[start:]}

    # -- writing

    def replace(self, path: str, data: bytes) -> None:
        """See LakePlace."""
        if self._is_lost.is_set():
            raise LakeInUse(self.shown, shown_owner(self.find(LOCK)))
        self._put(path, data)

    def stage(self, path: str, data: Any) -> str:
        """See LakePlace."""
        self._put(path, data)
        return ""

    def _put(self, path: str, data: Any) -> None:
        with self.told():
            if not self._has_flat_names:
                self._fs.create_dir(self._at(path).rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(self._at(path)) as file:
                file.write(data)

    @property
    def _has_flat_names(self) -> bool:
        return str(self._fs.type_name) in ("s3", "gcs", "abfs")

    def publish(self, staged: Mapping[str, str]) -> None:
        """See LakePlace: they are there."""

    def swap(self, day: str, removed: set[str], staged: Mapping[str, str]) -> None:
        """See LakePlace: the others are there as well until the manifest is written."""

    def remove(self, path: str) -> None:
        """See LakePlace."""
        with self.told():
            try:
                self._fs.delete_file(self._at(path))
            except FileNotFoundError:
                return

    def clear(self) -> None:
        """See LakePlace: nothing is aside."""

    # -- having it alone

    @contextmanager
    def lock(self, what: str) -> Iterator[None]:
        """See LakePlace."""
        mine = {**owner(what), "token": uuid.uuid4().hex}
        if (holder := self.holder()) is not None:
            raise LakeInUse(self.shown, holder)
        self._renew(mine)
        time.sleep(SETTLE_S)
        if not self._has(mine):
            raise LakeInUse(self.shown, shown_owner(self.find(LOCK)))
        over = threading.Event()
        renewal = threading.Thread(target=self._keep, args=(mine, over), daemon=True)
        renewal.start()
        try:
            yield
        finally:
            over.set()
            renewal.join()
            if self._has(mine):
                self.remove(LOCK)

    def _renew(self, mine: Mapping[str, Any]) -> None:
        self._put(LOCK, json.dumps({**mine, "until": time.time() + LEASE_S}).encode())

    def _has(self, mine: Mapping[str, Any]) -> bool:
        return bool((_lease(self.find(LOCK)) or {}).get("token") == mine["token"])

    def _keep(self, mine: Mapping[str, Any], over: threading.Event) -> None:
        """Renew the lease until it is over, or was lost: then no manifest is written any more."""
        while not over.wait(RENEWAL_S):
            if not self._has(mine):
                self._is_lost.set()
                return
            self._renew(mine)

    def holder(self) -> str | None:
        """See LakePlace."""
        data = self.find(LOCK)
        lease = _lease(data)
        return shown_owner(data) if lease is not None and lease.get("until", 0) > time.time() else None


def _lease(data: bytes | None) -> dict[str, Any] | None:
    try:
        return dict(json.loads(data)) if data is not None else None
    except (ValueError, TypeError):
        return None


def _file_system(url: str, shown: str) -> tuple[Any, str]:
    """The file system that a URL means, and the path in it: Arrow's own, or fsspec's."""
    # Hadoop has a name of its own for S3.
    url = re.sub("^s3[an]://", "s3://", url)
    try:
        known, root = fs.FileSystem.from_uri(url)
        return known, str(root)
    except (pa.ArrowException, OSError, ValueError) as error:
        ours = error
    try:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415 - not everybody has it

        found, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise PlaceRefused(shown, f"no file system is known for it: {ours}; {error}") from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), path
