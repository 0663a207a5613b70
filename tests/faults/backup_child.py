"""A backup or a restore in a process of its own, which says when it begins, to be killed in the middle of it.

`backup DIR PLACE`, `restore PLACE DIR`, or `crash N PLACE DIR`: a restore that ends as in a crash when it syncs a
directory for the Nth time. With `wait` before it all, it goes only some way and waits there.
"""

import os
import signal
import sys
from contextlib import closing, nullcontext
from itertools import count
from pathlib import Path

from penstock.backup import back_up, open_place, restore_backup, writer
from penstock.store import open_reader, store_url
from penstock.store.contract import Progressed
from penstock.store.sqlite import replacement

CRASHED = 99
"""The exit code of a crash."""
STEPS = 3
"""How far one goes that waits to be killed."""


def main(what: str, *arguments: str) -> None:
    """Carry out what was asked for."""
    step: Progressed = _quiet
    if what == "wait":
        step = _waiting()
        what, arguments = arguments[0], arguments[1:]
    if what == "crash":
        _crash_at(int(arguments[0]))
        arguments = arguments[1:]
    source, target = map(Path, arguments)
    # Many small files, so that a kill hits between them too.
    writer.CHUNK_BYTES_MAX = 1 << 16  # type: ignore[misc]
    print("begins", flush=True)
    if what == "backup":
        with closing(open_reader(store_url(source))) as store, open_place(target, write=True) as place:
            back_up(store, place, step)
    else:
        with open_place(source, write=False) as place:
            restore_backup(place, store_url(target), lambda _what: nullcontext(step), replace=True)


def _quiet(_done: int, _total: int) -> None:
    """Nobody looks at it."""


def _waiting() -> Progressed:
    numbers = count(1)

    def step(_done: int, _total: int) -> None:
        if next(numbers) == STEPS:
            print("waits", flush=True)
            signal.pause()

    return step


def _crash_at(number: int) -> None:
    calls = 0
    sync = replacement.sync_directory  # type: ignore[attr-defined]

    def counted(path: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            os._exit(CRASHED)
        sync(path)

    replacement.sync_directory = counted  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(*sys.argv[1:])
