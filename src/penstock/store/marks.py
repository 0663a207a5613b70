"""What a producer's mark remembers of a transaction: its commits, or that a job was published.

A publication is kept in the form of one commit without an id: its first position, its commits and its events.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Appended, ProducerMark, Published
from penstock.store.operations import Commit, Operation, Publish
from penstock.store.staging import Placed

_PUBLISHED: Final = bytes(16)


def kept(results: Sequence[object]) -> list[Appended]:
    """What is kept of the results of a transaction."""
    return [_kept(result) for result in results if isinstance(result, Appended | Placed)]


def _kept(result: Appended | Placed) -> Appended:
    if isinstance(result, Appended):
        return result
    published = result.published
    return Appended(_PUBLISHED, published.position, published.commits, published.events)


def first_results(
    operations: Sequence[Operation], before: Sequence[Appended], mark: ProducerMark | None = None
) -> list[Appended | Placed | None]:
    """The first results of a transaction's commits; InvalidRequest if the mark was used for another transaction."""
    marked = [op for op in operations if isinstance(op, Commit | Publish)]
    published = [isinstance(op, Publish) for op in marked]
    if mark is not None and published != [one.commit == _PUBLISHED for one in before]:
        raise InvalidRequest("producer's number", f"{mark.number} was used for another transaction")
    rest = iter(before)
    return [_first(op, rest) for op in operations]


def _first(op: Operation, before: Iterator[Appended]) -> Appended | Placed | None:
    if not isinstance(op, Commit | Publish):
        return None
    found = next(before)
    if isinstance(op, Commit):
        return found
    return Placed(Published(found.position, found.sequence, found.count, repeated=True), frozenset())
