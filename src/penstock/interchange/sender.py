"""Sending batches of commits under producer marks, so that the target store knows how far an import or replay is."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from penstock.client.calls import Calls, refusal_of
from penstock.client.sync import Portal
from penstock.client.transport import transport_to
from penstock.errors import MarkSuperseded, PenstockError, VersionConflict
from penstock.model import (
    LOG_CONTEXT,
    Append,
    CreateLog,
    Done,
    ProducerMark,
    Reply,
    Request,
    Transact,
    Transacted,
    new_event,
)

BATCH_EVENTS_MAX: Final = 1000
"""Events of one transaction. Each may be of another stream, and a transaction has at most so many commits."""
BATCH_BYTES_MAX: Final = 1 << 20
"""Bytes of one transaction. A larger event goes alone."""
NEVER: Final = 1 << 60
"""A sequence that no stream reaches."""
TIMEOUT_S: Final = 30.0
"""How long one batch may take, with all attempts to reconnect."""

R = TypeVar("R", bound=Reply)


class Sender:
    """Sends batches, one at a time."""

    def __init__(self, portal: Portal, calls: Calls) -> None:
        self._portal = portal
        self._calls = calls
        self._in_flight: _InFlightBatch | None = None
        self.passed = 0
        """The number of the last batch that is written for certain."""
        self.new_events = 0

    @property
    def has_in_flight(self) -> bool:
        return self._in_flight is not None

    def ask(self, request: Request, kind: type[R]) -> R:
        return self._portal.run(self._calls.ask(request, kind))

    def rehearse(self, commits: tuple[Append, ...]) -> None:
        """Check a batch against the server's limits without writing it. Raises LimitExceeded."""
        # The server checks limits before versions, and no stream is at this version. A log may not exist yet.
        elsewhere = Append("import", "rehearsal", (), NEVER)
        with suppress(VersionConflict):
            self.ask(
                Transact(
                    tuple(
                        replace(elsewhere if each.context == LOG_CONTEXT else each, events=each.events, expected=NEVER)
                        for each in commits
                    )
                ),
                Transacted,
            )

    def highest(self, producer: str) -> int | None:
        """The highest number of a producer's marks, if the store knows the producer. Writes nothing."""
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
        raise AssertionError("a stream is at a version that none reaches")

    def create_logs(self, names: tuple[str, ...]) -> None:
        for name in names:
            self.ask(CreateLog(name), Done)

    def start(self, commits: tuple[Append, ...], events: int, mark: ProducerMark) -> None:
        """Send a batch of so many events. Settle the one before first."""
        future = self._portal.start(self._calls.ask(Transact(commits, mark=mark), Transacted))
        self._in_flight = _InFlightBatch(mark.number, events, future)

    def settle(self) -> Transacted | None:
        """Wait until the batch in flight is on disk. None if another run had written it, and perhaps later ones."""
        batch, self._in_flight = self._in_flight, None
        if batch is None:
            return None
        try:
            transacted = self._portal.result(batch.future)
        except MarkSuperseded as error:
            self.passed = error.highest
            return None
        self.passed = batch.number
        if not transacted.commits[0].repeated:
            self.new_events += batch.events
        return transacted


class _InFlightBatch(NamedTuple):
    number: int
    events: int
    future: "Future[Transacted]"


@contextmanager
def open_sender(url: str) -> Iterator[Sender]:
    """A sender to the store or server at a URL."""
    portal = Portal()
    try:

        async def connect() -> Calls:
            calls = Calls(transport_to(url), TIMEOUT_S, retries=True)
            try:
                await calls.open()
            except BaseException:
                await calls.close()
                raise
            return calls

        calls = portal.run(connect())
        try:
            yield Sender(portal, calls)
        finally:
            portal.run(calls.close())
    finally:
        portal.close()
