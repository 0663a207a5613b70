"""The client, for programs that run on an event loop."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

from penstock.client import erasing, reading
from penstock.client.builds import AsyncBuild
from penstock.client.calls import Calls
from penstock.client.commits import append_of
from penstock.client.consuming import BATCH_EVENTS, TTL_S, AsyncQueue, AsyncSubscription, AsyncTransaction
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.many import Commit, Many, ManyAppended, Written
from penstock.client.reading import Range
from penstock.client.staging import AsyncStaging
from penstock.client.urls import transport_to
from penstock.errors import EventNotFound
from penstock.model import (
    ANY,
    Appended,
    ContextInfo,
    ContextPage,
    Erased,
    ErasureInfo,
    Event,
    EventPage,
    FindPosition,
    Found,
    GetStats,
    ListContexts,
    ListIterators,
    ListLogs,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    Names,
    NewEvent,
    QueueInfo,
    QueuePage,
    ReadAll,
    ReadEvent,
    ReadStream,
    StoreStats,
    StreamInfo,
    StreamPage,
    SubscriptionInfo,
    SubscriptionPage,
    ticks_of_datetime,
)

TIMEOUT_S: Final = 30.0
IN_FLIGHT: Final = 256

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")


def flattened(
    pages: Callable[Concatenate[C, P], AsyncGenerator[list[T], None]],
) -> Callable[Concatenate[C, P], AsyncGenerator[T, None]]:
    """From pages of items to items."""

    async def items(self: C, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        async with aclosing(pages(self, *args, **kwargs)) as source:
            async for page in source:
                for item in page:
                    yield item

    items.__doc__ = pages.__doc__
    return items


class AsyncClient:
    """A client of one Penstock. Made by `aconnect`; `async with` or `await` connects it.

    Every call has a deadline (`timeout`, in seconds), and is tried again within it where that is safe.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT_S, retries: bool = True) -> None:
        self.url = url
        self._calls = Calls(transport_to(url), timeout, retries)

    # -- the connection

    async def open(self) -> Self:
        """Connect, or raise CannotConnect."""
        try:
            await self._calls.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connection; nothing is left behind. Whoever still waits for an answer is told."""
        await self._calls.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _open_calls(self) -> Calls:
        self._calls.check()
        return self._calls

    # -- writing

    async def append(
        self,
        context: str,
        stream: str,
        events: Sequence[NewEvent],
        *,
        expected: int = ANY,
        timeout: float | None = None,
    ) -> Appended:
        """Append events to a stream, all or none: on disk when this returns.

        `expected` is the sequence that the first of them must get: NEW for a stream that must not exist yet, ANY for
        no check. Raises VersionConflict if the stream is elsewhere.
        """
        return await self._calls.append(append_of(context, stream, events, expected), timeout)

    async def append_many(
        self,
        commits: Iterable[Commit] | AsyncIterable[Commit],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = None,
        written: Written | None = None,
    ) -> ManyAppended:
        """Append many commits, each (context, stream, events) or (context, stream, events, expected).

        They are sent without waiting for one another, at most `in_flight` at once, and written once each. `written` is
        told the number and the result of each. Raises NotAppended at the first that fails.
        """
        return await Many(self._calls, in_flight, timeout, written).run(commits)

    def transaction(self, *, timeout: float | None = None) -> AsyncTransaction:
        """Several appends, with acknowledgements and progress, that happen together or not at all."""
        return AsyncTransaction(self._open_calls, timeout)

    # -- reading

    async def stream_pages(
        self,
        context: str,
        stream: str,
        start: int | None = None,
        end: int | None = None,
        *,
        backward: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Events of a stream from sequence `start` to `end`, or down to it; at most `limit`. Page by page."""
        sequence = start if start is not None else (0 if backward else 1)
        while limit is None or limit > 0:
            request = ReadStream(context, stream, sequence, end, limit, backward)
            page = await self._calls.ask(request, EventPage)
            if page.events:
                yield page.events
            if page.end:
                return
            sequence = page.next
            limit = None if limit is None else limit - len(page.events)

    read_stream = flattened(stream_pages)

    async def read_event(self, context: str, stream: str, sequence: int) -> Event:
        """One event. Raises EventNotFound."""
        page = await self._calls.ask(ReadEvent(context, stream, sequence), EventPage)
        if not page.events:
            raise EventNotFound(context, stream, sequence)
        return page.events[0]

    async def read_page(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        limit: int | None = None,
        wait: float = 0.0,
    ) -> EventPage:
        """One page from a position on, of at most `limit` events. If it is empty, it waits up to `wait` seconds.

        `next` of it is where to read on. It may be empty and not the end.
        """
        request = ReadAll(position, context, filter, types, limit, int(1000 * wait))
        return await self._calls.ask(request, EventPage, wait=wait)

    async def event_pages(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Everything from a position on: of a context, of streams that begin with `filter`, of some types. In pages."""
        wanted = Range(position, context=context, filter=filter, types=types, until=until)
        async with aclosing(reading.event_pages(self._calls, wanted)) as pages:
            async for page in pages:
                yield page

    read_all = flattened(event_pages)

    async def arrow_batches(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The same as `read_all`, as Arrow record batches."""
        wanted = Range(position, context=context, filter=filter, types=types, until=until)
        async with aclosing(reading.arrow_batches(self._calls, wanted)) as batches:
            async for batch in batches:
                yield batch

    async def followed_pages(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Everything from a position on, and what comes after it as it comes, without end. In pages."""
        wanted = Range(position, context=context, filter=filter, types=types)
        async with aclosing(reading.event_pages(self._calls, wanted, follow=True)) as pages:
            async for page in pages:
                yield page

    follow = flattened(followed_pages)

    async def position_of(self, time: datetime, *, context: str, filter: str = "") -> int | None:
        """The first position of a context whose event time is at or after a time, if there is one."""
        request = FindPosition(context, filter, ticks_of_datetime(time))
        return (await self._calls.ask(request, Found)).position

    # -- consuming

    def subscription(
        self,
        name: str,
        *,
        context: str,
        filter: str = "",
        start: datetime | None = None,
        count: int = BATCH_EVENTS,
        follow: bool = True,
    ) -> AsyncSubscription:
        """A durable subscription: the server remembers how far it is. With `follow` it waits for what is to come."""
        return AsyncSubscription(self._open_calls, name, context, filter, start, count, follow)

    def queue(
        self,
        context: str,
        name: str,
        *,
        subscriber: str | None = None,
        filter: str = "",
        start: datetime | None = None,
        count: int = BATCH_EVENTS,
        ttl: float = TTL_S,
    ) -> AsyncQueue:
        """A queue that consumers share. Who does not acknowledge within `ttl` seconds loses a batch to others."""
        return AsyncQueue(self._open_calls, context, name, subscriber, filter, start, count, ttl)

    # -- logs

    def log(self, name: str) -> AsyncLog:
        """A log by its name, whether it is there or not."""
        return AsyncLog(self._open_calls, name)

    def iterator(self, name: str) -> AsyncLogIterator:
        """An iterator over a log by its name, whether it is there or not."""
        return AsyncLogIterator(self._open_calls, name)

    def staging(self, job: str) -> AsyncStaging:
        """What the tasks of a job stage, and what is published together; see `penstock.client.staging`."""
        return AsyncStaging(self._open_calls, job)

    def build(self, name: str) -> AsyncBuild:
        """A build of an indexed iterator's output elsewhere; see `penstock.client.builds`."""
        return AsyncBuild(self._open_calls, name)

    async def logs(self) -> list[str]:
        """The names of all logs."""
        return (await self._calls.ask(ListLogs(), Names)).names

    async def iterators(self, log: str | None = None) -> list[str]:
        """The names of all iterators, or of those of a log."""
        return (await self._calls.ask(ListIterators(log), Names)).names

    # -- erasing for good

    async def erase_stream(self, context: str, stream: str, *, wait: bool = False) -> int:
        """Erase all events that a stream has now; how many. Nobody can read them when this returns.

        With `wait` it returns when no file of the store has anything of them. A log's stream is InvalidRequest.
        """
        events = await erasing.erase_stream(self._calls, context, stream)
        if wait:
            await self.wait_erased()
        return events

    async def erase_subject(self, subject: str, context: str | None = None, *, wait: bool = False) -> int:
        """Erase all events, of one context or all, whose headers name a subject; how many.

        Their headers are a JSON object in which `subject`, or `ce-subject`, is exactly this text. With `wait` it
        returns when no file of the store has anything of them.
        """
        events = await erasing.erase_subject(self._calls, subject, context)
        if wait:
            await self.wait_erased()
        return events

    async def erase_subject_steps(self, subject: str, context: str | None = None) -> AsyncGenerator[Erased, None]:
        """The same step by step: after each, how many it has erased, and the position up to which it has searched."""
        async with aclosing(erasing.subject_steps(self._calls, subject, context)) as steps:
            async for erased in steps:
                yield erased

    async def wait_erased(self) -> None:
        """Return when no file of the store has anything of what was erased before this was called."""
        await erasing.gone(self._calls)

    async def erasure_pages(self, *, open: bool = False) -> AsyncGenerator[list[ErasureInfo], None]:
        """The ledger of erasures, oldest first, or those of it that are not finished. In pages."""
        async with aclosing(erasing.erasure_pages(self._calls)) as pages:
            async for page in pages:
                yield [info for info in page if not open or info.finished is None]

    erasures = flattened(erasure_pages)

    # -- what there is

    async def stats(self) -> StoreStats:
        """Counts of the whole store."""
        return await self._calls.ask(GetStats(), StoreStats)

    async def contexts(self) -> list[ContextInfo]:
        """All contexts and what is in them."""
        found: list[ContextInfo] = []
        while True:
            page = await self._calls.ask(ListContexts(found[-1].name if found else ""), ContextPage)
            found += page.contexts
            if page.end:
                return found

    async def stream_infos(self, context: str, filter: str = "") -> AsyncGenerator[list[StreamInfo], None]:
        """Streams of a context by name, and how many events each has. In pages."""
        after = ""
        while True:
            page = await self._calls.ask(ListStreams(context, filter, after), StreamPage)
            if page.streams:
                yield page.streams
                after = page.streams[-1].name
            if page.end:
                return

    streams = flattened(stream_infos)

    async def queues(self) -> list[QueueInfo]:
        """All queues and their state."""
        found: list[QueueInfo] = []
        while True:
            page = await self._calls.ask(ListQueues(found[-1].id if found else 0), QueuePage)
            found += page.queues
            if page.end:
                return found

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """All durable subscriptions and how far they are."""
        found: list[SubscriptionInfo] = []
        while True:
            page = await self._calls.ask(ListSubscriptions(found[-1].id if found else 0), SubscriptionPage)
            found += page.subscriptions
            if page.end:
                return found


def aconnect(url: str, *, timeout: float = TIMEOUT_S, retries: bool = True) -> AsyncClient:
    """A client for an event loop: `async with aconnect(url) as client`, or `client = await aconnect(url)`."""
    return AsyncClient(url, timeout=timeout, retries=retries)
