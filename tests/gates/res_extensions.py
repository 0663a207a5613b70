"""The text dialect with what Penstock adds to it: more two-letter commands in the same envelope."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tests.gates.res_client import Answer, Res01
from tests.gates.res_frames import Fields, NewEvent, Queued, StoredEvent, Time


class Records(NamedTuple):
    """RD: stored records as they are."""

    store_id: str
    timeline: int
    next: int
    end: bool
    records: list[bytes]


class Written(NamedTuple):
    """One commit of TR."""

    commit: UUID
    position: int
    sequence: int
    events: int
    repeated: bool


class ContextRow(NamedTuple):
    """A context in CL."""

    name: str
    events: int
    commits: int
    streams: int
    bytes: int


class QueueRow(NamedTuple):
    """A queue in QL."""

    id: int
    context: str
    name: str
    filter: str
    position: int
    behind: int
    allocated: int
    allocations: int
    deliveries_max: int
    dead: int
    dead_after: int | None


class SubscriptionRow(NamedTuple):
    """A subscription in UL."""

    id: int
    subscriber: str
    context: str
    filter: str
    position: int


class DeadRow(NamedTuple):
    """An allocation that was set aside, in LD."""

    start: int
    end: int
    events: int
    subscriber: str
    deliveries: int


CommitParts = tuple[str, str, int, Sequence[NewEvent]]
"""Context, stream, expected version, events."""
ReceiptParts = tuple[str, str, str, tuple[int, int]]
"""Context, queue, subscriber, markers."""


class Extended(Res01):
    """Res01 and its extensions."""

    # -- reads

    def get(self, context: str, stream: str, sequence: int) -> StoredEvent:
        """GE: one event."""
        fields = self.fields(self.ask("GE", context.encode(), stream.encode(), self.dialect.long(sequence)), "GR")
        event = fields.event()
        fields.end()
        return event

    def send_read_all(self, position: int, context: str = "", prefix: str = "", wait_ms: int = 0) -> bytes:
        """RA: ask for records from a position on; the request's id."""
        number = self.dialect.number
        return self.send("RA", self.dialect.long(position), context.encode(), prefix.encode(), number(wait_ms))

    def read_all(self, position: int, context: str = "", prefix: str = "", wait_ms: int = 0) -> Records:
        """RA: a page of records from a position on."""
        return self.records(self.answer_to(self.send_read_all(position, context, prefix, wait_ms)))

    def records(self, answer: Answer) -> Records:
        """RD taken apart."""
        fields = self.fields(answer, "RD")
        store_id, timeline = fields.text("StoreId"), fields.number("Timeline")
        following, end = fields.long("Next"), fields.flag("End")
        records = [fields.raw("record") for _ in range(fields.number("Count"))]
        fields.end()
        return Records(store_id, timeline, following, end, records)

    # -- transactions

    def transact(
        self,
        *commits: CommitParts,
        mark: tuple[str, int] | None = None,
        acks: Sequence[ReceiptParts] = (),
        progress: Sequence[tuple[int, Time]] = (),
    ) -> list[Written]:
        """TX: everything or nothing."""
        dialect = self.dialect
        frames = [b"", b""] if mark is None else [mark[0].encode(), dialect.long(mark[1])]
        frames.append(dialect.number(len(commits)))
        for context, stream, version, events in commits:
            frames += self.commit_fields(context, stream, version, events)
        frames.append(dialect.number(len(acks)))
        for context, queue, subscriber, (start, end) in acks:
            frames += [context.encode(), queue.encode(), subscriber.encode(), dialect.long(start), dialect.long(end)]
        frames.append(dialect.number(len(progress)))
        for subscription, last in progress:
            frames += [dialect.long(subscription), dialect.time(last)]
        return self._written(self.fields(self.ask("TX", *frames), "TR"))

    def _written(self, fields: Fields) -> list[Written]:
        written = []
        for _ in range(fields.number("Count")):
            commit, position = fields.guid("CommitId"), fields.long("Position")
            sequence, count = fields.long("Sequence"), fields.number("Count")
            written.append(Written(commit, position, sequence, count, fields.flag("Repeated")))
        fields.end()
        return written

    # -- long polls

    def send_fetch_waiting(self, wait_ms: int, *wanted: tuple[int, int]) -> bytes:
        """FW: ask for batches and wait for them; the request's id."""
        pairs = [self.dialect.long(number) for pair in wanted for number in pair]
        return self.send("FW", self.dialect.number(wait_ms), self.dialect.number(len(wanted)), *pairs)

    def send_subscribe_waiting(self, wait_ms: int, context: str, queue: str, subscriber: str, **options: Any) -> bytes:
        """SW: SQ that waits; the request's id."""
        fields = self.subscribe_fields(context, queue, subscriber, **options)
        return self.send("SW", self.dialect.number(wait_ms), *fields)

    def subscribe_waiting(self, wait_ms: int, context: str, queue: str, subscriber: str, **options: Any) -> Queued:
        """SW and its answer."""
        return self.queued(self.answer_to(self.send_subscribe_waiting(wait_ms, context, queue, subscriber, **options)))

    def send_acknowledge_waiting(
        self, wait_ms: int, context: str, queue: str, subscriber: str, markers: tuple[int, int], **options: int
    ) -> bytes:
        """AW: AQ that waits and names the context; the request's id."""
        fields = self.acknowledge_fields(queue, subscriber, markers, **options)
        return self.send("AW", self.dialect.number(wait_ms), context.encode(), *fields)

    # -- lists

    def list_contexts(self, after: str = "", limit: int = 100) -> tuple[list[ContextRow], bool]:
        """LC: contexts, and whether there are no more."""
        fields, end, count = self._page("LC", "CL", after.encode(), self.dialect.number(limit))
        rows = []
        for _ in range(count):
            name = fields.text("Name")
            rows.append(ContextRow(name, *(fields.long(f) for f in ("Events", "Commits", "Streams", "Bytes"))))
        fields.end()
        return rows, end

    def list_streams(
        self, context: str, prefix: str = "", after: str = "", limit: int = 100
    ) -> tuple[list[tuple[str, int]], bool]:
        """LS: streams with their numbers of events, and whether there are no more."""
        asked = (context.encode(), prefix.encode(), after.encode(), self.dialect.number(limit))
        fields, end, count = self._page("LS", "SL", *asked)
        rows = [(fields.text("Name"), fields.long("Events")) for _ in range(count)]
        fields.end()
        return rows, end

    def list_queues(self, after: int = 0, limit: int = 100) -> tuple[list[QueueRow], bool]:
        """LQ: queues, and whether there are no more."""
        fields, end, count = self._page("LQ", "QL", self.dialect.long(after), self.dialect.number(limit))
        rows = [self._queue_row(fields) for _ in range(count)]
        fields.end()
        return rows, end

    def _queue_row(self, fields: Fields) -> QueueRow:
        return QueueRow(
            id=fields.long("Id"),
            context=fields.text("Context"),
            name=fields.text("Name"),
            filter=fields.text("Filter"),
            position=fields.long("Position"),
            behind=fields.long("Behind"),
            allocated=fields.long("Allocated"),
            allocations=fields.long("Allocations"),
            deliveries_max=fields.long("DeliveriesMax"),
            dead=fields.long("Dead"),
            dead_after=fields.optional_long("DeadAfter"),
        )

    def queue_row(self, context: str, queue: str) -> QueueRow:
        """LQ, page by page, until this queue is found."""
        after, end = 0, False
        while not end:
            rows, end = self.list_queues(after)
            for row in rows:
                if (row.context, row.name) == (context, queue):
                    return row
            after = rows[-1].id if rows else after
        raise AssertionError(f"no queue {queue} in {context}")

    def list_subscriptions(self, after: int = 0, limit: int = 100) -> tuple[list[SubscriptionRow], bool]:
        """LU: subscriptions, and whether there are no more."""
        fields, end, count = self._page("LU", "UL", self.dialect.long(after), self.dialect.number(limit))
        rows = [self._subscription_row(fields) for _ in range(count)]
        fields.end()
        return rows, end

    def _subscription_row(self, fields: Fields) -> SubscriptionRow:
        number, subscriber = fields.long("Id"), fields.text("Subscriber")
        context, prefix = fields.text("Context"), fields.text("Filter")
        row = SubscriptionRow(number, subscriber, context, prefix, fields.long("Position"))
        fields.raw("LastEventTime")
        return row

    def queue_lag(self, number: int) -> tuple[int, bool, int]:
        """GQ: how far a queue is behind, whether that is exact, and for how many milliseconds."""
        fields, _, _ = self._page("GQ", "QM", self.dialect.long(number - 1), self.dialect.number(1))
        row = self._queue_row(fields)
        found = row.behind, fields.flag("BehindIsExact"), fields.long("BehindMs")
        for name in ("Ordered", "Selection", "Retry", "Paused", "Delayed"):
            fields.raw(name)
        fields.end()
        assert row.id == number
        return found

    def subscription_lag(self, number: int) -> tuple[int, bool, int]:
        """GU: the same of a subscription."""
        fields, _, _ = self._page("GU", "UM", self.dialect.long(number - 1), self.dialect.number(1))
        row = self._subscription_row(fields)
        found = fields.long("Behind"), fields.flag("BehindIsExact"), fields.long("BehindMs")
        fields.raw("Selection")
        fields.end()
        assert row.id == number
        return found

    def stats(self) -> dict[str, str]:
        """GS: names and values."""
        fields = self.fields(self.ask("GS"), "SG")
        found = {fields.text("Name"): fields.text("Value") for _ in range(fields.number("Count"))}
        fields.end()
        return found

    def _page(self, command: str, answer: str, *asked: bytes) -> tuple[Fields, bool, int]:
        fields = self.fields(self.ask(command, *asked), answer)
        end = fields.flag("End")
        return fields, end, fields.number("Count")

    # -- dead letters

    def set_dead_rule(self, queue: str, context: str, dead_after: int | None) -> str:
        """DR: set allocations aside after so many deliveries; None: never."""
        return self._done(self.ask("DR", queue.encode(), context.encode(), self.dialect.long(dead_after)))

    def list_dead(self, queue: str, context: str, after: int = 0, limit: int = 100) -> tuple[list[DeadRow], bool]:
        """DL: what was set aside, and whether there is no more."""
        asked = (queue.encode(), context.encode(), self.dialect.long(after), self.dialect.number(limit))
        fields, end, count = self._page("DL", "LD", *asked)
        rows = []
        for _ in range(count):
            start, last, events = (fields.long(name) for name in ("StartMarker", "EndMarker", "Count"))
            rows.append(DeadRow(start, last, events, fields.text("Subscriber"), fields.long("Deliveries")))
            fields.raw("Expired")
        fields.end()
        return rows, end

    def put_back(self, queue: str, context: str, start: int) -> str:
        """DP: give what was set aside to the next consumer."""
        return self._done(self.ask("DP", queue.encode(), context.encode(), self.dialect.long(start)))

    def _done(self, answer: Answer) -> str:
        fields = self.fields(answer, "QT")
        name = fields.text("QueueId")
        fields.end()
        return name
