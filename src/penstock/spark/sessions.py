"""A Spark session for commands: quiet, on this machine unless another master is named.

Whatever has to do with the JVM runs in threads of its own. Ctrl-C interrupts the main thread: in the middle of a call
it would break Py4J's connection, and in the middle of a start it would leave a JVM that nobody ends. And Spark takes
Ctrl-C for itself when it is started in the main thread.
"""

import logging
import os
import re
import shlex
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
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar, cast

from penstock.errors import InvalidRequest
from penstock.interrupts import awaited
from penstock.spark.java import GET_JAVA, JAVA_MIN, found_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Start = Callable[[], "SparkSession"]
"""Gives a session, which is started the first time."""

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that dies is tried again, up to four times in all."""
ANSWER_S: Final = 5.0
"""Seconds that a standalone master has to take a connection."""
EXECUTORS_S: Final = 20.0
"""Seconds after which it is said that there are no executors."""
PYTHON: Final = "spark.pyspark.python"
"""Spark's name for the Python that executors run; spark-submit alone makes a variable of it."""
ENDING_S: Final = 10.0
"""Seconds that a JVM has to end by itself, and a thread that is to end."""
STARTING_LOOK_S: Final = 0.05
"""Seconds between two looks whether a JVM has started."""
LOOK_S: Final = 0.2
"""Seconds between two attempts to make a thread end."""
STDERR: Final = 2
GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
GATEWAY_SECRET: Final = "PYSPARK_GATEWAY_SECRET"  # noqa: S105 - the name of a variable
WAITING: Final = (
    "Spark has given no executor for %.0f seconds, and is waited for; perhaps others have them all, they cannot reach "
    "this machine (spark.driver.host), or are asked for more than a worker has (spark.executor.memory)"
)
_log: Final = logging.getLogger(__name__)
_LOCAL: Final = "local"
_LOOPBACK: Final = "127.0.0.1"
_PREFIX: Final = "spark."
_MASTER: Final = "spark.master"
_SQL: Final = "spark.sql."
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
"""Spark's name for the permissions that its files do not get. The JVM gets it as its umask, too: not all files are
Hadoop's."""
OWNER_ALONE: Final = "077"
_OCTAL: Final = re.compile(r"[0-7]{3,4}")


@contextmanager
def session(name: str, master: str = MASTER, conf: Mapping[str, str] | None = None) -> Iterator["SparkSession"]:
    """A session that is stopped at the end. Raises InvalidRequest if there is no PySpark, or no Java for it."""
    with late_session(name, master, conf) as start:
        yield start()


@contextmanager
def late_session(name: str, master: str = MASTER, conf: Mapping[str, str] | None = None) -> Iterator["Start"]:
    """The same, but it is started when somebody asks for it: it takes seconds, and perhaps nothing is to be done."""
    jvm, started = _Jvm(), list["SparkSession"]()
    check_conf(conf or {})
    check_form((conf or {}).get(_MASTER, master))

    def start() -> "SparkSession":
        if not started:
            started.append(_started(name, master, conf or {}, jvm))
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


def apart(work: Callable[[], Result], end: Callable[[], object] | None = None) -> Result:
    """Do something in a thread of its own, so that Ctrl-C interrupts this one at once.

    Then `end` is to end the other one, again and again. Without it, whoever started Spark ends it.
    """
    outcome: Future[Result] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        return awaited(outcome)
    except BaseException:
        if end is not None and not outcome.done():
            _make_end(thread, end)
        raise


def _make_end(thread: threading.Thread, end: Callable[[], object]) -> None:
    deadline = time.monotonic() + ENDING_S
    while thread.is_alive() and time.monotonic() < deadline:
        with suppress(Exception):
            end()
        thread.join(LOOK_S)


class _Jvm:
    """The process that Spark runs in. We start it, so that we can end it from its first moment on.

    PySpark would start the same process with the same variables, and say nothing of it until it has answered. It uses
    one that runs already if `PYSPARK_GATEWAY_PORT` and `PYSPARK_GATEWAY_SECRET` say where.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    @contextmanager
    def offered(self, conf: Mapping[str, str]) -> Iterator[None]:
        """Start the process, and have PySpark use it; unless PySpark has one already."""
        from pyspark import SparkContext  # noqa: PLC0415

        if SparkContext._gateway is not None or GATEWAY_PORT in os.environ:
            yield
            return
        os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET] = apart(lambda: self._start(conf), self.end)
        try:
            yield
        finally:
            del os.environ[GATEWAY_PORT], os.environ[GATEWAY_SECRET]

    def _start(self, conf: Mapping[str, str]) -> tuple[str, str]:
        """The port that the process listens on, and the secret that it wants to hear."""
        import pyspark  # noqa: PLC0415

        home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
        options = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
        arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "gateway"
            process = subprocess.Popen(  # noqa: S603 - Spark's own command
                [str(home / "bin" / "spark-submit"), *options, *arguments],
                env={**os.environ, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer)},
                # It ends when nobody holds the other end any more.
                stdin=subprocess.PIPE,
                # What a JVM has to say is nobody's result: it goes where its complaints go.
                stdout=STDERR,
                # Ctrl-C is for us: we end it in order.
                process_group=0,
                # What it shuffles and spills has events in it.
                umask=int(conf[UMASK], 8),
            )
            with self._lock:
                self._process = process
                if self._is_over:
                    process.terminate()
            while process.poll() is None and not answer.exists():
                time.sleep(STARTING_LOOK_S)
            if not answer.exists():
                raise RuntimeError("the JVM ended while it started")
            port, length = struct.unpack_from("!ii", told := answer.read_bytes())
            return str(port), told[8 : 8 + length].decode()

    @property
    def is_ours(self) -> bool:
        """Whether it was started here, and not by somebody else before."""
        return self._process is not None

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
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        _forget()


def _forget() -> None:
    """Let PySpark start another JVM: it keeps the one that it knows for good."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def _configured(name: str, master: str, conf: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
    """What builds the session, and the options that its JVM is started with."""
    _check()
    master = conf.get(_MASTER, master)
    check_master(master)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a command that needs none does without

    _name_python(conf)
    options = {_MASTER: master, "spark.app.name": name, UMASK: OWNER_ALONE, **QUIET, **_local(master), **conf}
    builder = SparkSession.builder
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder, options


