"""A plain client for Res01 over ZeroMQ, written from the protocol's description alone.

The tests of the gate talk through it. Messages are built and taken apart here, frame by frame, each field by its name,
and it waits for an answer only so long. `Res01` speaks the text dialect, `Rc01` the binary one, `Older` is the text
dialect with the older results. `WithOriginalTag` makes a text client send what the original text clients send.
"""

import itertools
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import UUID

import zmq

from tests.gates.res_frames import (
    LONG_AGO,
    Binary,
    BinaryQueued,
    Dialect,
    Fields,
    NewEvent,
    OriginalText,
    Queued,
    Refused,
    StoredEvent,
    Text,
    Time,
    now,
)

PATIENCE_S: Final = 30.0
"""How long an answer may take. Nothing is expected to take this long."""

_request_numbers = itertools.count(1)


class Answer(NamedTuple):
    """One message of the server, taken apart as far as the envelope goes."""

    routing: tuple[bytes, ...]
    protocol: bytes
    request_id: bytes
    command: bytes
    details: list[bytes]

    def of(self, command: str) -> list[bytes]:
        """The details of an answer that must be this one; raises Refused for an error."""
        if self.command == b"ER" and command != "ER":
            code, message = self.details
            raise Refused(int(code), message.decode())
        assert self.command == command.encode(), f"{self.command!r} instead of {command}"
        return self.details

    def error(self) -> Refused:
        """The error that this must be."""
        code, message = self.of("ER")
        return Refused(int(code), message.decode())


