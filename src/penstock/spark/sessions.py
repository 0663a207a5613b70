"""A Spark session for commands: quiet, on this machine unless another master is named."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from penstock.errors import InvalidRequest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[[], "SparkSession"]
"""Gives a session, which is started the first time."""

MASTER: Final = "local[*,4]"
"""All cores of this machine; a task that dies is tried again, up to four times in all."""
JAVA_MIN: Final = 17
"""The oldest Java that Spark runs on."""
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
    with ExitStack() as held:
        started: list[SparkSession] = []

        def start() -> "SparkSession":
            if not started:
                started.append(_started(_configured(name, master, conf or {})))
                held.callback(started[0].stop)
            return started[0]

        yield start


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


def _started(builder: Any) -> "SparkSession":
    with tempfile.TemporaryFile() as said:
        try:
            with _to(said):
                spark: SparkSession = builder.getOrCreate()
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
