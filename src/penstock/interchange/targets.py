"""Where an export goes: a file that can be gone on with, a Parquet file, or standard output."""

import errno
import io
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, cast

from penstock.files import atomic_write, made_of, private, read_file, release, sealed, try_lock, unsealed
from penstock.interchange.csvs import csv_header, to_csv
from penstock.interchange.files import FileRefused, Flaw, Format
from penstock.interchange.lines import to_cloud_lines, to_json_lines
from penstock.interchange.parquets import ParquetEvents, parquet_of_stream, stream_head, to_stream
from penstock.model import Event
from penstock.terminal import shown_document

NOTE_BYTES: Final = 64 << 20
NOTE_S: Final = 2.0
"""How much is written, and how long it takes, until it is noted how far an export is."""
NOTE_BYTES_MAX: Final = 1 << 20
"""How large a note may be that somebody else has written."""
PARTIAL: Final = ".partial"
NOTE: Final = ".partial.json"
FULL: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

Encoder = Callable[[Sequence[Event]], bytes]
_ENCODERS: Final[dict[Format, Encoder]] = {
    Format.JSONL: to_json_lines,
    Format.CLOUDEVENTS: to_cloud_lines,
    Format.CSV: to_csv,
    Format.PARQUET: to_stream,
}
_HEADS: Final[dict[Format, Callable[[], bytes]]] = {
    Format.JSONL: bytes,
    Format.CLOUDEVENTS: bytes,
    Format.CSV: csv_header,
    Format.PARQUET: stream_head,
}
"""What stands before the first event."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What an export is of: only the same one is gone on with. Times are as somebody has said them: `1d`."""

    store: str
    timeline: int
    format: str
    selection: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the first run had in mind, and whoever goes on with it keeps to: the last position, and times in ticks."""

    last: int
    since: int | None = None
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Noted:
    """How far an export is: the next position, and the events and bytes that are written."""

    next: int
    events: int
    bytes: int
    bounds: Bounds


class Target(ABC):
    """Where events go. Left without `finish`, it keeps what an export can go on with, if it can."""

    next = 0
    """The position to go on from."""
    events = 0
    """The events that are written."""
    bounds: Bounds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    @abstractmethod
    def write(self, events: Sequence[Event], following: int) -> None:
        """Add events; `following` is where those after them are."""

    @abstractmethod
    def finish(self) -> None:
        """That was all."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of everything."""


def encoded(path: str | Path, encode: Encoder, events: Sequence[Event]) -> bytes:
    """Events as bytes. Raises FileRefused, which names the first that has no place in the format."""
    try:
        return encode(events)
    except Flaw as flaw:
        raise FileRefused(str(path), str(flaw)) from None


class FileTarget(Target):
    """A file that is gone on with where an earlier export left it."""

    def __init__(self, path: str, kind: Format, identity: Identity, bounds: Bounds, *, anew: bool) -> None:
        self._path = Path(path)
        self._partial, self._note = Path(path + PARTIAL), Path(path + NOTE)
        self._kind = kind
        self._encode = _ENCODERS[kind]
        self._identity = json.loads(json.dumps(asdict(identity)))
        self.bounds = bounds
        self._bytes = 0
        with refusing(path):
            self._file = _locked(self._partial)
        try:
            self._begin(None if anew else self._noted())
        except BaseException:
            _let_go(self._file)
            raise
        self._noted_bytes, self._noted_at = self._bytes, time.monotonic()

    def _begin(self, noted: "Noted | None") -> None:
        if noted is not None:
            self.next, self.events, self._bytes, self.bounds = noted.next, noted.events, noted.bytes, noted.bounds
        with refusing(self._path):
            if noted is None:
                self._note.unlink(missing_ok=True)
            self._file.truncate(self._bytes)
            self._file.seek(self._bytes)
        if noted is None:
            self._put(_HEADS[self._kind]())

    def _noted(self) -> "Noted | None":
        """What an earlier run of the same export has noted, if the file has it."""
        try:
            document = unsealed(read_file(self._note, NOTE_BYTES_MAX))
            export = document.pop("export")
            noted = made_of(Noted, document)
            if not 0 <= noted.bytes <= self._partial.stat().st_size or noted.next < 1 or noted.events < 0:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if export != self._identity:
            reason = f"{self._partial} is of another export, which was not finished; run that again, or say --anew"
            raise FileRefused(str(self._path), reason)
        return noted

    def write(self, events: Sequence[Event], following: int) -> None:
        """See Target."""
        self._put(encoded(self._path, self._encode, events))
        self.next, self.events = following, self.events + len(events)
        now = time.monotonic()
        if self._bytes - self._noted_bytes >= NOTE_BYTES or now - self._noted_at >= NOTE_S:
            self._make_note()
            self._noted_bytes, self._noted_at = self._bytes, now

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        with refusing(self._path):
            while rest:
                rest = rest[self._file.write(rest) :]
        self._bytes += len(data)

    def _make_note(self) -> None:
        """Say how far it is; what that counts on is on the disk first."""
        note = {"export": self._identity, "next": self.next, "events": self.events, "bounds": asdict(self.bounds)}
        with refusing(self._path):
            # Half a page may be there, for which there was no room; without it there is some for the note.
            self._file.truncate(self._bytes)
            os.fsync(self._file.fileno())
            with atomic_write(self._note, sync=False) as file:
                file.write(sealed({**note, "bytes": self._bytes}).encode())

    def finish(self) -> None:
        """See Target."""
        with refusing(self._path):
            os.fsync(self._file.fileno())
            if self._kind is Format.PARQUET:
                self._make_note()
                self._make_parquet()
            else:
                release(self._file.fileno(), self._path)
                self._partial.replace(self._path)
            self._file.close()
        self._note.unlink(missing_ok=True)

    def _make_parquet(self) -> None:
        """Make the file that was asked for of what was gathered, which is of no use afterwards."""
        try:
            with atomic_write(self._path, aside=Path(f"{self._partial}.new"), public=True) as file:
                parquet_of_stream(self._partial, file)
            self._partial.unlink()
        except Flaw as flaw:
            raise FileRefused(str(self._path), f"{self._partial} {flaw.reason}; say --anew to export it anew") from None

    def leave(self) -> None:
        """See Target."""
        if self._file.closed:
            return
        # Where there is no room for a note, the one before it still holds.
        with suppress(FileRefused, OSError):
            if self.next:
                self._make_note()
            else:
                self._partial.unlink(missing_ok=True)
        _let_go(self._file)


