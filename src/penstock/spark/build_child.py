"""A process of its own in which parts of builds are run: it reads messages, runs the function and stages the items.

Standard input has jobs (`penstock.engine.worker_protocol`). It ends when the process that has started this one is gone,
and then so does this one. Standard output gets an answer to each: how far it came, or an error of ours. While Lua runs,
nothing else does here: its times are those of the whole process.
"""

import os
import signal
import sys
import threading
import traceback
from contextlib import closing, suppress
from functools import partial
from queue import Queue
from typing import Final, NoReturn

from penstock.engine.iterator_jobs import OutputRun, Point, Step
from penstock.engine.worker_protocol import Answer, frame_answer
from penstock.errors import FunctionFailed, IteratorNotFound, LimitExceeded, PenstockError
from penstock.lua import LuaLimits, Ran
from penstock.model import BuildStart
from penstock.spark.build_parts import STAGED, Came, ChildJob, fitting, read_job
from penstock.spark.builds import Builds, open_builds
from penstock.spark.stages import portions
from penstock.store.outputs import CHUNK_ITEMS_MAX, chunks_of

RUN_MESSAGES: Final = 8192
"""Messages that are read and run in one go."""
RUN_BYTES: Final = 4 << 20
"""Bytes of messages that are read in one go, and of items that come of them."""
HELD_ITEMS: Final = 16 * CHUNK_ITEMS_MAX
HELD_BYTES: Final = 4 << 20
"""Items that are held before they are staged."""


def limits_of(start: BuildStart) -> LuaLimits:
    """What a function may use, as whoever owns the store has it."""
    return LuaLimits(
        call_ms_max=start.call_ms_max,
        memory_bytes_max=start.memory_bytes_max,
        result_bytes_max=start.result_bytes_max,
        outputs_bytes_max=RUN_BYTES,
    )


class PartRun(OutputRun):
    """A part under way. What was run is staged as it comes, so that little of it is in memory."""

    def __init__(self, builds: Builds, job: ChildJob) -> None:
        self._builds, self._job = builds, job
        came, start = job.came, job.part.start
        self._units, self._count, self._failure = came.units, came.items, came.failure
        self._staged = came
        self._is_stuck = False
        step = Step(job.seconds_max, HELD_ITEMS, RUN_BYTES, limits_of(start))
        super().__init__(start, Point(came.source, 0, came.state), step, partial(builds.read, start), _leave)
        self.errors = came.failed

    def go(self) -> Came:
        """Run until the end of the part, an error that ends it, or time is up."""
        end = self._job.part.end
        while True:
            if not self.run_some(min(RUN_MESSAGES, end - self.point.source)):
                # There were more when the build began: what it reads has been made anew.
                raise IteratorNotFound(self._job.part.start.iterator)
            if len(self.items) >= HELD_ITEMS or self.size >= HELD_BYTES:
                self._stage()
            if self.point.source >= end or self.error is not None or self.is_late:
                return self.answer()

    def failed(self, error: FunctionFailed) -> None:
        """See Gathering. The first one is remembered."""
        super().failed(error)
        if self._failure is None:
            self._failure = type(error)(error.reason, self.point.source)

    def _stage(self) -> None:
        for chunks in portions(chunks_of(self.items), len):
            part = self._job.part
            self._builds.stage(part.start, part.number, self._job.attempt, self._units, chunks)
            self._units += len(chunks)
        self._count += len(self.items)
        found = (self.point.source, self._units, self._count, self.point.state)
        self._staged = Came(*found, self.errors, self._failure, size=self._staged.size + self.size)
        self.items, self.size = [], 0

    def answer(self) -> Came:
        """Stage the rest, and say how far this came."""
        self._stage()
        return self._staged._replace(error=self.error, is_stuck=self._is_stuck)

    def stopped(self, error: PenstockError) -> Came | PenstockError:
        """What is to be said of an error: if no more may be staged, what was staged before is good."""
        if not isinstance(error, LimitExceeded) or error.limit not in STAGED:
            return error
        part, staged = self._job.part, self._staged
        if self._units != staged.units:
            # Some of the last items are staged and some are not, so that the attempt cannot be installed.
            staged = Came(part.first, 0, 0, part.state)
        fit = fitting(error, self.point.source - part.first, self._units + 1, self._staged.size + self.size)
        return staged._replace(is_stuck=self._is_stuck, full=error, fit=fit)

    def _stuck(self, ran: Ran) -> None:
        self._is_stuck = True
        try:
            super()._stuck(ran)
        except PenstockError as error:
            _leave(self.stopped(error))
        finally:
            # The other thread is lost, so nothing else would end this process.
            os._exit(1)


def _leave(answer: Came | PenstockError) -> NoReturn:
    _say(answer)
    os._exit(0)


def _say(answer: Came | PenstockError) -> None:
    succeeded = not isinstance(answer, PenstockError)
    sys.stdout.buffer.write(frame_answer(Answer(succeeded, answer, stays=True)))
    sys.stdout.buffer.flush()


def _receive(jobs: "Queue[ChildJob]") -> None:
    """Take jobs, also while one is done: only so it is seen at once that nobody waits for it any more."""
    with suppress(EOFError):
        while True:
            jobs.put(read_job(sys.stdin.buffer))
    os._exit(0)


def run(job: ChildJob) -> Came | PenstockError:
    """Do a job, or say why it cannot be done."""
    try:
        with closing(open_builds(job.part.url, job.part.start.iterator)) as builds:
            return _run(PartRun(builds, job))
    except PenstockError as error:
        return error


def _run(part: PartRun) -> Came | PenstockError:
    try:
        return part.go()
    except PenstockError as error:
        return part.stopped(error)


def main() -> None:
    """Do what is asked, and answer, again and again."""
    # Ctrl-C is for the command in front. When that ends, this does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: Queue[ChildJob] = Queue()
    threading.Thread(target=_receive, args=(jobs,), daemon=True).start()
    try:
        while True:
            _say(run(jobs.get()))
    except BaseException:  # noqa: BLE001 - whatever it is, this ends
        # The other thread holds the lock of standard input, which Python would wait for.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
