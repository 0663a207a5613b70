"""The client for plain code: each call returns when it is done.

It runs the coroutines of the client for event loops. Over `penstock://` a call needs no event loop: its transport
blocks, so its coroutine never suspends. Calls that read or send ahead, and all other URLs, run on a loop in a thread.

No call is written twice: `blocking`, `iterating`, `flattening` and `wrapping` turn methods of that client into plain
ones with the same parameters and types.
"""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from types import GenericAlias
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

from penstock.client.access import AsyncAccess
from penstock.client.aio import IN_FLIGHT, TIMEOUT_S, AsyncClient
from penstock.client.blocking import BlockingTransport
from penstock.client.bulk import Commit, CommitFeed, ManyAppended, Written
from penstock.client.consumers import (
    EXTENSIONS_PER_TTL,
    AsyncQueue,
    AsyncSubscription,
    AsyncTransaction,
    QueueBatch,
    SubscriptionBatch,
)
from penstock.client.derived import derived, item_of, own_copy, redirected
from penstock.client.logs import AsyncLog, AsyncLogIterator
from penstock.client.staging import AsyncBuild, AsyncStaging
from penstock.client.tokens import Token
from penstock.client.transport import MqTransport, transport_to
from penstock.errors import ClientClosed
from penstock.interrupts import awaited
from penstock.model import ANY, Appended, NewEvent
from penstock.tcp import new_loop

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
W = TypeVar("W", bound="Blocking[Any]")

END_S_MAX: Final = 2.0
"""How long calls in flight may take to notice that the client is closed."""
LEASE_LOOK_S: Final = 1.0
"""How often a thread that extends leases looks whether there still are some."""


