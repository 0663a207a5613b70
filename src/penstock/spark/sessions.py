"""A Spark session for commands: quiet, and on this machine unless the user names another master.

All calls into the JVM run in other threads. Ctrl-C interrupts the main thread: inside a call it would break Py4J's
connection, and during a start it would leave a JVM that no process ends. Spark also installs its own handler for Ctrl-C
if it starts in the main thread.
"""

import logging
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from penstock.errors import InvalidRequest
from penstock.interrupts import awaited

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Start = Callable[[], "SparkSession"]
"""Returns the session, and starts it the first time."""

JAVA_MIN: Final = 17
VERSION_S_MAX: Final = 20.0
GET_JAVA: Final = f"install it (Debian: apt-get install openjdk-{JAVA_MIN}-jre-headless), or set JAVA_HOME"
_VERSION: Final = re.compile(r'version "((\d+)[^"]*)"')
MASTER: Final = "local[*,4]"
"""All cores of this machine. Spark runs a task that dies up to four times."""
MASTER_CONNECT_S: Final = 5.0
EXECUTORS_S: Final = 20.0
"""Seconds without an executor after which the command logs a warning."""
PYTHON: Final = "spark.pyspark.python"
"""Spark's option for the executors' Python. Only spark-submit turns it into an environment variable."""
END_S: Final = 10.0
"""Seconds for a JVM, or a thread, to end when asked to."""
START_POLL_S: Final = 0.05
END_POLL_S: Final = 0.2
STDERR: Final = 2
GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
GATEWAY_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name of a variable
WAITING: Final = (
    "Spark has given no executor for %.0f seconds; waiting. Perhaps other jobs use them all, they cannot reach this "
    "machine (set spark.driver.host), or they ask for more memory than a worker has (set spark.executor.memory)"
)
_log: Final = logging.getLogger(__name__)
_LOCAL: Final = "local"
_LOOPBACK: Final = "127.0.0.1"
_PREFIX: Final = "spark."
_MASTER: Final = "spark.master"
_MASTERS: Final = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")
_KILLED: Final = "Application has been killed. Reason: "
_RAISED: Final = re.compile(r"(Exception|Error): |\[INVALID_CONF_VALUE")
_BEFORE: Final = re.compile(rf'^.*{_KILLED}|^(Exception in thread "main" |: )+')
QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
UMASK: Final = "spark.hadoop.fs.permissions.umask-mode"
"""Hadoop's umask. The JVM gets the same umask, because Hadoop does not write all of Spark's files."""
OWNER_ALONE: Final = "077"
_OCTAL: Final = re.compile(r"[0-7]{3,4}")


@contextmanager
def late_session(name: str, master: str = MASTER, conf: Mapping[str, str] | None = None) -> Iterator["Start"]:
    """A session that starts on first use and ends here. Without PySpark or Java its start raises InvalidRequest."""
    conf = conf or {}
    master = conf.get(_MASTER, master)
    _check_options(master, conf)
    jvm, started = _Jvm(), list["SparkSession"]()

    def start() -> "SparkSession":
        if not started:
            started.append(_start(name, master, conf, jvm))
        return started[0]

    try:
        yield start
    except KeyboardInterrupt:
        # Do not make the user wait for an orderly stop.
        jvm.end()
        raise
    finally:
        if started and not jvm.has_ended:
            run_in_thread(started[0].stop, jvm.end)


