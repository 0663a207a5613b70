"""This machine: Python and its libraries, Spark and Java, the clock, limits, and the disk of a store."""

import os
import platform
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import import_module, metadata
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import Final

from penstock import __version__
from penstock.doctor.checks import CheckResult, ok, problem, warning
from penstock.settings import Settings, format_value
from penstock.spark.sessions import GET_JAVA, JAVA_MIN, found_java, output_of

SQLITE_MIN: Final = (3, 51, 3)
"""The first SQLite without the WAL reset race between processes."""
DRIVER: Final = "psycopg"
"""Only stores on PostgreSQL need it."""
REINSTALL: Final = (
    "install Penstock again with its dependencies: `make run` in a clone, or pip install --upgrade penstock"
)
PYSPARK_VERSIONS: Final = ((4, 3), (4, 4))
"""The oldest PySpark that works, and the first that is not tested."""
GET_PYSPARK: Final = "for Spark: pip install 'penstock[spark]'"
CLOCK_MIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK_MAX: Final = datetime(2100, 1, 1, tzinfo=UTC)
OTHER_FILES: Final = 72
"""Files and sockets of a server other than its connections: the store, workers."""

_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?(?:>=([\d.]+))?$")
_WORKERS_PYTHON: Final = re.compile(
    r"""^\s*(?:export\s+)?PYSPARK_PYTHON=["']?(?:\$\{PYSPARK_PYTHON:-)?([^"'}\s]+)""", re.MULTILINE
)
_ABOUT: Final = (
    "import sys; from importlib.util import find_spec as f; "
    "print('%d.%d' % sys.version_info[:2], *[n for n in ('penstock', 'pyspark') if f(n) is None])"
)
"""Run by another Python: it prints its version, and what is missing in it."""


def installation(*, needs_postgres: bool) -> Iterator[CheckResult]:
    found = f"Penstock {__version__} on Python {platform.python_version()}, {sys.executable}"
    yield ok("python", found)
    yield libraries()
    yield sqlite()
    yield driver(is_needed=needs_postgres)


def libraries() -> CheckResult:
    found: list[str] = []
    bad: list[str] = []
    for text in metadata.requires("penstock") or ():
        requirement, _, marker = text.partition(";")
        parts = _REQUIREMENT.match(requirement.strip())
        if "extra" in marker or parts is None or parts[1] == DRIVER:
            continue
        name, least, version = parts[1], parts[2] or "", version_of(parts[1])
        if version is None or numbers(version) < numbers(least):
            bad.append(f"{name} {least or 'of any version'} is needed, {version or 'none'} found")
        found.append(f"{name} {version}")
    return problem("libraries", "; ".join(bad), REINSTALL) if bad else ok("libraries", ", ".join(found))


def version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def sqlite() -> CheckResult:
    """The SQLite of the embedded store, which is part of apsw."""
    try:
        import apsw  # noqa: PLC0415 - a broken one is a finding
    except ImportError as error:
        return problem("sqlite", f"apsw cannot be imported: {error}", REINSTALL)
    found = apsw.sqlite_lib_version()
    if numbers(found) >= SQLITE_MIN:
        return ok("sqlite", f"SQLite {found}, inside apsw {apsw.apsw_version()}")
    least = ".".join(map(str, SQLITE_MIN))
    return problem(
        "sqlite", f"SQLite {found} can damage a write-ahead log that processes share", f"use apsw {least} or newer"
    )


def driver(*, is_needed: bool) -> CheckResult:
    try:
        libpq = import_module(DRIVER).pq.version()
    except ImportError as error:
        advice = "pip install 'psycopg[binary]'"
        if is_needed:
            return problem("postgresql", f"no driver: {error}".strip().splitlines()[0], advice)
        return ok("postgresql", "no driver; only stores on PostgreSQL need it", advice)
    return ok("postgresql", f"psycopg {version_of(DRIVER)} with libpq {libpq // 10_000}.{libpq % 10_000}")


def spark(environ: Mapping[str, str]) -> Iterator[CheckResult]:
    version = version_of("pyspark")
    yield pyspark(version)
    yield java(environ, is_needed=version is not None)
    if version is not None:
        yield workers(environ)


