"""Building an iterator's index on Spark: its function over all messages there are, in tasks, and installed in one go.

A map and a filter are run in parts at the same time, each some messages in a row. Their items follow one another as the
parts do, so the ordinals of a part begin where those before it end, and that is known when all are done. A reduce needs
what came before: its parts are run one after the other, and each is given the accumulator of the last.

Only what the driver names is installed, so an attempt that was lost, or a second one of the same part, adds nothing.
Messages that come meanwhile are the server's, which goes on behind what is installed.

A store takes only so much for one job. If a build has more than that, it is made in rounds of fewer messages, each of
which is installed by itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import FunctionFailed, LimitExceeded, PenstockError
from penstock.lua import LuaLimits
from penstock.model import BuildStart, Installed, IteratorKind, Winner
from penstock.spark.build_parts import Part, PartBuilt, run_part
from penstock.spark.builds import USUAL, Builds, open_builds
from penstock.spark.spreading import Done, Session, shares, spread
from penstock.store import store_url
from penstock.store.contract import Progressed
from penstock.store.urls import SQLITE

RANGE_MESSAGES: Final = 100_000
"""Messages of one part."""
PARTS_MAX: Final = 10_000
"""Parts of one round; of a longer log they are larger."""
_STAGED: Final = ("stage_bytes_max", "stage_units_max")
"""What bounds that which one job may stage."""


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
    url = _absolute(url)
    with closing(open_builds(url, name, lua)) as builds:
        start = builds.begin()
        try:
            yield Building(builds, url, start)
        except BaseException:
            # What cannot be dropped now goes when it has been idle for long enough.
            with suppress(PenstockError):
                builds.drop(start)
            raise


def _absolute(url: str) -> str:
    """A store's folder as tasks find it, which run in folders of their own."""
    path = url.removeprefix(SQLITE)
    return store_url(Path(path).absolute()) if path and url.startswith(SQLITE) else url


class Building:
    """A build that has begun."""

    def __init__(self, builds: Builds, url: str, start: BuildStart) -> None:
        self._builds = builds
        self._url = url
        self._start = start

    def run(self, spark: Session, progressed: Progressed, range_messages: int = RANGE_MESSAGES) -> Outcome:
        """Run the function over all messages, and install what comes of them."""
        head, size = self._start.head, self._start.head - self._start.source
        start, done = self._start, None
        while done is None or (done.error is None and done.end < head):
            part = replace(start, head=min(head, start.source + size))
            try:
                outcome = self._round(spark, part, progressed, range_messages)
            except LimitExceeded as error:
                size //= 2
                if error.limit not in _STAGED or not size:
                    raise
                self._builds.drop(start)
                continue
            done = outcome if done is None else done.then(outcome)
            start = self._builds.begin() if done.end < head else start
        return done

    def _round(self, spark: Session, start: BuildStart, progressed: Progressed, range_messages: int) -> Outcome:
        """Messages up to `start.head`. What is told of progress is of the whole build."""
        first, total = self._start.source, self._start.head - self._start.source

        def done(parts: Sequence[Part]) -> Done:
            return shares(progressed, parts[0].first - first, parts[-1].end - parts[0].first, total)

        parts = plan_parts(self._url, start, range_messages)
        return _install(self._builds, start, _run(spark, start, parts, done))


def plan_parts(url: str, start: BuildStart, range_messages: int) -> list[Part]:
    """The messages that are to be read, in parts."""
    total = start.head - start.source
    size = max(1, range_messages, -(-total // PARTS_MAX))
    firsts = range(start.source, start.head, size)
    return [Part(url, start, number, first, min(first + size, start.head)) for number, first in enumerate(firsts)]


def _run(
    spark: Session, start: BuildStart, parts: Sequence[Part], done: Callable[[Sequence[Part]], Done]
) -> list[PartBuilt]:
    """What came of the parts, up to one that failed."""
    if not parts:
        return []
    if start.kind != IteratorKind.REDUCE:
        return _before_error(spread(spark, parts, run_part, done(parts)))
    built: list[PartBuilt] = []
    state = start.state
    for part in parts:
        built += spread(spark, [part._replace(state=state)], run_part, done([part]))
        state = built[-1].came.state
        if built[-1].came.error is not None:
            break
    return built


def _before_error(built: Sequence[PartBuilt]) -> list[PartBuilt]:
    """Parts up to the first that did not come to its end: whatever is behind that depends on it."""
    ends = (number for number, one in enumerate(built, 1) if one.came.error is not None)
    return list(built[: next(ends, len(built))])


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
