"""A Spark session for commands: quiet, on this machine unless another master is named.

Whatever has to do with the JVM runs in threads of its own. Ctrl-C interrupts the main thread: in the middle of a call
it would break Py4J's connection, and in the middle of a start it would leave a JVM that nobody ends. And Spark takes
Ctrl-C for itself when it is started in the main thread.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Start = Callable[[], "SparkSession"]
"""Gives a session, which is started the first time."""

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that dies is tried again, up to four times in all."""
JAVA_MIN: Final = 17
"""The oldest Java that Spark runs on."""
ENDING_S: Final = 10.0
"""Seconds that a JVM has to end by itself, and a thread that is to end."""
LOOK_S: Final = 0.2
"""Seconds between two attempts to make a thread end."""
STDERR: Final = 2
_LOOPBACK: Final = "127.0.0.1"
QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def session(name: str, master: str = MASTER, conf: Mapping[str, str] | None = None) -> Iterator["SparkSession"]:
    """A session that is stopped at the end. Raises InvalidRequest if there is no PySpark, or no Java for it."""
    with late_session(name, master, conf) as start:
        yield start()


@contextmanager
def late_session(name: str, master: str = MASTER, conf: Mapping[str, str] | None = None) -> Iterator["Start"]:
    """The same, but it is started when somebody asks for it: it takes seconds, and perhaps nothing is to be done."""
    jvm, started = _Jvm(), list["SparkSession"]()

    def start() -> "SparkSession":
        if not started:
            started.append(_started(_configured(name, master, conf or {}), jvm))
        return started[0]

    try:
        yield start
    except KeyboardInterrupt:
        # Nobody wants to wait until all is put away in order.
        jvm.end()
        raise
    finally:
        if started and not jvm.has_ended:
            apart(started[0].stop, jvm.end)


def apart(work: Callable[[], Result], end: Callable[[], object]) -> Result:
    """Do something in a thread of its own. If this one is interrupted, `end` is to end that one, again and again."""
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        thread.join()
    except BaseException:
        _make_end(thread, end)
        raise
    return outcome.result()


def _make_end(thread: threading.Thread, end: Callable[[], object]) -> None:
    deadline = time.monotonic() + ENDING_S
    while thread.is_alive() and time.monotonic() < deadline:
        with suppress(Exception):
            end()
        thread.join(LOOK_S)


class _Jvm:
    """The process that Spark is started in, known from its first moment on, so that it can always be ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the process that PySpark starts meanwhile: it tells nobody of it until the process has answered."""
        from pyspark import java_gateway  # noqa: PLC0415

        module: Any = java_gateway
        kept, module.Popen = module.Popen, self._start
        try:
            yield
        finally:
            module.Popen = kept

    def _start(self, *args: Any, **options: Any) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(*args, **options)  # noqa: S603 - PySpark's own command
        with self._lock:
            self._process = process
            if self._is_over:
                process.terminate()
        return process

    @property
    def has_ended(self) -> bool:
        """Whether there was one, and is no more."""
        return self._process is not None and self._process.poll() is not None

    def end(self) -> None:
        """End it, also while it starts. One that was there before is left alone."""
        with self._lock:
            self._is_over, process = True, self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        _forget()


def _forget() -> None:
    """Let PySpark start another JVM: it keeps the one that it knows for good."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _configured(name: str, master: str, conf: Mapping[str, str]) -> Any:
    _check()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a command that needs none does without

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in {**QUIET, **_local(master), **conf}.items():
        builder = builder.config(key, value)
    return builder


def _local(master: str) -> dict[str, str]:
    """On this machine alone, nobody else is to be let in."""
    if not master.startswith("local"):
        return {}
    return {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}


def _started(builder: Any, jvm: _Jvm) -> "SparkSession":
    with tempfile.TemporaryFile() as said:
        try:
            with _to(said), jvm.noted():
                spark: SparkSession = apart(builder.getOrCreate, jvm.end)
        except Exception as error:
            # Py4J has no better name for what the JVM says of a master or an option.
            raise InvalidRequest("Spark", f"does not start: {_reason(said, error)}") from error
    return spark


@contextmanager
def _to(file: IO[bytes]) -> Iterator[None]:
    """Standard error of what is started meanwhile: a JVM has much to say that nobody has asked for."""
    kept = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


def _reason(said: IO[bytes], error: Exception) -> str:
    """The line that tells why, as far as that can be seen."""
    said.seek(0)
    lines = [*str(error).splitlines(), *said.read().decode(errors="replace").splitlines()]
    told = [line.strip() for line in lines if "Exception: " in line or "Error: " in line]
    return (told or lines)[0]


def _check() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError:
        raise InvalidRequest("Spark", "is not installed: pip install 'penstock[spark]'") from None
    home = os.environ.get("JAVA_HOME")
    found = _java_version(str(Path(home) / "bin" / "java") if home else "java")
    if found is None or found < JAVA_MIN:
        where = f"JAVA_HOME is {home}, where there is none" if home else "there is none"
        raise InvalidRequest(
            "Spark",
            f"needs Java {JAVA_MIN} or newer, and {where}: install it (Debian: apt-get install "
            f"openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME",
        )


def _java_version(java: str) -> int | None:
    """The version of a Java, if it is one."""
    if shutil.which(java) is None:
        return None
    try:
        command = [java, "-version"]
        told = subprocess.run(command, capture_output=True, text=True, check=False).stderr  # noqa: S603
        return int(told.partition('version "')[2].split(".")[0].strip('"'))
    except (OSError, ValueError):
        return None
