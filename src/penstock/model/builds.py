"""Builds of iterators elsewhere: what is asked by a program that computes an indexed iterator's output by itself.

A build begins where the index is, reads the messages behind that place, stages what the function gives for them in
parts and attempts, and has the attempts that count installed as the iterator's output in one transaction. Messages and
items count from 0. The server may build on meanwhile: the same function over the same messages gives the same items.
"""

from dataclasses import dataclass

from penstock.model.logs import IteratorKind, Over
from penstock.model.replies import Reply
from penstock.model.requests import Repeat, Request, Right
from penstock.model.staging import Winner


@dataclass(frozen=True, slots=True)
class BeginBuild(Request):
    """Where the build of an indexed iterator begins, and what it needs: a BuildStart."""

    repeat = Repeat.READS
    iterator: str


@dataclass(frozen=True, slots=True)
class BuildStart(Reply):
    """An indexed iterator as it is now, and what its function may use.

    Of `head` messages that there are, its index has read `source`, which gave `items`; a reduce has its accumulator
    then (`state`). An iterator that begins anew, because something that it had read was erased, has another `id`.
    """

    iterator: str
    id: int
    log: str
    over: Over
    kind: IteratorKind
    function: str
    source: int
    items: int
    state: bytes | None
    head: int
    call_ms_max: int
    memory_bytes_max: int
    result_bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadMessages(Request):
    """Up to `count` messages that an iterator reads, from an ordinal on: a MessagePage. Empty: there are no more now.

    Fails with IteratorNotFound if the iterator of that name has another id by now.
    """

    repeat = Repeat.READS
    iterator: str
    id: int
    ordinal: int
    count: int


@dataclass(frozen=True, slots=True)
class MessagePage(Reply):
    """Messages in order, each as CBOR. None was erased; an empty one is what the iterator above failed at."""

    messages: list[bytes | None]


@dataclass(frozen=True, slots=True)
class FindMessage(Request):
    """Where in the history the event of a message is that an iterator reads: Found, None if it has none, or is erased.

    Fails as ReadMessages does.
    """

    repeat = Repeat.READS
    iterator: str
    id: int
    ordinal: int


@dataclass(frozen=True, slots=True)
class StageOutput(Request):
    """Stage chunks of output of one attempt, the first of which is its chunk `number` (from 0). Answered with Done.

    A chunk is some items in order, as `penstock.store.outputs.pack_items` makes it. The same again does nothing. Fails
    with IteratorNotFound if no iterator has this id.
    """

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    id: int
    part: int
    attempt: str
    number: int
    chunks: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class InstallOutput(Request):
    """Make what the winners have staged the output of an iterator, all or nothing, and drop the rest: Installed.

    `source` and `items` are where the build began, as in its BuildStart, and `messages` how many are read at its end.
    A winner's units are its chunks. What the server has built meanwhile stays; only what comes after it is added.
    `state` is the accumulator of a reduce at the end.
    """

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    iterator: str
    id: int
    source: int
    items: int
    messages: int
    winners: tuple[Winner, ...]
    state: bytes | None = None


@dataclass(frozen=True, slots=True)
class Installed(Reply):
    """The output of an iterator: how many items it has now, how many were added, and how many messages are read."""

    items: int
    added: int
    messages: int


@dataclass(frozen=True, slots=True)
class DropOutput(Request):
    """Drop what is staged as the output of an iterator. Answered with Done."""

    right = Right.APPEND
    repeat = Repeat.HARMLESS
    id: int
