"""Commands as people run them, against a real server: in this process, or as processes of their own.

`run` and `called` are for most tests: `main` itself runs, with standard files and an environment of the test's, in some
hundredths of the time that a process takes. `run_process` and `shell` are for what only a process has: signals, pipes,
terminals, closed standard files, and how Python itself starts and ends.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from penstock.cli import main
from tests.test_server import PATIENCE_S, PENSTOCK, environment

SHOWN: Final = b"\0shown"
"""What no command writes to a terminal."""


class Done(NamedTuple):
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """What it printed, as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def variables(url: str | None = None, **more: str) -> dict[str, str]:
    """An environment without settings, in which commands find a server."""
    named = {} if url is None else {"PENSTOCK_URL": url}
    return {**environment(), "TERM": "xterm-256color", **named, **more}


# --- in this process ------------------------------------------------------------------------------------------


def run(
    *arguments: object,
    url: str | None = None,
    stdin: str | bytes = b"",
    stdout: int | None = None,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run a command to its end, in an environment of its own."""
    with patch.dict(os.environ, env or variables(url), clear=True):
        return called(*arguments, stdin=stdin, stdout=stdout)


def called(*arguments: object, stdin: str | bytes = b"", stdout: int | None = None) -> Done:
    """Run a command to its end, in the environment that the test has; `stdout` is the number of an open file."""
    before = client_threads()
    with standard_files(stdin, stdout) as (out, err), undisturbed(arguments):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
        else:
            raise AssertionError("main ends with an exit code")
    assert isinstance(code, int), code
    assert client_threads() <= before, "a client was left open"
    return Done(code, "".join(out), "".join(err))


def client_threads() -> set[int | None]:
    return {thread.ident for thread in threading.enumerate() if thread.name == "penstock-client"}


@contextmanager
def undisturbed(arguments: tuple[object, ...]) -> Iterator[None]:
    """Give `main` its arguments, and undo what it does to a process: its signals, its warnings, its tracebacks."""
    words = ["penstock", *(os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # With an option of Python's for warnings, they stay what they are in tests: errors.
    with (
        patch.object(sys, "argv", words),
        patch.object(sys, "excepthook", sys.excepthook),
        patch.object(sys, "warnoptions", ["error"]),
        warnings.catch_warnings(),
    ):
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def standard_files(stdin: str | bytes, stdout: int | None) -> Iterator[tuple[list[str], list[str]]]:
    """Standard files of a command, which are real ones; what was written is in the lists in the end."""
    out: list[str] = []
    err: list[str] = []
    with (
        TextIOWrapper(TemporaryFile(), "utf-8") as given,
        written_to(out) if stdout is None else opened(stdout) as first,
        written_to(err) as second,
        patch.multiple(sys, stdin=given, stdout=first, stderr=second),
    ):
        given.buffer.write(stdin.encode() if isinstance(stdin, str) else stdin)
        given.buffer.seek(0)
        yield out, err


@contextmanager
def opened(number: int) -> Iterator[TextIOWrapper]:
    """An open file as standard output."""
    text = os.fdopen(number, "w", encoding="utf-8", closefd=False)
    yield text
    # What is left in it when a process ends is lost as quietly.
    with suppress(BrokenPipeError):
        text.close()


@contextmanager
def written_to(found: list[str]) -> Iterator[TextIOWrapper]:
    """A file; what was written to it is found in the end, also if a command has put another one in its place."""
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    with TextIOWrapper(TemporaryFile(), encoding) as text, os.fdopen(os.dup(text.fileno()), "rb") as whole:
        yield text
        text.flush()
        whole.seek(0)
        found.append(whole.read().decode())


@contextmanager
def terminal_output() -> Iterator[tuple[int, Callable[[], str]]]:
    """A terminal as standard output, for little: an open file, and what the terminal shows so far."""
    ours, theirs = pty.openpty()

    def shown() -> str:
        # The system hands it on piece by piece, some of it later: what comes last is ours.
        os.write(theirs, SHOWN)
        found = b""
        while not found.endswith(SHOWN):
            found += os.read(ours, 65536)
        return found.removesuffix(SHOWN).decode()

    yield theirs, shown
    os.close(theirs)
    os.close(ours)


# --- as processes ---------------------------------------------------------------------------------------------


def run_process(
    *arguments: object, url: str | None = None, stdin: bytes = b"", env: dict[str, str] | None = None
) -> Done:
    """Run a command to its end as a process."""
    command = [*PENSTOCK, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=env or variables(url), timeout=PATIENCE_S)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def shell(line: str, url: str | None = None) -> Done:
    """Run a line in a shell, with `penstock` as its command."""
    script = f'penstock() {{ {" ".join(PENSTOCK)} "$@"; }}; set -o pipefail; {line}'
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=variables(url), timeout=PATIENCE_S)
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())
