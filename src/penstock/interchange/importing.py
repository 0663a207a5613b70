"""From a file into a history, once, however often it is tried.

A file is read twice. The first time nothing is sent: a mistake is found before anything is imported. The second time
its events go out in batches, one transaction each, under producer marks whose name is made from what is in the file
and what was said about it. So the store itself knows how far an import has come: the same command goes on there,
after Ctrl-C, after a kill, on another machine, and adds nothing twice.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Final

from penstock.errors import LimitExceeded
from penstock.interchange.files import BrokenFile, FileRefused
from penstock.interchange.reading import Batch, Progressed, Source, batches_of, commits_of, events_of, state_of
from penstock.interchange.rows import size_of
from penstock.interchange.sending import Sender, sender_to
from penstock.model import ProducerMark
from penstock.store.contract import LOG_CONTEXT

SCHEME: Final = 1
"""Changes with the way in which files are cut into batches: marks of another way say nothing of this one."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the first reading found."""

    source: Source
    producer: str
    state: tuple[int, int, int]
    events: int
    largest: tuple[Batch, ...]
    """The largest event by itself, the batch of most bytes, and the one of most events; see `rehearsed`."""
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """What came of a file: its events, those of them that this has added, and the producer that marks them."""

    events: int
    new_events: int
    producer: str


def survey(source: Source, name: str, progressed: Progressed) -> Survey:
    """Read a file to its end and send nothing. Raises BrokenFile."""
    state = state_of(source)
    producer = _producer(source, name)
    events, largest, logs = 0, (Batch(), Batch(), Batch()), dict[str, None]()
    for batch in batches_of(source):
        events += len(batch)
        largest = _largest(*largest, batch)
        logs.update(dict.fromkeys(row.stream for row in batch if row.context == LOG_CONTEXT))
        progressed(events)
    _check_unchanged(source, state)
    return Survey(source, producer, state, events, largest, tuple(logs))


def _largest(event: Batch, heaviest: Batch, longest: Batch, batch: Batch) -> tuple[Batch, Batch, Batch]:
    heavier = max(heaviest, batch, key=lambda rows: sum(map(size_of, rows)))
    return [max((*event, *batch), key=size_of)], heavier, max(longest, batch, key=len)


def _producer(source: Source, name: str) -> str:
    """The name of an import: the same content, said to be the same, is the same import."""
    try:
        with source.path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FileRefused(source.name, (error.strerror or str(error)).lower()) from None
    said = source.defaults
    whole = json.dumps([SCHEME, content, source.format, said.context, said.stream, said.type, name])
    return f"import-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"


def _check_unchanged(source: Source, state: tuple[int, int, int]) -> None:
    if state_of(source) != state:
        raise FileRefused(source.name, "somebody has changed it while it was read; import it when it is finished")


def rehearsed(found: Survey, url: str | None) -> Survey:
    """A file of which a server was asked whether it would take the largest, if there is a server to ask.

    What was the largest is not kept: of many files it would be much. Raises BrokenFile or FileRefused.
    """
    if url is not None and found.events:
        with sender_to(url) as sender:
            _rehearse(found, sender)
    return replace(found, largest=())


def _rehearse(found: Survey, sender: Sender) -> None:
    for batch in filter(None, found.largest):
        try:
            sender.rehearse(commits_of(batch))
        except LimitExceeded as error:
            raise _placed(found, batch, error) from None


def import_file(found: Survey, url: str, progressed: Progressed) -> Imported:
    """Import what is not imported yet. `progressed` is told how many events of the file are in the history."""
    with sender_to(url) as sender:
        _rehearse(found, sender)
        sender.create_logs(found.logs)
        return _send(found, sender, progressed)


def _placed(found: Survey, batch: Batch, error: LimitExceeded) -> BrokenFile | FileRefused:
    """Where the event is that is too large: found by reading the file once more. Of many together nobody can say it."""
    if len(batch) == 1:
        defaults = replace(found.source.defaults, bytes_max=size_of(batch[0]) - 1)
        try:
            for _ in events_of(replace(found.source, defaults=defaults)):
                pass
        except BrokenFile as flaw:
            return BrokenFile(flaw.path, flaw.place, str(error))
    return FileRefused(found.source.name, f"{error}; nothing of this file was imported")


def _send(found: Survey, sender: Sender, progressed: Progressed) -> Imported:
    """One batch is under way while the next is made ready."""
    events = 0
    for number, batch in enumerate(batches_of(found.source), 1):
        sender.settle()
        progressed(events)
        if number > sender.passed:
            _check_unchanged(found.source, found.state)
            sender.start(commits_of(batch), len(batch), ProducerMark(found.producer, number))
        events += len(batch)
    sender.settle()
    progressed(events)
    return Imported(events, sender.new_events, found.producer)
