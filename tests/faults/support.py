"""What the fault tests share: a disk that fails on demand, an engine with small limits, and waiting for conditions."""

# ruff: noqa: N802 - SQLite names what a VFS does
import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import apsw
import pytest
import uvloop

from penstock.cli.maintenance import findings as verified
from penstock.engine import Engine
from penstock.errors import PenstockError
from penstock.model import ANONYMOUS, ANY, Append, Appended, Event, EventPage, ReadAll, Reply, Request, new_event
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.sqlite import SqliteReader, SqliteStore

PATIENCE_S: Final = 30.0
"""How long a test waits for a condition before it gives up. Nothing is ever expected to take this long."""

T = TypeVar("T")

_numbers = itertools.count()


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario as a server would run."""
    return uvloop.run(scenario)


def engine_on(directory: Path, **limits: Any) -> Engine:
    """An engine on a directory, with one worker unless more are asked for. Turns come late on a busy machine."""
    return Engine(store_url(directory), Settings(**{"workers": 1, "reader_wait_ms_max": 60_000, **limits}))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - of things that ring no bell
            await asyncio.sleep(0.005)


async def ask(engine: Engine, request: Request) -> Reply:
    """Carry out a request; one that is never answered fails the test."""
    async with asyncio.timeout(PATIENCE_S):
        return await engine.execute(ANONYMOUS, request)


async def append(engine: Engine, stream: str = "s", body: bytes = b"body", expected: int = ANY) -> Appended:
    """Append one event."""
    reply = await ask(engine, Append("c", stream, [new_event("made", body)], expected))
    assert isinstance(reply, Appended)
    return reply


async def append_or_error(engine: Engine, stream: str = "s", body: bytes = b"body") -> Appended | PenstockError:
    """Append one event; the error if it fails."""
    try:
        return await append(engine, stream, body)
    except PenstockError as error:
        return error


async def read_everything(engine: Engine) -> list[Event]:
    """All events, page by page."""
    events: list[Event] = []
    position = 1
    while True:
        page = await ask(engine, ReadAll(position))
        assert isinstance(page, EventPage)
        events += page.events
        position = page.next
        if page.end:
            return events


def findings(directory: Path) -> list[str]:
    """What `verify` says of a store."""
    store = SqliteReader(directory)
    try:
        return [f"{finding.where}: {finding.what}" for finding in verified(store, lambda done, total: None)]
    finally:
        store.close()


def io_error(text: str, code: int) -> apsw.IOError:
    """An error for a VFS to raise; SQLite sees the code."""
    error = apsw.IOError(text)
    vars(error)["extendedresult"] = code
    return error


class FailingDisk:
    """A VFS whose writes or syncs fail while `fails_with` says so. `vfs` is the name to open it with.

    Only what is named in `files` (endings of file names) fails. A failed sync syncs nothing.
    """

    FULL: Final = "full"
    WRITE: Final = "write"
    SYNC: Final = "sync"

    def __init__(self) -> None:
        self.vfs: Final = f"failing-{next(_numbers)}"
        self.fails_with: str | None = None
        self.files: tuple[str, ...] = (".db", "-wal")
        self.failures = 0
        self._after: tuple[int, str] | None = None

    def fails_after(self, number: int, kind: str) -> None:
        """Fail like that from then on when so many writes, or so many syncs, have succeeded."""
        self._after = number, kind

    def __enter__(self) -> Self:
        self._registered = _FailingVFS(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._registered.unregister()

    def check(self, name: str, *, is_sync: bool) -> None:
        if name.endswith(self.files) and self._after is not None and is_sync is (self._after[1] == self.SYNC):
            number, kind = self._after
            self._after = (number - 1, kind) if number > 0 else None
            self.fails_with = None if number > 0 else kind
        if not name.endswith(self.files) or self.fails_with is None:
            return
        if is_sync is (self.fails_with == self.SYNC):
            self.failures += 1
            raise self._error()

    def _error(self) -> apsw.Error:
        if self.fails_with == self.FULL:
            return apsw.FullError("no space left")
        return io_error(
            "the disk is broken", apsw.SQLITE_IOERR_FSYNC if self.fails_with == self.SYNC else apsw.SQLITE_IOERR_WRITE
        )


class _FailingVFS(apsw.VFS):
    def __init__(self, disk: FailingDisk) -> None:
        self._disk = disk
        super().__init__(disk.vfs, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return super().xOpen(name, flags)
        return _FailingFile(self._disk, name, flags)


class _FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: str | apsw.URIFilename, flags: list[int]) -> None:
        self._disk = disk
        self._name = name if isinstance(name, str) else name.filename()
        super().__init__("", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:
        self._disk.check(self._name, is_sync=False)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:
        self._disk.check(self._name, is_sync=False)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:
        self._disk.check(self._name, is_sync=True)
        super().xSync(flags)


class SlowStore:
    """Makes a store's writes wait until they are let through, on the writer's thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Event()
        self.gate = threading.Event()
        write: Callable[..., Any] = SqliteStore.write

        def slow(store: SqliteStore, transactions: Any) -> Any:
            self.entered.set()
            assert self.gate.wait(30)
            return write(store, transactions)

        monkeypatch.setattr(SqliteStore, "write", slow)
        monkeypatch.setattr(SqliteStore, "is_quick", False)

    async def taken(self) -> None:
        await until(self.entered.is_set)
