"""Building an iterator's index on Spark: tasks run its function over all messages, and one step installs the results.

Tasks of a map or a filter run at the same time, each over a range of messages. Their items follow one another in the
order of the tasks, so the ordinals of a task's items are known when all tasks are done. A reduce needs the accumulator
of the messages before: its tasks run one after the other.

The driver installs the attempts that it names, so an attempt that was lost, or a second one of the same task, adds
nothing. The server continues with messages that come meanwhile.

A store limits what one job may stage. A build that is larger runs in rounds of fewer messages, each installed
separately. Items that were staged before the build met the limit become the first round.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, NamedTuple, Union
from uuid import uuid4

from penstock.engine import iterator_jobs
from penstock.engine.iterator_jobs import find_iterator
from penstock.errors import BadUrl, FunctionFailed, IteratorNotFound, LimitExceeded, PenstockError
from penstock.history.source import SERVED
from penstock.lua import LuaLimits
from penstock.model import BuildStart, Installed, IteratorKind, Winner
from penstock.model.address import addressed
from penstock.spark.build_tasks import STAGE_LIMITS, BuildTask, TaskResult, messages_that_fit, run_task
from penstock.spark.parallel import Session, cores, parallel_map
from penstock.spark.stages import FileStages, StoreStages
from penstock.store import Store, open_reader
from penstock.store.contract import Install, Progressed, ReadLimits
from penstock.store.outputs import make_output_unit, output_job
from penstock.store.urls import POSTGRES, SQLITE, absolute_url

if TYPE_CHECKING:
    from penstock import client

TASK_MESSAGES_MAX: Final = 100_000
"""Messages of one task; fewer if there would be fewer tasks than cores."""
TASK_MESSAGES_MIN: Final = 1000
"""Fewer messages are not worth a process, unless their items are known to be large."""
TASKS_MAX: Final = 10_000
"""Tasks of one round; those of a longer log are larger."""
TASK_S: Final = 5.0
"""Seconds after which a task returns, so that users see the progress of a slow function."""
NUMBERS_MAX: Final = 50_000
"""Numbers of tasks in one round: one step can install as many."""
ROOM_SHARE: Final = 0.75
"""The share of the limit that a round is planned for once the limit is known: not all messages are alike."""
REQUEST_S_MAX: Final = 60.0
"""Timeout of one request to a server, reconnects included: other tasks may keep it busy."""
READ_BYTES: Final = 4 << 20
"""Bytes of messages of one read; a server has its own limit."""
DEFAULT_LIMITS: Final = LuaLimits()


# -- where a build reads, stages and installs


class DirectBuildStore:
    """A client's `Build`, in a store that this process opens. It stages as `penstock.spark.stages` does."""

    def __init__(self, url: str, name: str, lua: LuaLimits) -> None:
        self._url = url
        self._name = name
        self._lua = lua
        self._stages: dict[int, StoreStages | FileStages] = {}

    @cached_property
    def _store(self) -> Store:
        return open_reader(self._url)

    def begin(self) -> BuildStart:
        from penstock.engine.staging import start_of  # noqa: PLC0415 - slow to import, and tasks do not begin

        start = start_of(self._store, self._name, self._lua)
        stages = self._staging(start.id)
        if isinstance(stages, FileStages):
            stages.check_owner()
        return start

    def messages(self, id: int, ordinal: int, count: int) -> list[bytes | None]:
        limits = ReadLimits(events_max=count, bytes_max=READ_BYTES)
        return iterator_jobs.read_source(self._store, find_iterator(self._store, self._name, id), ordinal, limits)

    def stage(self, id: int, part: int, attempt: str, number: int, chunks: Sequence[bytes]) -> None:
        self._staging(id).stage(part, attempt, number, list(map(make_output_unit, chunks)))

    def install(self, start: BuildStart, messages: int, winners: Sequence[Winner], state: bytes | None) -> Installed:
        op = Install(start.id, start.source, start.items, messages, tuple(winners), state)
        return self._staging(start.id).install(op)

    def drop(self, id: int) -> None:
        self._staging(id).drop()

    def position(self, id: int, ordinal: int) -> int | None:
        return iterator_jobs.message_position(self._store, find_iterator(self._store, self._name, id), ordinal)

    def close(self) -> None:
        for stages in self._stages.values():
            stages.close()
        if "_store" in self.__dict__:
            self._store.close()

    def _staging(self, id: int) -> StoreStages | FileStages:
        """The stages of this iterator; a new iterator of the same name has others."""
        if id not in self._stages:
            kind = FileStages if self._url.startswith(SQLITE) else StoreStages
            self._stages[id] = kind(self._url, output_job(id))
        return self._stages[id]


