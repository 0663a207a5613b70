"""One function for many tasks, spread over Spark's executors, one task to a partition.

No row passes through the JVM: tasks read and write by themselves, and give back a few facts. So there is no DataFrame
either, whose first query takes seconds to be planned. Errors of our own tree come back as such; after others Spark
makes another attempt first, if its master allows for that. Ctrl-C cancels what runs.
"""

import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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


def spread(spark: Session, tasks: Sequence[Task], function: Callable[[Task], Result], done: Done) -> list[Result]:
    """What the function gives for each task, in order. Raises the first error of ours, or StoreError."""
    if spark is None or not tasks:
        return [function(task) for task in tasks]
    from penstock.spark.sessions import apart  # noqa: PLC0415 - it is not needed without Spark

    context, group = (spark() if callable(spark) else spark).sparkContext, f"penstock-{uuid.uuid4().hex}"

    def run(number: int) -> bytes:
        return pickle.dumps(_outcome(function, tasks[number]))

    def collect() -> list[bytes]:
        with _watched(context, group, done):
            return context.parallelize(range(len(tasks)), len(tasks)).map(run).collect()

    collected = _collected(lambda: apart(collect, lambda: context.cancelJobGroup(group)))
    outcomes = [pickle.loads(each) for each in collected]  # noqa: S301 - ours
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise outcome
    return outcomes


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
def _watched(context: "SparkContext", group: str, done: Done) -> Iterator[None]:
    """Look at the job of this thread, which has a group to itself, while it runs."""
    over = threading.Event()
    context.setJobGroup(group, context.appName or "penstock")

    def look() -> None:
        tracker = context.statusTracker()
        # If the JVM is gone, the job says so.
        with suppress(Exception):
            while not over.wait(LOOK_S):
                _tell(tracker, group, done)

    watcher = threading.Thread(target=look, daemon=True)
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
