"""Exporting events to a file, whole or not at all. The same command continues an interrupted export.

An export is a snapshot: it ends at the head that the history has when it begins. It writes to `PATH.partial`, and
renames that when it is whole. From time to time it notes in `PATH.partial.json` how far it is, and how many bytes of
the file that is. The same command cuts off the bytes after those and continues. A Parquet file is made at the end, of a
stream of Arrow's (`parquet_format`).
"""

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.event_json import json_lines
from penstock.files import (
    atomic_write,
    is_replaceable,
    made_of,
    private,
    read_file,
    release,
    sealed,
    try_lock,
    unsealed,
)
from penstock.history.source import History, open_history
from penstock.interchange.formats import (
    STANDARD,
    FileRefused,
    Flaw,
    Format,
    csv_header,
    named_errors,
    refusing,
    to_cloud_lines,
    to_csv,
)
from penstock.model import Event, EventFilter
from penstock.model.times import ticks_of
from penstock.store.record import Record
from penstock.terminal import escape_document

if TYPE_CHECKING:
    # Other formats need no pyarrow.
    from penstock.interchange.parquet_format import ParquetEvents

Events = Any
"""A list of events; for Parquet, a batch of Arrow's."""
Progressed = Callable[[int, int, int], object]
"""Called with the positions done, all positions, and the events written."""
POSITION_MAX: Final = (1 << 63) - 1
STEP_EVENTS: Final = 1024
"""Events of one write."""
NOTE_BYTES: Final = 64 << 20
NOTE_S: Final = 2.0
"""An export updates its note after so many bytes or seconds."""
NOTE_BYTES_MAX: Final = 1 << 20
"""Size of the largest note that an export reads."""
PARTIAL: Final = ".partial"
NOTE: Final = ".partial.json"


@dataclass(frozen=True, slots=True)
class Selection:
    """The events to export. Positions and `since` are inclusive, `until` is not; times are in ticks."""

    context: str | None = None
    filter: str = ""
    types: tuple[str, ...] | None = None
    first: int = 1
    last: int = POSITION_MAX
    since: int | None = None
    until: int | None = None

    def begin_in(self, history: History) -> int:
        """The first position to read. For one context, the store knows where events of a time can begin."""
        if self.since is None or self.context is None:
            return self.first
        found = history.position_of(self.context, self.since)
        return POSITION_MAX if found is None else max(self.first, found)

    def includes_time(self, event: Event) -> bool:
        if self.since is None and self.until is None:
            return True
        ticks = ticks_of(event.stamp)
        return (self.since is None or ticks >= self.since) and (self.until is None or ticks < self.until)


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export: the events in the file, those of earlier runs, and the last position."""

    events: int
    resumed_events: int
    last: int


@dataclass(frozen=True, slots=True)
class ExportRange:
    """The last position and the times, in ticks, that the first run has fixed."""

    last: int
    since: int | None = None
    until: int | None = None


@dataclass(slots=True)
class ExportState:
    """How far an export is: the next position, and the events and bytes that are written."""

    next: int
    events: int
    bytes: int
    bounds: ExportRange


def export_events(
    url: str,
    path: str,
    kind: Format,
    selection: Selection,
    progressed: Progressed,
    *,
    written_times: tuple[str | None, str | None] | None = None,
    restart: bool = False,
) -> Exported:
    """Write selected events of a history into a file. After an error the same call continues, unless told to restart.

    `written_times` are since and until as the user wrote them: `1d` is another time when the export continues.
    """
    with closing(open_history(url)) as history:
        now = history.now()
        times = {} if written_times is None else dict(zip(("since", "until"), written_times, strict=True))
        identity = {
            "store": now.identity.id,
            "timeline": now.identity.timeline,
            "format": kind.value,
            "selection": {**asdict(selection), **times},
        }
        bounds = ExportRange(min(selection.last, now.head), selection.since, selection.until)
        with closing(_open_target(path, kind, identity, bounds, restart)) as target:
            state = target.state
            fixed = replace(selection, since=state.bounds.since, until=state.bounds.until)
            resumed, first, last = state.events, selection.first, state.bounds.last
            for events, following in pages(history, kind, fixed, max(state.next, fixed.begin_in(history)), last):
                target.write(events, following)
                progressed(min(following - 1, last) - first + 1, max(0, last - first + 1), state.events)
            target.finish()
            return Exported(state.events, resumed, last)


def _open_target(
    path: str, kind: Format, identity: dict[str, Any], bounds: ExportRange, restart: bool
) -> "FileTarget | PipeTarget":
    if path == STANDARD:
        return PipeTarget(sys.stdout.buffer, None, kind, bounds)
    if not is_replaceable(Path(path)):
        with refusing(path):
            return PipeTarget(open(path, "wb"), path, kind, bounds)  # noqa: PTH123 - a pipe, until we end
    # To replace a link with a file would be a surprise.
    return FileTarget(os.path.realpath(path), kind, identity, bounds, restart=restart)


def pages(history: History, kind: Format, selection: Selection, begin: int, last: int) -> Iterator[tuple[Events, int]]:
    """Selected events from one position to another, a few at a time, each with the position to continue from."""
    if begin > last:
        return
    passing = EventFilter(selection.context, selection.filter, selection.types)
    read = _read_batch if kind is Format.PARQUET else _read_events
    for records in history.records(passing, begin, last + 1):
        events, positions = read(records, passing, begin, last, selection)
        begin = records[-1].last + 1
        # A page of small events has very many. If the disk is full, one write is lost.
        for at, following in enumerate((*positions, begin)):
            yield events[at * STEP_EVENTS : (at + 1) * STEP_EVENTS], following


def _read_events(
    records: Sequence[Record], passing: EventFilter, begin: int, last: int, selection: Selection
) -> tuple[Sequence[Event], list[int]]:
    """Selected events, and the positions of those that begin another write."""
    events = [event for record in records for event in record.events(passing, begin, last)]
    if selection.since is not None or selection.until is not None:
        events = list(filter(selection.includes_time, events))
    return events, [event.position for event in events[STEP_EVENTS::STEP_EVENTS]]


def _read_batch(
    records: Sequence[Record], passing: EventFilter, begin: int, last: int, selection: Selection
) -> tuple[Any, list[int]]:
    """The same as columns of Arrow's."""
    from penstock.interchange.parquet_format import batch_of_records  # noqa: PLC0415

    batch = batch_of_records(records, passing, begin, last, selection.since, selection.until)
    return batch, batch["position"].to_numpy()[STEP_EVENTS::STEP_EVENTS].tolist()


