"""A task of a build: a range of messages of an iterator's log, whose items an attempt stages.

Lua that hangs inside one C function stops only when its process ends (`penstock.lua.program`). So a task runs it in a
child process. If a message makes the child exit, it first reports its progress, and a map continues in another child.
If the child dies in any other way, the attempt fails and Spark makes another.

A task returns after some seconds, wherever it is, so that users see progress. The rest becomes another task.
"""

import atexit
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Final, NamedTuple
from uuid import uuid4

from penstock.engine.worker_protocol import Unframer, Unreadable, frame, load_answer
from penstock.errors import FunctionFailed, LimitExceeded, PenstockError
from penstock.model import BuildStart

CHILD: Final = "penstock.spark.build_child"
STDERR_BYTES_MAX: Final = 64 * 1024
"""How much of a dead child's standard error is searched for its last line."""
ANSWER_BYTES: Final = 1 << 20
"""Bytes of a child's answer without the accumulator."""
STAGE_UNITS: Final = "stage_units_max"
STAGE_LIMITS: Final = ("stage_bytes_max", STAGE_UNITS)
"""The limits of what one job may stage."""


class BuildTask(NamedTuple):
    """The messages from the ordinal `first` to before `end`. For a reduce, `state` is the accumulator before them.

    A task has about `seconds_max`. The rest becomes the task of the next number, up to the number `last`; that task has
    no time limit. All tasks that are installed together have the same `round`.
    """

    url: str
    start: BuildStart
    number: int
    first: int
    end: int
    state: bytes | None = None
    seconds_max: float = math.inf
    last: int = 0
    round: str = ""

    def rest(self, progress: "TaskProgress") -> "BuildTask | None":
        """The task that continues this one, or None if it is finished or has stopped."""
        if progress.has_stopped or progress.source >= self.end:
            return None
        return self._replace(number=self.number + 1, first=progress.source, state=progress.state)


class TaskProgress(NamedTuple):
    """How far a task is: it has read the messages before `source` and staged their `items` in `units`.

    `error` stops a filter or a reduce. In a map, `failed` messages failed, the first of them with `failure`.
    `is_stuck`: the child had to exit because of the last message. `size` is the bytes staged. `full`: the job may stage
    no more; about `fit` messages like these fit into its limit.
    """

    source: int
    units: int
    items: int
    state: bytes | None
    failed: int = 0
    failure: FunctionFailed | None = None
    error: FunctionFailed | None = None
    is_stuck: bool = False
    size: int = 0
    full: LimitExceeded | None = None
    fit: int = 0

    @property
    def has_stopped(self) -> bool:
        return self.error is not None or self.full is not None


class TaskResult(NamedTuple):
    """The result of an attempt at a task that begins at the message `first`. It has staged items under its name."""

    number: int
    first: int
    attempt: str
    progress: TaskProgress


class ChildJob(NamedTuple):
    """Work for a child: continue an attempt at a task for some seconds."""

    task: BuildTask
    attempt: str
    progress: TaskProgress
    seconds_max: float


def messages_that_fit(limit: LimitExceeded, messages: int, units: int, size: int) -> int:
    """How many messages fit into a limit if these make so many units and bytes."""
    return messages * limit.maximum // max(1, units if limit.limit == STAGE_UNITS else size)


_full: dict[str, LimitExceeded] = {}
"""The round that may stage no more. Its later tasks need not even begin."""


def run_task(task: BuildTask) -> TaskResult:
    """Run the function over the messages of a task, and stage the items. Spark's executors call this."""
    from pyspark import TaskContext  # noqa: PLC0415 - children import this module, and need no PySpark

    spark_task = TaskContext.get()
    prefix = "" if spark_task is None else f"{spark_task.stageId()}.{spark_task.attemptNumber()}."
    attempt, progress = f"{prefix}{uuid4().hex}", TaskProgress(task.first, 0, 0, task.state, full=_full.get(task.round))
    deadline = time.monotonic() + (math.inf if task.number == task.last else task.seconds_max)
    while not progress.has_stopped and progress.source < task.end:
        progress = _run_in_child(ChildJob(task, attempt, progress, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            break
    if progress.full is not None:
        _full.clear()
        _full[task.round] = progress.full
    return TaskResult(task.number, task.first, attempt, progress)


def _run_in_child(job: ChildJob) -> TaskProgress:
    child = _idle_child() or Child()
    try:
        progress = child.run(job)
    except PenstockError:
        _idle.append(child)
        raise
    except BaseException:
        child.end()
        raise
    if progress.is_stuck:
        child.end()
    else:
        _idle.append(child)
    return progress


def _idle_child() -> "Child | None":
    while _idle:
        child = _idle.pop()
        if child.is_alive:
            return child
        child.end()
    return None


class Child:
    """A process that runs tasks, one after the other. It ends when its standard input closes, with this process."""

    def __init__(self) -> None:
        # The child finds modules where this process does, such as those that Spark shipped.
        paths = [str(Path(path).absolute()) for path in sys.path if path]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, "-P", "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: ChildJob) -> TaskProgress:
        """The progress after a job. Raises the child's PenstockError, and RuntimeError if it dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        task = job.task
        name = f"iterator {task.start.iterator}, messages {task.first} to {task.end - 1}"
        try:
            self._process.stdin.write(b"".join(frame(job)))
            self._process.stdin.flush()
            return read_progress(self._process.stdout, task.start.memory_bytes_max + ANSWER_BYTES)
        except (BrokenPipeError, EOFError):
            code = self._process.wait()
            why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            reason = f"{name}: the process that ran the function {why}{self._last_line()}"
            raise RuntimeError(reason) from None
        except Unreadable as error:
            raise RuntimeError(f"{name}: the process that ran the function answers nonsense: {error}") from None

    def end(self) -> None:
        self._process.kill()
        # This closes its pipes too.
        with self._stderr, self._process:
            pass

    def _last_line(self) -> str:
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - STDERR_BYTES_MAX))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


_idle: list[Child] = []
"""Children that wait for another task."""


@atexit.register
def _end_idle() -> None:
    while _idle:
        _idle.pop().end()


def read_job(file: IO[bytes]) -> ChildJob:
    """The next job, in a child. Raises EOFError if there is no more."""
    job: ChildJob = _read(file, Unframer())
    return job


def read_progress(file: IO[bytes], bytes_max: int) -> TaskProgress:
    """A child's answer. The child runs Lua, so it may send anything. Raises its PenstockError, EOFError, Unreadable."""
    answer = _read(file, Unframer(lambda data: load_answer(data, TaskProgress), bytes_max))
    if answer.succeeded:
        progress: TaskProgress = answer.result
        return progress
    raise answer.result


def _read(file: IO[bytes], unframer: Unframer) -> Any:
    while True:
        data = file.read(len(unframer.space))
        if not data:
            raise EOFError
        unframer.space[: len(data)] = data
        for message in unframer.received(len(data)):
            return message
