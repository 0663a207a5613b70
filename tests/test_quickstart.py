"""The quickstart, followed line by line in what `make run` needs of a clone, with terminals as somebody has them."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from penstock.testing import server
from tests.cli.support import run
from tests.test_readme import DEFAULT_URL, ROOT
from tests.test_server import PATIENCE_S, environment, until

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
CLONED = ("Makefile", "pyproject.toml", "requirements", "scripts")
FOLLOWING = "tail -f"
SERVER = "make run"
# What a `make test ARGS=…` that runs these tests says to the makes below it is not for the page's.
FROM_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


class Step(NamedTuple):
    """A block of the page, and what it prints as the page has it."""

    language: str
    text: str
    printed: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def steps(page: Path) -> list[Step]:
    return [Step(*found) for found in BLOCK.findall(page.read_text(encoding="utf-8"))]


def comparable(text: str) -> list[str]:
    """What is printed, without what differs from run to run, and without the air around tables."""
    return [line.rstrip() for line in TIME.sub("TIME", text).splitlines() if line.strip()]


class Terminal:
    """A shell to type lines into. Leaving it ends all that was started in it."""

    def __init__(self, folder: Path, log: Path, **env: str) -> None:
        self._folder, self._log = folder, log
        ours = {name: value for name, value in environment().items() if name not in FROM_MAKE}
        self._env = {**ours, "PENSTOCK_HTTP": "127.0.0.1:0", **env}
        with log.open("wb") as output:
            self._shell = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def put(self, line: str) -> None:
        """Type a line, and wait for nothing."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\n".encode())
        self._shell.stdin.flush()

    def run(self, line: str) -> str:
        """Type a line and wait until it is done; what it has printed. It must not fail."""
        before = len(self.shown())
        self.put(f'{line}\necho "[done $?]"')
        until(lambda: "[done " in self.shown()[before:] or self._shell.poll() is not None)
        printed, _, rest = self.shown()[before:].partition("[done ")
        assert rest == "0]\n", f"{line}\n{printed}"
        return printed

    def shown(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self._shell.pid, signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self.interrupt()
        try:
            self._shell.wait(PATIENCE_S)
        finally:
            if self._shell.poll() is None:
                os.killpg(self._shell.pid, signal.SIGKILL)
                self._shell.wait()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make run` needs of a clone, with an environment in which everything is installed."""
    folder = tmp_path / "penstock"
    for name in CLONED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
    installed, ours = Path(sys.prefix), folder / ".venv"
    ours.mkdir()
    for name in ("bin", "lib"):
        (ours / name).symlink_to(installed / name)
    shutil.copy(installed / "pyvenv.cfg", ours)
    # It is newer than what it is made from: nothing is installed.
    (ours / ".run").touch()
    return folder


@contextmanager
def served(clone: Path) -> Iterator[str]:
    """The server that the page starts; where it is."""
    with Terminal(clone, clone / "server.log") as terminal:
        terminal.put(SERVER)
        ready = re.compile(r"^penstock ready .* mq=(\S+)", re.MULTILINE)
        until(lambda: ready.search(terminal.shown()) is not None)
        found = ready.search(terminal.shown())
        assert found is not None
        yield f"penstock://{found[1]}"
        terminal.interrupt()
        until(lambda: "penstock.server: stopped" in terminal.shown())


def test_the_quickstart_works_line_by_line(clone: Path) -> None:
    first, *rest = steps(ROOT / "docs" / "quickstart.md")
    assert first.lines == [SERVER]
    with ExitStack() as stack:
        url = stack.enter_context(served(clone))
        typed = stack.enter_context(Terminal(clone, clone / "typed.log", PENSTOCK_URL=url))
        watching = stack.enter_context(Terminal(clone, clone / "watching.log", PENSTOCK_URL=url))
        for step in rest:
            if step.language == "python":
                continue
            if FOLLOWING in step.text:
                (line,) = step.lines
                watching.put(line)
                until(lambda: watching.shown().count("\n") == 2)
                continue
            assert comparable("".join(map(typed.run, step.lines))) == comparable(step.printed)
        until(lambda: watching.shown().count("\n") == 4)
        assert "OrderPaid" in watching.shown().splitlines()[-1]
        in_python(clone, url, rest)


def in_python(clone: Path, url: str, rest: list[Step]) -> None:
    """What the page has in Python, one session, beside what was done before."""
    session = [step for step in rest if step.language == "python"]
    code = "\n".join(step.text for step in session).replace(DEFAULT_URL, url)
    command = [str(clone / ".venv" / "bin" / "python"), "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "".join(step.printed for step in session)


def test_the_commands_at_the_beginning_of_the_readme_work(tmp_path: Path) -> None:
    (step,) = [step for step in steps(ROOT / "README.md") if step.language == "sh"]
    with server(tmp_path / "penstock-data") as own, chdir(tmp_path):
        for line in step.lines:
            program, *arguments = shlex.split(line)
            assert program == "penstock"
            if FOLLOWING not in line:
                done = run(*arguments, url=own.url)
                assert (done.code, done.err, bool(done.out)) == (0, "", True), line
