"""A part of a build: some messages of an iterator's log, whose items an attempt of a task stages.

Lua that hangs inside one C function can only be stopped by the end of its process (`penstock.lua.program`). So a task
has a process of its own for it. If that ends because of such a message, it says how far it came, and a map goes on in
another one; if it ends in any other way, the attempt fails, and Spark makes another.

A task is back after some seconds, wherever it is, so that one sees how far it came; the rest is a part of its own.
"""

import atexit
import math
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from struct import Struct
from typing import IO, Final, NamedTuple
from uuid import uuid4

from penstock.engine.worker_protocol import BYTES_MAX, Unreadable, frame, load_answer
from penstock.errors import FunctionFailed, LimitExceeded, PenstockError
from penstock.model import BuildStart

CHILD: Final = "penstock.spark.build_child"
SAID_BYTES_MAX: Final = 64 * 1024
"""How much is looked at of what a process has said before it died."""
ANSWER_BYTES: Final = 1 << 20
"""What an answer of a process may take beside an accumulator."""
STAGE_UNITS: Final = "stage_units_max"
STAGED: Final = ("stage_bytes_max", STAGE_UNITS)
"""What bounds that which one job may stage."""
_LENGTH: Final = Struct("<I")


class Part(NamedTuple):
    """The messages of a part, from the ordinal `first` to before `end`. A reduce has its accumulator before them.

    A task has about so many seconds for it. What it does not come to then is the part of the next number. There are
    numbers up to `last`; the part that has that one takes as long as it takes. `round` is the same for all parts that
    are installed together.
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

    def rest(self, came: "Came") -> "Part | None":
        """What is left of this part; None if nothing is, or it cannot go on."""
        if came.is_over or came.source >= self.end:
            return None
        return self._replace(number=self.number + 1, first=came.source, state=came.state)


class Came(NamedTuple):
    """How far a part came: messages before `source` are read, and gave `items`, which are staged in `units`.

    `error` keeps a filter or a reduce from going on. Of a map, `failed` messages have failed, and `failure` is the
    first of them. `is_stuck`: the process had to end because of the last message. `size` is that of what is staged, in
    bytes. `full`: no more may be staged for now, and of messages like these about so many `fit` into what may.
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
    def is_over(self) -> bool:
        """Whether something keeps this from going on."""
        return self.error is not None or self.full is not None


class PartBuilt(NamedTuple):
    """What an attempt at a part, which begins at the message `first`, has staged under its name."""

    number: int
    first: int
    attempt: str
    came: Came


class ChildJob(NamedTuple):
    """What a process gets to do: to go on with an attempt at a part, for some seconds."""

    part: Part
    attempt: str
    came: Came
    seconds_max: float


def fitting(limit: LimitExceeded, messages: int, units: int, size: int) -> int:
    """How many messages may be staged at once if so many make so many units and bytes."""
    return messages * limit.maximum // max(1, units if limit.limit == STAGE_UNITS else size)


_full: dict[str, LimitExceeded] = {}
"""The round of which no more may be staged. A task of it that comes later need not even begin."""


def run_part(part: Part) -> PartBuilt:
    """Run the function over the messages of a part, and stage what comes of it. This is what a task does."""
    attempt, came = _attempt(), Came(part.first, 0, 0, part.state, full=_full.get(part.round))
    deadline = time.monotonic() + (math.inf if part.number == part.last else part.seconds_max)
    while not came.is_over and came.source < part.end:
        came = _in_child(ChildJob(part, attempt, came, deadline - time.monotonic()))
        if time.monotonic() > deadline:
            break
    if came.full is not None:
        _full.clear()
        _full[part.round] = came.full
    return PartBuilt(part.number, part.first, attempt, came)


def _attempt() -> str:
    """A name that no other attempt has, in which one sees whose it is."""
    from pyspark import TaskContext  # noqa: PLC0415 - processes that only know these types do without

    task = TaskContext.get()
    who = "" if task is None else f"{task.stageId()}.{task.attemptNumber()}."
    return f"{who}{uuid4().hex}"


def _in_child(job: ChildJob) -> Came:
    child = _child()
    try:
        came = child.ask(job)
    except PenstockError:
        _idle.append(child)
        raise
    except BaseException:
        child.end()
        raise
    if came.is_stuck:
        child.end()
    else:
        _idle.append(child)
    return came


def _child() -> "Child":
    while _idle:
        child = _idle.pop()
        if child.is_alive:
            return child
        child.end()
    return Child()


class Child:
    """A process that runs parts, one after the other: Spark gives the same worker many tasks.

    Its standard input stays open for as long as this process lives. That is how it notices that this one is gone.
    """

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with the process
        self._process = subprocess.Popen(  # noqa: S603 - ours
            [sys.executable, "-P", "-m", CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        )

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended, as far as one knows."""
        return self._process.poll() is None

    def ask(self, job: ChildJob) -> Came:
        """What came of a job; raises what the process says of ours, and RuntimeError if it dies."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(frame(job))
            self._process.stdin.flush()
            return read_came(self._process.stdout, job.part.start.memory_bytes_max + ANSWER_BYTES)
        except (BrokenPipeError, EOFError):
            raise RuntimeError(self._obituary(job.part)) from None
        except Unreadable as error:
            raise RuntimeError(
                f"{_named(job.part)}: the process that ran the function answers nonsense: {error}"
            ) from None

    def end(self) -> None:
        """End the process, if it has not ended by itself."""
        self._process.kill()
        # This closes its pipes as well.
        with self._said, self._process:
            pass

    def _obituary(self, part: Part) -> str:
        code = self._process.wait()
        why = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"{_named(part)}: the process that ran the function {why}{self._last_line()}"

    def _last_line(self) -> str:
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - SAID_BYTES_MAX))
        lines = self._said.read().decode(errors="replace").splitlines()
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")


def _named(part: Part) -> str:
    return f"iterator {part.start.iterator}, messages {part.first} to {part.end - 1}"


_idle: list[Child] = []
"""Processes that wait for another part."""


@atexit.register
def _end_idle() -> None:
    """End them with this process, in order."""
    while _idle:
        _idle.pop().end()


def _paths() -> list[str]:
    """Where modules are found here, such as those that Spark has brought along."""
    return [str(Path(path).absolute()) for path in sys.path if path]


def read_job(file: IO[bytes]) -> ChildJob:
    """What a process gets to do, from the one that has started it; EOFError if there is no more."""
    job: ChildJob = pickle.loads(_read(file, BYTES_MAX))  # noqa: S301
    return job


def read_came(file: IO[bytes], bytes_max: int) -> Came:
    """What a process says, which runs Lua and may send anything. Raises what it says of ours, EOFError, Unreadable."""
    answer = load_answer(memoryview(_read(file, bytes_max)), Came)
    if answer.succeeded:
        came: Came = answer.result
        return came
    raise answer.result


def _read(file: IO[bytes], bytes_max: int) -> bytes:
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    if size > bytes_max:
        raise Unreadable(f"it has {size} bytes")
    data = file.read(size)
    if len(data) < size:
        raise EOFError
    return data
