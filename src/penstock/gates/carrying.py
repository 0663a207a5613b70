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


class Carrying:
    """The replies to a message's requests as they come, in whatever order. A gate says where its answers go."""

    __slots__ = ("_abandons", "_came", "_left", "_next", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._left = len(exchange.requests)
        self._next = 0
        self._abandons: list[Callable[[], object]] = []

    def deliver(self, answers: list[Frames], done: bool) -> None:
        """Answers are ready. `done`: they are the last."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """Whether all replies have come."""
        return not self._left

    def begin(self, engine: Engine, present: Presenter) -> None:
        """Submit everything; a message that asks for nothing is answered at once."""
        requests = self.exchange.requests
        if not requests:
            self._answer([])
        elif len(requests) == 1:
            self._abandons.append(engine.submit(ANONYMOUS, requests[0], self._only, present))
        else:
            self._came: dict[int, Reply | PenstockError] = {}
            for index, request in enumerate(requests):
                self._abandons.append(engine.submit(ANONYMOUS, request, partial(self._one_of_many, index), present))

    def abandon(self) -> None:
        """Give up what only reads or waits: nobody is there for the answer."""
        for give_up in self._abandons:
            give_up()

    def _only(self, reply: Reply | PenstockError) -> None:
        self._left = 0
        self._answer([reply])

    def _one_of_many(self, index: int, reply: Reply | PenstockError) -> None:
        """All are answered together at the end, or one after the other in order."""
        self._came[index] = reply
        self._left -= 1
        if not self.exchange.one_each:
            if not self._left:
                self._answer([self._came[place] for place in range(len(self._came))])
            return
        while (ready := self._came.pop(self._next, None)) is not None:
            self._next += 1
            self._answer([ready])

    def _answer(self, replies: list[Reply | PenstockError]) -> None:
        try:
            answers = self.exchange.answers(replies)
        except Exception as error:
            log.exception("an answer could not be composed")
            answers = [self.exchange.envelope.around(error_payload(Unexpected(repr(error))))]
        self.deliver(answers, not self._left)