# --- targets --------------------------------------------------------------------------------------------------


class _Target:
    """Where events go. Closed without `finish`, it keeps its part of the export for the next run, if it can."""

    def __init__(self, name: str, kind: Format, bounds: ExportRange) -> None:
        self.name = name
        self.kind = kind
        self.state = ExportState(0, 0, 0, bounds)

    def encoded(self, events: Events) -> bytes:
        """Raises FileRefused, which names the first event that the format cannot hold."""
        try:
            return _encoder(self.kind)(events)
        except Flaw as flaw:
            raise FileRefused(self.name, str(flaw)) from None


def _head(kind: Format) -> bytes:
    """The bytes before the first event."""
    if kind is Format.PARQUET:
        from penstock.interchange.parquet_format import stream_head  # noqa: PLC0415

        return stream_head()
    return csv_header() if kind is Format.CSV else b""


def _encoder(kind: Format) -> Callable[[Events], bytes]:
    if kind is Format.PARQUET:
        from penstock.interchange.parquet_format import to_stream  # noqa: PLC0415

        return to_stream
    return {Format.JSONL: json_lines, Format.CLOUDEVENTS: to_cloud_lines, Format.CSV: to_csv}[kind]


class FileTarget(_Target):
    """A file. It continues where an earlier run of the same export stopped."""

    def __init__(
        self, path: str, kind: Format, identity: dict[str, Any], bounds: ExportRange, *, restart: bool
    ) -> None:
        super().__init__(path, kind, bounds)
        self._path = Path(path)
        self._partial, self._note = Path(path + PARTIAL), Path(path + NOTE)
        self._identity = json.loads(json.dumps(identity))
        with refusing(path):
            self._file = _open_locked(self._partial)
        try:
            noted = None if restart else self._read_note()
            self.state = noted or self.state
            with refusing(path):
                if noted is None:
                    self._note.unlink(missing_ok=True)
                self._file.truncate(self.state.bytes)
                self._file.seek(self.state.bytes)
            if noted is None:
                self._append(_head(kind))
        except BaseException:
            _close_quietly(self._file)
            raise
        self._noted_bytes, self._noted_at = self.state.bytes, time.monotonic()

    def _read_note(self) -> ExportState | None:
        """The note of an earlier run, if the file has the bytes that it counts."""
        try:
            document = unsealed(read_file(self._note, NOTE_BYTES_MAX))
            export = document.pop("export")
            noted = made_of(ExportState, document)
            if not 0 <= noted.bytes <= self._partial.stat().st_size or noted.next < 1 or noted.events < 0:
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if export != self._identity:
            reason = f"{self._partial} is of another export, which was not finished; run that again, or say --anew"
            raise FileRefused(self.name, reason)
        return noted

    def write(self, events: Events, following: int) -> None:
        """Add events; `following` is the position after them."""
        self._append(self.encoded(events))
        self.state.next, self.state.events = following, self.state.events + len(events)
        now = time.monotonic()
        if self.state.bytes - self._noted_bytes >= NOTE_BYTES or now - self._noted_at >= NOTE_S:
            self._write_note()
            self._noted_bytes, self._noted_at = self.state.bytes, now

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        with refusing(self._path):
            while rest:
                rest = rest[self._file.write(rest) :]
        self.state.bytes += len(data)

    def _write_note(self) -> None:
        """Note how far the export is, after the bytes that the note counts are on disk."""
        with refusing(self._path):
            # On a full disk half a page may be there. Without it there is room for the note.
            self._file.truncate(self.state.bytes)
            os.fsync(self._file.fileno())
            with atomic_write(self._note, sync=False) as file:
                file.write(sealed({"export": self._identity, **asdict(self.state)}).encode())

    def finish(self) -> None:
        with refusing(self._path):
            os.fsync(self._file.fileno())
            if self.kind is Format.PARQUET:
                from penstock.interchange.parquet_format import parquet_of_stream  # noqa: PLC0415

                self._write_note()
                try:
                    aside = Path(f"{self._partial}.new")
                    with atomic_write(self._path, aside=aside, public=True) as file:
                        parquet_of_stream(self._partial, file)
                except Flaw as flaw:
                    reason = f"{self._partial} {flaw.reason}; say --anew to export it again"
                    raise FileRefused(self.name, reason) from None
                self._partial.unlink()
            else:
                release(self._file.fileno(), self._path)
                self._partial.replace(self._path)
            self._file.close()
        self._note.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file.closed:
            return
        # If there is no room for a note, the one before still holds.
        with suppress(FileRefused, OSError):
            if self.state.next:
                self._write_note()
            else:
                self._partial.unlink(missing_ok=True)
        _close_quietly(self._file)