def pyspark(version: str | None) -> CheckResult:
    least, untested = PYSPARK_VERSIONS
    if version is None:
        return ok("pyspark", "not installed; only Spark needs it", GET_PYSPARK)
    if least <= numbers(version)[:2] < untested:
        return ok("pyspark", f"PySpark {version}")
    wanted = "{}.{}".format(*least)
    return warning("pyspark", f"Penstock is tested with PySpark {wanted}, not with {version}", GET_PYSPARK)


def java(environ: Mapping[str, str], *, is_needed: bool) -> CheckResult:
    """The Java that Spark would start: that of JAVA_HOME, or the one on the path."""
    home = environ.get("JAVA_HOME")
    found = found_java(environ)
    if found is not None and found.major >= JAVA_MIN:
        return ok("java", f"Java {found.version}, {found.path}")
    seen = "none was found" if found is None else f"{found.path} is Java {found.version}"
    seen = f"JAVA_HOME is {home}, and {'there is no Java' if found is None else seen}" if home else seen
    if not is_needed:
        return ok("java", f"{seen}; only Spark needs Java, {JAVA_MIN} or newer", GET_JAVA)
    return warning("java", f"Spark needs Java {JAVA_MIN} or newer, and {seen}", GET_JAVA)


def workers(environ: Mapping[str, str]) -> CheckResult:
    """The Python that Spark's workers run: it must be the same version as ours and have Penstock."""
    source, command = workers_python(environ)
    path = shutil.which(command, path=environ.get("PATH", ""))
    flaw = "which does not exist" if path is None else _flaw(path)
    seen = f"Spark's workers run {path or command} ({source})"
    if flaw is None:
        return ok("workers", seen)
    return warning("workers", f"{seen}, {flaw}", f"set PYSPARK_PYTHON={sys.executable}")


def workers_python(environ: Mapping[str, str]) -> tuple[str, str]:
    """Where the workers' Python is configured, and its name."""
    if named := environ.get("PYSPARK_PYTHON"):
        return "PYSPARK_PYTHON", named
    folder: Path | None = None
    if "SPARK_CONF_DIR" in environ:
        folder = Path(environ["SPARK_CONF_DIR"])
    elif "SPARK_HOME" in environ:
        folder = Path(environ["SPARK_HOME"]) / "conf"
    elif (spec := find_spec("pyspark")) is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "conf"
    script = None if folder is None else folder / "spark-env.sh"
    if script is not None and script.is_file():
        found = _WORKERS_PYTHON.search(script.read_text(encoding="utf-8", errors="replace"))
        if found:
            return str(script), found[1]
    return "PYSPARK_PYTHON is not set", "python3"


def _flaw(python: str) -> str | None:
    about = output_of([python, "-c", _ABOUT])
    if about is None:
        return "which does not run"
    version, *missing = about.split()
    ours = "{}.{}".format(*sys.version_info[:2])
    if version != ours:
        return f"which is Python {version}, but this is Python {ours}"
    return f"which has no {' and no '.join(missing)}" if missing else None