def run_in_thread(work: Callable[[], Result], cancel: Callable[[], object] | None = None) -> Result:
    """Run something in another thread, so that Ctrl-C interrupts this one at once.

    After Ctrl-C, `cancel` is called repeatedly until the other thread ends. Without `cancel` the thread goes on.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the other thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return awaited(outcome)
    except BaseException:
        if cancel is not None and not outcome.done():
            deadline = time.monotonic() + END_S
            while thread.is_alive() and time.monotonic() < deadline:
                with suppress(Exception):
                    cancel()
                thread.join(END_POLL_S)
        raise


class _Jvm:
    """The process of Spark's JVM. We start it ourselves, unless there is one, so that we can end it at any moment.

    PySpark would start the same process with the same variables, but reveals it only after it has answered. If
    `PYSPARK_GATEWAY_PORT` and `PYSPARK_GATEWAY_SECRET` are set, PySpark uses the JVM that listens there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @contextmanager
    def offered(self, conf: Mapping[str, str]) -> Iterator[None]:
        """Start the process and make PySpark use it, unless PySpark has one already."""
        from pyspark import SparkContext  # noqa: PLC0415

        if SparkContext._gateway is not None or GATEWAY_PORT in os.environ:
            yield
            return
        os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET] = run_in_thread(lambda: self._start(conf), self.end)
        try:
            yield
        finally:
            del os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET]

    def _start(self, conf: Mapping[str, str]) -> tuple[str, str]:
        """The port that the process listens on, and its secret."""
        import pyspark  # noqa: PLC0415

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "gateway"
            process = subprocess.Popen(  # noqa: S603 - Spark's own command
                [str(home / "bin" / "spark-submit"), *options, *arguments],
                env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
                # It ends when the other end of this pipe closes.
                stdin=subprocess.PIPE,
                # Output of the JVM is no result of a command.
                stdout=STDERR,
                # Ctrl-C is for us: we end it in order.
                process_group=0,
                # Shuffled and spilled files contain events.
                umask=int(conf[UMASK], 8),
            )
            with self._lock:
                self.process = process
                if self._is_over:
                    process.terminate()
            while process.poll() is None and not answer.exists():
                time.sleep(START_POLL_S)
            if not answer.exists():
                raise RuntimeError("the JVM ended while it started")
            data = answer.read_bytes()
            port, length = struct.unpack_from("!ii", data)
            return str(port), data[8 : 8 + length].decode()

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def end(self) -> None:
        """End the process, even during its start, if this object started it."""
        with self._lock:
            self._is_over, process = True, self.process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        # PySpark keeps the first JVM that it knows. Forget it, so that it can start another.
        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = None


def _check_options(master: str, conf: Mapping[str, str]) -> None:
    """Raise InvalidRequest for options that cannot be Spark's: Spark itself ignores what it does not know."""
    for key in conf:
        if not key.startswith(_PREFIX) or key != key.strip():
            raise InvalidRequest("Spark", f"has no option {key!r}: its options begin with {_PREFIX!r}")
    if not _OCTAL.fullmatch(conf.get(UMASK, OWNER_ALONE)):
        raise InvalidRequest("Spark", f"has {UMASK} {conf[UMASK]!r}: it must be octal digits such as {OWNER_ALONE}")
    if not _MASTERS.fullmatch(master):
        some = "local[N], spark://HOST:PORT, yarn and k8s://… are some"
        raise InvalidRequest("Spark", f"has no master {master!r}: {some}")


def _check_master(master: str) -> None:
    """Raise InvalidRequest if no standalone master answers. A JVM would try for a minute and give no clear reason."""
    scheme, _, rest = master.partition("://")
    if scheme == "spark":
        problems = [_problem_with(address) for address in rest.split(",")]
        if all(problems):
            raise InvalidRequest("Spark", f"does not start: no master answers at {master}: {problems[0]}")


