"""Where a task stages units, and where the driver publishes them: a server, a shared store, or files.

- A server stages and publishes for everyone.
- Every task opens PostgreSQL itself.
- An embedded store has one owner. So tasks write files next to it, under `staging/`. When the driver publishes, it owns
  the store, loads the files into it and publishes from there.
"""

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, Protocol, TypeVar

import cbor2

from penstock.errors import PenstockError, StageLost, StorageFailure, StoreInUse
from penstock.files import created, is_shared, make_folder, sync_directory
from penstock.history.source import SERVED
from penstock.model import Installed, ProducerMark, Published, StagedUnit, Winner
from penstock.model.chunks import chunked
from penstock.store import Store, open_store
from penstock.store.contract import Install, Operation, Placed, Publish, Result, Stage, Transaction, Unstage
from penstock.store.sqlite.directory import STAGING
from penstock.store.stages import size_of
from penstock.store.urls import SQLITE

REQUEST_BYTES: Final = 4 << 20
REQUEST_UNITS: Final = 1000
"""Size of one request to stage units."""
EVENT_BYTES_MAX: Final = 8 << 20
"""Bytes of one event's type, headers and body where no server sets the limit: a server's default."""
SHARED: Final = (256 << 20, 100_000)
"""Bytes and units that one job may stage in a store with other writers. They wait while the job is published, and give
up after `LOCK_MS_MAX` (`penstock.store.postgres.connection`). These are a server's defaults too."""
OWNED: Final = (16 << 30, 4_000_000)
"""The same in a store that no other process has open."""
OWNER_S_MAX: Final = 10.0
"""How long the driver tries to own a store while another job publishes there."""
OWNER_PAUSE_S: Final = 0.05
STREAM_CACHE_MAX: Final = 100_000
WAL_BYTES_MAX: Final = 32 << 20
IDLE_S_MAX: Final = 24 * 3600.0
"""Age at which staged files expire if no task adds to them."""
_LENGTH: Final = struct.Struct("<I")

Unit = TypeVar("Unit")


class Stages(Protocol):
    """The staged units of one job."""

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """Stage units of an attempt; the first of them has this number."""

    def event_bytes_max(self) -> int:
        """How many bytes the type, headers and body of an event may have."""
        return EVENT_BYTES_MAX

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        """Append the units of the winning attempts to the history, in one transaction."""

    def drop(self) -> None:
        """Drop what was staged."""

    def close(self) -> None:
        """Release everything."""


def open_stages(url: str, job: str) -> Stages:
    """The stages of a job in the store that a URL names."""
    if url.startswith(SERVED):
        return ServedStages(url, job)
    return FileStages(url, job) if url.startswith(SQLITE) else StoreStages(url, job)


def requests_of(units: Iterable[Unit], size_of: Callable[[Unit], int]) -> Iterator[list[Unit]]:
    """Units in lists of the size of one request."""
    return chunked(units, size_of, REQUEST_BYTES, REQUEST_UNITS)


class ServedStages(Stages):
    def __init__(self, url: str, job: str) -> None:
        from penstock.client.sync import connect  # noqa: PLC0415 - slow to import

        self._client = connect(url)
        self._staging = self._client.staging(job)

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        self._staging.stage(part, attempt, number, units)

    def event_bytes_max(self) -> int:
        return self._staging.stage(0, "asks", 0, ()).event_bytes_max

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        return self._staging.publish(winners, mark.producer, mark.number, origin=origin)

    def drop(self) -> None:
        self._staging.drop()

    def close(self) -> None:
        self._client.close()


