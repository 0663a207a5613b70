"""Requests that were sent over a connection and are not answered yet, by their RequestId."""

import asyncio
from itertools import count

from penstock.client.transport import Answer, settle
from penstock.errors import ConnectionLost, PenstockError
from penstock.model import Reply, Request
from penstock.wire.res01.asking import reply_of
from penstock.wire.res01.exchange import Frames


class Waiting:
    """Gives requests their ids, and answers to those who wait for them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = count(1)
        self._asked: dict[bytes, tuple[Request, Answer]] = {}

    def add(self, request: Request) -> tuple[bytes, Answer]:
        """An id for a request, and a future for its reply."""
        number = b"%d" % next(self._numbers)
        answer: Answer = asyncio.get_running_loop().create_future()
        self._asked[number] = request, answer
        return number, answer

    def answered(self, number: bytes, payload: Frames) -> None:
        """An answer has come: its frames after the RequestId. One that nobody waits for is nothing."""
        request, answer = self._asked.pop(number, (None, None))
        if request is None or answer is None or answer.done():
            return
        settle(answer, _reply(request, payload))

    def forget(self, number: bytes) -> None:
        """The request was not sent after all."""
        self._asked.pop(number, None)

    def lost(self, reason: str) -> None:
        """The connection is gone: nobody will be answered."""
        asked, self._asked = self._asked, {}
        for _, answer in asked.values():
            settle(answer, ConnectionLost(self._url, reason))

    def __len__(self) -> int:
        return len(self._asked)


def _reply(request: Request, payload: Frames) -> Reply | PenstockError:
    return reply_of(request, payload)