class PipeTarget(_Target):
    """Standard output, which has no name and stays open, or another pipe. An export to it cannot continue."""

    def __init__(self, file: IO[bytes], name: str | None, kind: Format, bounds: ExportRange) -> None:
        super().__init__(name or "standard output", kind, bounds)
        self._file, self._name = file, name
        self._parquet: ParquetEvents | None = None
        if kind is Format.PARQUET:
            from penstock.interchange import parquet_format  # noqa: PLC0415

            with named_errors(self._name):
                self._parquet = parquet_format.ParquetEvents(file)
        else:
            self._send(_head(kind))

    def write(self, events: Events, following: int) -> None:
        if self._parquet is not None:
            with named_errors(self._name):
                self._parquet.write(events)
        else:
            data = self.encoded(events)
            self._send(for_terminal(data) if self._file.isatty() else data)
        self.state.next, self.state.events = following, self.state.events + len(events)

    def _send(self, data: bytes) -> None:
        with named_errors(self._name):
            self._file.write(data)

    def finish(self) -> None:
        with named_errors(self._name):
            if self._parquet is not None:
                self._parquet.close()
            self._file.flush()

    def close(self) -> None:
        if self._parquet is not None:
            self._parquet.abandon()
        if self._name is not None:
            _close_quietly(self._file)


def for_terminal(data: bytes) -> bytes:
    """Events with control characters escaped."""
    return escape_document(data.decode()).encode()


def _open_locked(path: Path) -> io.FileIO:
    """A file for this process alone, without a buffer, so that written bytes are in it at once."""
    file = io.FileIO(private(path, os.O_RDWR | os.O_CREAT), "r+")
    with suppress(FileNotFoundError):
        # The process that had the lock may have renamed the file: then it is a whole export.
        if try_lock(file.fileno()) and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            return file
    file.close()
    raise FileRefused(str(path), "another export is writing it")


def _close_quietly(file: IO[bytes]) -> None:
    """Close a file whose last bytes may find no room. They are not in the note."""
    with suppress(OSError):
        file.close()