class StoreStages(Stages):
    """Stages in a store that this process opens. `limits` are the bytes and units of one job."""

    def __init__(self, url: str, job: str, limits: tuple[int, int] = SHARED) -> None:
        self._job = job
        self._limits = limits
        self._store: Store = open_store(url, stream_cache_max=STREAM_CACHE_MAX, wal_bytes_max=WAL_BYTES_MAX)

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        self._write(Stage(self._job, part, attempt, number, tuple(units), *self._limits))

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        placed = self._write(Publish(self._job, tuple(winners), origin), mark)
        assert isinstance(placed, Placed)
        if placed.published.repeated:
            self.drop()
        return placed.published

    def install(self, op: Install) -> Installed:
        """Make the chunks staged here the output of an iterator."""
        installed = self._write(op)
        assert isinstance(installed, Installed)
        return installed

    def drop(self) -> None:
        self._write(Unstage(self._job))

    def close(self) -> None:
        self._store.close()

    def _write(self, op: Operation, mark: ProducerMark | None = None) -> Result:
        (outcome,) = self._store.write([Transaction((op,), mark)])
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome[0]


class FileStages(Stages):
    def __init__(self, url: str, job: str) -> None:
        self._url = url
        self._job = job
        self._store = Path(url.removeprefix(SQLITE))
        # A job's name may not be valid as the name of a folder.
        self._folder = self._store / STAGING / blake2b(job.encode(), digest_size=16).hexdigest()

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """See Stages. A file has all units of an attempt, each after its length, and is synced every time."""
        make_folder(self._folder, shared=is_shared(self._store))
        path = self._file(part, attempt)
        try:
            with created(path, "ab") as file:
                for unit in units:
                    data = cbor2.dumps([unit.context, unit.stream, unit.expected, unit.data, unit.keys])
                    file.write(_LENGTH.pack(len(data)) + data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageFailure(f"{path}: {error.strerror}") from error
        if not number:
            sync_directory(self._folder)

    def _file(self, part: int, attempt: str) -> Path:
        return self._folder / f"{part}-{attempt}"

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        with self._loaded(winners) as stages:
            return stages.publish(winners, mark, origin)

    def install(self, op: Install) -> Installed:
        """Make the chunks staged here the output of an iterator."""
        with self._loaded(op.winners) as stages:
            return stages.install(op)

    def check_owner(self) -> None:
        """Raise StoreInUse if another process owns the store now, so that no task works in vain."""
        self._own(0.0).close()

    @contextmanager
    def _loaded(self, winners: Sequence[Winner]) -> Iterator[StoreStages]:
        """Own the store, with the winning attempts loaded into it. Afterwards the files go, unless something failed."""
        self._expire()
        with closing(self._own(OWNER_S_MAX)) as stages:
            # A driver that was killed here may have left units of the same attempts.
            stages.drop()
            try:
                for winner in winners:
                    number = 0
                    for units in requests_of(self._units(winner), size_of):
                        stages.stage(winner.part, winner.attempt, number, units)
                        number += len(units)
                yield stages
            except BaseException:
                with suppress(PenstockError):
                    stages.drop()
                raise
        self.drop()

    def _expire(self) -> None:
        """Delete idle files of jobs whose driver was killed."""
        before = time.time() - IDLE_S_MAX
        with suppress(OSError):
            for folder in (self._store / STAGING).iterdir():
                is_idle = max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < before
                if is_idle and folder != self._folder:
                    shutil.rmtree(folder, ignore_errors=True)

    def _own(self, patience_s: float) -> StoreStages:
        deadline = time.monotonic() + patience_s
        while True:
            try:
                return StoreStages(self._url, self._job, OWNED)
            except StoreInUse:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(OWNER_PAUSE_S)

    def _units(self, winner: Winner) -> Iterator[StagedUnit]:
        if not winner.units:
            return
        path = self._file(winner.part, winner.attempt)
        if not path.exists():
            # Its executor may have another file system than the driver.
            raise StageLost(self._job, winner.part, winner.units, 0)
        with path.open("rb") as file:
            while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
                yield StagedUnit(*cbor2.loads(file.read(*_LENGTH.unpack(head))))

    def drop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()

    def close(self) -> None: ...
