"""The client, for plain code: each call returns when it is done."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import wait
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from penstock.client.aio import IN_FLIGHT, TIMEOUT_S, AsyncClient
from penstock.client.blocking import Blocking, Portal, blocking, flattening, iterate, iterating
from penstock.client.builds import AsyncBuild
from penstock.client.consuming import (
    BATCH_EVENTS,
    TTL_S,
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    QueueBatch,
    SubscriptionBatch,
)
from penstock.client.feed import Feed
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.many import Commit, ManyAppended, Written
from penstock.client.staging import AsyncStaging
from penstock.errors import ClientClosed
from penstock.model import ANY, Appended, Event, NewEvent


class Client(Blocking[AsyncClient]):
    """A client of one Penstock. Made by `connect`; `with` closes it at the end. Threads may share it.

    Every call has a deadline (`timeout`, in seconds), and is tried again within it where that is safe.
    """

    def __init__(self, url: str, *, timeout: float = TIMEOUT_S, retries: bool = True) -> None:
        portal = Portal()
        self.url = url

        async def opened() -> AsyncClient:
            return await AsyncClient(url, timeout=timeout, retries=retries).open()

        try:
            super().__init__(portal, portal.run(opened()))
        except BaseException:
            portal.close()
            raise

    def close(self) -> None:
        """Close the connection and end the thread; nothing is left behind. Whoever still waits is told."""
        try:
            self._portal.run(self._inner.close())
        except ClientClosed:
            return
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    append = blocking(AsyncClient.append)

    def append_many(
        self,
        commits: Iterable[Commit],
        *,
        in_flight: int = IN_FLIGHT,
        timeout: float | None = None,
        written: Written | None = None,
    ) -> ManyAppended:
        """Append many commits, each (context, stream, events) or (context, stream, events, expected).

        They are sent without waiting for one another, at most `in_flight` at once, and written once each. `written` is
        told the number and the result of each, in this thread. Raises NotAppended at the first that fails.
        """
        feed = Feed(written)
        run = self._portal.start(
            self._inner.append_many(
                feed, in_flight=in_flight, timeout=timeout, written=None if written is None else feed.wrote
            )
        )
        run.add_done_callback(lambda _: feed.over())
        try:
            feed.fill(commits)
        except BaseException as error:
            if not isinstance(error, Exception):
                run.cancel()
            feed.complete()
            wait((run,))
            if not run.cancelled() and (failed := run.exception()) is not None:
                error.add_note(str(failed))
            raise
        feed.complete()
        try:
            return self._portal.result(run)
        finally:
            feed.report()

    stream_pages = iterating(AsyncClient.stream_pages)
    read_stream = flattening(AsyncClient.stream_pages)
    read_event = blocking(AsyncClient.read_event)
    read_page = blocking(AsyncClient.read_page)
    event_pages = iterating(AsyncClient.event_pages)
    read_all = flattening(AsyncClient.event_pages)
    arrow_batches = iterating(AsyncClient.arrow_batches)
    followed_pages = iterating(AsyncClient.followed_pages)
    follow = flattening(AsyncClient.followed_pages)
    position_of = blocking(AsyncClient.position_of)

    erase_stream = blocking(AsyncClient.erase_stream)
    erase_subject = blocking(AsyncClient.erase_subject)
    erase_subject_steps = iterating(AsyncClient.erase_subject_steps)
    wait_erased = blocking(AsyncClient.wait_erased)
    erasure_pages = iterating(AsyncClient.erasure_pages)
    erasures = flattening(AsyncClient.erasure_pages)

    logs = blocking(AsyncClient.logs)
    iterators = blocking(AsyncClient.iterators)
    stats = blocking(AsyncClient.stats)
    contexts = blocking(AsyncClient.contexts)
    stream_infos = iterating(AsyncClient.stream_infos)
    streams = flattening(AsyncClient.stream_infos)
    queues = blocking(AsyncClient.queues)
    subscriptions = blocking(AsyncClient.subscriptions)

    def transaction(self, *, timeout: float | None = None) -> "Transaction":
        """Several appends, with acknowledgements and progress, that happen together or not at all."""
        return Transaction(self._portal, self._inner.transaction(timeout=timeout))

    def subscription(
        self,
        name: str,
        *,
        context: str,
        filter: str = "",
        start: datetime | None = None,
        count: int = BATCH_EVENTS,
        follow: bool = True,
    ) -> "Subscription":
        """A durable subscription: the server remembers how far it is. With `follow` it waits for what is to come."""
        inner = self._inner.subscription(name, context=context, filter=filter, start=start, count=count, follow=follow)
        return Subscription(self._portal, inner)

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
    ) -> "Queue":
        """A queue that consumers share. Who does not acknowledge within `ttl` seconds loses a batch to others."""
        inner = self._inner.queue(
            context, name, subscriber=subscriber, filter=filter, start=start, count=count, ttl=ttl
        )
        return Queue(self._portal, inner)

    def log(self, name: str) -> "Log":
        """A log by its name, whether it is there or not."""
        return Log(self._portal, self._inner.log(name))

    def iterator(self, name: str) -> "LogIterator":
        """An iterator over a log by its name, whether it is there or not."""
        return LogIterator(self._portal, self._inner.iterator(name))

    def staging(self, job: str) -> "Staging":
        """What the tasks of a job stage, and what is published together; see `penstock.client.staging`."""
        return Staging(self._portal, self._inner.staging(job))

    def build(self, name: str) -> "Build":
        """A build of an indexed iterator's output elsewhere; see `penstock.client.builds`."""
        return Build(self._portal, self._inner.build(name))


