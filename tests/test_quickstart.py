"""The quickstart and the README, line by line in terminals, with a server of `make run`: in any order and twice."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import pytest

from tests.test_readme import DEFAULT_URL, ROOT
from tests.test_server import PATIENCE_S, environment, until

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")
ORDER = re.compile(r"order-\d{5,}")
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


def comparable(text: str, is_new: bool) -> list[str]:
    """Printed lines without ids, times and the padding of tables. Numbers count only on a new store."""
    text = ORDER.sub("ORDER", TIME.sub("TIME", text))
    if not is_new:
        text = re.sub(r"\d+", "N", text)
    return [re.sub("──+", "──", " ".join(line.split())) for line in text.splitlines() if line.strip()]


class Terminal:
    """A shell to type lines into. Its end ends everything that it started."""

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
        """Type a line, wait until it is done and return what it printed. It must not fail."""
        before = len(self.shown())
        self.put(f'{line}\necho "[done $?]"')
        until(lambda: "[done " in self.shown()[before:] or self._shell.poll() is not None)
        printed, _, rest = self.shown()[before:].partition("[done ")
        assert rest == "0]\n", f"{line}\n{printed}"
        return printed

    def shown(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, text: str) -> None:
        until(lambda: text in self.shown())

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


def clone_into(folder: Path) -> Path:
    """What `make run` needs of a clone, with an environment in which everything is installed."""
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


def follow_quickstart(clone: Path, url: str, is_new: bool) -> None:
    first, *rest = steps(ROOT / "docs" / "quickstart.md")
    assert first.lines == [SERVER]
    order = ""
    with (
        Terminal(clone, clone / "typed.log", PENSTOCK_URL=url) as typed,
        Terminal(clone, clone / "watched.log", PENSTOCK_URL=url) as watched,
    ):
        for step in rest:
            if step.language == "python":
                continue
            if FOLLOWING in step.text:
                (line,) = step.lines
                watched.put(line)
                watched.wait_for(f"{order} 2  OrderPaid")
                continue
            printed = "".join(map(typed.run, step.lines))
            assert comparable(printed, is_new) == comparable(step.printed, is_new)
            order = typed.run("echo $order").strip()
        watched.wait_for(f"{order}-gift 2  OrderPaid")
        if is_new:
            assert watched.shown().count("\n") == 4
    session = [step for step in rest if step.language == "python"]
    assert in_python(clone, url, [step.text for step in session]) == "".join(step.printed for step in session)


def follow_readme(clone: Path, url: str) -> None:
    (in_shell,) = [step for step in steps(ROOT / "README.md") if step.language == "sh"]
    with Terminal(clone, clone / "readme.log", PENSTOCK_URL=url) as typed:
        typed.run('export PATH="$PWD/.venv/bin:$PATH"')
        for line in in_shell.lines:
            if FOLLOWING not in line:
                assert typed.run(line), line
    printed = in_python(clone, url, [step.text for step in steps(ROOT / "README.md") if step.language == "python"])
    assert printed == "1 OrderPlaced 42\n2 OrderPaid 42\nto ship: ['OrderPlaced', 'OrderPaid']\n"


def in_python(clone: Path, url: str, blocks: list[str]) -> str:
    """Run blocks of a page as one session and return what they print."""
    code = "\n".join(blocks).replace(DEFAULT_URL, url)
    command = [str(clone / ".venv" / "bin" / "python"), "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=clone, env=environment(), capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


class Site(NamedTuple):
    """A clone and the server that `make run` started in it."""

    clone: Path
    url: str


@pytest.fixture(scope="module")
def quickstart_first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    clone = clone_into(tmp_path_factory.mktemp("quickstart") / "penstock")
    with served(clone) as url:
        yield Site(clone, url)


@pytest.fixture(scope="module")
def readme_first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    clone = clone_into(tmp_path_factory.mktemp("readme") / "penstock")
    with served(clone) as url:
        yield Site(clone, url)


def test_the_quickstart_prints_what_it_says(quickstart_first: Site) -> None:
    follow_quickstart(*quickstart_first, is_new=True)


def test_the_readme_works_after_the_quickstart(quickstart_first: Site) -> None:
    follow_readme(*quickstart_first)


def test_the_quickstart_works_twice_on_one_store(quickstart_first: Site) -> None:
    follow_quickstart(*quickstart_first, is_new=False)


def test_the_readme_works_on_a_new_store(readme_first: Site) -> None:
    follow_readme(*readme_first)


def test_the_readme_works_twice_on_one_store(readme_first: Site) -> None:
    follow_readme(*readme_first)


@pytest.mark.long
def test_the_quickstart_works_after_the_readme(readme_first: Site) -> None:
    follow_quickstart(*readme_first, is_new=False)
