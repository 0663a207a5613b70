"""Whether what goes into a log is CBOR, whichever gate it came through.

Most messages are small or plainly valid, and are written at once. What would take longer is looked at by a worker, so
that nobody else waits for it; until then, what is added to the same log later waits in line behind it. What was taken
will be written, or answered with why not, also if whoever sent it is gone.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from penstock.engine import jobs
from penstock.engine.parts import Parts
from penstock.errors import NotCbor, PenstockError, Unexpected, WriterBusy
from penstock.model import Append, Reply
from penstock.store.contract import LOG_CONTEXT, MESSAGE_TYPE
from penstock.wire.remits import first_invalid, plainly_valid

log = logging.getLogger(__name__)

SCANNED_BYTES_MAX: Final = 4 * 1024
"""Messages of one request that are looked at in any case before it goes on: it takes a millisecond at most."""
CHECKED_BYTES_MAX: Final = 256 * 1024
"""Messages of one request that are looked at before it goes on, if they are plain ones."""

Answer = Callable[[Reply | PenstockError], None]


class _Turn(NamedTuple):
    """A place in the line of a log: messages that are or were checked, and how they are written then."""

    checked: "asyncio.Future[None]"
    size: int
    write: Callable[[], None]
    answer: Answer


class Checks:
    """Those whose messages are being checked, in one line for each log."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._lines: dict[str, deque[_Turn]] = {}
        self._waiting = 0
        self._waiting_bytes = 0

    @property
    def under_way(self) -> "list[asyncio.Future[None]]":
        """What a server that stops waits for."""
        return [turn.checked for line in self._lines.values() for turn in line]

    def enter(self, name: str, messages: Sequence[bytes], write: Callable[[], None], answer: Answer) -> None:
        """Write messages to a log if they are CBOR, after those that came before: now, or when they are checked.

        Later it is `answer` that is told what `write` or the check raises.
        """
        plain = is_plain(messages)
        if plain and name not in self._lines:
            return write()
        size = sum(map(len, messages))
        if self._is_full(size):
            raise WriterBusy(self._waiting)
        checked = _done() if plain else self._parts.run(jobs.check_messages, name, messages)
        self._waiting += 1
        self._waiting_bytes += size
        self._lines.setdefault(name, deque()).append(_Turn(checked, size, write, answer))
        checked.add_done_callback(lambda _: self._go_on(name))
        return None

    async def check(self, appends: Sequence[Append]) -> None:
        """Raise NotCbor, or LogNotFound, if some of a transaction's appends cannot go into their logs.

        They have no place in any line: nothing says when a transaction is written.
        """
        parcels = [(append.stream, bodies_of(append)) for append in appends if append.context == LOG_CONTEXT]
        if not is_plain([message for _, messages in parcels for message in messages]):
            for name, messages in parcels:
                await self._parts.run(jobs.check_messages, name, messages)

    def _is_full(self, size: int) -> bool:
        """They are at most as many as may wait for the writer, where they go next."""
        settings, size = self._parts.settings, self._waiting_bytes + size
        return self._waiting >= settings.writer_queue_max or (
            self._waiting > 0 and size > settings.writer_queue_bytes_max
        )

    def _go_on(self, name: str) -> None:
        """Write what is checked, up to the first that is not."""
        line = self._lines.get(name, deque())
        while line and line[0].checked.done():
            turn = line.popleft()
            self._waiting -= 1
            self._waiting_bytes -= turn.size
            _write(turn)
        if not line:
            self._lines.pop(name, None)


def _write(turn: _Turn) -> None:
    try:
        turn.checked.result()
        turn.write()
    except PenstockError as error:
        turn.answer(error)
    except Exception as error:
        log.exception("messages that were checked could not be written")
        turn.answer(Unexpected(repr(error)))


def _done() -> "asyncio.Future[None]":
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


def is_plain(messages: Sequence[bytes]) -> bool:
    """Whether messages are seen to be valid in so short a time that everyone else can wait for it."""
    size = sum(map(len, messages))
    if size <= SCANNED_BYTES_MAX:
        return first_invalid(messages) is None
    return size <= CHECKED_BYTES_MAX and plainly_valid(messages)


def bodies_of(request: Append) -> list[bytes]:
    """The messages of an append to a log; NotCbor if an event has another type."""
    for index, event in enumerate(request.events):
        if event.type != MESSAGE_TYPE:
            raise NotCbor(index, f"its type is '{event.type}', and a log has events of type '{MESSAGE_TYPE}' only")
    return [bytes(event.body) for event in request.events]
