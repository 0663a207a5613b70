"""Judging transactions: what a producer's mark says, and what a transaction means that comes once more.

A mark remembers the commits of its transaction. A publication is kept in the form of one commit without an id: its
first position, its commits and its events.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Appended, ProducerMark, Published, check_name
from penstock.store.contract import Acknowledge, Commit, Operation, Progress, Publish
from penstock.store.staging import Placed

NUMBER_MAX: Final = (1 << 63) - 1
_PUBLISHED: Final = bytes(16)


def check_mark(mark: ProducerMark) -> None:
    """Refuse a mark that cannot be one."""
    if reason := check_name(mark.producer):
        raise InvalidRequest("producer", reason)
    if not -NUMBER_MAX <= mark.number <= NUMBER_MAX:
        raise InvalidRequest("producer's number", f"{mark.number} does not fit into 64 bits")


def kept(results: Sequence[object]) -> list[Appended]:
    """What a mark keeps of the results of its transaction."""
    return [_kept(result) for result in results if isinstance(result, Appended | Placed)]


def _kept(result: Appended | Placed) -> Appended:
    if isinstance(result, Appended):
        return result
    published = result.published
    return Appended(_PUBLISHED, published.position, published.commits, published.events)


def first_results(
    ops: Sequence[Operation], before: Sequence[Appended], mark: ProducerMark | None = None
) -> list[Appended | Placed | None]:
    """The first results of a transaction's commits; InvalidRequest if the mark was used for another transaction."""
    published = [isinstance(op, Publish) for op in ops if isinstance(op, Commit | Publish)]
    if mark is not None and published != [one.commit == _PUBLISHED for one in before]:
        raise InvalidRequest("producer's number", f"{mark.number} was used for another transaction")
    rest = iter(before)
    return [_first(op, rest) for op in ops]


def _first(op: Operation, before: Iterator[Appended]) -> Appended | Placed | None:
    if not isinstance(op, Commit | Publish):
        return None
    found = next(before)
    if isinstance(op, Commit):
        return found
    return Placed(Published(found.position, found.sequence, found.count, repeated=True), frozenset())


def receipts(ops: Sequence[Operation]) -> Iterator[Operation]:
    """What is left to do of a transaction whose commits are there: they may have been made without the rest.

    Where the rest was done too, this does nothing.
    """
    for op in ops:
        if isinstance(op, Acknowledge | Progress):
            yield replace(op, strict=False)
