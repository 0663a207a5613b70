"""Requests that were sent over a connection and are not answered yet, by their RequestId."""

import asyncio
from collections.abc import Callable
from itertools import count
from struct import error as struct_error

from penstock.client.transport import Answer, settle
from penstock.errors import InvalidRequest, PenstockError
from penstock.model import Request
from penstock.wire.res01.dialects import Frames
from penstock.wire.res01.messages import fields_of, reply_of


class Waiting:
    """Gives requests their ids, and answers to those who wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._numbers = count(1)
        self._asked: dict[bytes, tuple[Request, Answer]] = {}

    def send(self, request: Request, send: Callable[[Frames], None]) -> Answer:
        """Have a request sent: its command, an id for it, and its payload. A future for its reply."""
        number = b"%d" % next(self._numbers)
        # Whatever raises here raises before anybody waits.
        fields = encoded(request)
        fields.insert(1, number)
        send(fields)
        answer: Answer = self._loop.create_future()
        self._asked[number] = request, answer
        return answer

    def answered(self, number: bytes, payload: Frames) -> None:
        """An answer has come: its frames after the RequestId. One that nobody waits for is nothing."""
        asked = self._asked.pop(number, None)
        if asked is not None and not asked[1].done():
            settle(asked[1], reply_of(asked[0], payload))

    def forget(self, answer: Answer) -> None:
        """Nobody waits for this one any more."""
        for number, asked in self._asked.items():
            if asked[1] is answer:
                del self._asked[number]
                return

    def fail(self, error: Callable[[], PenstockError]) -> None:
        """The connection is gone: nobody will be answered, and each is told."""
        asked, self._asked = self._asked, {}
        for _, answer in asked.values():
            settle(answer, error())

    def __len__(self) -> int:
        return len(self._asked)


def encoded(request: Request) -> Frames:
    """The command and the payload of a request. What is no part of one is InvalidRequest."""
    try:
        return fields_of(request)
    except (AttributeError, TypeError, ValueError, struct_error) as error:
        raise InvalidRequest(type(request).__name__, f"cannot be sent: {error}") from None