def _name_python(conf: Mapping[str, str]) -> None:
    """Which Python executors run: ours, unless another is named. PySpark looks at the variable alone."""
    if python := conf.get(PYTHON):
        os.environ["PYSPARK_PYTHON"] = python
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Sources are looked for on this machine, where a path inside an archive leads nowhere.
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _local(master: str) -> dict[str, str]:
    """On this machine alone, nobody else is to be let in."""
    if not master.startswith(_LOCAL):
        return {}
    return {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}


def check_conf(conf: Mapping[str, str]) -> None:
    """Spark ignores options that it does not know. Raises InvalidRequest for those that can be none of its own."""
    for key in conf:
        if not key.startswith(_PREFIX) or key != key.strip():
            raise InvalidRequest("Spark", f"has no option {key!r}: its options begin with {_PREFIX!r}")
    if not _OCTAL.fullmatch(conf.get(UMASK, OWNER_ALONE)):
        raise InvalidRequest("Spark", f"has {UMASK} {conf[UMASK]!r}: it must be octal digits such as {OWNER_ALONE}")


def check_form(master: str) -> None:
    """Whether that can be a master, which can be told without Spark. Raises InvalidRequest."""
    if not _MASTERS.fullmatch(master):
        raise InvalidRequest(
            "Spark", f"has no master {master!r}: local[N], spark://HOST:PORT, yarn and k8s://… are some"
        )


def check_master(master: str) -> None:
    """See whether a standalone master answers, before a JVM is started that tries it for a minute and says little."""
    scheme, _, rest = master.partition("://")
    if scheme != "spark":
        return
    troubles = [trouble for trouble in map(_trouble_with, rest.split(",")) if trouble]
    if len(troubles) == len(rest.split(",")):
        raise InvalidRequest("Spark", f"does not start: no master answers at {master}: {troubles[0]}")


def _trouble_with(address: str) -> str | None:
    """Why nobody is at an address, if that is so."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return f"{address!r} is not HOST:PORT"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def _hush(context: Any) -> None:
    """Spark's server of accumulators prints a traceback when the JVM is gone, of which others are told by an error."""
    server = context._accumulatorServer
    told = server.handle_error

    def handle_error(*request: Any) -> None:
        if not isinstance(sys.exception(), EOFError | ConnectionError):
            told(*request)

    server.handle_error = handle_error


def _started(name: str, master: str, conf: Mapping[str, str], jvm: _Jvm) -> "SparkSession":
    builder, options = _configured(name, master, conf)
    with tempfile.TemporaryFile() as said:
        try:
            with _to(said), jvm.offered(options):
                spark: SparkSession = apart(builder.getOrCreate, jvm.end)
                if jvm.is_ours:
                    _hush(spark.sparkContext)
                apart(lambda: _try_settings(spark, conf), jvm.end)
        except Exception as error:  # noqa: BLE001 - see below
            # Py4J has no better name for what the JVM says of a master or an option; and it asks the JVM for it.
            told = _reason(said, error)
            jvm.end()
            raise InvalidRequest("Spark", f"does not start: {told}") from None
    if not str(spark.sparkContext.master).startswith(_LOCAL):
        _watch(spark)
    return spark


def _try_settings(spark: "SparkSession", conf: Mapping[str, str]) -> None:
    """Spark looks at these when it needs them, and then some of its threads die without a word."""
    for name in conf:
        if name.startswith(_SQL):
            spark.conf.get(name)


def _watch(spark: "SparkSession") -> None:
    """Tell if no executor comes: Spark would wait for ever, and the JVM's own warnings are heard by nobody."""

    def has_executors() -> bool:
        # The driver is one of those that are listed.
        return int(cast("Any", spark.sparkContext)._jsc.sc().getExecutorMemoryStatus().size()) > 1

    def look() -> None:
        deadline = time.monotonic() + EXECUTORS_S
        # Nobody is left to be told if the JVM is gone.
        with suppress(Exception):
            while not has_executors():
                if time.monotonic() > deadline:
                    _log.warning(WAITING, EXECUTORS_S)
                    return
                time.sleep(1)

    threading.Thread(target=look, daemon=True).start()


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
    """The line that tells why, as far as that can be seen, without what belongs to Java and to logs."""
    said.seek(0)
    logged, lines = said.read().decode(errors="replace").splitlines(), str(error).splitlines()
    # A master that does not register us ends the session, and what fails then is something else.
    told = [line for line in logged if _KILLED in line] or [line for line in [*lines, *logged] if _RAISED.search(line)]
    return _BEFORE.sub("", (told or lines)[0].strip())


def _check() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError:
        raise InvalidRequest("Spark", "is not installed: pip install 'penstock[spark]'") from None
    home, found = os.environ.get("JAVA_HOME"), found_java(os.environ)
    if found is None or found.major < JAVA_MIN:
        seen = "there is none" if found is None else f"{found.path} is Java {found.version}"
        seen = f"JAVA_HOME is {home}, {'where' if found is None else 'and'} {seen}" if home else seen
        raise InvalidRequest("Spark", f"needs Java {JAVA_MIN} or newer, and {seen}: {GET_JAVA}")
