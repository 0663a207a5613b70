"""Importing files, exactly once, however often an import runs.

An import reads a file twice. The first time it sends nothing, and finds mistakes before any event is imported. The
second time it sends the events in batches, one transaction each, under producer marks named for the content of the file
and the options. So the store knows how far an import is: the same command continues there, after Ctrl-C, after a kill,
on another machine, and adds no event twice. For that a file must have the same batches each time.

To parse is what takes long. So the first reading keeps the batches of files that are not too large in a temporary file,
and the second one takes them from there.
"""

import hashlib
import json
import marshal
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from penstock.errors import LimitExceeded
from penstock.event_json import Defaults
from penstock.interchange.blocks import Block, batches
from penstock.interchange.formats import (
    BrokenFile,
    FileRefused,
    Flaw,
    Format,
    cloud_blocks,
    csv_blocks,
    json_blocks,
    refusing,
)
from penstock.interchange.sender import BATCH_BYTES_MAX, BATCH_EVENTS_MAX, open_sender
from penstock.model import ANY, LOG_CONTEXT, Append, ProducerMark
from penstock.model.columns import Columns

SCHEME: Final = 1
"""Version of the way to cut files into batches: marks of another version do not apply."""
SPOOL_BYTES_MAX: Final = 256 << 20
"""Bytes of events in the temporary file. Larger files are parsed twice."""

_READERS: Final[dict[Format, Callable[[IO[bytes], Defaults], Iterator[Block]]]] = {
    Format.JSONL: json_blocks,
    Format.CLOUDEVENTS: cloud_blocks,
    Format.CSV: csv_blocks,
}


@dataclass(frozen=True, slots=True)
class Source:
    """A file to import: its name for people, its path and format, and the defaults of its events."""

    name: str
    path: Path
    format: Format
    defaults: Defaults


Progressed = Callable[[int], object]
"""Called with the number of events so far."""


def blocks_of(source: Source) -> Iterator[Block]:
    """Raises BrokenFile or FileRefused."""
    try:
        with refusing(source.name):
            if source.format is Format.PARQUET:
                # Other formats need no pyarrow.
                from penstock.interchange.parquet_format import parquet_blocks  # noqa: PLC0415

                yield from parquet_blocks(source.path, source.defaults)
            else:
                with source.path.open("rb") as file:
                    yield from _READERS[source.format](file, source.defaults)
    except Flaw as flaw:
        raise BrokenFile(source.name, flaw.place, flaw.reason) from None


def batches_of(source: Source) -> Iterator[Block]:
    return batches(blocks_of(source), BATCH_BYTES_MAX, BATCH_EVENTS_MAX)


def state_of(source: Source) -> tuple[int, int, int]:
    """Values that change when a program writes to a file. Raises FileRefused."""
    with refusing(source.name):
        found = source.path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


class Spool:
    """Batches that are ready to be sent, of all files of a command, in a temporary file that has no name."""

    def __init__(self) -> None:
        self._file = TemporaryFile(prefix="penstock-import-")  # noqa: SIM115 - closed with this

    def keep(self, commits: Sequence[Append]) -> int | None:
        """Keep a batch and return where; None if there is no room."""
        at = self._file.seek(0, os.SEEK_END)
        if at + sum(each.columns().size for each in commits) > SPOOL_BYTES_MAX:
            return None
        try:
            marshal.dump([(each.context, each.stream, tuple(each.columns())) for each in commits], self._file)
            self._file.flush()
        except OSError:
            # Half a batch at the end of the file is not read.
            return None
        return at

    def commits(self, at: int) -> tuple[Append, ...]:
        """The batch that is kept at a place."""
        self._file.seek(at)
        found = marshal.load(self._file)  # noqa: S302 - only this process can write to the file
        return tuple(Append(context, stream, Columns(*columns), ANY) for context, stream, columns in found)

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()


@dataclass(frozen=True, slots=True)
class Survey:
    """Result of the first reading."""

    source: Source
    producer: str
    state: tuple[int, int, int]
    events: int
    largest: tuple[Block, ...]
    """The largest event alone, the batch of most bytes, and the batch of most events; see `rehearsed`."""
    logs: tuple[str, ...]
    kept: tuple[int, ...] | None = None
    """Where the spool has the batches of the file, if it has them all."""


def survey(source: Source, name: str, progressed: Progressed, spool: Spool | None = None) -> Survey:
    """Read a file to its end without sending. Raises BrokenFile or FileRefused."""
    state = state_of(source)
    producer = _producer(source, name)
    events, logs = 0, dict[str, None]()
    event = heaviest = longest = Block.empty()
    kept: list[int] = []
    for batch in batches_of(source):
        events += len(batch.sizes)
        if max(batch.sizes) > sum(event.sizes):
            at = batch.sizes.index(max(batch.sizes))
            event = batch.part(at, at + 1)
        heaviest = max(heaviest, batch, key=lambda block: sum(block.sizes))
        longest = max(longest, batch, key=lambda block: len(block.sizes))
        if LOG_CONTEXT in batch.contexts:
            places = zip(batch.contexts, batch.streams, strict=True)
            logs.update(dict.fromkeys(stream for context, stream in places if context == LOG_CONTEXT))
        if spool is not None:
            place = spool.keep(batch.commits())
            if place is None:
                # Without room for all batches, the others are of no use.
                spool = None
            else:
                kept.append(place)
        progressed(events)
    _check_unchanged(source, state)
    all_kept = None if spool is None else tuple(kept)
    return Survey(source, producer, state, events, (event, heaviest, longest), tuple(logs), all_kept)


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
            for batch in found.largest:
                try:
                    sender.rehearse(batch.commits())
                except LimitExceeded as error:
                    raise _placed(found, batch, error) from None
    return replace(found, largest=())


def import_file(found: Survey, url: str, progressed: Progressed, spool: Spool | None = None) -> int:
    """Import the events that are not imported yet, and return their number."""
    with open_sender(url) as sender:
        sender.create_logs(found.logs)
        events = 0
        # One batch is in flight while the next one is read.
        for number, commits in enumerate(_commits(found, spool), 1):
            count = sum(each.columns().length for each in commits)
            sender.settle()
            progressed(events)
            if number > sender.passed:
                _check_unchanged(found.source, found.state)
                sender.start(commits, count, ProducerMark(found.producer, number))
            events += count
        sender.settle()
        progressed(events)
        return sender.new_events


def _commits(found: Survey, spool: Spool | None) -> Iterator[tuple[Append, ...]]:
    """The commits of each batch."""
    if spool is not None and found.kept is not None:
        return map(spool.commits, found.kept)
    return (batch.commits() for batch in batches_of(found.source))


def _placed(found: Survey, batch: Block, error: LimitExceeded) -> BrokenFile | FileRefused:
    """The error with the place of the event that is too large, which another reading finds."""
    if len(batch.sizes) == 1:
        defaults = replace(found.source.defaults, bytes_max=batch.sizes[0] - 1)
        try:
            for _ in blocks_of(replace(found.source, defaults=defaults)):
                pass
        except BrokenFile as flaw:
            return BrokenFile(flaw.path, flaw.place, str(error))
    return FileRefused(found.source.name, f"{error}; nothing of this file was imported")
