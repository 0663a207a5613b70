"""Subscriptions, queues and producers: reading what small tables say of how far somebody has come."""

from struct import Struct
from typing import Final, Generic

from penstock.errors import MarkSuperseded
from penstock.model import Allocation, Appended, EventFilter, ProducerMark, QueueInfo, SubscriptionInfo
from penstock.store.contract import STALE, Allocate, Proposal, QueueState, ReadLimits, Store
from penstock.store.tables.queries import AnyQueries

QUEUE_ALLOCATIONS_MAX: Final = 16_384
"""Allocations of one queue that are out, expired or set aside."""
FIRST_EVENT: Final = ReadLimits(events_max=1, scan_ms_max=20)
"""How far one looks for the next event of a queue that is listed."""
_RESULT: Final = Struct("<16sQQI")


class Consumers(Store, Generic[AnyQueries]):
    """The reading half of subscriptions and queues."""

    db: AnyQueries

    def subscription(self, number: int) -> SubscriptionInfo | None:
        row = self.db.row("subscription", {"id": number})
        return SubscriptionInfo(*row) if row else None

    def find_subscription(self, subscriber: str, context: str, filter: str) -> SubscriptionInfo | None:
        row = self.db.row("find_subscription", {"subscriber": subscriber, "context": context, "filter": filter})
        return SubscriptionInfo(*row) if row else None

    def subscriptions(self, after: int, limit: int) -> list[SubscriptionInfo]:
        return [SubscriptionInfo(*row) for row in self.db.rows("subscriptions", {"after": after, "limit": limit})]

    def find_queues(self, name: str, context: str | None = None) -> list[QueueState]:
        if context is None:
            return [QueueState(*row) for row in self.db.rows("queues_named", {"name": name, "limit": 2})]
        return [QueueState(*row) for row in self.db.rows("queue", {"name": name, "context": context})]

    def queues(self, after: int, limit: int) -> list[QueueInfo]:
        head = self.head()
        rows = self.db.rows("queues", {"after": after, "limit": limit, "now": self.now()})
        return [
            QueueInfo(number, context, name, filter, position, again + self._ahead(place, position, head), *counts)
            for number, context, name, filter, position, again, *counts in rows
            for place in (EventFilter(context, filter),)
        ]

    def _ahead(self, wanted: EventFilter, position: int, head: int) -> int:
        """How many positions there are up to the head, from the first one on that has an event for somebody."""
        if position > head:
            return 0
        # A context's blocks are known, so that looking past the others' events is quick; at worst it stops in between.
        found = self.read_all(position, wanted, FIRST_EVENT, head)
        return max(0, head + 1 - (found.events[0].position if found.events else found.next))

    def allocations(self, queue: int, after: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "after": after, "limit": limit}
        return [Allocation(*row) for row in self.db.rows("allocations", values)]

    def next_expiry(self, queue: int, after: int) -> int | None:
        expires: int | None = self.db.value("next_expiry", {"queue_id": queue, "after": after})
        return expires

    def shared_allocations(self, queue: int, first: int, last: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "first": first, "last": last, "limit": limit}
        return [Allocation(*row) for row in self.db.rows("shared_allocations", values)]

    def waiting(self, queue: int) -> tuple[int, int]:
        number, events = self.db.row("waiting", {"queue_id": queue, "now": self.now()})
        return number, events

    def dead_letters(self, queue: int, after: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "after": after, "limit": limit, "now": self.now()}
        return [Allocation(*row) for row in self.db.rows("dead_letters", values)]


def allocated_again(op: Allocate, claim: Allocation, now: int, expires: int) -> Allocation | str:
    """What becomes of a claim: it is the subscriber's still, or is taken over if it is as the proposal found it."""
    live = claim.expires > now
    kind = Proposal.OWN if live else Proposal.EXPIRED
    seen = (op.proposal.kind, op.proposal.first, op.proposal.last, op.proposal.count)
    if seen != (kind, claim.first, claim.last, claim.count):
        return STALE
    if live:
        return claim
    return Allocation(claim.first, claim.last, claim.count, op.subscriber, expires, claim.deliveries + 1)


def results_of(mark: ProducerMark, number: int | None, results: bytes) -> list[Appended] | None:
    """The commits that were written under a mark, by the last number of its producer; None if it is new."""
    if number is None or number < mark.number:
        return None
    if number > mark.number:
        raise MarkSuperseded(mark.producer, mark.number, number)
    found = _RESULT.iter_unpack(results)
    return [Appended(commit, position, sequence, count, True) for commit, position, sequence, count in found]


def packed(commits: list[Appended]) -> bytes:
    """What was written under a mark, as it is stored."""
    return b"".join(_RESULT.pack(c.commit, c.position, c.sequence, c.count) for c in commits)
