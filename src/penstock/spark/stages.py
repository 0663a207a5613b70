"""Where a task stages, and where the driver publishes: with a server, in a store that several write, or in files.

- A server takes units and publishes them.
- PostgreSQL is opened by every task.
- An embedded store has one owner. So tasks write files beside it, under `staging/`, and the driver, when it publishes,
  owns the store, brings the files into it, and publishes from there.
"""

import os
import shutil
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final, Protocol, TypeVar

import cbor2

from penstock.errors import InvalidRequest, PenstockError, StageLost, StorageFailure, StoreInUse
from penstock.files import created, is_shared, make_folder
from penstock.history.histories import SERVED
from penstock.model import Installed, ProducerMark, Published, StagedUnit, Winner
from penstock.store import Store, open_store
from penstock.store.contract import Install, Operation, Placed, Publish, Result, Stage, Transaction, Unstage
from penstock.store.sqlite.directory import STAGING
from penstock.store.staging import size_of
from penstock.store.urls import SQLITE

REQUEST_BYTES: Final = 4 << 20
REQUEST_UNITS: Final = 1000
"""Units that are staged in one go."""
EVENT_BYTES_MAX: Final = 8 << 20
"""Bytes of one event's type, headers and body, where no server says it: as much as one takes if it is told nothing."""
SHARED: Final = (256 << 20, 100_000)
"""Bytes and units that one job may stage in a store that others write: they wait while it is published, and give up
after `LOCK_MS_MAX` (`penstock.store.postgres.connection`). A server that is told nothing has the same limits."""
OWNED: Final = (16 << 30, 4_000_000)
"""The same in a store that nobody else has open."""
OWNER_S_MAX: Final = 10.0
"""How long the driver tries to own a store: another job may be publishing there."""
OWNER_PAUSE_S: Final = 0.05
STREAM_CACHE_MAX: Final = 100_000
WAL_BYTES_MAX: Final = 32 << 20
IDLE_S_MAX: Final = 24 * 3600.0
"""How long files stay staged to which nothing is added."""
_LENGTH: Final = struct.Struct("<I")

Unit = TypeVar("Unit")


class Stages(Protocol):
    """What one job stages, and what becomes of it."""

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """Stage units of an attempt."""

    def event_bytes_max(self) -> int:
        """How many bytes the type, headers and body of an event may have."""

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        """Make history of what has won."""

    def drop(self) -> None:
        """Drop what was staged."""

    def close(self) -> None:
        """Release everything."""


def open_stages(url: str, job: str) -> Stages:
    """The stages of a job, where a URL says."""
    if url.startswith(SERVED):
        # A client takes a while to import, and is not always needed.
        from penstock.spark.served_stages import ServedStages  # noqa: PLC0415

        return ServedStages(url, job)
    return FileStages(url, job) if url.startswith(SQLITE) else StoreStages(url, job)


def portions(units: Iterable[Unit], measured: Callable[[Unit], int]) -> Iterator[list[Unit]]:
    """Units, as many at a time as are staged in one go; `measured` says how large one is."""
    held: list[Unit] = []
    size = 0
    for unit in units:
        held.append(unit)
        size += measured(unit)
        if size >= REQUEST_BYTES or len(held) >= REQUEST_UNITS:
            yield held
            held, size = [], 0
    if held:
        yield held


