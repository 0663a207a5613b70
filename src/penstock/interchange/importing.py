"""From a file into a history, once, however often it is tried.

A file is read twice. The first time nothing is sent: a mistake is found before anything is imported. The second time
its events go out in batches, one transaction each, under producer marks whose name is made from what is in the file
and what was said about it. So the store itself knows how far an import has come: the same command goes on there,
after Ctrl-C, after a kill, on another machine, and adds nothing twice.
"""

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from penstock.client.blocking import Portal
from penstock.client.calls import Calls
from penstock.client.urls import transport_to
from penstock.errors import LimitExceeded, MarkSuperseded, VersionConflict
from penstock.interchange.files import BrokenFile, FileRefused
from penstock.interchange.reading import Batch, Progressed, Source, batches_of, commits_of, events_of, state_of
from penstock.interchange.rows import size_of
from penstock.model import Append, CreateLog, Done, ProducerMark, Transact, Transacted
from penstock.store.contract import LOG_CONTEXT

SCHEME: Final = 1
"""Changes with the way in which files are cut into batches: marks of another way say nothing of this one."""
NEVER: Final = 1 << 60
"""A sequence that no stream is at."""
TIMEOUT_S: Final = 30.0
"""How long one batch may take, attempts to connect again included."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What the first reading found."""

    source: Source
    producer: str
    state: tuple[int, int, int]
    events: int
    largest: tuple[Batch, ...]
    """The largest event by itself, the batch of most bytes, and the one of most events."""
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


def import_file(found: Survey, url: str, progressed: Progressed) -> Imported:
    """Import what is not imported yet. `progressed` is told how many events of the file are in the history."""
    with _sender(url) as sender:
        for batch in filter(None, found.largest):
            try:
                sender.rehearse(batch)
            except LimitExceeded as error:
                raise _placed(found, batch, error) from None
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


def _send(found: Survey, sender: "Sender", progressed: Progressed) -> Imported:
    """One batch is under way while the next is made ready."""
    events = 0
    for number, batch in enumerate(batches_of(found.source), 1):
        sender.settle()
        progressed(events)
        if number > sender.passed:
            _check_unchanged(found.source, found.state)
            sender.start(batch, ProducerMark(found.producer, number))
        events += len(batch)
    sender.settle()
    progressed(events)
    return Imported(events, sender.new_events, found.producer)


class Sender:
    """Sends batches under marks, one at a time."""

    def __init__(self, portal: Portal, calls: Calls) -> None:
        self._portal = portal
        self._calls = calls
        self._waiting: _Waiting | None = None
        self.passed = 0
        """The number of the last batch that is known to be written."""
        self.new_events = 0

    def rehearse(self, batch: Batch) -> None:
        """Ask whether a batch would be taken, and have nothing written: refused later, it would halve the import."""
        # No stream is where this wants it: so all limits are looked at first, and then it is a conflict.
        commits = tuple(replace(_elsewhere(commit), expected=NEVER) for commit in commits_of(batch))
        with suppress(VersionConflict):
            self._portal.run(self._calls.ask(Transact(commits), Transacted))

    def create_logs(self, names: tuple[str, ...]) -> None:
        """Messages need their logs to be there."""
        for name in names:
            self._portal.run(self._calls.ask(CreateLog(name), Done))

    def start(self, batch: Batch, mark: ProducerMark) -> None:
        """Send a batch; the one before must be settled."""
        request = Transact(commits_of(batch), mark=mark)
        self._waiting = _Waiting(mark.number, len(batch), self._portal.start(self._calls.ask(request, Transacted)))

    def settle(self) -> None:
        """Wait until the batch that was sent is on disk. The answer may be that it and others have been for long."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return
        try:
            transacted = self._portal.result(waiting.answer)
        except MarkSuperseded as error:
            # An earlier run of the same import, or one beside this, was here before.
            self.passed = error.highest
            return
        self.passed = waiting.number
        if not transacted.commits[0].repeated:
            self.new_events += waiting.events


class _Waiting(NamedTuple):
    """A batch that is under way."""

    number: int
    events: int
    answer: "Future[Transacted]"


def _elsewhere(commit: Append) -> Append:
    """A commit as it is; one for a log, which may not be there yet, goes to a stream."""
    return commit if commit.context != LOG_CONTEXT else replace(commit, context="import", stream="rehearsal")


@contextmanager
def _sender(url: str) -> Iterator[Sender]:
    portal = Portal()
    try:

        async def opened() -> Calls:
            calls = Calls(transport_to(url), TIMEOUT_S, retries=True)
            try:
                await calls.open()
            except BaseException:
                await calls.close()
                raise
            return calls

        calls = portal.run(opened())
        try:
            yield Sender(portal, calls)
        finally:
            portal.run(calls.close())
    finally:
        portal.close()
