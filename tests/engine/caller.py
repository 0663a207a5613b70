"""A few obvious calls over `engine.execute`, with their replies' types, for tests."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from penstock.engine import Engine
from penstock.model import (
    ANONYMOUS,
    ANY,
    AcknowledgeQueue,
    Append,
    Appended,
    Delivery,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    NewEvent,
    Principal,
    ProgressSubscription,
    ReadAll,
    ReadStream,
    Registered,
    RegisterSubscriptions,
    Reply,
    Request,
    SubscribeQueue,
    SubscriptionStart,
    grants_of,
    new_event,
    stamp_of,
)

R = TypeVar("R", bound=Reply)


def events(*bodies: str, ticks: Iterable[int] | None = None) -> list[NewEvent]:
    """Events with these bodies, and these times if any are given."""
    made = [new_event("Tested", body.encode()) for body in bodies]
    if ticks is None:
        return made
    return [event._replace(stamp=stamp_of(at)) for event, at in zip(made, ticks, strict=True)]


def principal(name: str, *grants: str) -> Principal:
    """A principal with grants as they are written, such as `read:shop`."""
    return Principal(name, grants_of(grants))


class Caller:
    """What a client of the engine does."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def ask(self, kind: type[R], request: Request) -> R:
        reply = await self.engine.execute(ANONYMOUS, request)
        assert isinstance(reply, kind)
        return reply

    async def append(
        self, stream: str, new: Sequence[NewEvent], expected: int = ANY, context: str = "shop", **more: Any
    ) -> Appended:
        return await self.ask(Appended, Append(context, stream, tuple(new), expected, **more))

    async def stream(self, stream: str, context: str = "shop", **more: Any) -> list[str]:
        """The bodies of a stream, page by page."""
        return await self._bodies(ReadStream(context, stream, **more))

    async def everything(self, **more: Any) -> list[str]:
        """The bodies of the whole history, page by page."""
        return await self._bodies(ReadAll(**more))

    async def _bodies(self, request: ReadStream | ReadAll) -> list[str]:
        """All that is there of what a request asks for: a page that takes long to read ends early."""
        found: list[str] = []
        while True:
            page = await self.ask(EventPage, request)
            found += bodies(page)
            if page.end or len(page.events) == request.limit:
                return found
            request = _behind(request, page)

    async def register(self, subscriber: str = "me", filter: str = "", start: int = 0, context: str = "shop") -> int:
        request = RegisterSubscriptions(subscriber, (SubscriptionStart(context, filter, start),))
        return (await self.ask(Registered, request)).ids[0]

    async def fetch(self, subscription: int, count: int = 100, wait_ms: int = 0) -> FetchedBatch:
        return await self.ask(FetchedBatch, FetchSubscription(subscription, count, wait_ms))

    async def fetched(self, subscription: int, count: int = 100) -> list[str]:
        return [event.body.decode() for event in (await self.fetch(subscription, count)).events]

    async def progress(self, subscription: int, last_ticks: int) -> None:
        await self.ask(Reply, ProgressSubscription(subscription, last_ticks))

    async def subscribe(
        self,
        subscriber: str,
        count: int = 1,
        ttl_ms: int = 3_600_000,
        *,
        queue: str = "q",
        context: str = "shop",
        filter: str = "",
        start: int = 0,
        wait_ms: int = 0,
    ) -> Delivery:
        request = SubscribeQueue(context, queue, subscriber, filter, start, count, ttl_ms, wait_ms)
        return await self.ask(Delivery, request)

    async def acknowledge(
        self, given: Delivery, count: int = 1, ttl_ms: int = 3_600_000, *, wait_ms: int = 0
    ) -> Delivery:
        first, last = (given.allocation.first, given.allocation.last) if given.allocation else (0, 0)
        request = AcknowledgeQueue(given.context, given.queue, given.subscriber, first, last, count, ttl_ms, wait_ms)
        return await self.ask(Delivery, request)


def _behind(request: ReadStream | ReadAll, page: EventPage) -> ReadStream | ReadAll:
    """The request for what follows a page."""
    left = request.limit and request.limit - len(page.events)
    if isinstance(request, ReadStream):
        return replace(request, from_sequence=page.next, limit=left)
    return replace(request, position=page.next, limit=left, wait_ms=0)


def bodies(reply: FetchedBatch | Delivery | EventPage) -> list[str]:
    """The bodies of a reply's events, as text."""
    return [event.body.decode() for event in reply.events]