class StoreStages:
    """Stages in a store that is opened here. What a job may stage is said in bytes and units."""

    def __init__(self, url: str, job: str, limits: tuple[int, int] = SHARED) -> None:
        self._job = job
        self._limits = limits
        self._store: Store = open_store(url, stream_cache_max=STREAM_CACHE_MAX, wal_bytes_max=WAL_BYTES_MAX)

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """See Stages."""
        self._write(Stage(self._job, part, attempt, number, tuple(units), *self._limits))

    def event_bytes_max(self) -> int:
        """See Stages."""
        return EVENT_BYTES_MAX

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        """See Stages."""
        placed = self._write(Publish(self._job, tuple(winners), origin), mark)
        assert isinstance(placed, Placed)
        if placed.published.repeated:
            self.drop()
        return placed.published

    def install(self, op: Install) -> Installed:
        """Make chunks that are staged here the output of an iterator."""
        installed = self._write(op)
        assert isinstance(installed, Installed)
        return installed

    def drop(self) -> None:
        """See Stages."""
        self._write(Unstage(self._job))

    def close(self) -> None:
        """See Stages."""
        self._store.close()

    def _write(self, op: Operation, mark: ProducerMark | None = None) -> Result:
        (outcome,) = self._store.write([Transaction((op,), mark)])
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome[0]


class FileStages:
    """Stages in files beside an embedded store."""

    def __init__(self, url: str, job: str) -> None:
        self._url = url
        self._job = job
        self._store = Path(url.removeprefix(SQLITE))
        # A job's name may be no name for a folder.
        self._folder = self._store / STAGING / blake2b(job.encode(), digest_size=16).hexdigest()

    def stage(self, part: int, attempt: str, number: int, units: Sequence[StagedUnit]) -> None:
        """See Stages. A file has all units of an attempt, each after its length; it is synced every time."""
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
            _sync_folder(self._folder)

    def _file(self, part: int, attempt: str) -> Path:
        return self._folder / f"{part}-{attempt}"

    def event_bytes_max(self) -> int:
        """See Stages."""
        return EVENT_BYTES_MAX

    def publish(self, winners: Sequence[Winner], mark: ProducerMark, origin: str) -> Published:
        """See Stages."""
        with self._brought_in(winners) as stages:
            return stages.publish(winners, mark, origin)

    def install(self, op: Install) -> Installed:
        """Make chunks that are staged here the output of an iterator."""
        with self._brought_in(op.winners) as stages:
            return stages.install(op)

    def check_owner(self) -> None:
        """Raise InvalidRequest if somebody else owns the store now, so that nobody works in vain."""
        self._own(0.0).close()

    @contextmanager
    def _brought_in(self, winners: Sequence[Winner]) -> Iterator[StoreStages]:
        """Own the store, with what has won in it; it is not left there. The files go if all goes well."""
        self._expire()
        with closing(self._own(OWNER_S_MAX)) as stages:
            # A driver that was killed here may have left something of the same attempts.
            stages.drop()
            try:
                self._bring_in(winners, stages)
                yield stages
            except BaseException:
                with suppress(PenstockError):
                    stages.drop()
                raise
        self.drop()

    def _bring_in(self, winners: Sequence[Winner], stages: StoreStages) -> None:
        for winner in winners:
            number = 0
            for units in portions(self._units(winner), size_of):
                stages.stage(winner.part, winner.attempt, number, units)
                number += len(units)

    def _expire(self) -> None:
        """Drop what jobs have left behind whose driver was killed."""
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
            except StoreInUse as error:
                if time.monotonic() >= deadline:
                    raise _in_use(error) from error
            time.sleep(OWNER_PAUSE_S)

    def _units(self, winner: Winner) -> Iterator[StagedUnit]:
        if not winner.units:
            return
        path = self._file(winner.part, winner.attempt)
        if not path.exists():
            # Perhaps its executor has another file system than the driver.
            raise StageLost(self._job, winner.part, winner.units, 0)
        with path.open("rb") as file:
            while data := _piece(file):
                yield StagedUnit(*cbor2.loads(data))

    def drop(self) -> None:
        """See Stages."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):
            self._folder.parent.rmdir()

    def close(self) -> None:
        """See Stages."""


def _in_use(error: StoreInUse) -> InvalidRequest:
    advice = "if that is a server, write with its penstock://HOST:PORT; if it is another job, write after it"
    return InvalidRequest("option url", f"is of a store in use: {error}; {advice}")


def _piece(file: IO[bytes]) -> bytes:
    head = file.read(_LENGTH.size)
    return file.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