class StreamTarget(Target):
    """Standard output, which has no name and is not ours to close, or another pipe. Nothing can be gone on with."""

    def __init__(self, file: IO[bytes], name: str | None, kind: Format, bounds: Bounds) -> None:
        self.bounds = bounds
        self._name = name
        self._pipe = file
        self._fit = for_terminal if file.isatty() else bytes
        self._file = cast("IO[bytes]", _Counted(file, name))
        self._parquet = ParquetEvents(self._file) if kind is Format.PARQUET else None
        self._encode = _ENCODERS[kind]
        if self._parquet is None:
            self._file.write(_HEADS[kind]())

    def write(self, events: Sequence[Event], following: int) -> None:
        """See Target."""
        if self._parquet is not None:
            self._parquet.write(events)
        else:
            self._file.write(self._fit(encoded(self._name or "standard output", self._encode, events)))
        self.next, self.events = following, self.events + len(events)

    def finish(self) -> None:
        """See Target."""
        if self._parquet is not None:
            self._parquet.close()
        self._file.flush()

    def leave(self) -> None:
        """See Target."""
        if self._parquet is not None:
            self._parquet.abandon()
        if self._name is not None:
            _let_go(self._pipe)


def for_terminal(data: bytes) -> bytes:
    """Events as they are written, fit for a terminal."""
    return shown_document(data.decode()).encode()


class _Counted(io.BufferedIOBase):
    """A pipe that knows how much went into it: who writes Parquet asks for that. What it refuses has its name."""

    def __init__(self, file: IO[bytes], name: str | None) -> None:
        self._inner = file
        self._name = name
        self._at = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._surely(self._inner.write, data)
        size = memoryview(data).nbytes
        self._at += size
        return size

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        self._surely(self._inner.flush)

    def _surely(self, act: Callable[..., object], *given: Any) -> None:
        try:
            act(*given)
        except OSError as error:
            error.filename = self._name
            raise

    def close(self) -> None:
        """The pipe is not ours to close."""


class refusing:  # noqa: N801 - used as a function
    """What the disk says, as FileRefused with the path that was asked for."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            reason = (error.strerror or str(error)).lower()
            rest = "; run the same command again when there is room, and it goes on" if error.errno in FULL else ""
            # A link or a pipe is in the place of a file of ours beside it.
            path = str(error.filename) if error.errno in (errno.ELOOP, errno.EINVAL) else self._path
            raise FileRefused(path, reason + rest) from None


def _locked(path: Path) -> io.FileIO:
    """A file for this process alone, as it is, without a buffer: what was written is in it, and nothing else."""
    file = io.FileIO(private(path, os.O_RDWR | os.O_CREAT), "r+")
    try:
        # Whoever had the lock may have renamed it: then it is somebody's file, and whole.
        if try_lock(file.fileno()) and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    except FileNotFoundError:
        pass
    file.close()
    raise FileRefused(str(path), "another export is writing it")


def _let_go(file: IO[bytes]) -> None:
    """Close a file whose last bytes may find no room; they are beyond what is noted."""
    with suppress(OSError):
        file.close()