BuildStore = Union["client.Build", DirectBuildStore]
"""Access to one iterator: through a server, or in a store that this process opens."""


@contextmanager
def open_build_store(url: str, name: str, lua: LuaLimits = DEFAULT_LIMITS) -> Iterator[BuildStore]:
    """Access to an iterator in the store that a URL names. A server has its own limits for functions."""
    if url.startswith(SERVED):
        from penstock.client.sync import connect  # noqa: PLC0415 - slow to import

        with connect(url, timeout=REQUEST_S_MAX) as connected:
            yield connected.build(name)
        return
    if not url.startswith((SQLITE, *POSTGRES)) or url == SQLITE:
        from penstock.client.transport import WAYS  # noqa: PLC0415 - slow to import

        raise BadUrl(url, WAYS)
    with closing(DirectBuildStore(url, name, lua)) as store:
        yield store


# -- the build


class BuildOutcome(NamedTuple):
    """The result of a build: it read the messages from `start` to before `end` and installed their items.

    In a map, `failed` messages failed, the first of them with `failure`. In a filter or a reduce, `error` stopped the
    build at the message `end`. `position` is that of the event that failed first, if it is known. `added` is less than
    `items` if the server had built some of them meanwhile.
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
        return self.end - self.start.source

    def then(self, following: "BuildOutcome") -> "BuildOutcome":
        """Both rounds as one."""
        added = self.installed.added + following.installed.added
        first = following if self.failure is None or following.error is not None else self
        return following._replace(
            start=self.start,
            items=self.items + following.items,
            installed=replace(following.installed, added=added),
            failed=self.failed + following.failed if following.error is None else 0,
            failure=first.failure,
            position=first.position,
        )


@contextmanager
def begin_build(url: str, name: str, lua: LuaLimits = DEFAULT_LIMITS) -> Iterator["SparkBuild"]:
    """A build of the messages that there are now. If the block raises, what was staged is dropped.

    Raises IteratorNotFound, and installs nothing, if the iterator does not exist or was deleted or recreated meanwhile.
    Start and end the Spark session inside the block, so that its tasks stage nothing after the drop.
    """
    url = addressed(absolute_url(url))
    with open_build_store(url, name, lua) as store:
        start = store.begin()
        try:
            yield SparkBuild(store, url, start)
        except BaseException:
            # What cannot be dropped now expires later.
            with suppress(PenstockError):
                store.drop(start.id)
            raise


class SparkBuild:
    """A build that has begun. `failed` counts the messages that failed so far."""

    def __init__(self, store: BuildStore, url: str, start: BuildStart) -> None:
        self._store = store
        self._url = url
        self._start = start
        self._read = 0
        self._round_messages = start.head - start.source
        self._limit: LimitExceeded | None = None
        """The limit of a job, once a round has met it."""
        self.failed = 0

    def run(self, spark: Session, progressed: Progressed, task_messages: int = TASK_MESSAGES_MAX) -> BuildOutcome:
        """Run the function over all messages, and install the items."""
        head, start, done = self._start.head, self._start, None

        def on_result(result: TaskResult) -> None:
            self._read += result.progress.source - result.first
            self.failed += result.progress.failed
            progressed(self._read, head - self._start.source)

        while done is None or (done.error is None and done.end < head):
            self._read, self.failed = start.source - self._start.source, done.failed if done else 0
            part = replace(start, head=min(head, start.source + self._round_messages))
            least = TASK_MESSAGES_MIN if self._limit is None else 1
            plan = partial(plan_tasks, self._url, part, task_messages, messages_min=least)
            outcome = self._install_round(part, _run_round(spark, part, plan, on_result))
            if outcome is not None:
                done = outcome if done is None else done.then(outcome)
                if done.end < head:
                    start = self._store.begin()
                    if start.id != self._start.id:
                        raise IteratorNotFound(start.iterator)
        return done

    def _install_round(self, start: BuildStart, results: Sequence[TaskResult]) -> BuildOutcome | None:
        """Install a round. Returns None, and installs nothing, if the round was too large."""
        full = results[-1].progress.full if results else None
        try:
            if full is not None and results[-1].progress.source == start.source:
                raise full
            outcome = _install(self._store, start, results)
        except LimitExceeded as error:
            if error.limit not in STAGE_LIMITS or start.head - start.source <= 1:
                raise
            self._store.drop(start.id)
            self._size_next_round(start, results, error)
            return None
        self._size_next_round(start, results, full)
        return outcome

    def _size_next_round(self, start: BuildStart, results: Sequence[TaskResult], met: LimitExceeded | None) -> None:
        """The next round is at most half as large if this one met a limit. Otherwise it grows if there was room."""
        self._limit = met or self._limit
        if self._limit is None or not results:
            return
        size, last = start.head - start.source, results[-1].progress
        fit = last.fit
        if last.full is None:
            messages = sum(one.progress.source - one.first for one in results)
            units, staged = sum(one.progress.units for one in results), sum(one.progress.size for one in results)
            fit = messages_that_fit(self._limit, messages, units, staged)
        room = int(fit * ROOM_SHARE)
        self._round_messages = max(1, min(2 * size, room) if met is None else min(size // 2, room or size // 2))


def plan_tasks(
    url: str, start: BuildStart, task_messages: int, cores: int = 1, messages_min: int = TASK_MESSAGES_MIN
) -> list[BuildTask]:
    """Tasks for the messages of a round: as many as there are cores, unless they would be very small."""
    total = start.head - start.source
    size = max(1, min(task_messages, max(messages_min, -(-total // cores))), -(-total // TASKS_MAX))
    firsts = range(start.source, start.head, size)
    numbers = NUMBERS_MAX // max(1, len(firsts))
    task = BuildTask(url, start, 0, 0, 0, seconds_max=TASK_S, round=uuid4().hex)
    return [
        task._replace(number=at * numbers, last=(at + 1) * numbers - 1, first=first, end=min(first + size, start.head))
        for at, first in enumerate(firsts)
    ]


def _run_round(
    spark: Session,
    start: BuildStart,
    plan: Callable[[int], list[BuildTask]],
    on_result: Callable[[TaskResult], None],
) -> list[TaskResult]:
    """Run the tasks of a round; their results up to the first task that stopped, because the rest depends on it."""
    if start.head <= start.source:
        return []
    is_chain = start.kind == IteratorKind.REDUCE
    left, results = plan(1 if is_chain else cores(spark)), list[TaskResult]()
    if is_chain:
        left[0] = left[0]._replace(state=start.state)
    while left:
        tasks = left[:1] if is_chain else left
        found = parallel_map(spark, tasks, run_task, None, on_result)
        rests = [rest for task, one in zip(tasks, found, strict=True) if (rest := task.rest(one.progress)) is not None]
        results = sorted([*results, *found], key=lambda one: one.number)
        stops = (number for number, one in enumerate(results, 1) if one.progress.has_stopped)
        results = results[: next(stops, len(results))]
        last = results[-1]
        left = [*rests, *left[len(tasks) :]]
        left = [task for task in left if not (last.progress.has_stopped and task.number > last.number)]
        if is_chain and left:
            left[0] = left[0]._replace(state=last.progress.state)
    return results


def _install(store: BuildStore, start: BuildStart, results: Sequence[TaskResult]) -> BuildOutcome:
    if not results:
        return BuildOutcome(start, start.source, 0, Installed(start.items, 0, start.source))
    last = results[-1].progress
    winners = [Winner(one.number, one.attempt, one.progress.units) for one in results if one.progress.units]
    is_reduce = start.kind == IteratorKind.REDUCE
    installed = store.install(start, last.source, winners, last.state if is_reduce else None)
    outcome = BuildOutcome(start, last.source, sum(one.progress.items for one in results), installed)
    failure = next((one.progress.failure for one in results if one.progress.failure is not None), None)
    first = last.error or failure
    if first is None or first.message is None:
        return outcome
    position = None
    # The build is done. A detail for its report is no reason to fail.
    with suppress(PenstockError):
        position = store.position(start.id, first.message)
    if last.error is not None:
        return outcome._replace(error=last.error, position=position)
    failed = sum(one.progress.failed for one in results)
    return outcome._replace(failed=failed, failure=failure, position=position)