class Subscription(Blocking[AsyncSubscription]):
    """A durable subscription. Iterating delivers each batch until the loop body has gone through all of it.

    Leaving the loop in the middle of a batch, or failing in it, leaves the subscription where it was: the batch comes
    again, here or elsewhere.
    """

    id = blocking(AsyncSubscription.id)
    fetch = blocking(AsyncSubscription.fetch)
    progress = blocking(AsyncSubscription.progress)
    set = blocking(AsyncSubscription.set)
    batches = iterating(AsyncSubscription.batches)

    @property
    def inner(self) -> AsyncSubscription:
        """The same for event loops."""
        return self._inner

    def __iter__(self) -> Iterator[Event]:
        for batch in iterate(self._portal, self._inner.batches()):
            yield from batch


class Queue(Blocking[AsyncQueue]):
    """A queue that consumers share: each event goes to one of them.

    `with queue.next() as batch` acknowledges the batch when the body succeeds and releases it when it fails. This is
    one consumer: it has one batch at a time, and gets the same one until that is settled. Threads that share the work
    make one each.
    """

    take = blocking(AsyncQueue.take)
    declare = blocking(AsyncQueue.declare)
    acknowledge = blocking(AsyncQueue.acknowledge)
    release = blocking(AsyncQueue.release)
    give_back = blocking(AsyncQueue.give_back)
    settle = blocking(AsyncQueue.settle)
    reset = blocking(AsyncQueue.reset)
    dead_after = blocking(AsyncQueue.dead_after)
    dead_letters = blocking(AsyncQueue.dead_letters)
    put_back = blocking(AsyncQueue.put_back)
    replay = blocking(AsyncQueue.replay)

    def next(self, wait: float = 0.0) -> "Delivery":
        """The next batch, for `with`; empty if there is nothing within `wait` seconds."""
        return Delivery(self, wait)


class Delivery:
    """One batch of a queue, held while the body of a `with` works on it."""

    def __init__(self, queue: Queue, wait: float) -> None:
        self._queue = queue
        self._wait = wait

    def __enter__(self) -> QueueBatch:
        self._batch: QueueBatch = self._queue.take(self._wait)
        return self._batch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.settle(self._batch, error)


class Transaction(Blocking[AsyncTransaction]):
    """Appends together with what they were made from: all or nothing, when the `with` ends without an error."""

    commit = blocking(AsyncTransaction.commit)

    @property
    def result(self) -> list[Appended]:
        """What came of the appends, in their order, once it is committed."""
        return self._inner.result

    def append(self, context: str, stream: str, events: Sequence[NewEvent], *, expected: int = ANY) -> None:
        """Append events to a stream, as part of this."""
        self._inner.append(context, stream, events, expected=expected)

    def acknowledge(self, batch: QueueBatch) -> None:
        """Acknowledge a queue's batch, as part of this."""
        self._inner.acknowledge(batch)

    def progress(self, subscription: Subscription, batch: SubscriptionBatch) -> None:
        """Progress a subscription past a batch, as part of this."""
        self._inner.progress(subscription.inner, batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.run(self._inner.__aexit__(kind, error, trace))


class Log(Blocking[AsyncLog]):
    """A named log. Its messages are Python values, which travel and are kept as CBOR."""

    create = blocking(AsyncLog.create)
    delete = blocking(AsyncLog.delete)
    show = blocking(AsyncLog.show)
    append = blocking(AsyncLog.append)


class Staging(Blocking[AsyncStaging]):
    """What one job stages."""

    stage = blocking(AsyncStaging.stage)
    publish = blocking(AsyncStaging.publish)
    drop = blocking(AsyncStaging.drop)


class Build(Blocking[AsyncBuild]):
    """A build of an indexed iterator."""

    begin = blocking(AsyncBuild.begin)
    messages = blocking(AsyncBuild.messages)
    position = blocking(AsyncBuild.position)
    stage = blocking(AsyncBuild.stage)
    install = blocking(AsyncBuild.install)
    drop = blocking(AsyncBuild.drop)


class LogIterator(Blocking[AsyncLogIterator]):
    """A function over the messages of a log, run by the server: map, filter or reduce."""

    create = blocking(AsyncLogIterator.create)
    delete = blocking(AsyncLogIterator.delete)
    show = blocking(AsyncLogIterator.show)
    next = blocking(AsyncLogIterator.next)
    pages = iterating(AsyncLogIterator.pages)

    def __iter__(self) -> Iterator[Any]:
        for page in iterate(self._portal, self._inner.pages()):
            yield from page


def connect(url: str, *, timeout: float = TIMEOUT_S, retries: bool = True) -> Client:
    """A client: `with connect(url) as client`. Raises BadUrl, or CannotConnect within `timeout` seconds."""
    return Client(url, timeout=timeout, retries=retries)
