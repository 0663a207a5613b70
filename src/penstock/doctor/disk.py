"""The place of a store: its directory, the file system, the free space, and how fast the disk syncs."""

import os
import tempfile
import time
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Final

from penstock.doctor.findings import Finding, ok, problem, warning
from penstock.settings import Settings, shown

MOUNTS: Final = Path("/proc/self/mountinfo")
IN_MEMORY: Final = frozenset({"ramfs", "tmpfs"})
NETWORKED: Final = frozenset(
    {
        "9p",
        "afs",
        "ceph",
        "cifs",
        "coda",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
    }
)
NETWORKED_FUSE: Final = ("fuse.ceph", "fuse.gcsfuse", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs")

SYNCED_WRITES: Final = 48
SYNCED_BYTES: Final = 4096
"""Of each write: a page, as the smallest commits have it."""
SYNCING_S_MAX: Final = 2.0
"""A slow disk is known to be slow before all writes are done."""
FAST_S: Final = 20e-6
"""No disk syncs faster: it only says that it did."""
SLOW_S: Final = 10e-3
MB: Final = 1_000_000


def disk(directory: Path, settings: Settings) -> Iterator[Finding]:
    """Look at a directory where a store is or may come to be; at the one it would come into if it is not there."""
    place = nearest(directory)
    if not place.is_dir():
        yield problem("directory", f"{place} is no directory", "name another one, or move what is there out of the way")
        return
    yield file_system(place)
    yield space(place, settings)
    yield from written(directory, place)


def nearest(directory: Path) -> Path:
    """The directory, or what there is of the way to it."""
    return next((place for place in (directory, *directory.absolute().parents) if place.exists()), Path("/"))


# --- where it is ----------------------------------------------------------------------------------------------


def file_system(place: Path) -> Finding:
    """The kind of file system: in memory nothing lasts, and over a network locks and syncs mean little."""
    kind, mounted = mount_of(place)
    if kind is None:
        return ok("file system", f"{place}: of a kind that is not known")
    seen = f"{place} is on {kind}, mounted at {mounted}"
    if kind in IN_MEMORY:
        return warning("file system", f"{seen}, which is in memory", "use a disk, if the events are to last")
    if kind in NETWORKED or kind.startswith(NETWORKED_FUSE):
        return warning("file system", f"{seen}, over a network", "use a disk of this machine, or PostgreSQL (--store)")
    return ok("file system", seen)


def mount_of(place: Path) -> tuple[str | None, str]:
    """The kind of file system that a place is on, and where that is mounted; None where the system does not tell."""
    try:
        mounts = [line.split() for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return None, ""
    here = place.resolve()
    # Of those on the way, the last: it may lie over others.
    on_the_way = [fields for fields in mounts if here.is_relative_to(unescaped(fields[4]))]
    found = max(enumerate(on_the_way), key=lambda each: (len(each[1][4]), each[0]), default=None)
    return (None, "") if found is None else (found[1][found[1].index("-") + 1], unescaped(found[1][4]))


def unescaped(path: str) -> str:
    """A path of the table of mounts, in which spaces and the like are octal."""
    return path.encode("latin-1", "replace").decode("unicode_escape") if "\\" in path else path


def space(place: Path, settings: Settings) -> Finding:
    """The free space, against the marks below which a server warns, and refuses appends."""
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    seen = f"{free // MB:,} MB are free"
    for name, made in (("disk_refuse_bytes", problem), ("disk_warn_bytes", warning)):
        mark = getattr(settings, name)
        if free < mark:
            return made(
                "free space", f"{seen}, less than {name} ({shown(name, mark)})", "make room, or lower the setting"
            )
    return ok("free space", seen)


# --- how it writes --------------------------------------------------------------------------------------------


def written(directory: Path, place: Path) -> Iterator[Finding]:
    """Whether it can be written, and how fast it is on disk then."""
    try:
        durations = synced(place)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        yield problem("directory", f"nothing can be written in {place}: {reason}", "see to its owner, rights and mount")
        return
    there = "can be written" if place == directory else f"is not there yet, and can be made in {place}"
    yield ok("directory", f"{directory.absolute()} {there}")
    yield speed(durations)


def synced(place: Path) -> list[float]:
    """How long small synced writes take, in seconds, shortest first. Leaves nothing behind."""
    durations: list[float] = []
    page = bytes(SYNCED_BYTES)
    # A file without a name would be no measure: some file systems know better than to sync what nobody can find again.
    with tempfile.NamedTemporaryFile(dir=place, prefix=".penstock-doctor-", buffering=0) as file:
        began = time.perf_counter()
        while len(durations) < SYNCED_WRITES and time.perf_counter() - began < SYNCING_S_MAX:
            start = time.perf_counter()
            file.write(page)
            os.fsync(file.fileno())
            durations.append(time.perf_counter() - start)
    return sorted(durations)


def speed(durations: list[float]) -> Finding:
    """Judge the synced writes, shortest first: half of them, and nearly all, are no longer than this."""
    half, nearly_all = (durations[max(0, ceil(share * len(durations)) - 1)] for share in (0.5, 0.99))
    seen = f"a synced write takes {milliseconds(half)}, p99 {milliseconds(nearly_all)}"
    if half < FAST_S:
        lies = (
            "it is not on the disk by then: a power cut can lose what was acknowledged; see to the disk and its mount"
        )
        return warning("fsync", f"{seen}, which is too fast to be true", lies)
    if half > SLOW_S:
        slow = "every commit waits for one (those that wait together share it): a disk with a safe cache is faster"
        return warning("fsync", f"{seen}, which is slow", slow)
    return ok("fsync", seen)


def milliseconds(seconds: float) -> str:
    """A duration as people read it."""
    return f"{1000 * seconds:.3g} ms"
