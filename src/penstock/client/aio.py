"""The client, for programs that run on an event loop."""

from collections.abc import AsyncGenerator, AsyncIterable, Collection, Generator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final, Self

from penstock import model
from penstock.client import reader
from penstock.client.access import AsyncAccess
from penstock.client.bulk import BulkAppend, Commit, ManyAppended, Written
from penstock.client.calls import Calls, append_of, flattened
from penstock.client.consumers import (
    BATCH_EVENTS,
    TTL_S,
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
)
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.reader import HistoryRange
from penstock.client.staging import AsyncBuild, AsyncStaging
from penstock.client.tokens import Token
from penstock.client.transport import Channel, transport_to
from penstock.errors import EventNotFound
from penstock.model import ANY, Appended, Event, EventPage, NewEvent

TIMEOUT_S: Final = 30.0
IN_FLIGHT: Final = 256
ERASED_PAUSE_S_MIN: Final = 0.02
ERASED_PAUSE_S_MAX: Final = 1.0
"""Between two looks at erasures that are not finished. The pause doubles each time."""


class AsyncClient:
    """A client of one Penstock. `aconnect` makes it; `async with` or `await` connects it.

    Every call has a deadline (`timeout`, in seconds). The client retries within it where that is safe.
    """

    def __init__(
        self, url: str, *, token: Token | None = None, timeout: float = TIMEOUT_S, retries: bool = True
    ) -> None:
        self.url = url
        self._calls = Calls(transport_to(url, token), timeout, retries)

    @classmethod
    def _over(cls, channel: Channel, *, timeout: float, retries: bool) -> Self:
        """A client over a channel; over one that blocks, its coroutines never suspend."""
        client = cls.__new__(cls)
        client.url = channel.url
        client._calls = Calls(channel, timeout, retries)
        return client

    # -- the connection

    async def open(self) -> Self:
        """Connect, or raise CannotConnect, or NotAuthenticated if the server refuses the token."""
        try:
            await self._calls.open()
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connection and release everything. Calls that still wait for an answer fail."""
        await self._calls.close()

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_error: object) -> None:
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
        no check. Raises VersionConflict if the stream is at another version.
        """
        calls = self._calls
        return await calls.append(append_of(context, stream, events, expected, calls.producers), timeout)

    async def append_many(
        self,
        commits: Iterable[Commit] | AsyncIterable[Commit],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = None,
        written: Written | None = None,
    ) -> ManyAppended:
        """Append many commits, each (context, stream, events) or (context, stream, events, expected).

        The client sends them without waiting for one another, at most `in_flight` at once. The store writes each once.
        The client calls `written` with the number and the result of each. Raises NotAppended at the first that fails.
        """
        return await BulkAppend(self._calls, in_flight, timeout, written).run(commits)

    def transaction(self, *, timeout: float | None = None) -> AsyncTransaction:
        """Several appends, with acknowledgements and progress, all or nothing."""
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
        types: Collection[str] | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Events of a stream from sequence `start` to `end`, or down to it: of some types, at most `limit`.

        Read page by page.
        """
        sequence = start if start is not None else (0 if backward else 1)
        wanted = reader.types_of(types)
        while wanted != frozenset() and (limit is None or limit > 0):
            request = model.ReadStream(context, stream, sequence, end, limit, backward, wanted)
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
        page = await self._calls.ask(model.ReadEvent(context, stream, sequence), EventPage)
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
        """One page from a position on, of at most `limit` events. The server waits up to `wait` seconds for the first.

        Its `next` is the position to continue at. A page may be empty and not the end.
        """
        request = model.ReadAll(position, context, filter, reader.types_of(types), limit, int(1000 * wait))
        return await self._calls.ask(request, EventPage, wait=wait)

    def event_pages(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Everything from a position on: of a context, of streams that begin with `filter`, of some types.

        At most `limit` events. Read in pages.
        """
        range = HistoryRange(position, context=context, filter=filter, types=types, until=until)
        if limit is not None:
            return reader.first_pages(self._calls, range, limit)
        return reader.event_pages(self._calls, range)

    read_all = flattened(event_pages)

    def arrow_batches(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
        until: int | None = None,
    ) -> AsyncGenerator[Any, None]:
        """The same as `read_all`, as Arrow record batches."""
        range = HistoryRange(position, context=context, filter=filter, types=types, until=until)
        return reader.arrow_batches(self._calls, range)

    def followed_pages(
        self,
        position: int = 1,
        *,
        context: str | None = None,
        filter: str = "",
        types: Collection[str] | None = None,
    ) -> AsyncGenerator[list[Event], None]:
        """Everything from a position on, then new events as they arrive, without end. Read in pages."""
        range = HistoryRange(position, context=context, filter=filter, types=types)
        return reader.event_pages(self._calls, range, follow=True)

    follow = flattened(followed_pages)

    async def position_of(self, time: datetime, *, context: str, filter: str = "") -> int | None:
        """The first position of a context whose event time is at or after a time, if there is one."""
        request = model.FindPosition(context, filter, model.ticks_of_time(time))
        return (await self._calls.ask(request, model.Found)).position

    # -- consuming

    def subscription(
        self,
        name: str,
        *,
        context: str | None,
        filter: str = "",
        start: datetime | None = None,
        count: int = BATCH_EVENTS,
        follow: bool = True,
        types: Sequence[str] | None = None,
        prefixes: Sequence[str] | None = None,
    ) -> AsyncSubscription:
        """A durable subscription: the server remembers how far it is. With `follow` it waits for new events.

        With `context=None` it is to all contexts that the client may read. `types` and `prefixes` select events; they
        belong to the subscription, as `context` and `filter` do.
        """
        selection = ""
        if types is not None or prefixes is not None:
            filter, selection = model.selection_of(filter, types, prefixes)
        return AsyncSubscription(self._open_calls, name, context, filter, start, count, follow, selection)

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
        ordered: str | None = None,
        types: Sequence[str] | None = None,
        prefixes: Sequence[str] | None = None,
        retry: model.RetryPolicy | None = None,
        dead_after: int | None = None,
    ) -> AsyncQueue:
        """A queue that consumers share. A batch goes to another consumer if it is not acknowledged in `ttl` seconds.

        The rest says how a new queue works. `ordered` is "stream", or "prefix:" and a separator: then one consumer at a
        time has events of a stream, or of the streams whose names are the same before the separator, and in order.
        `types` and `prefixes` select events. `retry` says how long failed events wait, `dead_after` after how many
        deliveries they become dead letters. If the queue exists, `ordered`, `types` and `prefixes` must be the same.
        """
        selection = None
        if types is not None or prefixes is not None:
            filter, selection = model.selection_of(filter, types, prefixes)
        given = (ordered, selection, None if retry is None else retry.checked().text, dead_after)
        return AsyncQueue(self._open_calls, context, name, subscriber, filter, start, count, ttl, *given)

    # -- logs

    def log(self, name: str) -> AsyncLog:
        """A log by its name, whether it exists or not."""
        return AsyncLog(self._open_calls, name)

    def iterator(self, name: str) -> AsyncLogIterator:
        """An iterator over a log by its name, whether it exists or not."""
        return AsyncLogIterator(self._open_calls, name)

    def staging(self, job: str) -> AsyncStaging:
        """A job whose tasks stage events and publish them together; see `penstock.client.staging`."""
        return AsyncStaging(self._open_calls, job)

    def build(self, name: str) -> AsyncBuild:
        """A build of an indexed iterator's output elsewhere; see `penstock.client.staging`."""
        return AsyncBuild(self._open_calls, name)

    async def logs(self) -> list[str]:
        """The names of all logs."""
        return (await self._calls.ask(model.ListLogs(), model.Names)).names

    async def iterators(self, log: str | None = None) -> list[str]:
        """The names of all iterators, or of those of a log."""
        return (await self._calls.ask(model.ListIterators(log), model.Names)).names

    # -- erasures

    async def erase_stream(self, context: str, stream: str, *, wait: bool = False) -> int:
        """Erase all events that a stream has now; how many. When this returns, no reader gets them any more.

        With `wait` it returns when no file of the store has anything of them. A log's stream is InvalidRequest.
        """
        # The erasure names its last sequence: a retry does not erase events that were appended meanwhile.
        last = 0
        # Streams come by name, so the one of exactly this name is the first. But the filter `*` is every stream.
        request = model.ListStreams(context, stream, limit=None if stream == "*" else 1)
        async with aclosing(self._calls.list_pages(request, "name")) as pages:
            async for page in pages:
                last = next((info.events for info in page if info.name == stream), 0)
                if last or stream != "*":
                    break
        erased = await self._calls.ask(model.EraseStream(context, stream, last), model.Erased)
        if wait:
            await self.wait_erased()
        return erased.events

    async def erase_subject(self, subject: str, context: str | None = None, *, wait: bool = False) -> int:
        """Erase all events, of one context or all, whose headers name a subject; how many.

        Their headers are a JSON object in which `subject`, or `ce-subject`, is exactly this text. With `wait` it
        returns when no file of the store has anything of them.
        """
        async with aclosing(self.erase_subject_steps(subject, context)) as steps:
            events = sum([erased.events async for erased in steps])
        if wait:
            await self.wait_erased()
        return events

    async def erase_subject_steps(self, subject: str, context: str | None = None) -> AsyncGenerator[model.Erased, None]:
        """The same step by step: after each, how many events it erased, and the position up to which it searched."""
        position, head = 1, (await self.stats()).head
        while True:
            request = model.EraseSubject(subject, context, position, head)
            erased = await self._calls.ask(request, model.Erased)
            yield erased
            if erased.end:
                return
            position = erased.next

    async def wait_erased(self) -> None:
        """Return when no file of the store has anything of what was erased before this call."""
        waiting = await self._unfinished_erasures(0)
        pause = ERASED_PAUSE_S_MIN
        while waiting:
            await self._calls.pause(pause)
            pause = min(2 * pause, ERASED_PAUSE_S_MAX)
            # Erasures after the last of these were requested later.
            waiting &= await self._unfinished_erasures(min(waiting) - 1)

    async def _unfinished_erasures(self, after: int) -> set[int]:
        erasures = await self._calls.list_all(model.ListErasures(after), "id")
        return {info.id for info in erasures if info.finished is None}

    async def erasure_pages(self, *, open: bool = False) -> AsyncGenerator[list[model.ErasureInfo], None]:
        """The ledger of erasures, oldest first, or only the unfinished ones. Read in pages."""
        async with aclosing(self._calls.list_pages(model.ListErasures(), "id")) as pages:
            async for page in pages:
                yield [info for info in page if not open or info.finished is None]

    erasures = flattened(erasure_pages)

    # -- access

    @property
    def access(self) -> AsyncAccess:
        """Principals and their credentials, for administrators."""
        return AsyncAccess(self._open_calls)

    # -- inventory

    async def whoami(self) -> model.Identity:
        """Get the principal that this client is, and its grants."""
        return await self._calls.ask(model.WhoAmI(), model.Identity)

    async def stats(self) -> model.StoreStats:
        """Counts of the whole store."""
        return await self._calls.ask(model.GetStats(), model.StoreStats)

    async def contexts(self) -> list[model.ContextInfo]:
        """All contexts and what is in them."""
        return await self._calls.list_all(model.ListContexts(), "name")

    def stream_infos(self, context: str, filter: str = "") -> AsyncGenerator[list[model.StreamInfo], None]:
        """Streams of a context by name, and how many events each has. Read in pages."""
        return self._calls.list_pages(model.ListStreams(context, filter), "name")

    streams = flattened(stream_infos)

    async def queues(self) -> list[model.QueueInfo]:
        """All queues and their state. How far each is behind is counted up to a limit; see `QueueInfo`."""
        return await self._calls.list_all(model.ListQueues(), "id")

    async def subscriptions(self) -> list[model.SubscriptionInfo]:
        """All durable subscriptions and how far they are behind, counted up to a limit; see `QueueInfo`."""
        return await self._calls.list_all(model.ListSubscriptions(), "id")


def aconnect(url: str, *, token: Token | None = None, timeout: float = TIMEOUT_S, retries: bool = True) -> AsyncClient:
    """A client for an event loop: `async with aconnect(url) as client`, or `client = await aconnect(url)`.

    `token` is as for `connect`. A function that returns it runs on the loop, so it must not wait.
    """
    return AsyncClient(url, token=token, timeout=timeout, retries=retries)
