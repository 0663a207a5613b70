"""One Res01 message on its way through the engine: its requests are submitted, its answers given as they are ready."""

import logging
from collections.abc import Callable
from functools import partial

from penstock.engine import Engine
from penstock.errors import PenstockError, Unexpected
from penstock.model import ANONYMOUS, Reply
from penstock.wire.res01 import Exchange, Frames, Presenter
from penstock.wire.res01.exchange import error_payload

log = logging.getLogger(__name__)

Deliver = Callable[[list[Frames], bool], object]
"""Takes answers, and whether they are the last of their message."""


class Carrying:
    """The replies to a message's requests as they come, in whatever order."""

    __slots__ = ("_abandons", "_came", "_deliver", "_exchange", "_left", "_next")

    def __init__(self, exchange: Exchange, deliver: Deliver) -> None:
        self._exchange = exchange
        self._deliver = deliver
        self._came: dict[int, Reply | PenstockError] = {}
        self._left = len(exchange.requests)
        self._next = 0
        self._abandons: list[Callable[[], object]] = []

    @property
    def done(self) -> bool:
        """Whether all replies have come."""
        return not self._left

    def begin(self, engine: Engine, present: Presenter) -> None:
        """Submit everything; a message that asks for nothing is answered at once."""
        if not self._exchange.requests:
            self._answer([])
        for index, request in enumerate(self._exchange.requests):
            self._abandons.append(engine.submit(ANONYMOUS, request, partial(self._replied, index), present))

    def abandon(self) -> None:
        """Give up what only reads or waits: nobody is there for the answer."""
        for give_up in self._abandons:
            give_up()

    def _replied(self, index: int, reply: Reply | PenstockError) -> None:
        """One reply is there. All are answered together at the end, or one after the other in order."""
        self._came[index] = reply
        self._left -= 1
        if not self._exchange.one_each:
            if not self._left:
                self._answer([self._came[place] for place in range(len(self._came))])
            return
        while (ready := self._came.pop(self._next, None)) is not None:
            self._next += 1
            self._answer([ready])

    def _answer(self, replies: list[Reply | PenstockError]) -> None:
        try:
            answers = self._exchange.answers(replies)
        except Exception as error:
            log.exception("an answer could not be composed")
            answers = [self._exchange.envelope.around(error_payload(Unexpected(repr(error))))]
        self._deliver(answers, not self._left)