class Portal:
    """An event loop in a thread. A forked child cannot use it."""

    def __init__(self) -> None:
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="penstock-client", daemon=True)
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        self._thread.start()

    def run(self, work: Awaitable[R]) -> R:
        """Run something on the loop and wait for it. An interrupted wait cancels it."""
        return self.result(self.start(work))

    def start(self, work: Awaitable[R]) -> "Future[R]":
        coroutine: Coroutine[Any, Any, R] = work if asyncio.iscoroutine(work) else _coroutine_of(work)
        with self._lock:
            if not self.is_closed:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        raise ClientClosed

    def result(self, future: "Future[R]") -> R:
        try:
            return awaited(future)
        except CancelledError:
            raise ClientClosed from None
        except BaseException:
            future.cancel()
            raise

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """A plain iterator. Closing it closes the source."""
        last: asyncio.Task[Any] | None = None

        async def step() -> T:
            nonlocal last
            last = asyncio.current_task()
            return await anext(source)

        async def close() -> None:
            # An interrupted caller may have left a step running.
            if last is not None:
                last.cancel()
                await asyncio.wait({last})
            if isinstance(source, AsyncGenerator):
                await source.aclose()

        try:
            while True:
                try:
                    item = self.run(step())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if not self.is_closed:
                self.run(close())

    @property
    def is_closed(self) -> bool:
        """Whether it runs nothing any more; in a forked child it never does."""
        return self._closed or self._process != os.getpid()

    def keep(self, queue: AsyncQueue, batch: QueueBatch) -> Callable[[], object]:
        """Extend the lease of a batch until the caller calls the result."""
        keeping = self.start(queue.keep(batch))
        return lambda: self.is_closed or keeping.cancel()

    def close(self) -> None:
        """End the loop and its thread. Calls that still wait raise ClientClosed."""
        with self._lock:
            if self.is_closed:
                return
            self._closed = True
            ending = asyncio.run_coroutine_threadsafe(_end_others(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Direct:
    """Runs coroutines over a transport that blocks, in the thread of the caller."""

    def __init__(self) -> None:
        self._leases = LeaseThread(self)

    def run(self, work: Awaitable[R]) -> R:
        try:
            work.send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            result: R = done.value
            return result
        raise RuntimeError("a call waits for an event loop, and there is none")

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """A plain iterator. Closing it closes the source."""
        try:
            while True:
                try:
                    item = self.run(anext(source))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if isinstance(source, AsyncGenerator):
                self.run(source.aclose())

    def keep(self, queue: AsyncQueue, batch: QueueBatch) -> Callable[[], object]:
        """Extend the lease of a batch until the caller calls the result."""
        return self._leases.keep(queue, batch)

    def close(self) -> None:
        """Nothing runs any more. The transport is closed already."""
        self._leases.close()


class LeaseThread:
    """Extends the leases that one client holds, in a thread that ends soon after the last of them.

    An interrupt, or a fork, may come anywhere, so ending a lease takes no lock.
    """

    def __init__(self, runner: Direct) -> None:
        self._runner = runner
        self._kept: dict[int, Lease] = {}
        self._lock = threading.Lock()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._wakes = 0.0
        """When the thread looks again."""
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def keep(self, queue: AsyncQueue, batch: QueueBatch) -> Callable[[], object]:
        lease = Lease(queue, batch, monotonic() + queue.ttl / EXTENSIONS_PER_TTL)
        with self._lock:
            self._kept[id(lease)] = lease
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="penstock-client-leases", daemon=True)
                self._thread.start()
        if lease.due < self._wakes:
            self._ring()
        return partial(self._kept.pop, id(lease), None)

    def _ring(self) -> None:
        # It may ring already.
        with suppress(RuntimeError):
            self._bell.release()

    def _run(self) -> None:
        while True:
            with self._lock:
                leases = [lease for lease in list(self._kept.values()) if not lease.batch.is_settled]
                if self._closed or not leases:
                    self._thread = None
                    return
                self._wakes = min(monotonic() + LEASE_LOOK_S, *(lease.due for lease in leases))
            if (left := self._wakes - monotonic()) > 0:
                self._bell.acquire(timeout=left)
                continue
            for lease in leases:
                if lease.due <= monotonic() and id(lease) in self._kept:
                    pause = self._runner.run(lease.queue.extend_again(lease.batch))
                    lease.due = monotonic() + pause

    def close(self) -> None:
        """End the thread. Its calls have ended with the transport."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            thread = self._thread
        self._ring()
        if thread is not None:
            thread.join()


@dataclass(slots=True, eq=False)
class Lease:
    queue: AsyncQueue
    batch: QueueBatch
    due: float
    """When to extend it."""


async def _coroutine_of(work: Awaitable[R]) -> R:
    return await work


async def _end_others() -> None:
    """Give the tasks of this loop a moment to end, then cancel them."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, pending = await asyncio.wait(others, timeout=END_S_MAX)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


# --- from methods for event loops to plain ones -------------------------------------------------------------------


class Blocking(Generic[A]):
    """A plain object around one for event loops."""

    def __init__(self, runner: Portal | Direct, inner: A) -> None:
        self._runner = runner
        self._inner = inner


def blocking(method: Callable[Concatenate[A, P], Awaitable[R]]) -> Callable[Concatenate[Any, P], R]:
    """A method that waits for its result."""
    own = own_copy(method)

    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._runner.run(own(self._inner, *args, **kwargs))

    return derived(call, own)


def iterating(method: Callable[Concatenate[A, P], AsyncIterator[T]]) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that returns a plain iterator."""
    own = own_copy(method)

    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return self._runner.iterate(own(self._inner, *args, **kwargs))

    return derived(call, own, lambda kind: GenericAlias(Iterator, item_of(kind)))


def flattening(
    method: Callable[Concatenate[A, P], AsyncIterator[list[T]]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """A method that returns a plain iterator over the items of all pages."""
    own = own_copy(method)

    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return _items(self._runner.iterate(own(self._inner, *args, **kwargs)))

    return derived(call, own, lambda kind: GenericAlias(Iterator, item_of(item_of(kind))))


def _items(pages: Iterator[list[T]]) -> Iterator[T]:
    for page in pages:
        yield from page


def on_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of the client that starts tasks, and needs an event loop for them."""
    return redirected(method, lambda client: client._on_loop())


def wrapping(method: Callable[Concatenate[AsyncClient, P], A], plain: type[W]) -> Callable[Concatenate[Any, P], W]:
    """A method that returns the plain class around what the other client's method returns."""
    own = own_copy(method)

    def call(self: Blocking[AsyncClient], /, *args: P.args, **kwargs: P.kwargs) -> W:
        return plain(self._runner, own(self._inner, *args, **kwargs))

    return derived(call, own, lambda _: plain)


# --- the plain classes --------------------------------------------------------------------------------------------


class Subscription(Blocking[AsyncSubscription]):
    """A durable subscription, at least once: iterating progresses past a batch when the loop asks for the next one.

    A loop that ends or fails in the middle of a batch does not progress: the server delivers the batch again.
    """

    id = blocking(AsyncSubscription.id)
    fetch = blocking(AsyncSubscription.fetch)
    progress = blocking(AsyncSubscription.progress)
    set = blocking(AsyncSubscription.set)
    delete = blocking(AsyncSubscription.delete)
    batches = iterating(AsyncSubscription.batches)

    __iter__ = flattening(AsyncSubscription.batches)


class Queue(Blocking[AsyncQueue]):
    """A queue that consumers share: each event goes to one of them.

    `with queue.next() as batch` acknowledges the batch when the body succeeds and releases it when it fails. This
    object is one consumer: it has one batch at a time, and gets the same one until it acknowledges or releases it.
    Threads that share the work make one consumer each.
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
    put_back_all = blocking(AsyncQueue.put_back_all)
    drop_dead = blocking(AsyncQueue.drop_dead)
    replay = blocking(AsyncQueue.replay)
    extend = blocking(AsyncQueue.extend)
    set_retry = blocking(AsyncQueue.set_retry)
    pause = blocking(AsyncQueue.pause)
    resume = blocking(AsyncQueue.resume)
    rename = blocking(AsyncQueue.rename)
    delete = blocking(AsyncQueue.delete)
    set_filter = blocking(AsyncQueue.set_filter)
    preview = blocking(AsyncQueue.preview)

    @property
    def context(self) -> str:
        return self._inner.context

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def count(self) -> int:
        """How many events come at once, at most."""
        return self._inner.count

    @property
    def ttl(self) -> float:
        """How long a lease lasts, in seconds."""
        return self._inner.ttl

    @property
    def subscriber(self) -> str:
        """The name of this consumer."""
        return self._inner.subscriber

    def another(self, subscriber: str | None = None, *, count: int | None = None) -> "Queue":
        """Another consumer of the same queue, which may get another number of events at once."""
        return Queue(self._runner, self._inner.another(subscriber, count=count))

    @contextmanager
    def next(self, wait: float = 0.0, *, extend: bool = True) -> Iterator[QueueBatch]:
        """The next batch, for `with`; empty if nothing arrives within `wait` seconds.

        While the body runs, the lease is extended, unless `extend` is False. If it is lost all the same, such as after
        the server was away for longer than a lease, the end of the body raises AllocationLost: other consumers may have
        the events.
        """
        try:
            batch = self.take(wait)
        except (KeyboardInterrupt, SystemExit):
            # The server may have handed something out meanwhile.
            self.give_back()
            raise
        stop: Callable[[], object] | None = None
        try:
            if extend and not batch.is_settled:
                stop = self._runner.keep(self._inner, batch)
            yield batch
        except BaseException as error:
            if stop is not None:
                stop()
            self.settle(batch, error)
            raise
        if stop is not None:
            stop()
        self.settle(batch, None)


class Transaction(Blocking[AsyncTransaction]):
    """Appends and acknowledgements, all or nothing; committed when the `with` ends without an error."""

    commit = blocking(AsyncTransaction.commit)

    @property
    def result(self) -> list[Appended]:
        """The results of the appends, in order, once it is committed."""
        return self._inner.result

    def append(self, context: str, stream: str, events: Sequence[NewEvent], *, expected: int = ANY) -> None:
        self._inner.append(context, stream, events, expected=expected)

    def acknowledge(self, batch: QueueBatch) -> None:
        self._inner.acknowledge(batch)

    def progress(self, subscription: Subscription, batch: SubscriptionBatch) -> None:
        self._inner.progress(subscription._inner, batch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._runner.run(self._inner.__aexit__(kind, error, trace))


class Log(Blocking[AsyncLog]):
    """A named log of Python values, which the client encodes as CBOR."""

    create = blocking(AsyncLog.create)
    delete = blocking(AsyncLog.delete)
    show = blocking(AsyncLog.show)
    append = blocking(AsyncLog.append)


class Staging(Blocking[AsyncStaging]):
    """The staged events of one job."""

    stage = blocking(AsyncStaging.stage)
    publish = blocking(AsyncStaging.publish)
    drop = blocking(AsyncStaging.drop)


class Build(Blocking[AsyncBuild]):
    """A build of an indexed iterator's output outside the server."""

    begin = blocking(AsyncBuild.begin)
    messages = blocking(AsyncBuild.messages)
    position = blocking(AsyncBuild.position)
    stage = blocking(AsyncBuild.stage)
    install = blocking(AsyncBuild.install)
    drop = blocking(AsyncBuild.drop)


class LogIterator(Blocking[AsyncLogIterator]):
    """A function over the messages of a log that the server runs: map, filter or reduce."""

    create = blocking(AsyncLogIterator.create)
    delete = blocking(AsyncLogIterator.delete)
    show = blocking(AsyncLogIterator.show)
    next = blocking(AsyncLogIterator.next)
    pages = iterating(AsyncLogIterator.pages)

    __iter__ = flattening(AsyncLogIterator.pages)


class Access(Blocking[AsyncAccess]):
    """The principals of a store, their grants and credentials. All calls need the right `admin` everywhere."""

    put = blocking(AsyncAccess.put)
    revoke = blocking(AsyncAccess.revoke)
    issue_token = blocking(AsyncAccess.issue_token)
    add_credential = blocking(AsyncAccess.add_credential)
    revoke_credential = blocking(AsyncAccess.revoke_credential)
    principals = blocking(AsyncAccess.principals)
    credentials = blocking(AsyncAccess.credentials)


class Client(Blocking[AsyncClient]):
    """A client of one Penstock. `connect` makes it; `with` closes it at the end. Threads may share it.

    Every call has a deadline (`timeout`, in seconds). The client retries within it where that is safe.
    """

    def __init__(
        self, url: str, *, token: Token | None = None, timeout: float = TIMEOUT_S, retries: bool = True
    ) -> None:
        self.url = url
        self._looped: Blocking[AsyncClient] | None = None
        self._lock = threading.RLock()
        self._closed = False
        self._process = os.getpid()
        transport = transport_to(url, token)
        # Both share what is known of the hosts.
        self._make_looped = partial(AsyncClient._over, transport, timeout=timeout, retries=retries)
        if isinstance(transport, MqTransport):
            channel = BlockingTransport(transport.hosts, transport.token, transport.tls)
            super().__init__(Direct(), AsyncClient._over(channel, timeout=timeout, retries=retries))
        else:
            super().__init__(Portal(), self._make_looped())
            self._looped = self
        try:
            self._runner.run(self._inner.open())
        except BaseException:
            # An interrupt may come when it is open already.
            _close(self)
            raise

    def _on_loop(self) -> Blocking[AsyncClient]:
        """A client on a loop in a thread, with another connection, for calls that read or send ahead."""
        with self._lock:
            if self._closed or self._process != os.getpid():
                raise ClientClosed
            if self._looped is None:
                self._looped = Blocking(Portal(), self._make_looped())
            return self._looped

    def close(self) -> None:
        """Close the connections and end the thread, if there is one. Calls that still wait raise ClientClosed."""
        with self._lock:
            self._closed = True
        _close(self)
        if self._looped is not None and self._looped is not self:
            _close(self._looped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
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

        The client sends them without waiting for one another, at most `in_flight` at once. The store writes each once.
        The client calls `written` with the number and the result of each, in this thread. Raises NotAppended at the
        first that fails.
        """
        feed = CommitFeed(written)
        looped = self._on_loop()
        portal = looped._runner
        assert isinstance(portal, Portal)
        run = portal.start(
            looped._inner.append_many(
                feed, in_flight=in_flight, timeout=timeout, written=None if written is None else feed.add_result
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
            return portal.result(run)
        finally:
            feed.report()

    stream_pages = iterating(AsyncClient.stream_pages)
    read_stream = flattening(AsyncClient.stream_pages)
    read_event = blocking(AsyncClient.read_event)
    read_page = blocking(AsyncClient.read_page)
    event_pages = on_loop(iterating(AsyncClient.event_pages))
    read_all = on_loop(flattening(AsyncClient.event_pages))
    arrow_batches = on_loop(iterating(AsyncClient.arrow_batches))
    followed_pages = on_loop(iterating(AsyncClient.followed_pages))
    follow = on_loop(flattening(AsyncClient.followed_pages))
    position_of = blocking(AsyncClient.position_of)

    erase_stream = blocking(AsyncClient.erase_stream)
    erase_subject = blocking(AsyncClient.erase_subject)
    erase_subject_steps = iterating(AsyncClient.erase_subject_steps)
    wait_erased = blocking(AsyncClient.wait_erased)
    erasure_pages = iterating(AsyncClient.erasure_pages)
    erasures = flattening(AsyncClient.erasure_pages)

    whoami = blocking(AsyncClient.whoami)
    logs = blocking(AsyncClient.logs)
    iterators = blocking(AsyncClient.iterators)
    stats = blocking(AsyncClient.stats)
    contexts = blocking(AsyncClient.contexts)
    stream_infos = iterating(AsyncClient.stream_infos)
    streams = flattening(AsyncClient.stream_infos)
    queues = blocking(AsyncClient.queues)
    subscriptions = blocking(AsyncClient.subscriptions)

    transaction = wrapping(AsyncClient.transaction, Transaction)
    subscription = wrapping(AsyncClient.subscription, Subscription)
    queue = wrapping(AsyncClient.queue, Queue)
    log = wrapping(AsyncClient.log, Log)
    iterator = wrapping(AsyncClient.iterator, LogIterator)
    staging = wrapping(AsyncClient.staging, Staging)
    build = wrapping(AsyncClient.build, Build)

    @property
    def access(self) -> Access:
        """Principals and their credentials, for administrators."""
        return Access(self._runner, self._inner.access)


def _close(client: Blocking[AsyncClient]) -> None:
    # Another thread may have closed it, or it belongs to the process that this one was forked from.
    try:
        with suppress(ClientClosed):
            client._runner.run(client._inner.close())
    finally:
        client._runner.close()


def connect(url: str, *, token: Token | None = None, timeout: float = TIMEOUT_S, retries: bool = True) -> Client:
    """A client: `with connect(url) as client`. Raises BadUrl, or CannotConnect within `timeout` seconds.

    `token` shows a server who the client is; without one it is that of the variable `PENSTOCK_TOKEN`. It may be a
    function that returns a token, called for each new connection. Raises NotAuthenticated if the server refuses it.
    """
    return Client(url, token=token, timeout=timeout, retries=retries)
