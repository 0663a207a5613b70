"""Calls with a deadline: the client connects, sends, waits for the answer, and retries where that is safe.

Each request class declares whether a repeat is harmless (`penstock.model.Repeat`). After a lost connection the client
resends only those requests. It puts a producer mark on an append without an expected version, so that the store
recognises a repeat.

A call is in doubt once the connection was lost before its answer came. A refusal of the next attempt settles nothing:
the first attempt may be on disk. So the caller gets an error with an unknown outcome, and the refusal as its cause.
"""

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count
from types import GenericAlias
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast
from uuid import uuid4

from penstock import model
from penstock.client.derived import derived, item_of, own_copy
from penstock.client.hosts import unsent_error
from penstock.client.transport import Channel
from penstock.errors import (
    AnswerMalformed,
    CannotConnect,
    ClientClosed,
    ConnectionLost,
    DeadlinePassed,
    EventNotFound,
    InvalidRequest,
    MarkSuperseded,
    NotAuthenticated,
    NotDurable,
    OverLimit,
    PenstockError,
    Retry,
    StorageFull,
    VersionConflict,
)
from penstock.model import ANY, Append, Appended, NewEvent, ProducerMark, Repeat, ReplayQueue, Reply, Request, Transact
from penstock.model.columns import Columns, columns_of, plain_columns
from penstock.tracing import traced

PAUSE_S_MIN: Final = 0.01
PAUSE_S_MAX: Final = 1.0
"""Between two attempts. The pause doubles each time, with jitter."""
ATTEMPT_S_MIN: Final = 0.02
"""With less time left the client does not retry: an attempt without time for its answer only leaves a doubt."""
LASTING: Final = (EventNotFound, StorageFull, NotDurable)
"""Errors that a short wait does not cure. The caller decides whether to retry."""
HONEST: Final = (ConnectionLost, MarkSuperseded)
"""Errors that already say that the outcome is unknown."""

R = TypeVar("R", bound=Reply)
T = TypeVar("T")
C = TypeVar("C")
P = ParamSpec("P")


class ProducerIds:
    """The producers of one client: what is sent twice is written once.

    The store keeps only the highest number of each producer, so a producer has one write in flight at a time. A client
    has as many producers as it ever had marked writes in flight at once. Threads may share it: each step is atomic.
    """

    def __init__(self) -> None:
        self._client = f"client-{uuid4().hex}"
        self._numbers = count(1)
        self._free: list[ProducerMark] = []

    def take(self) -> ProducerMark:
        """The mark of a write, of a producer that has no other write in flight."""
        try:
            last = self._free.pop()
        except IndexError:
            return ProducerMark(f"{self._client}-{next(self._numbers)}", 1)
        return ProducerMark(last.producer, last.number + 1)

    def give_back(self, mark: ProducerMark, error: PenstockError | None = None) -> None:
        """The write has ended. If its outcome is unknown, its producer is not used again."""
        if error is None or error.retry is not Retry.UNKNOWN:
            self._free.append(mark)


class Calls:
    def __init__(self, transport: Channel, timeout: float, retries: bool) -> None:
        self.transport = transport
        self.timeout = timeout
        self.retries = retries
        self.producer_ids = ProducerIds()
        self._closed = False
        self._background: set[asyncio.Task[Any]] = set()

    @property
    def producers(self) -> ProducerIds | None:
        """Whose marks appends carry; none without retries."""
        return self.producer_ids if self.retries else None

    def check(self) -> None:
        if self._closed:
            raise ClientClosed

    async def open(self) -> None:
        """Connect, or raise CannotConnect, or NotAuthenticated if the server refuses the token."""
        self.transport.now()
        await self.transport.ready(self.timeout)

    async def close(self) -> None:
        """Fail all calls in flight, and release everything."""
        self._closed = True
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self.transport.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something in the background. Closing the client cancels it."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background_ended)
        return task

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            # Mark the error as seen: perhaps no caller wants the result any more.
            task.exception()

    async def pause(self, seconds: float) -> None:
        """Wait before another attempt, unless the client is closed meanwhile."""
        await self.transport.pause(seconds)

    async def ask(
        self,
        request: Request,
        kind: type[R],
        timeout: float | None = None,
        wait: float = 0.0,
        lost: ConnectionLost | None = None,
    ) -> R:
        """The reply to a request. `wait` is how long the server may wait before it answers.

        `lost` is how an earlier attempt ended: then the call is in doubt from the beginning.
        """
        seconds = wait + (self.timeout if timeout is None else timeout)
        transport = self.transport
        now = transport.now()
        reply: Reply
        if lost is None and transport.is_ready():
            # The common case: one exchange, without anything that only other cases need.
            try:
                reply = await transport.exchange(request, now + seconds)
            except (PenstockError, TimeoutError) as error:
                reply = await _Attempts(self, request, now, seconds).run(error)
        else:
            reply = await _Attempts(self, request, now, seconds, lost).run()
        if not isinstance(reply, kind):
            raise AnswerMalformed(f"it is {type(reply).__name__}, where {kind.__name__} was expected")
        return reply

    async def list_pages(self, request: Request, key: str) -> AsyncGenerator[list[Any], None]:
        """A list page by page. `key` is the attribute of an item that the request has as `after`."""
        while True:
            page = await self.ask(request, model.ListPage)
            if page.items:
                yield page.items
                request = replace(request, after=getattr(page.items[-1], key))  # type: ignore[type-var]
            if page.end:
                return

    async def list_all(self, request: Request, key: str) -> list[Any]:
        return [item async for page in self.list_pages(request, key) for item in page]

    async def append(self, request: Append, timeout: float | None = None) -> Appended:
        """Append once, however often the client has to send it. A mark must be of this client's producers."""
        mark = request.mark
        if mark is None:
            if request.expected != ANY or not self.retries:
                return await self.ask(request, Appended, timeout)
            mark = self.producer_ids.take()
            request = Append(request.context, request.stream, request.events, ANY, mark)
        return await self._ask_marked(request, mark, Appended, timeout)

    async def transact(self, request: Transact | ReplayQueue, kind: type[R], timeout: float | None = None) -> R:
        """Carry a transaction out once, however often the client has to send it."""
        if not self.retries:
            return await self.ask(request, kind, timeout)
        mark = self.producer_ids.take()
        return await self._ask_marked(replace(request, mark=mark), mark, kind, timeout)

    async def _ask_marked(self, request: Request, mark: ProducerMark, kind: type[R], timeout: float | None) -> R:
        try:
            reply = await self.ask(request, kind, timeout)
        except PenstockError as error:
            self.producer_ids.give_back(mark, error)
            raise
        self.producer_ids.give_back(mark)
        return reply

    @property
    def may_authenticate(self) -> bool:
        """Whether a request that was refused may be sent again once the token was shown again."""
        return self.retries and self.transport.token is not None

    def may_retry(self, request: Request, error: PenstockError) -> bool:
        """Whether the client may resend a request that ended like this."""
        if not self.retries:
            return False
        if isinstance(error, ConnectionLost):
            return request.may_repeat()
        return error.retry is Retry.SAFE and not isinstance(error, LASTING)


