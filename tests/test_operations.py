"""The page for operators is typed line by line: its console blocks are one session, and its scripts are files of it.

A line with `$` is run, and what follows is what it prints; `…` stands for anything. Servers have free ports here, which
take the place of those on the page.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_server import PATIENCE_S, PENSTOCK, Served, environment

pytestmark = pytest.mark.long

PAGE = (Path(__file__).parent.parent / "docs" / "operations.md").read_text(encoding="utf-8")
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCRIPT = re.compile(r"^```python (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SIZES = re.compile(r"^\| ([\d,]+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
MQ_DEFAULT = "127.0.0.1:8472"
SIZES_DIFFER_MAX = 0.05
"""How far a measured size may be from the page's; pages do not fill up the same way each time."""


class Step(NamedTuple):
    """A command of the page, and what it prints."""

    command: str
    answer: str

    @property
    def is_refused(self) -> bool:
        return self.answer.startswith("penstock: ")


def steps() -> Iterator[Step]:
    for block in SESSION.findall(PAGE):
        assert block.startswith("$ ")
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, answer = part.partition("\n")
            yield Step(command, answer)


def scripts() -> dict[str, str]:
    return dict(SCRIPT.findall(PAGE))


def lines(text: str) -> list[str]:
    """Lines without the spaces that only make tables pretty."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def is_said(answer: str, printed: str) -> bool:
    """Whether something is what the page says."""
    pattern = "\n".join(re.escape(line).replace("…", ".+") for line in lines(answer))
    return re.fullmatch(pattern, "\n".join(lines(printed))) is not None


class Shell:
    """Somebody at a terminal in an empty folder."""

    def __init__(self, folder: Path, undo: ExitStack) -> None:
        self._folder = folder
        self._undo = undo
        self._jobs: dict[int, Served] = {}
        self._addresses: dict[str, str] = {}

    def type(self, step: Step) -> None:
        """Run a command; it must end and print as the page says."""
        if step.command.startswith("penstock serve "):
            self._serve(step)
        elif found := re.fullmatch(r"kill %(\d) && wait %\1", step.command):
            assert step.answer == ""
            assert self._jobs.pop(int(found[1])).stop() == 0
        else:
            self._run(step)

    def _serve(self, step: Step) -> None:
        data, *flags, end = shlex.split(step.command.removeprefix("penstock serve --data "))
        assert end == "&"
        named = dict(zip(flags[::2], flags[1::2], strict=True))
        served = self._undo.enter_context(Served(self._folder / data))
        assert is_said(step.answer, served.ready), served.said()
        mq = re.search(r"mq=(\S+)", served.ready)
        assert mq is not None
        self._addresses[named.get("--mq", MQ_DEFAULT)] = mq[1]
        self._jobs[max(self._jobs, default=0) + 1] = served

    def _run(self, step: Step) -> None:
        for name, code in scripts().items():
            (self._folder / name).write_text(self._placed(code), encoding="utf-8")
        program, *arguments = shlex.split(self._placed(step.command))
        names = {"penstock": PENSTOCK, "python": [sys.executable, "-W", "error"]}
        done = subprocess.run(
            [*names.get(program, [program]), *arguments],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
            timeout=PATIENCE_S,
        )
        assert is_said(step.answer, done.stdout), f"$ {step.command}\n{done.stdout}"
        assert done.returncode == (1 if step.is_refused else 0), step.command

    def _placed(self, text: str) -> str:
        """Commands and scripts with the addresses that servers really have."""
        for on_page, real in self._addresses.items():
            text = text.replace(on_page, real)
        return text


@pytest.mark.timeout(600)
def test_the_session_of_the_page_runs_line_by_line(tmp_path: Path) -> None:
    with ExitStack() as undo:
        shell = Shell(tmp_path, undo)
        for step in steps():
            shell.type(step)
    # What is left is what the page leaves: the store, its newest backups and the scripts.
    left = {path.name for path in tmp_path.iterdir() if path.suffix != ".log"}
    assert left == {"shop-data", "backups-3", *scripts()}


def test_the_session_has_every_part_of_the_drill() -> None:
    typed = [step.command for step in steps()]
    for part in (
        "penstock serve --data shop-data &",
        "penstock backup backups --data shop-data",
        "penstock backups backups --verify",
        "penstock restore backups --data restored",
        "penstock verify --data restored",
        "python compare.py",
        "penstock restore backups --data shop-data --number 1 --replace",
        "penstock restore backups-2.tar --data from-tar",
        "penstock erase --subject ann --url penstock://127.0.0.1:8472 --yes",
    ):
        assert part in typed


def test_the_scripts_of_the_session_are_those_that_it_runs() -> None:
    run = {found[1] for step in steps() if (found := re.match(r"python (\w+\.py)", step.command))}
    assert {*run, "sizes.py"} == set(scripts())


@pytest.mark.timeout(300)
def test_the_sizes_are_those_that_the_script_measures(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", scripts()["sizes.py"]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240)
    measured, told = SIZES.findall(done.stdout), SIZES.findall(PAGE)
    assert [row[:2] for row in measured] == [row[:2] for row in told]
    assert len(told) > 1
    for row, page in zip(measured, told, strict=True):
        for one, other in zip(row[2:], page[2:], strict=True):
            assert int(one) == pytest.approx(int(other), rel=SIZES_DIFFER_MAX)