class Client:
    """A DEALER: requests go out, answers come in, matched by RequestId. `routing` stands before the empty frame."""

    dialect: Dialect = Text()

    def __init__(
        self,
        endpoint: str,
        *,
        context: zmq.Context[zmq.Socket[bytes]] | None = None,
        routing: tuple[bytes, ...] = (),
        unread_max: int = 1000,
    ) -> None:
        self.socket = (context or zmq.Context.instance()).socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IPV6, int("[" in endpoint))
        self.socket.setsockopt(zmq.RCVHWM, unread_max)
        # A send never waits: a server that is away gets its requests when it is back.
        self.socket.setsockopt(zmq.SNDHWM, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self.socket.connect(endpoint)
        self.routing = routing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close(0)

    def new_request_id(self) -> bytes:
        """An id that no request of this process had."""
        return UUID(int=next(_request_numbers)).bytes_le

    def send(self, command: str, *fields: bytes, request_id: bytes | None = None) -> bytes:
        """Send a request; its id."""
        number = self.new_request_id() if request_id is None else request_id
        self.send_frames([*self.routing, b"", self.dialect.tag, command.encode(), number, *fields])
        return number

    def send_frames(self, frames: Iterable[bytes]) -> None:
        """Send a message as it is."""
        self.socket.send_multipart(list(frames))

    def receive(self, patience_s: float = PATIENCE_S) -> Answer:
        """The next answer, whatever it answers."""
        if not self.socket.poll(int(patience_s * 1000)):
            raise TimeoutError(f"no answer within {patience_s} s")
        frames = self.socket.recv_multipart()
        empty = frames.index(b"")
        protocol, request_id, command, *details = frames[empty + 1 :]
        return Answer(tuple(frames[:empty]), protocol, request_id, command, details)

    def answer_to(self, request_id: bytes, patience_s: float = PATIENCE_S) -> Answer:
        """The next answer, which must be that of a request."""
        answer = self.receive(patience_s)
        assert answer.request_id == request_id, f"an answer to {answer.request_id!r}: {answer}"
        assert answer.protocol == self.dialect.tag
        assert answer.routing == self.routing
        return answer

    def ask(self, command: str, *fields: bytes) -> Answer:
        """Send a request and wait for its one answer."""
        return self.answer_to(self.send(command, *fields))

    # -- what both dialects have

    def commit_fields(self, context: str, stream: str, version: int, events: Sequence[NewEvent]) -> tuple[bytes, ...]:
        """Context, Stream, ExpectedVersion, EventCount, and the events."""
        dialect = self.dialect
        fields = [context.encode(), stream.encode(), dialect.long(version), dialect.number(len(events))]
        for event in events:
            fields += [event.id.bytes_le, dialect.time(event.time), event.type.encode(), event.headers.encode()]
            fields.append(event.body)
        return tuple(fields)

    def append(self, context: str, stream: str, version: int, *events: NewEvent) -> UUID:
        """AC: append a commit; its id."""
        fields = self.fields(self.ask("AC", *self.commit_fields(context, stream, version, events)), "CR")
        commit = fields.guid("CommitId")
        fields.end()
        return commit

    def read(self, context: str, stream: str, first: int = 1, last: int | None = None) -> list[StoredEvent]:
        """QS: one page of a stream."""
        long = self.dialect.long
        return self.fields(self.ask("QS", context.encode(), stream.encode(), long(first), long(last)), "QR").events()

    def fields(self, answer: Answer, command: str) -> Fields:
        """The details of an answer that must be this one."""
        return Fields(answer.of(command), self.dialect)


def everything(client: Client, context: str, stream: str) -> list[StoredEvent]:
    """A stream, page by page: a page that takes long to read has fewer events than it could have."""
    found: list[StoredEvent] = []
    while page := client.read(context, stream, len(found) + 1):
        found += page
    return found


class Res01(Client):
    """The text dialect: commands of documents 000 and 002."""

    # -- subscriptions

    def register(self, subscriber: str, *starts: tuple[str, str, Time]) -> list[int]:
        """RS: ids of subscriptions, each given by context, filter and start time."""
        fields = [subscriber.encode(), self.dialect.number(len(starts))]
        for context, prefix, start in starts:
            fields += [context.encode(), prefix.encode(), self.dialect.time(start)]
        return _numbers(self.fields(self.ask("RS", *fields), "SR"), "SubscriptionId")

    def send_fetch(self, *wanted: tuple[int, int]) -> bytes:
        """FE: ask for batches, each given by subscription and count; the request's id."""
        pairs = [self.dialect.long(number) for pair in wanted for number in pair]
        return self.send("FE", self.dialect.number(len(wanted)), *pairs)

    def fetch(self, subscription: int, count: int = 100) -> list[StoredEvent]:
        """FE of one subscription."""
        return self.batch(self.answer_to(self.send_fetch((subscription, count))), subscription)

    def batch(self, answer: Answer, subscription: int) -> list[StoredEvent]:
        """The events of EF."""
        fields = self.fields(answer, "EF")
        assert fields.long("SubscriptionId") == subscription
        return fields.events()

    def progress(self, *done: tuple[int, Time]) -> list[int]:
        """PS: progress subscriptions past a time; the ids that SP lists."""
        fields = [self.dialect.number(len(done))]
        for subscription, last in done:
            fields += [self.dialect.long(subscription), self.dialect.time(last)]
        return _numbers(self.fields(self.ask("PS", *fields), "SP"), "SubscriptionId")

    def set(self, *moves: tuple[str, str, str, Time]) -> list[str]:
        """SS: set subscriptions, each given by subscriber, context, filter and time; a text for each."""
        fields = [self.dialect.number(len(moves))]
        for subscriber, context, prefix, moment in moves:
            fields += [subscriber.encode(), context.encode(), prefix.encode(), self.dialect.time(moment)]
        answer = self.fields(self.ask("SS", *fields), "ST")
        texts = [answer.text("ResultText") for _ in range(answer.number("Count"))]
        answer.end()
        return texts

    # -- queues

    def subscribe_fields(
        self,
        context: str,
        queue: str,
        subscriber: str,
        *,
        count: int = 10,
        ttl_ms: int = 60_000,
        prefix: str = "*",
        start: Time = LONG_AGO,
        utc_now: Time | None = None,
    ) -> list[bytes]:
        """The payload of SQ, with UtcNow in front if it is given."""
        head = [] if utc_now is None else [self.dialect.time(utc_now)]
        names = [name.encode() for name in (queue, subscriber, context, prefix)]
        return [*head, *names, self.dialect.time(start), self.dialect.number(count), self.dialect.number(ttl_ms)]

    def subscribe(self, context: str, queue: str, subscriber: str, **options: Any) -> Queued:
        """SQ: declare a queue and take events of it."""
        return self.queued(self.ask("SQ", *self.subscribe_fields(context, queue, subscriber, **options)))

    def acknowledge_fields(
        self, queue: str, subscriber: str, markers: tuple[int, int], count: int = 10, ttl_ms: int = 60_000
    ) -> list[bytes]:
        """The payload of AQ."""
        start, end = (self.dialect.long(marker) for marker in markers)
        return [
            queue.encode(),
            subscriber.encode(),
            start,
            end,
            self.dialect.number(count),
            self.dialect.number(ttl_ms),
        ]

    def acknowledge(self, queue: str, subscriber: str, markers: tuple[int, int], **options: int) -> Queued:
        """AQ: acknowledge an allocation and take the next one."""
        return self.queued(self.ask("AQ", *self.acknowledge_fields(queue, subscriber, markers, **options)))

    def reset(self, queue: str, moment: Time) -> str:
        """RQ: reset a queue to a time; the queue that QT names."""
        fields = self.fields(self.ask("RQ", queue.encode(), self.dialect.time(moment), self.dialect.time(now())), "QT")
        name = fields.text("QueueId")
        fields.end()
        return name

    def queued(self, answer: Answer) -> Queued:
        """QE taken apart."""
        fields = self.fields(answer, "QE")
        return Queued(
            fields.text("QueueId"),
            fields.text("SubscriberId"),
            fields.long("UtcNow"),
            fields.long("StartMarker"),
            fields.long("EndMarker"),
            fields.events(),
        )


def _numbers(fields: Fields, name: str) -> list[int]:
    numbers = [fields.long(name) for _ in range(fields.number("Count"))]
    fields.end()
    return numbers


class Rc01(Client):
    """The binary dialect."""

    dialect = Binary()

    def subscribe(
        self,
        context: str,
        queue: str,
        subscriber: str,
        *,
        count: int = 10,
        ttl_ms: int = 60_000,
        prefix: str = "*",
        start: int = LONG_AGO,
    ) -> BinaryQueued:
        """SQ: declare a queue and take events of it."""
        names = [name.encode() for name in (context, queue, subscriber, prefix)]
        numbers = [self.dialect.time(start), self.dialect.number(count), self.dialect.number(ttl_ms)]
        return self.queued(self.ask("SQ", *names, *numbers))

    def acknowledge(
        self,
        context: str,
        queue: str,
        subscriber: str,
        allocation: int | None,
        count: int = 10,
        ttl_ms: int = 60_000,
    ) -> BinaryQueued:
        """AQ: acknowledge an allocation, or none, and take the next one."""
        names = [name.encode() for name in (context, queue, subscriber)]
        numbers = [self.dialect.long(allocation), self.dialect.number(count), self.dialect.number(ttl_ms)]
        return self.queued(self.ask("AQ", *names, *numbers))

    def queued(self, answer: Answer) -> BinaryQueued:
        """QE taken apart."""
        fields = self.fields(answer, "QE")
        return BinaryQueued(
            fields.text("Context"),
            fields.text("QueueId"),
            fields.text("SubscriberId"),
            fields.long("UtcNow"),
            fields.optional_long("AllocationId"),
            fields.events(),
        )


class OlderResult(NamedTuple):
    """CR as document 001 has it."""

    result: str
    error: str
    commit: UUID


class Older(Res01):
    """The text dialect on an endpoint with the older results."""

    def try_append(self, context: str, stream: str, version: int, *events: NewEvent) -> OlderResult:
        """AC: its result, whether it went well or not."""
        return self.older_result(self.ask("AC", *self.commit_fields(context, stream, version, events)))

    def older_result(self, answer: Answer) -> OlderResult:
        """CR taken apart."""
        fields = self.fields(answer, "CR")
        result, error, commit = fields.text("Result"), fields.text("Error"), fields.raw("CommitId")
        fields.end()
        # As the client of that time: the guid first, whatever the result.
        return OlderResult(result, error, UUID(bytes_le=commit))


class WithOriginalTag(Client):
    """The tag and the RequestId of the original text clients."""

    dialect = OriginalText()

    def new_request_id(self) -> bytes:
        """A guid of 36 characters."""
        return str(UUID(bytes_le=super().new_request_id())).encode()
