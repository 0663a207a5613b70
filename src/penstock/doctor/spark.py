"""What Spark needs, for those who want it: PySpark, a Java, and workers that run the Python with Penstock in it."""

import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from penstock.doctor.findings import Finding, ok, warning
from penstock.doctor.installation import numbers, version_of
from penstock.spark.java import GET_JAVA, JAVA_MIN, found_java, output_of

PYSPARK_VERSIONS: Final = ((4, 3), (4, 4))
"""The oldest PySpark that will do, and the first that is not known to."""
GET_PYSPARK: Final = "for Spark: pip install 'penstock[spark]'"

_WORKERS_PYTHON: Final = re.compile(
    r"""^\s*(?:export\s+)?PYSPARK_PYTHON=["']?(?:\$\{PYSPARK_PYTHON:-)?([^"'}\s]+)""", re.MULTILINE
)
_ABOUT: Final = (
    "import sys; from importlib.util import find_spec as f; "
    "print('%d.%d' % sys.version_info[:2], *[n for n in ('penstock', 'pyspark') if f(n) is None])"
)
"""Asked of a Python: its version, and what is missing in it."""


def spark(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Look at all of it. Without PySpark nobody wants Spark, and nothing of it is missed."""
    version = version_of("pyspark")
    yield pyspark(version)
    yield java(environ, is_wanted=version is not None)
    if version is not None:
        yield workers(environ)


def pyspark(version: str | None) -> Finding:
    """PySpark itself."""
    if version is None:
        return ok("pyspark", "not installed; only Spark needs it", GET_PYSPARK)
    least, too_new = PYSPARK_VERSIONS
    if least <= numbers(version)[:2] < too_new:
        return ok("pyspark", f"PySpark {version}")
    wanted = "{}.{}".format(*least)
    return warning("pyspark", f"PySpark {version} is not the {wanted} that Penstock is tested with", GET_PYSPARK)


# --- Java -----------------------------------------------------------------------------------------------------


def java(environ: Mapping[str, str], *, is_wanted: bool) -> Finding:
    """The Java that Spark would start: that of JAVA_HOME, or the one on the path."""
    home = environ.get("JAVA_HOME")
    found = found_java(environ)
    if found is not None and found.major >= JAVA_MIN:
        return ok("java", f"Java {found.version}, {found.path}")
    seen = "none was found" if found is None else f"{found.path} is Java {found.version}"
    seen = f"JAVA_HOME is {home}, and {'there is no Java' if found is None else seen}" if home else seen
    if not is_wanted:
        return ok("java", f"{seen}; only Spark needs one, of {JAVA_MIN} or newer", GET_JAVA)
    return warning("java", f"Spark needs Java {JAVA_MIN} or newer, and {seen}", GET_JAVA)


# --- the Python of its workers --------------------------------------------------------------------------------


def workers(environ: Mapping[str, str]) -> Finding:
    """The Python that Spark's workers run: the same version as ours, with Penstock in it."""
    source, command = workers_python(environ)
    path = shutil.which(command, path=environ.get("PATH", ""))
    trouble = "which is not there" if path is None else trouble_with(path)
    seen = f"Spark's workers run {path or command} ({source})"
    if trouble is None:
        return ok("workers", seen)
    return warning("workers", f"{seen}, {trouble}", f"set PYSPARK_PYTHON={sys.executable}")


def workers_python(environ: Mapping[str, str]) -> tuple[str, str]:
    """Who says which Python Spark's workers run, and what they say."""
    if named := environ.get("PYSPARK_PYTHON"):
        return "PYSPARK_PYTHON", named
    for folder in configurations(environ):
        script = folder / "spark-env.sh"
        if script.is_file() and (found := _WORKERS_PYTHON.search(script.read_text(encoding="utf-8", errors="replace"))):
            return str(script), found[1]
    return "PYSPARK_PYTHON is not set", "python3"


def configurations(environ: Mapping[str, str]) -> Iterator[Path]:
    """Where Spark looks for its configuration."""
    if "SPARK_CONF_DIR" in environ:
        yield Path(environ["SPARK_CONF_DIR"])
    elif "SPARK_HOME" in environ:
        yield Path(environ["SPARK_HOME"]) / "conf"
    elif (spec := find_spec("pyspark")) is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "conf"


def trouble_with(python: str) -> str | None:
    """What is wrong with a Python for Spark's workers, if something is."""
    said = output_of([python, "-c", _ABOUT])
    if said is None:
        return "which does not run"
    version, *missing = said.split()
    ours = "{}.{}".format(*sys.version_info[:2])
    if version != ours:
        return f"which is Python {version} and not {ours} as this one"
    return f"which has no {' and no '.join(missing)}" if missing else None