class _Attempts:
    def __init__(
        self, calls: Calls, request: Request, now: float, seconds: float, lost: ConnectionLost | None = None
    ) -> None:
        self._calls = calls
        self._request = request
        self._seconds = seconds
        self._until = now + seconds
        self._lost = lost
        """How an attempt ended that was sent and not answered: the call is in doubt."""
        self._reason = ""
        self._may_authenticate = calls.may_authenticate
        self._wait_ms: int = getattr(request, "wait_ms", 0)

    async def run(self, failed: PenstockError | TimeoutError | None = None) -> Reply:
        """The reply of one of the attempts. `failed` is how the first one ended, if it was made already."""
        longest = PAUSE_S_MIN
        error = None if failed is None else self._sent_error(failed)
        while True:
            try:
                if error is None:
                    return await self._attempt()
            except PenstockError as another:
                error = another
            if isinstance(error, NotAuthenticated) and self._may_authenticate:
                error = await self._authenticate()
                continue
            self._raise_unless_retry(error)
            pause = longest * random.uniform(0.5, 1.0)  # noqa: S311
            if isinstance(error, OverLimit):
                pause = max(pause, error.retry_after_ms / 1000)
            self._check_time(error, pause)
            await self._calls.pause(pause)
            # Check again: a pause may take longer than it should.
            self._check_time(error)
            self._shorten_wait()
            longest = min(2 * longest, PAUSE_S_MAX)
            error = None

    async def _authenticate(self) -> PenstockError | None:
        """Show the token again, once: behind a broker that has connected again, the server does not know us any more.

        Returns what has failed. The request was refused, so nothing was done, and it may be sent again.
        """
        self._may_authenticate = False
        transport = self._calls.transport
        assert transport.token is not None
        try:
            await transport.exchange(transport.token(), self._until)
        except TimeoutError:
            return self._passed()
        except PenstockError as error:
            return unsent_error(error)
        return None

    def _shorten_wait(self) -> None:
        """A long poll that is sent again waits for the rest of its time only."""
        if self._wait_ms:
            waited_ms = int(1000 * (self._seconds - self._left()))
            self._request = replace(self._request, wait_ms=max(0, self._wait_ms - waited_ms))  # type: ignore[type-var]

    async def _attempt(self) -> Reply:
        transport = self._calls.transport
        try:
            await transport.ready(max(0.0, self._left()))
        except TimeoutError:
            self._reason = self._reason or "the server does not read what was sent"
            raise self._passed() from None
        except NotAuthenticated:
            # The server has just refused the token.
            self._may_authenticate = False
            raise
        try:
            return await transport.exchange(self._request, self._until)
        except (ConnectionLost, TimeoutError) as error:
            raise self._sent_error(error) from None

    def _sent_error(self, error: PenstockError | TimeoutError) -> PenstockError:
        """The error of an exchange, which may leave the call in doubt."""
        if isinstance(error, TimeoutError):
            return self._passed(was_sent=True)
        if isinstance(error, ConnectionLost):
            self._lost = error
        return error

    def _raise_unless_retry(self, error: PenstockError) -> None:
        """Raise the error, or the doubt that it leaves, unless another attempt may help."""
        url = self._calls.transport.url
        if isinstance(error, ClientClosed):
            if self._leaves_doubt(error):
                raise ConnectionLost(url, "the client was closed")
            raise error
        if isinstance(error, DeadlinePassed):
            raise error
        if self._lost is None:
            self._reason = str(error)
        elif error is self._lost:
            self._reason = error.reason
        else:
            # Without the refusal's sentence: it may say "nothing was written", which is not known.
            then = error.reason if isinstance(error, CannotConnect) else type(error).__name__
            self._reason = f"{self._lost.reason}; then {then}"
        if not self._calls.may_retry(self._request, error):
            if self._leaves_doubt(error):
                raise ConnectionLost(url, self._reason) from error
            raise error

    def _leaves_doubt(self, error: PenstockError) -> bool:
        """Whether an earlier attempt may have been carried out although this one failed."""
        if self._lost is None or self._request.repeat is Repeat.READS:
            return False
        if isinstance(error, VersionConflict):
            # Other events are where these belong: neither attempt was written, or ever will be.
            return error.actual < error.expected
        return not isinstance(error, HONEST)

    def _check_time(self, error: PenstockError, pause: float = 0.0) -> None:
        """Raise how the last attempt ended if there is no time for another one after a pause."""
        if self._left() - pause < ATTEMPT_S_MIN:
            if self._lost is None:
                raise error
            raise self._passed() from error

    def _left(self) -> float:
        return self._until - self._calls.transport.now()

    def _passed(self, *, was_sent: bool = False) -> DeadlinePassed:
        return DeadlinePassed(self._seconds, was_sent or self._lost is not None, self._reason)


