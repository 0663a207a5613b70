"""One Res01 message on its way through the engine: its requests are submitted, its answers given as they are ready."""

import logging
from collections.abc import Callable
from functools import partial

from penstock.engine import Engine
from penstock.errors import PenstockError, Unexpected
from penstock.model import ANONYMOUS, Reply
from penstock.wire.res01 import Exchange, Frames, Presenter

log = logging.getLogger(__name__)


class Carrying:
    """The replies to a message's requests as they come, in whatever order. A gate says where its answers go."""

    __slots__ = ("_abandons", "_came", "_engine", "_is_going_on", "_left", "_next", "_present", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._left = len(exchange.requests)
        self._next = 0
        self._abandons: list[Callable[[], object]] = []

    # -- said by gates

    def deliver(self, answers: list[Frames], done: bool) -> None:
        """Answers are ready. `done`: they are the last; it is said once."""
        raise NotImplementedError

    def may_go_on(self, begun: int) -> bool:  # noqa: ARG002
        """Whether another of several requests may begin while so many are under way. If not: `go_on` later."""
        return True

    # -- called by gates

    @property
    def done(self) -> bool:
        """Whether everything is answered."""
        return not self._left

    def begin(self, engine: Engine, present: Presenter) -> None:
        """Submit everything; a message that asks for nothing is answered at once."""
        requests = self.exchange.requests
        engine.metrics.commands[self.exchange.name] += 1
        if len(requests) == 1:
            self._abandons.append(engine.submit(ANONYMOUS, requests[0], self._only, present))
        elif requests:
            self._engine, self._present = engine, present
            self._came: dict[int, Reply | PenstockError] = {}
            self._is_going_on = False
            self.go_on()
        else:
            self._answer([])

    def go_on(self) -> None:
        """Submit those of several requests that may begin."""
        # A reply may come while its request is submitted: then we are here already.
        if self._is_going_on:
            return
        self._is_going_on = True
        requests, abandons = self.exchange.requests, self._abandons
        try:
            while (begun := len(abandons)) < len(requests) and self.may_go_on(begun - len(requests) + self._left):
                answer = partial(self._one_of_many, begun)
                abandons.append(_nothing)
                abandons[begun] = self._engine.submit(ANONYMOUS, requests[begun], answer, self._present)
        finally:
            self._is_going_on = False

    def abandon(self) -> None:
        """Give up what only reads or waits: nobody is there for the answer."""
        for give_up in self._abandons:
            give_up()

    # -- replies

    def _only(self, reply: Reply | PenstockError) -> None:
        self._left = 0
        self._answer([reply])

    def _one_of_many(self, index: int, reply: Reply | PenstockError) -> None:
        """All are answered together at the end, or one after the other in order."""
        self._came[index] = reply
        if self.exchange.one_each:
            # A reply that waits for an earlier one is not done: it takes memory, and its answer is still due.
            while (ready := self._came.pop(self._next, None)) is not None:
                self._next += 1
                self._left -= 1
                self._answer([ready])
        else:
            self._left -= 1
            if not self._left:
                self._answer([self._came[place] for place in range(len(self._came))])
        self.go_on()

    def _answer(self, replies: list[Reply | PenstockError]) -> None:
        try:
            answers = self.exchange.answers(replies)
        except Exception as error:
            log.exception("an answer could not be composed")
            answers = [self.exchange.failed(Unexpected(repr(error)))]
        self.deliver(answers, not self._left)


def _nothing() -> None:
    """In the place of what gives a request up, while it is being submitted."""
