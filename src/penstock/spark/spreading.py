"""One function for many tasks, spread over Spark's executors, one task to a partition.

No row passes through the JVM: tasks read and write by themselves, and give back a few facts. So there is no DataFrame
either, whose first query takes seconds to be planned. Errors of our own tree come back as such; after others Spark
makes another attempt first, if its master allows for that. Ctrl-C cancels what runs. Whoever wants to know what came of
a task before all are done is told so by an accumulator, which Spark brings along when a task ends.
"""

import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union

from penstock.errors import PenstockError, StoreError
from penstock.store.contract import Progressed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

LOOK_S: Final = 0.25
"""Seconds between two looks at how many tasks are done."""
_ERROR: Final = re.compile(r"(?!org\.|java\.|py4j\.)[\w.]+(Error|Exception)\b: ")

Task = TypeVar("Task")
Result = TypeVar("Result")
Session = Union["SparkSession", Callable[[], "SparkSession"], None]
"""Where tasks run: in a session, in one that is started when there are tasks, or here, one after the other."""
Done = Callable[[float], None]
"""Told which part of all tasks is done, from 0 to 1."""


def shares(progressed: Progressed, done: int, events: int, total: int) -> Done:
    """Told which part of some events is done; tells how many of all are, after those before."""
    return lambda share: progressed(done + int(share * events), total)


def cores(spark: Session) -> int:
    """How many tasks run at the same time, as far as Spark knows by now. This starts it."""
    if spark is None:
        return 1
    from penstock.spark.sessions import apart  # noqa: PLC0415 - it is not needed without Spark

    context = _context(spark)
    return apart(lambda: max(1, context.defaultParallelism))


def _context(spark: Session) -> "SparkContext":
    assert spark is not None
    return (spark() if callable(spark) else spark).sparkContext


def spread(
    spark: Session,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    done: Done | None,
    came: Callable[[Result], object] | None = None,
) -> list[Result]:
    """What the function gives for each task, in order. Raises the first error of ours, or StoreError.

    `done` is told how many tasks are done, `came` what came of each, as soon as that is known.
    """
    if spark is None or not tasks:
        return [_told(function(task), came) for task in tasks]
    from penstock.spark.sessions import apart  # noqa: PLC0415 - it is not needed without Spark

    context, group = _context(spark), f"penstock-{uuid.uuid4().hex}"

    def collect() -> list[bytes]:
        noted = context.accumulator([], _listed()) if came is not None else None

        def run(number: int) -> bytes:
            outcome = pickle.dumps(_outcome(function, tasks[number]))
            if noted is not None:
                noted.add([outcome])
            return outcome

        looks: list[Callable[[], None]] = []
        looks += [] if done is None else [partial(_tell, context.statusTracker(), group, done)]
        looks += [] if came is None else [_Noted(noted, came).look]
        with _watched(context, group, looks):
            return context.parallelize(range(len(tasks)), len(tasks)).map(run).collect()

    collected = _collected(lambda: apart(collect, lambda: context.cancelJobGroup(group)))
    outcomes = [pickle.loads(each) for each in collected]  # noqa: S301 - ours
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise outcome
    return outcomes


def _told(result: Result, came: Callable[[Result], object] | None) -> Result:
    if came is not None:
        came(result)
    return result


def _listed() -> Any:
    """How an accumulator gathers a list."""
    from pyspark import AccumulatorParam  # noqa: PLC0415

    class Listed(AccumulatorParam[list[bytes]]):
        def zero(self, value: list[bytes]) -> list[bytes]:
            return value[:0]

        def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - Spark's name
            value1 += value2
            return value1

    return Listed()


class _Noted:
    """What an accumulator has of tasks that are done. Each is told once."""

    def __init__(self, noted: Any, came: Callable[[Any], object]) -> None:
        self._noted = noted
        self._came = came
        self._seen = 0

    def look(self) -> None:
        """Tell of those that are new."""
        new = self._noted.value[self._seen :]
        self._seen += len(new)
        for each in new:
            outcome = pickle.loads(each)  # noqa: S301 - ours
            if not isinstance(outcome, PenstockError):
                self._came(outcome)


def _outcome(function: Callable[[Any], Any], task: Any) -> Any:
    try:
        return function(task)
    except PenstockError as error:
        return error


def _collected(collect: Callable[[], list[Any]]) -> list[Any]:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - loaded already
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        return collect()
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"Spark gave up: {_reason(str(error))}") from error


def _reason(text: str) -> str:
    """The line that ends a traceback of Python's, or else the first that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.match(line)), lines[0] if lines else "it does not say why")


@contextmanager
def _watched(context: "SparkContext", group: str, looks: Sequence[Callable[[], None]]) -> Iterator[None]:
    """Look at the job of this thread, which has a group to itself, while it runs."""
    over = threading.Event()
    context.setJobGroup(group, context.appName or "penstock")

    def watch() -> None:
        # If the JVM is gone, the job says so.
        with suppress(Exception):
            is_over = False
            while not is_over:
                # What came last is told as well.
                is_over = over.wait(LOOK_S)
                for look in looks:
                    look()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _tell(tracker: Any, group: str, done: Done) -> None:
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
        total = sum(stage.numTasks for stage in stages if stage)
        if total:
            done(sum(stage.numCompletedTasks for stage in stages if stage) / total)