def machine(settings: Settings) -> Iterator[CheckResult]:
    yield clock(datetime.now(UTC))
    yield open_files(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def clock(now: datetime) -> CheckResult:
    shown = f"{now:%Y-%m-%dT%H:%M:%SZ}"
    if CLOCK_MIN <= now < CLOCK_MAX:
        return ok("clock", shown)
    return problem("clock", f"this machine's clock says {shown}", "set the clock, and let NTP keep it")


def open_files(settings: Settings, limit: int) -> CheckResult:
    """Whether a server could open as many connections as its settings allow."""
    gates = (settings.res_connections_max, settings.mq_connections_max, settings.remits_connections_max)
    wanted = sum(gates) + settings.http_connections_max + OTHER_FILES
    if limit == resource.RLIM_INFINITY:
        return ok("open files", "no limit")
    if limit >= wanted:
        return ok("open files", f"{limit:,} for each process")
    message = f"{limit:,} for each process, and a server with all its connections needs {wanted:,}"
    lower = "lower res_connections_max, mq_connections_max and remits_connections_max"
    return warning("open files", message, f"ulimit -n {wanted}, or {lower}")


# --- the disk of a store ---------------------------------------------------------------------------------------

MOUNTS: Final = Path("/proc/self/mountinfo")
IN_MEMORY: Final = frozenset(("ramfs", "tmpfs"))
NETWORKED: Final = frozenset(
    "9p afs ceph cifs coda gfs2 glusterfs lustre ncpfs nfs nfs4 ocfs2 smb3 smbfs".split()  # noqa: SIM905 - one line
)
NETWORKED_FUSE: Final = ("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs")
SYNCED_WRITES: Final = 48
SYNCED_BYTES: Final = 4096
"""Bytes of each write: a page, as in the smallest commits."""
SYNCING_S_MAX: Final = 2.0
FAST_S: Final = 20e-6
"""No disk syncs faster than this."""
SLOW_S: Final = 10e-3
MB: Final = 1_000_000


def disk(directory: Path, settings: Settings) -> Iterator[CheckResult]:
    """Check the directory of a store, or the nearest existing parent if it does not exist yet."""
    place = next((place for place in (directory, *directory.absolute().parents) if place.exists()), Path("/"))
    if not place.is_dir():
        yield problem("directory", f"{place} is not a directory", "name another one, or move that file away")
        return
    yield file_system(place)
    yield space(place, settings)
    try:
        durations = synced_writes(place)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield problem("directory", f"cannot write in {place}: {reason}", "check its owner, permissions and mount")
        return
    there = "can be written" if place == directory else f"does not exist yet, and can be created in {place}"
    yield ok("directory", f"{directory.absolute()} {there}")
    yield speed(durations)


def file_system(place: Path) -> CheckResult:
    """The kind of file system: memory loses data, and networks make locks and syncs unreliable."""
    kind, mounted = mount_of(place)
    if kind is None:
        return ok("file system", f"{place}: of an unknown kind")
    seen = f"{place} is on {kind}, mounted at {mounted}"
    if kind in IN_MEMORY:
        return warning("file system", f"{seen}, which is in memory", "use a disk if the events must survive a restart")
    if kind in NETWORKED or kind.startswith(NETWORKED_FUSE):
        return warning("file system", f"{seen}, over a network", "use a local disk, or PostgreSQL (--store)")
    return ok("file system", seen)


def mount_of(place: Path) -> tuple[str | None, str]:
    """The kind of file system that a place is on, and its mount point; None where the system does not tell."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return None, ""
    here = place.resolve()
    above = [fields for fields in mounts if here.is_relative_to(_unescaped(fields[4]))]
    # The longest mount point counts; of equal ones the last, which hides the others.
    found = max(enumerate(above), key=lambda each: (len(each[1][4]), each[0]), default=None)
    return (None, "") if found is None else (found[1][found[1].index("-") + 1], _unescaped(found[1][4]))


def _unescaped(path: str) -> str:
    """A path of the mount table, which has spaces and the like in octal."""
    return path.encode("latin-1", "replace").decode("unicode_escape") if "\\" in path else path


def space(place: Path, settings: Settings) -> CheckResult:
    """The free space, compared with the settings below which a server warns and refuses appends."""
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    seen = f"{free // MB:,} MB are free"
    for name, made in (("disk_refuse_bytes", problem), ("disk_warn_bytes", warning)):
        mark = getattr(settings, name)
        if free < mark:
            less = f"{seen}, less than {name} ({format_value(name, mark)})"
            return made("free space", less, "free some space, or lower the setting")
    return ok("free space", seen)


def synced_writes(place: Path) -> list[float]:
    """How long small synced writes take, in seconds, shortest first. The file is removed."""
    durations: list[float] = []
    page = bytes(SYNCED_BYTES)
    # The file needs a name: some file systems do not sync files without one.
    with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-", buffering=0) as file:
        began = time.perf_counter()
        while len(durations) < SYNCED_WRITES and time.perf_counter() - began < SYNCING_S_MAX:
            start = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - start)
    return sorted(durations)


def speed(durations: list[float]) -> CheckResult:
    median, p99 = (durations[max(0, ceil(share * len(durations)) - 1)] for share in (0.5, 0.99))
    seen = f"a synced write takes {milliseconds(median)}, p99 {milliseconds(p99)}"
    if median < FAST_S:
        lies = "data is not on disk by then, and a power cut can lose acknowledged events; check the disk and its mount"
        return warning("fsync", f"{seen}, which is too fast to be true", lies)
    if median > SLOW_S:
        slow = "every commit waits for one (concurrent commits share it): a disk with a safe cache is faster"
        return warning("fsync", f"{seen}, which is slow", slow)
    return ok("fsync", seen)


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