def _problem_with(address: str) -> str | None:
    """Why a connection to an address fails, or None."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return f"{address!r} is not HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=MASTER_CONNECT_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _start(name: str, master: str, conf: Mapping[str, str], jvm: _Jvm) -> "SparkSession":
    _check_installation()
    _check_master(master)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - not every command needs it

    _name_python(conf)
    # With a local master, no other machine may connect.
    local = {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    options = {_MASTER: master, "spark.app.name": name, UMASK: OWNER_ALONE, **QUIET}
    options |= {**(local if master.startswith(_LOCAL) else {}), **conf}
    builder = SparkSession.builder
    for key, value in options.items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as log:
        try:
            with _stderr_to(log), jvm.offered(options):
                spark: SparkSession = run_in_thread(builder.getOrCreate, jvm.end)
                if jvm.process is not None:
                    _silence_accumulators(spark.sparkContext)
                # Read these options now: Spark reads them late, and a bad value then kills its threads silently.
                names = [name for name in conf if name.startswith("spark.sql.")]
                run_in_thread(lambda: [spark.conf.get(name) for name in names], jvm.end)
        except Exception as error:  # noqa: BLE001 - see below
            # Py4J has no better class for a JVM's error, and asks the JVM for its text.
            reason = _reason(log, error)
            jvm.end()
            raise InvalidRequest("Spark", f"does not start: {reason}") from None
    if not str(spark.sparkContext.master).startswith(_LOCAL):
        _warn_without_executors(spark)
    return spark


def _name_python(conf: Mapping[str, str]) -> None:
    """Make executors run our Python, unless the user names another. PySpark looks at the variables only."""
    if python := conf.get(PYTHON):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Spark looks for data sources on this machine, where a path inside a shipped archive does not exist.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _silence_accumulators(context: Any) -> None:
    """Keep Spark's accumulator server from printing a traceback when the JVM is gone: an error reports that already."""
    server = context._accumulatorServer
    handle = server.handle_error

    def handle_error(*request: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            handle(*request)

    server.handle_error = handle_error


def _warn_without_executors(spark: "SparkSession") -> None:
    """Log a warning if no executor comes. Spark would wait for ever, and we hide the JVM's own warnings."""

    def has_executors() -> bool:
        # Spark lists the driver too.
        return int(cast("Any", spark.sparkContext)._jsc.sc().getExecutorMemoryStatus().size()) > 1

    def watch() -> None:
        deadline = time.monotonic() + EXECUTORS_S
        # Without a JVM there is nothing to warn about.
        with suppress(Exception):
            while not has_executors():
                if time.monotonic() > deadline:
                    _log.warning(WAITING, EXECUTORS_S)
                    return
                time.sleep(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Send standard error to a file, also that of processes started meanwhile: a JVM logs a lot."""
    kept = os.dup(STDERR)
    os.dup2(file.fileno(), STDERR)
    try:
        yield
    finally:
        os.dup2(kept, STDERR)
        os.close(kept)


def _reason(log: IO[bytes], error: Exception) -> str:
    """The line that gives the reason, without the prefixes of Java and of its log."""
    log.seek(0)
    logged, lines = log.read().decode(errors="replace").splitlines(), str(error).splitlines()
    # A master that rejects the application ends the session, and then something else fails.
    found = [line for line in logged if _KILLED in line] or [line for line in [*lines, *logged] if _RAISED.search(line)]
    return _BEFORE.sub("", (found or lines)[0].strip())


def _check_installation() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError:
        raise InvalidRequest("Spark", "is not installed: pip install 'penstock[spark]'") from None
    home, found = os.environ.get("JAVA_HOME"), found_java(os.environ)
    if found is None or found.major < JAVA_MIN:
        seen = "there is none" if found is None else f"{found.path} is Java {found.version}"
        seen = f"JAVA_HOME is {home}, {'where' if found is None else 'and'} {seen}" if home else seen
        raise InvalidRequest("Spark", f"needs Java {JAVA_MIN} or newer, and {seen}: {GET_JAVA}")


class Java(NamedTuple):
    path: str
    version: str
    major: int


def found_java(environ: Mapping[str, str]) -> Java | None:
    """The Java in JAVA_HOME, or else on the path."""
    home = environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home) / "bin" / "java") if home else "java", path=environ.get("PATH", ""))
    if path is None or (output := output_of([path, "-version"])) is None:
        return None
    found = _VERSION.search(output)
    # Versions up to 8 begin with "1.".
    return Java(path, found[1], 8 if found[2] == "1" else int(found[2])) if found else None


def output_of(command: list[str]) -> str | None:
    """Standard output and error of a command; None if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_S_MAX, check=False)  # noqa: S603
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return done.stdout + done.stderr if done.returncode == 0 else None
