"""Judging transactions: what a producer's mark says, and what a transaction means that comes once more."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Appended, ProducerMark, check_name
from penstock.store.contract import Acknowledge, Commit, Operation, Progress

NUMBER_MAX: Final = (1 << 63) - 1


def check_mark(mark: ProducerMark) -> None:
    """Refuse a mark that cannot be one."""
    if reason := check_name(mark.producer):
        raise InvalidRequest("producer", reason)
    if not -NUMBER_MAX <= mark.number <= NUMBER_MAX:
        raise InvalidRequest("producer's number", f"{mark.number} does not fit into 64 bits")


def marked_results(ops: Sequence[Operation], mark: ProducerMark, commits: list[Appended]) -> list[Appended | None]:
    """The results of a transaction whose commits were written under its mark before."""
    if len(commits) != sum(isinstance(op, Commit) for op in ops):
        raise InvalidRequest("producer's number", f"{mark.number} was used for another transaction")
    return first_results(ops, commits)


def first_results(ops: Sequence[Operation], commits: list[Appended]) -> list[Appended | None]:
    """The results of a transaction of which only those of its commits are known."""
    before = iter(commits)
    return [next(before, None) if isinstance(op, Commit) else None for op in ops]


def receipts(ops: Sequence[Operation]) -> Iterator[Operation]:
    """What is left to do of a transaction whose commits are there: they may have been made without the rest.

    Where the rest was done too, this does nothing.
    """
    for op in ops:
        if isinstance(op, Acknowledge | Progress):
            yield replace(op, strict=False)
