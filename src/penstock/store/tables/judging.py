"""Judging transactions: what a producer's mark says, and what a transaction means that comes once more.

A mark remembers the commits of its transaction. A publication is kept in the form of one commit: its first position,
its commits and its events. In the place of an id it has eight zeros, as no id has, and a digest of its origin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Appended, ProducerMark, Published, check_name
from penstock.store.contract import Acknowledge, Commit, Operation, Progress, Publish
from penstock.store.staging import Placed

NUMBER_MAX: Final = (1 << 63) - 1
_PUBLISHED: Final = bytes(8)
_NO_ORIGIN: Final = bytes(8)


def check_mark(mark: ProducerMark) -> None:
    """Refuse a mark that cannot be one."""
    if reason := check_name(mark.producer):
        raise InvalidRequest("producer", reason)
    if not -NUMBER_MAX <= mark.number <= NUMBER_MAX:
        raise InvalidRequest("producer's number", f"{mark.number} does not fit into 64 bits")


def kept(ops: Sequence[Operation], results: Sequence[object]) -> list[Appended]:
    """What a mark keeps of the results of its transaction."""
    pairs = zip(ops, results, strict=True)
    return [_kept(op, result) for op, result in pairs if isinstance(result, Appended | Placed)]


def _kept(op: Operation, result: Appended | Placed) -> Appended:
    if isinstance(result, Appended):
        return result
    published = result.published
    return Appended(_PUBLISHED + _origin(op), published.position, published.commits, published.events)


def _origin(op: Operation) -> bytes:
    if not isinstance(op, Publish) or not op.origin:
        return _NO_ORIGIN
    return blake2b(op.origin.encode(), digest_size=len(_NO_ORIGIN)).digest()


def first_results(
    ops: Sequence[Operation], before: Sequence[Appended], mark: ProducerMark | None = None
) -> list[Appended | Placed | None]:
    """The first results of a transaction's commits; InvalidRequest if the mark was used for another transaction."""
    if mark is not None:
        _check_same([op for op in ops if isinstance(op, Commit | Publish)], before, mark)
    rest = iter(before)
    return [_first(op, rest) for op in ops]


def _check_same(ops: Sequence[Commit | Publish], before: Sequence[Appended], mark: ProducerMark) -> None:
    if [isinstance(op, Publish) for op in ops] != [one.commit.startswith(_PUBLISHED) for one in before]:
        raise InvalidRequest("producer's number", f"{mark.number} was used for another transaction")
    for op, one in zip(ops, before, strict=True):
        known = one.commit[len(_PUBLISHED) :]
        if isinstance(op, Publish) and op.origin and known not in (_NO_ORIGIN, _origin(op)):
            other = f"{mark.producer} has published number {mark.number} for another one, such as a query with another"
            raise InvalidRequest("producer", f"{other} checkpoint; nothing is written: give this one a name of its own")


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
