"""Jobs that do what an attacker would do who has broken out of Lua, inside a Lua worker.

The nursery imports this module: a worker that is confined could not read its file.
"""

import ctypes
import fcntl
import os
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.engine import worker_protocol
from penstock.store import Store

PTRACE_ATTACH: Final = 16


def nothing(_store: Store) -> None:
    """Do nothing."""


def pid(_store: Store) -> int:
    """The worker's number."""
    return os.getpid()


def escape(_store: Store, server: int, victim: str, secret: str) -> list[str]:
    """Try everything; what worked."""
    libc = ctypes.CDLL(None, use_errno=True)

    def attach() -> None:
        if libc.ptrace(PTRACE_ATTACH, server, 0, 0):
            raise OSError(ctypes.get_errno(), "ptrace")

    def give_signals() -> None:
        with socket.socket(fileno=os.dup(2)) as connection:
            fcntl.fcntl(connection, fcntl.F_SETOWN, server)

    place = Path(victim)
    attempts: dict[str, Callable[[], Any]] = {
        "fork": os.fork,
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "spawn": lambda: subprocess.run(["/bin/true"], check=False),
        "socket": socket.socket,
        "pair": socket.socketpair,
        "connect": lambda: socket.create_connection(("127.0.0.1", 1)),
        "signal the server": lambda: os.kill(server, 0),
        "signal all": lambda: os.kill(-1, 0),
        "signals by files": give_signals,
        "trace the server": attach,
        "memory of the server": lambda: os.open(f"/proc/{server}/mem", os.O_RDONLY),
        "environment of the server": lambda: Path(f"/proc/{server}/environ").read_bytes(),
        "read": lambda: Path(secret).read_bytes(),
        "list": lambda: list(Path("/").iterdir()),
        "list beside the store": lambda: list(Path(secret).parent.iterdir()),
        "write": lambda: place.write_bytes(b"gone"),
        "append": lambda: place.open("ab"),
        "empty": lambda: os.truncate(place, 0),
        "empty by reading": lambda: os.open(place, os.O_RDONLY | os.O_TRUNC),
        "delete": place.unlink,
        "rename": lambda: place.rename(f"{place}.gone"),
        "link": lambda: place.with_name("link").hardlink_to(place),
        "create": lambda: place.with_name("new").touch(),
        "folder": lambda: place.with_name("folder").mkdir(),
        "mode": lambda: place.chmod(0o777),
        "owner": lambda: os.chown(place, 0, 0),
        "file in memory": lambda: os.memfd_create("x"),
        "priority": lambda: os.nice(1),
        "root": lambda: os.chroot("/"),
    }
    return [name for name, attempt in attempts.items() if _works(attempt)]


def _works(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def writable_files(_store: Store) -> list[str]:
    """Open files on a disk that can be written to, but for where logs go."""
    found = []
    for number in range(3, 64):
        try:
            flags, mode = fcntl.fcntl(number, fcntl.F_GETFL), os.fstat(number).st_mode
        except OSError:
            continue
        if flags & os.O_ACCMODE != os.O_RDONLY and mode & 0o170000 == 0o100000:
            found.append(str(number))
    return found


def threads(_store: Store) -> int:
    """The threads that are left to it: Python's own and the watchdog."""
    return threading.active_count()


def send(_store: Store, message: bytes) -> None:
    """Send something in the place of an answer."""
    for connection in worker_protocol._connection:
        connection(message)
    threading.Event().wait()


def send_and_stay(_store: Store, message: bytes) -> None:
    """Send one answer too many."""
    for connection in worker_protocol._connection:
        connection(message)
