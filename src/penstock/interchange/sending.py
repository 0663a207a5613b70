"""Commits to a history under marks, a batch of them at a time, so that the history itself knows how far somebody is."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from penstock.client.calls import Calls, refusal_of
from penstock.client.sync import Portal
from penstock.client.transport import transport_to
from penstock.errors import MarkSuperseded, PenstockError, VersionConflict
from penstock.model import Append, CreateLog, Done, ProducerMark, Reply, Request, Transact, Transacted, new_event
from penstock.store.contract import LOG_CONTEXT

NEVER: Final = 1 << 60
"""A sequence that no stream is at."""
TIMEOUT_S: Final = 30.0
"""How long one batch may take, attempts to connect again included."""

R = TypeVar("R", bound=Reply)


class Sender:
    """Sends batches under marks, one at a time."""

    def __init__(self, portal: Portal, calls: Calls) -> None:
        self._portal = portal
        self._calls = calls
        self._waiting: _Waiting | None = None
        self.passed = 0
        """The number of the last batch that is known to be written."""
        self.new_events = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a batch was sent that is not settled."""
        return self._waiting is not None

    def ask(self, request: Request, kind: type[R]) -> R:
        """The reply to a request."""
        return self._portal.run(self._calls.ask(request, kind))

    def rehearse(self, commits: tuple[Append, ...]) -> None:
        """Ask whether a batch would be taken, and have nothing written: refused later, it would halve the work."""
        # No stream is where this wants it: so all limits are looked at first, and then it is a conflict.
        with suppress(VersionConflict):
            self.ask(Transact(tuple(replace(_elsewhere(commit), expected=NEVER) for commit in commits)), Transacted)

    def highest(self, producer: str) -> int | None:
        """The highest number that a producer has used, if the history knows one. Nothing is written."""
        nothing = Append("marks", "highest", (new_event("Asked", b""),), NEVER)
        try:
            self.ask(Transact((nothing,), mark=ProducerMark(producer, 0)), Transacted)
        except PenstockError as error:
            refusal = refusal_of(error)
            if isinstance(refusal, MarkSuperseded):
                return refusal.highest
            if isinstance(refusal, VersionConflict):
                return None
            raise
        raise AssertionError("a stream is where none can be")

    def create_logs(self, names: tuple[str, ...]) -> None:
        """Messages need their logs to be there."""
        for name in names:
            self.ask(CreateLog(name), Done)

    def start(self, commits: tuple[Append, ...], events: int, mark: ProducerMark) -> None:
        """Send a batch of so many events; the one before must be settled."""
        request = Transact(commits, mark=mark)
        self._waiting = _Waiting(mark.number, events, self._portal.start(self._calls.ask(request, Transacted)))

    def settle(self) -> Transacted | None:
        """Wait until the batch that was sent is on disk. The answer may be that it and others have been for long."""
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            return None
        try:
            transacted = self._portal.result(waiting.answer)
        except MarkSuperseded as error:
            # An earlier run of the same, or one beside this, was here before.
            self.passed = error.highest
            return None
        self.passed = waiting.number
        if not transacted.commits[0].repeated:
            self.new_events += waiting.events
        return transacted


class _Waiting(NamedTuple):
    """A batch that is under way."""

    number: int
    events: int
    answer: "Future[Transacted]"


def _elsewhere(commit: Append) -> Append:
    """A commit as it is; one for a log, which may not be there yet, goes to a stream."""
    return commit if commit.context != LOG_CONTEXT else replace(commit, context="import", stream="rehearsal")


@contextmanager
def sender_to(url: str) -> Iterator[Sender]:
    """A sender to what a URL names."""
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
