"""Building an iterator's index on Spark: its function over all messages there are, in tasks, and installed in one go.

A map and a filter are run in parts at the same time, each some messages in a row. Their items follow one another as the
parts do, so the ordinals of a part begin where those before it end, and that is known when all are done. A reduce needs
what came before: its parts are run one after the other, and each is given the accumulator of the last.

Only what the driver names is installed, so an attempt that was lost, or a second one of the same part, adds nothing.
Messages that come meanwhile are the server's, which goes on behind what is installed.

A store takes only so much for one job. If a build has more than that, it is made in rounds of fewer messages, each of
which is installed by itself. What was staged of the first messages when the limit was met is such a round.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple
from uuid import uuid4

from penstock.errors import FunctionFailed, IteratorNotFound, LimitExceeded, PenstockError
from penstock.lua import LuaLimits
from penstock.model import BuildStart, Installed, IteratorKind, Winner
from penstock.spark.build_parts import STAGED, Part, PartBuilt, fitting, run_part
from penstock.spark.builds import USUAL, Builds, open_builds
from penstock.spark.spreading import Session, cores, spread
from penstock.store.contract import Progressed
from penstock.store.urls import absolute_url

RANGE_MESSAGES: Final = 100_000
"""Messages of one part; fewer if there would be fewer parts than cores."""
PART_MESSAGES_MIN: Final = 1000
"""Fewer messages are worth no process of their own, unless their items are known to be large."""
PARTS_MAX: Final = 10_000
"""Parts of one round; of a longer log they are larger."""
PART_S: Final = 5.0
"""Seconds after which a task is back, so that a slow function is seen to go on."""
NUMBERS_MAX: Final = 50_000
"""Numbers of parts in one round: as many can be installed at once."""
ROOM_SHARE: Final = 3, 4
"""How much of what may be staged a round is made for, once the limit is known: not all messages are alike."""


class Outcome(NamedTuple):
    """What a build came to: it read messages from `first` to before `end`, and installed what came of them.

    Of a map `failed` messages have failed, the first of them with `failure`. `error` has stopped a filter or a reduce,
    at the message `end`; `position` is where in the history its event is, or that of the first failure, if that is
    known. `added` is less than `items` where the server had built some of it meanwhile.
    """

    start: BuildStart
    end: int
    items: int
    installed: Installed
    failed: int = 0
    failure: FunctionFailed | None = None
    error: FunctionFailed | None = None
    position: int | None = None

    @property
    def messages(self) -> int:
        """How many messages were read."""
        return self.end - self.start.source

    def then(self, following: "Outcome") -> "Outcome":
        """Both rounds as one."""
        added = self.installed.added + following.installed.added
        told = following if self.failure is None or following.error is not None else self
        return following._replace(
            start=self.start,
            items=self.items + following.items,
            installed=replace(following.installed, added=added),
            failed=self.failed + following.failed if following.error is None else 0,
            failure=told.failure,
            position=told.position,
        )


def build(
    spark: Session,
    url: str,
    name: str,
    progressed: Progressed,
    lua: LuaLimits = USUAL,
    range_messages: int = RANGE_MESSAGES,
) -> Outcome:
    """Build an indexed iterator up to the messages that there are now.

    Raises IteratorNotFound if it is not there, or was deleted or began anew meanwhile; then nothing is installed.
    """
    with begun(url, name, lua) as building:
        return building.run(spark, progressed, range_messages)


@contextmanager
def begun(url: str, name: str, lua: LuaLimits = USUAL) -> Iterator["Building"]:
    """A build of what there is now. If anything fails in the block, what was staged is dropped at its end.

    Whoever starts a session for it, and may end it in the middle, does both inside the block.
    """
    url = absolute_url(url)
    with closing(open_builds(url, name, lua)) as builds:
        start = builds.begin()
        try:
            yield Building(builds, url, start)
        except BaseException:
            # What cannot be dropped now goes when it has been idle for long enough.
            with suppress(PenstockError):
                builds.drop(start)
            raise


class Rounds:
    """How many messages are built in one round: all, until it is known how much may be staged."""

    def __init__(self, messages: int) -> None:
        self.size = messages
        self._limit: LimitExceeded | None = None

    @property
    def least(self) -> int:
        """How many messages a part has at least."""
        return PART_MESSAGES_MIN if self._limit is None else 1

    def was_too_much(self, start: BuildStart, built: Sequence[PartBuilt], limit: LimitExceeded) -> None:
        """A round came to a limit: the next one is at most half as large."""
        half = (start.head - start.source) // 2
        fit = built[-1].came.fit if built[-1].came.full is not None else _fit(limit, built)
        self._limit, self.size = limit, max(1, min(half, _share(fit) or half))

    def was_good(self, start: BuildStart, built: Sequence[PartBuilt]) -> None:
        """All of a round was staged: the next one may be larger, if there was room left."""
        if self._limit is not None and built:
            self.size = max(1, min(2 * (start.head - start.source), _share(_fit(self._limit, built))))


def _fit(limit: LimitExceeded, built: Sequence[PartBuilt]) -> int:
    messages = sum(one.came.source - one.first for one in built)
    return fitting(limit, messages, sum(one.came.units for one in built), sum(one.came.size for one in built))


def _share(messages: int) -> int:
    part, whole = ROOM_SHARE
    return messages * part // whole


class Building:
    """A build that has begun. Of the messages that were read so far, `failed` have failed."""

    def __init__(self, builds: Builds, url: str, start: BuildStart) -> None:
        self._builds = builds
        self._url = url
        self._start = start
        self._read = 0
        self.failed = 0

    def run(self, spark: Session, progressed: Progressed, range_messages: int = RANGE_MESSAGES) -> Outcome:
        """Run the function over all messages, and install what comes of them."""
        head, start, done = self._start.head, self._start, None
        rounds = Rounds(head - start.source)

        def came(part: PartBuilt) -> None:
            self._read += part.came.source - part.first
            self.failed += part.came.failed
            progressed(self._read, head - self._start.source)

        while done is None or (done.error is None and done.end < head):
            self._read, self.failed = start.source - self._start.source, done.failed if done else 0
            part = replace(start, head=min(head, start.source + rounds.size))
            plan = partial(plan_parts, self._url, part, range_messages, least=rounds.least)
            outcome = self._round(part, _run(spark, part, plan, came), rounds)
            if outcome is not None:
                done = outcome if done is None else done.then(outcome)
                start = self._next(start) if done.end < head else start
        return done

    def _next(self, start: BuildStart) -> BuildStart:
        """Where the next round begins. Raises IteratorNotFound if the iterator is another one by now."""
        found = self._builds.begin()
        if found.id != start.id:
            raise IteratorNotFound(start.iterator)
        return found

    def _round(self, start: BuildStart, built: Sequence[PartBuilt], rounds: Rounds) -> Outcome | None:
        """Install what came of a round; None if it was too much, and nothing is installed."""
        full = built[-1].came.full if built else None
        try:
            if full is not None and built[-1].came.source == start.source:
                raise full
            outcome = _install(self._builds, start, built)
        except LimitExceeded as error:
            if error.limit not in STAGED or start.head - start.source <= 1:
                raise
            self._builds.drop(start)
            rounds.was_too_much(start, built, error)
            return None
        if full is not None:
            rounds.was_too_much(start, built, full)
        else:
            rounds.was_good(start, built)
        return outcome


def plan_parts(
    url: str, start: BuildStart, range_messages: int, cores: int = 1, least: int = PART_MESSAGES_MIN
) -> list[Part]:
    """The messages that are to be read, in parts: as many as there are cores, unless they would be very small."""
    total = start.head - start.source
    size = max(1, min(range_messages, max(least, -(-total // cores))), -(-total // PARTS_MAX))
    firsts = range(start.source, start.head, size)
    numbers = NUMBERS_MAX // max(1, len(firsts))
    part = Part(url, start, 0, 0, 0, seconds_max=PART_S, round=uuid4().hex)
    return [
        part._replace(number=at * numbers, last=(at + 1) * numbers - 1, first=first, end=min(first + size, start.head))
        for at, first in enumerate(firsts)
    ]


def _run(
    spark: Session, start: BuildStart, plan: Callable[[int], list[Part]], came: Callable[[PartBuilt], None]
) -> list[PartBuilt]:
    """What came of the messages, up to a part that could not go on: whatever is behind that depends on it."""
    if start.head <= start.source:
        return []
    is_chain = start.kind == IteratorKind.REDUCE
    left, built = plan(1 if is_chain else cores(spark)), list[PartBuilt]()
    if is_chain:
        left[0] = left[0]._replace(state=start.state)
    while left:
        parts = left[:1] if is_chain else left
        found = spread(spark, parts, run_part, None, came)
        rests = [rest for part, one in zip(parts, found, strict=True) if (rest := part.rest(one.came)) is not None]
        built = _before_end(sorted([*built, *found], key=lambda one: one.number))
        left = [part for part in (*rests, *left[len(parts) :]) if not _is_behind(part, built)]
        if is_chain and left:
            left[0] = left[0]._replace(state=built[-1].came.state)
    return built


def _before_end(built: Sequence[PartBuilt]) -> list[PartBuilt]:
    """Parts up to the first that could not go on."""
    ends = (number for number, one in enumerate(built, 1) if one.came.is_over)
    return list(built[: next(ends, len(built))])


def _is_behind(part: Part, built: Sequence[PartBuilt]) -> bool:
    """Whether a part comes after one that could not go on."""
    return built[-1].came.is_over and part.number > built[-1].number


def _install(builds: Builds, start: BuildStart, built: Sequence[PartBuilt]) -> Outcome:
    if not built:
        return Outcome(start, start.source, 0, Installed(start.items, 0, start.source))
    last = built[-1].came
    winners = [Winner(one.number, one.attempt, one.came.units) for one in built if one.came.units]
    is_reduce = start.kind == IteratorKind.REDUCE
    installed = builds.install(start, last.source, winners, last.state if is_reduce else None)
    return _told(builds, Outcome(start, last.source, sum(one.came.items for one in built), installed), built)


def _told(builds: Builds, outcome: Outcome, built: Sequence[PartBuilt]) -> Outcome:
    """What is to be said of messages that failed."""
    error = built[-1].came.error
    failure = next((one.came.failure for one in built if one.came.failure is not None), None)
    first = error or failure
    if first is None or first.message is None:
        return outcome
    position = None
    # It is all done: what is only for people to know is no reason to fail.
    with suppress(PenstockError):
        position = builds.position(outcome.start, first.message)
    failed = sum(one.came.failed for one in built) if error is None else 0
    return outcome._replace(failed=failed, failure=None if error else failure, error=error, position=position)