def refusal_of(error: PenstockError) -> PenstockError:
    """The server's last refusal: an error that leaves a call in doubt has it as its cause."""
    return error.__cause__ if isinstance(error.__cause__, PenstockError) else error


def flattened(
    pages: Callable[Concatenate[C, P], AsyncGenerator[list[T], None]],
) -> Callable[Concatenate[C, P], AsyncGenerator[T, None]]:
    """From pages of items to items."""
    own = own_copy(pages)

    def items(self: C, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        return _items(own(self, *args, **kwargs))

    return derived(items, own, lambda kind: GenericAlias(AsyncGenerator, (item_of(item_of(kind)), None)))


async def _items(pages: AsyncGenerator[list[T], None]) -> AsyncGenerator[T, None]:
    async with aclosing(pages):
        async for page in pages:
            for item in page:
                yield item


# --- commits: mistakes that a wire cannot carry are found before anything is sent ---------------------------------


def append_of(
    context: str, stream: str, events: Sequence[NewEvent], expected: int = ANY, producers: ProducerIds | None = None
) -> Append:
    """A commit of these events; with a mark of one of the producers if it has no expected version.

    Raises InvalidRequest.
    """
    if isinstance(events, NewEvent):
        raise InvalidRequest("events", "is a single event: put it into a list")
    try:
        found = tuple(events)
    except TypeError:
        raise InvalidRequest("events", f"is {type(events).__name__}; pass a list of events") from None
    if not found:
        raise InvalidRequest("events", "is empty: a commit has at least one event")
    if type(context) is not str or type(stream) is not str:
        name, value = ("stream", stream) if type(context) is str else ("context", context)
        raise InvalidRequest(name, f"is {value!r}; pass a name")
    if type(expected) is not int:
        raise InvalidRequest("expected", f"is {expected!r}; it must be a number, NEW or ANY")
    columns: Columns | None = None
    # A program that has not imported OpenTelemetry is in no span.
    may_trace = "opentelemetry.trace" in sys.modules
    if len(found) == 1 and type(found[0]) is NewEvent and not may_trace:
        columns = plain_columns(found[0])
    if columns is None:
        if not _are_sound(found):
            for event in found:
                _refuse(event)
        columns = columns_of(traced(found) if may_trace else found)
    mark = producers.take() if producers is not None and expected == ANY else None
    return Append(context, stream, columns, expected, mark)


_SOUND: Final[tuple[set[type], ...]] = ({bytes}, {int}, {str}, {str, type(None)}, {bytes})
"""The types of an event's fields."""


def _are_sound(events: Sequence[object]) -> bool:
    """Whether all of them are events as `penstock.event` makes them."""
    if set(map(type, events)) != {NewEvent}:
        return False
    columns = zip(*cast("Sequence[NewEvent]", events), strict=True)
    return all(kinds.issuperset(map(type, column)) for kinds, column in zip(_SOUND, columns, strict=True))


def _refuse(event: object) -> None:
    if not isinstance(event, NewEvent):
        raise InvalidRequest("events", f"contains {type(event).__name__}; make events with penstock.event")
    for field, kinds in NewEvent.__annotations__.items():
        value = getattr(event, field)
        if not isinstance(value, kinds):
            raise InvalidRequest(field, f"of an event is {type(value).__name__}; make events with penstock.event")
