"""The place of a store: its directory, the file system, the free space, and how fast the disk syncs."""

import os
import tempfile
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Final

from penstock.doctor.examination import Finding, ok, problem, warning
from penstock.settings import Settings, format_value

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


def disk(directory: Path, settings: Settings) -> Iterator[Finding]:
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


def file_system(place: Path) -> Finding:
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


def space(place: Path, settings: Settings) -> Finding:
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


def speed(durations: list[float]) -> Finding:
    """Judge synced writes by their median and 99th percentile; they are sorted."""
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
