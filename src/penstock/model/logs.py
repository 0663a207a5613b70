"""Logs of CBOR messages and the iterators over them: what can be asked, and what is answered.

A log is a stream of the context `remits`. An iterator maps, filters or reduces what it reads: a log, another
iterator's kept output, or a stream of any context. Ordinals count from 0; those of an iterator count its output.
"""

from dataclasses import dataclass
from enum import StrEnum

from penstock.model.replies import Encoded, Reply
from penstock.model.requests import Repeat, Request, Right


class IteratorKind(StrEnum):
    """What an iterator does with each message."""

    MAP = "map"
    FILTER = "filter"
    REDUCE = "reduce"


class Over(StrEnum):
    """What an iterator reads."""

    LOG = "log"
    ITERATOR = "iterator"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class CreateLog(Request):
    """Make a log unless it is there. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    log: str


@dataclass(frozen=True, slots=True)
class DropLog(Request):
    """Delete a log, its contents and its iterators, if it is there. Answered with Done.

    With `created` (ticks, as its LogSummary has them) only the log that was made then is deleted, and no later one of
    the same name.
    """

    right = Right.APPEND
    repeat = Repeat.MARKED
    log: str
    created: int | None = None

    def is_marked(self) -> bool:
        """By when the log was made."""
        return self.created is not None


@dataclass(frozen=True, slots=True)
class ShowLog(Request):
    """What is known of a log: a LogSummary."""

    repeat = Repeat.READS
    log: str


@dataclass(frozen=True, slots=True)
class ListLogs(Request):
    """The names of all logs, in order: Names."""

    repeat = Repeat.READS


@dataclass(frozen=True, slots=True)
class AddMessages(Request):
    """Append messages to a log, each one CBOR item: all of them or none. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.NEVER
    log: str
    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CreateIterator(Request):
    """Make an iterator unless the same is there. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    name: str
    log: str
    kind: IteratorKind
    function: str
    indexed: bool


@dataclass(frozen=True, slots=True)
class DropIterator(Request):
    """Delete an iterator of a log, with its output. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.NEVER
    log: str
    name: str


@dataclass(frozen=True, slots=True)
class ListIterators(Request):
    """The names of the iterators of a log, or of all, in order: Names."""

    repeat = Repeat.READS
    log: str | None


@dataclass(frozen=True, slots=True)
class ShowIterator(Request):
    """What is known of an iterator: an IteratorSummary."""

    repeat = Repeat.READS
    name: str


@dataclass(frozen=True, slots=True)
class NextItems(Request):
    """Up to `count` items of an iterator's output from an ordinal on; -1 is the last one. An ItemPage."""

    repeat = Repeat.READS
    iterator: str
    ordinal: int
    count: int


@dataclass(frozen=True, slots=True)
class Names(Reply):
    """Names in order."""

    names: list[str]


@dataclass(frozen=True, slots=True)
class LogSummary(Reply):
    """A log, when it was made (ticks), and what is in it."""

    log: str
    created: int
    messages: int
    size_bytes: int
    iterators: list[str]


@dataclass(frozen=True, slots=True)
class IteratorSummary(Reply):
    """An iterator: what it reads, what it does, and when it was made (ticks).

    `log` is the name of a log or an iterator, or a stream as `context/stream`; `over` says which. One that is indexed
    has `items` in its output so far, and is so many messages `behind`; of a plain one both are None.
    """

    name: str
    log: str
    over: Over
    kind: IteratorKind
    function: str
    indexed: bool
    created: int
    items: int | None
    behind: int | None


@dataclass(frozen=True, slots=True)
class ItemPage(Reply):
    """Items in order, each as CBOR. None: there are no more now."""

    items: list[bytes]
    encoded: Encoded | None = None
