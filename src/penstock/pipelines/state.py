"""The traces of a run in a project: a lock with its owner, and the result of each flow.

A run holds the lock as long as its process lives. The state is one small file, which is replaced atomically.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.files import atomic_write, is_shared, lock_owner, make_folder, owned_lock, parsed, read_file
from penstock.model.times import now_text
from penstock.pipelines.projects import Project

STATE: Final = "state.json"
LOCK: Final = "lock"
METASTORE_LOCK: Final = "dbex.lck"
"""The file that a process locks while it has the metastore open."""
METASTORE_S: Final = 30.0
"""Seconds for the Spark of a killed run to end."""
LOOK_S: Final = 0.2
STATE_BYTES_MAX: Final = 64 << 20


def read_state(project: Project) -> dict[str, Any]:
    """The state that the last run left; empty if there was none. Raises InvalidRequest if it is damaged."""
    path = project.own / STATE
    try:
        found = parsed(read_file(path, STATE_BYTES_MAX))
        _check(found)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        reason = f"is damaged ({error}); remove it, and the next run goes by what the project says now"
        raise InvalidRequest(str(path), reason) from None
    return dict(found)


def _check(state: Any) -> None:
    """Raise unless a state has the types that its readers rely on."""
    for flow in state.get("flows", {}).values():
        for name, value in flow.items():
            if not (value is None or (isinstance(value, str) and value.isprintable())):
                raise TypeError(f"the {name} of a flow is no text")
        if "/" in flow.get("target", "") or not flow.get("target", "x"):
            raise ValueError("a flow has a target that is no table")
    made = state.get("made", {})
    sources, tables = made.get("source", []), made.get("tables", {}).values()
    types = [each for table in tables for each in (table["type"], *table["columns"].values())]
    if not all(isinstance(each, list) for each in (sources, *types)):
        raise TypeError("something is no list")
    if not all(isinstance(each, dict) for each in sources):
        raise TypeError("what bronze was read by is no source")


def write_state(project: Project, state: dict[str, Any]) -> None:
    make_folder(project.own, shared=is_shared(project.folder))
    with atomic_write(project.own / STATE, sync=False) as file:
        file.write(json.dumps(state, indent=1, ensure_ascii=False).encode())


@contextmanager
def lock_project(project: Project, what: str) -> Iterator[None]:
    """Lock a project. Raises InvalidRequest, which names the owner of the lock."""
    make_folder(project.own, shared=is_shared(project.folder))
    owner = f"{what} of process {os.getpid()}, since {now_text()}".encode()
    folder = str(project.folder)
    with owned_lock(project.own / LOCK, owner, lambda other: InvalidRequest(folder, f"is in use by {_shown(other)}")):
        _wait_for_metastore(project)
        yield


def holder(project: Project) -> str | None:
    """The owner of the lock, if any."""
    with suppress(OSError):
        if (found := lock_owner(project.own / LOCK)) is not None:
            return _shown(found)
    return None


def _shown(owner: bytes) -> str:
    return owner.decode(errors="replace") or "another process"


def _wait_for_metastore(project: Project) -> None:
    """Wait for the Spark of a killed run to end: a metastore refuses a second one."""
    deadline = time.monotonic() + METASTORE_S
    while project.metastore is not None and _is_locked(project.metastore / METASTORE_LOCK):
        if time.monotonic() > deadline:
            raise InvalidRequest(str(project.folder), "is in use: another process has its metastore open")
        time.sleep(LOOK_S)


def _is_locked(path: Path) -> bool:
    """Whether a process has locked a file in the way of Java, with `lockf`."""
    with suppress(FileNotFoundError), path.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
