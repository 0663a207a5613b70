"""What is installed: Python, the libraries that Penstock stands on, SQLite, the driver for PostgreSQL."""

import platform
import re
import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from typing import Final, NamedTuple

from penstock import __version__
from penstock.doctor.findings import Finding, ok, problem

PYTHON_MIN: Final = (3, 11)
SQLITE_MIN: Final = (3, 51, 3)
"""The first SQLite without the WAL reset race between processes."""
DRIVER: Final = "psycopg"
"""Whoever leaves it out has the embedded store, and all else works."""
AGAIN: Final = "install Penstock again with what it needs: `make run` in a clone, or pip install --upgrade penstock"

_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[\w,-]+\])?(?:>=([\d.]+))?$")


def installation(*, needs_postgres: bool) -> Iterator[Finding]:
    """Look at all of it."""
    yield python()
    yield libraries()
    yield sqlite()
    yield driver(is_needed=needs_postgres)


def python() -> Finding:
    """The Python that runs this."""
    found = f"Penstock {__version__} on Python {platform.python_version()}, {sys.executable}"
    if sys.version_info >= PYTHON_MIN:
        return ok("python", found)
    return problem("python", found, "use Python {}.{} or newer".format(*PYTHON_MIN))


# --- libraries ------------------------------------------------------------------------------------------------


class Library(NamedTuple):
    """A library that Penstock needs: the oldest version that will do, and the one that is there."""

    name: str
    least: str
    found: str | None

    @property
    def will_do(self) -> bool:
        """Whether it is there and new enough."""
        return self.found is not None and numbers(self.found) >= numbers(self.least)


def libraries() -> Finding:
    """The libraries that are always needed."""
    found = [library for library in needed() if library.name != DRIVER]
    bad = [library for library in found if not library.will_do]
    if bad:
        missing = "; ".join(
            f"{name} {least or 'of any version'} is needed, {has or 'none'} found" for name, least, has in bad
        )
        return problem("libraries", missing, AGAIN)
    return ok("libraries", ", ".join(f"{library.name} {library.found}" for library in found))


def needed() -> Iterator[Library]:
    """What the installed package says that it needs, whatever else is wanted."""
    for text in metadata.requires("penstock") or ():
        requirement, _, marker = text.partition(";")
        if "extra" not in marker and (parts := _REQUIREMENT.match(requirement.strip())):
            yield Library(parts[1], parts[2] or "", version_of(parts[1]))


def version_of(name: str) -> str | None:
    """The installed version of a library, if there is one."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """A version for comparing: its numbers up to the first part that is none."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


# --- databases ------------------------------------------------------------------------------------------------


def sqlite() -> Finding:
    """The SQLite that the embedded store runs on, which comes with apsw."""
    try:
        import apsw  # noqa: PLC0415 - a broken one is a finding
    except ImportError as error:
        return problem("sqlite", f"apsw cannot be imported: {error}", AGAIN)
    found = apsw.sqlite_lib_version()
    if numbers(found) >= SQLITE_MIN:
        return ok("sqlite", f"SQLite {found}, inside apsw {apsw.apsw_version()}")
    least = ".".join(map(str, SQLITE_MIN))
    return problem(
        "sqlite", f"SQLite {found} can damage a write-ahead log that processes share", f"use apsw {least} or newer"
    )


def driver(*, is_needed: bool) -> Finding:
    """The driver for PostgreSQL, and libpq below it."""
    try:
        libpq = import_module(DRIVER).pq.version()
    except ImportError as error:
        advice = "pip install 'psycopg[binary]'"
        if is_needed:
            return problem("postgresql", f"no driver: {error}".strip().splitlines()[0], advice)
        return ok("postgresql", "no driver; only stores on PostgreSQL need it", advice)
    return ok("postgresql", f"psycopg {version_of(DRIVER)} with libpq {libpq // 10_000}.{libpq % 10_000}")
