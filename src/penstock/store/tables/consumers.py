"""Subscriptions, queues and producers: reading what small tables say of how far somebody has come."""

from struct import Struct
from typing import Final, Generic

from penstock.errors import MarkSuperseded
from penstock.model import Allocation, Appended, ProducerMark, SubscriptionInfo
from penstock.store.contract import STALE, Allocate, Proposal, QueueState, Store
from penstock.store.tables.queries import AnyQueries

QUEUE_ALLOCATIONS_MAX: Final = 16_384
"""Allocations of one queue that are out, expired or set aside."""
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

    def allocations(self, queue: int, after: int, limit: int) -> list[Allocation]:
        values = {"queue_id": queue, "after": after, "limit": limit}
        return [Allocation(*row) for row in self.db.rows("allocations", values)]

    def next_expiry(self, queue: int, after: int) -> int | None:
        expires: int | None = self.db.value("next_expiry", {"queue_id": queue, "after": after})
        return expires

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
