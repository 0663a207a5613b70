"""`parallel_map`: one function over many tasks on Spark's executors, one task to a partition.

No row passes through the JVM: tasks read and write themselves and return a few facts. It uses no DataFrame either,
because planning the first query takes seconds. A PenstockError of a task is raised here as it is. After any other error
Spark first retries the task, if its master allows that. Ctrl-C cancels the job. An accumulator, which Spark sends when
a task ends, reports results before all tasks are done.
"""

import pickle
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar, Union

from penstock.errors import PenstockError, StoreError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

REPORT_S: Final = 0.25
_ERROR: Final = re.compile(r"(?!org\.|java\.|py4j\.)[\w.]+(Error|Exception)\b: ")

Task = TypeVar("Task")
Result = TypeVar("Result")
Session = Union["SparkSession", Callable[[], "SparkSession"], None]
"""Where tasks run: in a session, in one that the first task starts, or one after the other in this process."""
OnProgress = Callable[[float], None]
"""Called with the share of tasks that are done, from 0 to 1."""


def cores(spark: Session) -> int:
    """How many tasks run at the same time, as far as Spark knows yet. This starts Spark."""
    if spark is None:
        return 1
    from penstock.spark.sessions import run_in_thread  # noqa: PLC0415 - not needed without Spark

    context = (spark() if callable(spark) else spark).sparkContext
    return run_in_thread(lambda: max(1, context.defaultParallelism))


def parallel_map(
    spark: Session,
    tasks: Sequence[Task],
    function: Callable[[Task], Result],
    on_progress: OnProgress | None,
    on_result: Callable[[Result], object] | None = None,
) -> list[Result]:
    """The function's result for each task, in order. Raises the first PenstockError of a task, or StoreError.

    Calls `on_result` with each result as soon as it is known, in any order.
    """
    if spark is None or not tasks:
        results = []
        for task in tasks:
            results.append(function(task))
            if on_result is not None:
                on_result(results[-1])
        return results
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - not needed without Spark
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from penstock.spark.sessions import run_in_thread  # noqa: PLC0415

    context, group = (spark() if callable(spark) else spark).sparkContext, f"penstock-{uuid.uuid4().hex}"

    def collect() -> list[bytes]:
        done = context.accumulator([], _list_accumulator()) if on_result is not None else None
        reported = 0

        def run(number: int) -> bytes:
            outcome: Result | PenstockError
            try:
                outcome = function(tasks[number])
            except PenstockError as error:
                outcome = error
            packed = pickle.dumps(outcome)
            if done is not None:
                done.add([packed])
            return packed

        def report() -> None:
            nonlocal reported
            if on_progress is not None:
                _report_progress(context.statusTracker(), group, on_progress)
            if on_result is not None and done is not None:
                new = [pickle.loads(each) for each in done.value[reported:]]  # noqa: S301 - ours
                reported += len(new)
                for outcome in new:
                    if not isinstance(outcome, PenstockError):
                        on_result(outcome)

        with _reporting(context, group, report):
            return context.parallelize(range(len(tasks)), len(tasks)).map(run).collect()

    try:
        collected = run_in_thread(collect, lambda: context.cancelJobGroup(group))
    except (PySparkException, Py4JError) as error:
        raise StoreError(f"Spark gave up: {_reason(str(error))}") from error
    outcomes = [pickle.loads(each) for each in collected]  # noqa: S301 - ours
    for outcome in outcomes:
        if isinstance(outcome, PenstockError):
            raise outcome
    return outcomes


def _list_accumulator() -> Any:
    from pyspark import AccumulatorParam  # noqa: PLC0415

    class ListAccumulator(AccumulatorParam[list[bytes]]):
        def zero(self, value: list[bytes]) -> list[bytes]:
            return value[:0]

        def addInPlace(self, value1: list[bytes], value2: list[bytes]) -> list[bytes]:  # noqa: N802 - Spark's name
            value1 += value2
            return value1

    return ListAccumulator()


def _reason(text: str) -> str:
    """The last line of a Python traceback, or else the first line that is not empty."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.match(line)), lines[0] if lines else "it does not say why")


@contextmanager
def _reporting(context: "SparkContext", group: str, report: Callable[[], None]) -> Iterator[None]:
    """Give the job of this thread its own group, and call `report` while it runs and once after it."""
    over = threading.Event()
    context.setJobGroup(group, context.appName or "penstock")

    def watch() -> None:
        # If the JVM is gone, the job itself fails.
        with suppress(Exception):
            is_over = False
            while not is_over:
                is_over = over.wait(REPORT_S)
                report()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _report_progress(tracker: Any, group: str, on_progress: OnProgress) -> None:
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        stages = [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []
        total = sum(stage.numTasks for stage in stages if stage)
        if total:
            on_progress(sum(stage.numCompletedTasks for stage in stages if stage) / total)
