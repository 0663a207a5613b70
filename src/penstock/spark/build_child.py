"""The child process of a build's tasks: it reads messages, runs the function and stages the items.

Standard input has jobs (`penstock.engine.worker_protocol`); it closes when the parent process is gone, and then the
child exits. Standard output gets an answer to each job: the progress, or a PenstockError. While Lua runs, no other
thread works here, because its time limits count the CPU time of the whole process.
"""

import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from queue import Queue
from typing import Final, NoReturn

from penstock.engine.iterator_jobs import OutputRun, Point, StepLimits
from penstock.engine.worker_protocol import JobAnswer, frame_answer
from penstock.errors import FunctionFailed, IteratorNotFound, LimitExceeded, PenstockError
from penstock.lua import LuaLimits, RunResult
from penstock.spark.build_tasks import STAGE_LIMITS, ChildJob, TaskProgress, messages_that_fit, read_job
from penstock.spark.builds import BuildStore, open_build_store
from penstock.spark.stages import requests_of
from penstock.store.contract import ReadLimits
from penstock.store.outputs import CHUNK_ITEMS_MAX, chunks_of

RUN_MESSAGES: Final = 8192
RUN_BYTES: Final = 4 << 20
"""Bytes of messages of one read, and of their items."""
BUFFERED_ITEMS: Final = 16 * CHUNK_ITEMS_MAX
BUFFERED_BYTES: Final = 4 << 20
"""Items to buffer before staging them."""


class TaskRun(OutputRun):
    """A task under way. It stages items as they come, to keep few of them in memory."""

    def __init__(self, store: BuildStore, job: ChildJob) -> None:
        self._store, self._job = store, job
        progress, start = job.progress, job.task.start
        self._units, self._count, self._failure = progress.units, progress.items, progress.failure
        self._staged = progress
        self._is_stuck = False
        # The limits are those of the store's owner.
        limits = LuaLimits(
            call_ms_max=start.call_ms_max,
            memory_bytes_max=start.memory_bytes_max,
            result_bytes_max=start.result_bytes_max,
            outputs_bytes_max=RUN_BYTES,
        )
        step = StepLimits(job.seconds_max, BUFFERED_ITEMS, RUN_BYTES, limits)

        def read(ordinal: int, limits: ReadLimits) -> list[bytes | None]:
            return store.messages(start.id, ordinal, limits.events_max)

        super().__init__(start, Point(progress.source, 0, progress.state), step, read, _leave)
        self.errors = progress.failed

    def go(self) -> TaskProgress:
        """Run until the end of the task, an error that stops it, or the end of its time."""
        end = self._job.task.end
        while True:
            if not self.run_some(min(RUN_MESSAGES, end - self.point.source)):
                # There were more when the build began, so the log is a new one.
                raise IteratorNotFound(self._job.task.start.iterator)
            if len(self.items) >= BUFFERED_ITEMS or self.size >= BUFFERED_BYTES:
                self._stage()
            if self.point.source >= end or self.error is not None or self.is_late:
                return self.answer()

    def failed(self, error: FunctionFailed) -> None:
        """See OutputRun. This keeps the first error."""
        super().failed(error)
        if self._failure is None:
            self._failure = type(error)(error.reason, self.point.source)

    def _stage(self) -> None:
        for chunks in requests_of(chunks_of(self.items), len):
            task = self._job.task
            self._store.stage(task.start.id, task.number, self._job.attempt, self._units, chunks)
            self._units += len(chunks)
        self._count += len(self.items)
        found = (self.point.source, self._units, self._count, self.point.state)
        self._staged = TaskProgress(*found, self.errors, self._failure, size=self._staged.size + self.size)
        self.items, self.size = [], 0

    def answer(self) -> TaskProgress:
        """Stage the rest, and return the progress."""
        self._stage()
        return self._staged._replace(error=self.error, is_stuck=self._is_stuck)

    def answer_error(self, error: PenstockError) -> TaskProgress | PenstockError:
        """The answer after an error. If the job may stage no more, what it staged before is good."""
        if not isinstance(error, LimitExceeded) or error.limit not in STAGE_LIMITS:
            return error
        task, staged = self._job.task, self._staged
        if self._units != staged.units:
            # Some of the last items are staged and some are not, so the attempt cannot be installed.
            staged = TaskProgress(task.first, 0, 0, task.state)
        messages, size = self.point.source - task.first, self._staged.size + self.size
        fit = messages_that_fit(error, messages, self._units + 1, size)
        return staged._replace(is_stuck=self._is_stuck, full=error, fit=fit)

    def _stuck(self, ran: RunResult) -> None:
        self._is_stuck = True
        try:
            super()._stuck(ran)
        except PenstockError as error:
            _leave(self.answer_error(error))
        finally:
            # The thread that runs Lua never returns, so only this ends the process.
            os._exit(1)


def _leave(answer: TaskProgress | PenstockError) -> NoReturn:
    _send(answer)
    os._exit(0)


def _send(answer: TaskProgress | PenstockError) -> None:
    succeeded = not isinstance(answer, PenstockError)
    sys.stdout.buffer.write(frame_answer(JobAnswer(succeeded, answer, stays=True)))
    sys.stdout.buffer.flush()


def _receive(jobs: "Queue[ChildJob]") -> None:
    """Read jobs, also while one runs: this notices at once that the parent is gone."""
    with suppress(EOFError):
        while True:
            jobs.put(read_job(sys.stdin.buffer))
    os._exit(0)


def run(job: ChildJob) -> TaskProgress | PenstockError:
    """Run a job; returns its progress, or the error that stopped it."""
    try:
        with open_build_store(job.task.url, job.task.start.iterator) as store:
            task = TaskRun(store, job)
            try:
                return task.go()
            except PenstockError as error:
                return task.answer_error(error)
    except PenstockError as error:
        return error


def main() -> None:
    # Ctrl-C is for the command in the foreground. The child ends when that does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: Queue[ChildJob] = Queue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    try:
        while True:
            _send(run(jobs.get()))
    except BaseException:  # noqa: BLE001 - the process ends
        # The other thread holds the lock of standard input, for which an orderly exit would wait.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
