"""Importing files, exactly once, however often an import runs.

An import reads a file twice. The first time it sends nothing, and finds mistakes before any event is imported. The
second time it sends the events in batches, one transaction each, under producer marks named for the content of the file
and the options. So the store knows how far an import is: the same command continues there, after Ctrl-C, after a kill,
on another machine, and adds no event twice. For that a file must have the same batches each time.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import IO, Final

from penstock.cloudevents import Incoming
from penstock.errors import LimitExceeded
from penstock.event_json import Defaults, size_of
from penstock.interchange.formats import (
    BrokenFile,
    FileRefused,
    Flaw,
    Format,
    from_cloud_lines,
    from_csv,
    from_json_lines,
    refusing,
)
from penstock.interchange.sender import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, open_sender
from penstock.model import ANY, Append, ProducerMark
from penstock.model.chunks import chunked
from penstock.store.contract import LOG_CONTEXT

SCHEME: Final = 1
"""Version of the way to cut files into batches: marks of another version do not apply."""

_READERS: Final[dict[Format, Callable[[IO[bytes], Defaults], Iterator[Incoming]]]] = {
    Format.JSONL: from_json_lines,
    Format.CLOUDEVENTS: from_cloud_lines,
    Format.CSV: from_csv,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import: its name for people, its path and format, and the defaults of its events."""

    name: str
    path: Path
    format: Format
    defaults: Defaults


Batch = list[Incoming]
Progressed = Callable[[int], object]
"""Called with the number of events so far."""


def events_of(source: Source) -> Iterator[Incoming]:
    """Raises BrokenFile or FileRefused."""
    try:
        with refusing(source.name):
            if source.format is Format.PARQUET:
                # Other formats need no pyarrow.
                from penstock.interchange.parquet_format import from_parquet  # noqa: PLC0415

                yield from from_parquet(source.path, source.defaults)
            else:
                with source.path.open("rb") as file:
                    yield from _READERS[source.format](file, source.defaults)
    except Flaw as flaw:
        raise BrokenFile(source.name, flaw.place, flaw.reason) from None


def batches_of(source: Source) -> Iterator[Batch]:
    return chunked(events_of(source), size_of, BATCH_BYTES_MAX, BATCH_EVENTS_MAX)


def commits_of(batch: Batch) -> tuple[Append, ...]:
    """A batch as commits, in its order. A run of events of one stream is one commit."""
    return tuple(
        Append(context, stream, tuple(row.event for row in rows), ANY)
        for (context, stream), rows in groupby(batch, key=lambda row: (row.context, row.stream))
    )


def state_of(source: Source) -> tuple[int, int, int]:
    """Values that change when a program writes to a file. Raises FileRefused."""
    with refusing(source.name):
        found = source.path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of the first reading."""

    source: Source
    producer: str
    state: tuple[int, int, int]
    events: int
    largest: tuple[Batch, ...]
    """The largest event alone, the batch of most bytes, and the batch of most events; see `rehearsed`."""
    logs: tuple[str, ...]


def survey(source: Source, name: str, progressed: Progressed) -> Survey:
    """Read a file to its end without sending. Raises BrokenFile or FileRefused."""
    state = state_of(source)
    producer = _producer(source, name)
    events, largest, logs = 0, (Batch(), Batch(), Batch()), dict[str, None]()
    for batch in batches_of(source):
        events += len(batch)
        event, heaviest, longest = largest
        heavier = max(heaviest, batch, key=lambda rows: sum(map(size_of, rows)))
        largest = [max((*event, *batch), key=size_of)], heavier, max(longest, batch, key=len)
        logs.update(dict.fromkeys(row.stream for row in batch if row.context == LOG_CONTEXT))
        progressed(events)
    _check_unchanged(source, state)
    return Survey(source, producer, state, events, largest, tuple(logs))


def _producer(source: Source, name: str) -> str:
    """The name of an import: the same content under the same options is the same import."""
    with refusing(source.name), source.path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    defaults = source.defaults
    whole = json.dumps([SCHEME, content, source.format, defaults.context, defaults.stream, defaults.type, name])
    return f"import-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def _check_unchanged(source: Source, state: tuple[int, int, int]) -> None:
    if state_of(source) != state:
        raise FileRefused(
            source.name, "another program changed it during the import; import it again when it is finished"
        )


def rehearsed(found: Survey, url: str | None) -> Survey:
    """Ask a server, if a URL is given, whether it would take the largest batches. Raises BrokenFile or FileRefused.

    The result is without those batches: of many files they would fill the memory.
    """
    if url is not None and found.events:
        with open_sender(url) as sender:
            for batch in filter(None, found.largest):
                try:
                    sender.rehearse(commits_of(batch))
                except LimitExceeded as error:
                    raise _placed(found, batch, error) from None
    return replace(found, largest=())


def import_file(found: Survey, url: str, progressed: Progressed) -> int:
    """Import the events that are not imported yet, and return their number."""
    with open_sender(url) as sender:
        sender.create_logs(found.logs)
        events = 0
        # One batch is in flight while the next one is read.
        for number, batch in enumerate(batches_of(found.source), 1):
            sender.settle()
            progressed(events)
            if number > sender.passed:
                _check_unchanged(found.source, found.state)
                sender.start(commits_of(batch), len(batch), ProducerMark(found.producer, number))
            events += len(batch)
        sender.settle()
        progressed(events)
        return sender.new_events


def _placed(found: Survey, batch: Batch, error: LimitExceeded) -> BrokenFile | FileRefused:
    """The error with the place of the event that is too large, which another reading finds."""
    if len(batch) == 1:
        defaults = replace(found.source.defaults, bytes_max=size_of(batch[0]) - 1)
        try:
            for _ in events_of(replace(found.source, defaults=defaults)):
                pass
        except BrokenFile as flaw:
            return BrokenFile(flaw.path, flaw.place, str(error))
    return FileRefused(found.source.name, f"{error}; nothing of this file was imported")
