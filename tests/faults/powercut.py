"""A disk that forgets what was not synced: an apsw VFS that can be cut at any write or sync.

SQLite works on real files, which play the part of the page cache. Beside them a `Disk` keeps, file by file, what a
power cut would surely leave (the content as of the last sync) and the writes and truncations since. At the cut all
I/O begins to fail, and `leave` builds the files as they could be after it: what was synced, and of everything else
a random part, torn at sectors.

A sync can be made to fail, too. Then the disk does what Linux does: a random part of what was to be synced is lost
for good, every open descriptor of the file is told once, and later syncs say nothing about it, although the page
cache still shows what is lost.
"""

# ruff: noqa: N802 - SQLite names what a VFS does
import itertools
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import apsw

from tests.faults.support import io_error

SECTOR_BYTES: Final = 512
REMEMBERED: Final = apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Truncation:
    size: int


_Change = _Write | _Truncation


@dataclass(slots=True)
class _Remembered:
    """One file: what is surely on disk, and what happened since."""

    synced: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)
    is_deleted: bool = False

    def settle(self) -> None:
        for change in self.pending:
            _carry_out(self.synced, change)
        self.pending.clear()

    def lose(self, rng: random.Random) -> None:
        """Keep a random part of what is pending, and forget the rest."""
        share = rng.choice((0.0, 0.0, 0.5, 0.9, 1.0, 1.0))
        for change in self.pending:
            for piece in _pieces(change):
                if rng.random() < share:
                    _carry_out(self.synced, piece)
        self.pending.clear()


def _carry_out(content: bytearray, change: _Change) -> None:
    match change:
        case _Write(offset, data):
            content.extend(bytes(max(0, offset - len(content))))
            content[offset : offset + len(data)] = data
        case _Truncation(size):
            del content[size:]


def _pieces(change: _Change) -> list[_Change]:
    """A write in parts that lie in one sector each: a write is torn between them."""
    if isinstance(change, _Truncation):
        return [change]
    ends = range((change.offset // SECTOR_BYTES + 1) * SECTOR_BYTES, change.offset + len(change.data), SECTOR_BYTES)
    bounds = [change.offset, *ends, change.offset + len(change.data)]
    start = change.offset
    return [_Write(a, change.data[a - start : b - start]) for a, b in itertools.pairwise(bounds)]


class Disk:
    """The disk under one store. Register its VFS by using it as a context manager; `vfs` is the name to open with.

    Writes, truncations and syncs are counted as steps. `cut_at` is the step that the power cut happens in, or of some
    disks the next sync from there on; in
    `failing_syncs` are the syncs (counted on their own) that fail.
    """

    def __init__(self, seed: int, cut_at: int | None = None, failing_syncs: frozenset[int] = frozenset()) -> None:
        self.vfs: Final = f"powercut-{next(_numbers)}"
        self.cut_at = cut_at
        self.failing_syncs = failing_syncs
        self.is_cut = False
        self.steps = 0
        self.syncs = 0
        self.failed_syncs = 0
        self._rng = random.Random(f"{seed}/disk")
        # A batch in flight can survive a cut only when it is about to be synced: that shall not be rare.
        self._waits_for_sync = self._rng.random() < 0.4
        self._lock = threading.Lock()
        self._files: dict[str, _Remembered] = {}
        self._fresh: set[str] = set()
        self._open: dict[str, list[_CutFile]] = {}

    def __enter__(self) -> Self:
        self._registered = _CutVFS(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._registered.unregister()

    def cut(self) -> None:
        """The power fails now."""
        self.is_cut = True

    def die_at_sync(self) -> None:
        """All I/O fails from the next sync on, as if the process had been killed there."""
        self.cut_at = self.steps
        self._waits_for_sync = True

    def live_again(self) -> None:
        """A new process comes to the same page cache: nothing is lost, and nothing more is synced."""
        self.cut_at = None
        self.is_cut = False

    def leave(self, directory: Path) -> None:
        """Write to a directory what the cut may have left."""
        directory.mkdir()
        with self._lock:
            for name, remembered in self._files.items():
                remembered.lose(self._rng)
                if not remembered.is_deleted or self._rng.random() < 0.5:
                    (directory / Path(name).name).write_bytes(remembered.synced)

    # -- told by the files

    def opening(self, name: str, is_journal: bool) -> None:
        with self._lock:
            self._check()
            if is_journal:
                self._fresh.add(name)
            if name not in self._files or self._files[name].is_deleted:
                self._files[name] = _Remembered()

    def opened(self, file: "_CutFile") -> None:
        with self._lock:
            self._open.setdefault(file.name, []).append(file)

    def closed(self, file: "_CutFile") -> None:
        with self._lock:
            self._open[file.name].remove(file)

    def deleted(self, name: str, is_synced: bool) -> None:
        with self._lock:
            self._check()
            if name in self._files:
                self._files[name].is_deleted = True
                if is_synced:
                    del self._files[name]

    def changes(self, name: str, change: _Change) -> None:
        with self._lock:
            self._check()
            self._files[name].pending.append(change)
            self._step(is_sync=False)

    def synced(self, file: "_CutFile") -> None:
        with self._lock:
            self._check()
            self._step(is_sync=True)
            name = file.name
            self.syncs += 1
            if self.syncs in self.failing_syncs:
                self.failed_syncs += 1
                self._files[name].lose(self._rng)
                for other in self._open[name]:
                    other.was_lost = True
            else:
                self._files[name].settle()
            if file.was_lost:
                file.was_lost = False
                raise io_error("the sync failed", apsw.SQLITE_IOERR_FSYNC)
            if name in self._fresh:
                # The first sync of a journal or WAL syncs the directory as well: what was deleted stays so.
                self._fresh.discard(name)
                self._files = {name: file for name, file in self._files.items() if not file.is_deleted}

    def check(self) -> None:
        with self._lock:
            self._check()

    def _step(self, *, is_sync: bool) -> None:
        self.steps += 1
        if self.cut_at is not None and self.steps >= self.cut_at and (is_sync or not self._waits_for_sync):
            self.is_cut = True
        self._check()

    def _check(self) -> None:
        if self.is_cut:
            raise io_error("the power is cut", apsw.SQLITE_IOERR)


class _CutVFS(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None or not flags[0] & REMEMBERED:
            return super().xOpen(name, flags)
        self._disk.opening(_text(name), not flags[0] & apsw.SQLITE_OPEN_MAIN_DB)
        return _CutFile(self._disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self._disk.deleted(filename, syncdir)
        super().xDelete(filename, syncdir)


def _text(name: str | apsw.URIFilename) -> str:
    return name if isinstance(name, str) else name.filename()


class _CutFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._disk = disk
        self.name = _text(name)
        self.was_lost = False
        super().__init__("", name, flags)
        disk.opened(self)

    def xClose(self) -> None:
        self._disk.closed(self)
        super().xClose()

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.check()
        return super().xRead(amount, offset)

    def xWrite(self, data: Any, offset: int) -> None:
        self._disk.changes(self.name, _Write(offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.changes(self.name, _Truncation(newsize))
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        # The real files stand for the page cache: syncing them would only take time.
        self._disk.synced(self)
