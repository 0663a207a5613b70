"""Pipeline projects, and what runs have left in them, damaged or made up: `pipeline status` shows what it can."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.pipelines.integrity import check_integrity
from penstock.pipelines.projects import read_project
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.state import STATE
from tests.hostile.mutations import CHANGES, EDITS, LINES, Change, Cut, Edit, Lines, changed, spoilt
from tests.hostile.support import Tally, ended, some, untouched
from tests.pipelines.support import sell
from tests.pipelines.test_status import add, checkpoint

FILES = ("spark-pipeline.yml", "penstock.yml", "spark.conf")
YAML = (
    "a: " + "[" * 600,
    "- " * 600,
    "!!timestamp 2026-99-99",
    "!!timestamp x",
    "2026-99-99",
    "!!int x",
    "!!float x",
    "!!bool x",
    "!!binary \xff",
    "!!python/object:os.system x",
    "9" * 5000,
    "0b",
    "? [a, [b]]\n: c",
    "? {a: b}\n: c",
    "&a [*a]",
    "<<: 5",
    "\x00",
    "a: !!set {b}",
    "\n".join(
        [
            f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 9)}]}}" if level else "a0: &a0 {b: c}"
            for level in range(9)
        ]
    ),
    "\n".join(
        [
            f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" if level else "a0: &a0 [b]"
            for level in range(12)
        ]
    ),
)
"""YAML that parsers stumble over: deep, of no type, in a circle, or a few lines that become very many."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and a project over it that looks as if it had been run; to be copied."""
    made = tmp_path_factory.mktemp("made")
    return make_project(made / "shop", sell(made / "data", 1, 40)).folder.parent


@contextmanager
def copied(made: Path) -> Iterator[Path]:
    """A project, to be damaged, in a folder with nothing else in it."""
    with TemporaryDirectory() as name:
        folder = Path(name) / "shop"
        shutil.copytree(made / "shop", folder)
        for file in FILES:
            text = (folder / file).read_text().replace(str(made / "shop"), str(folder))
            (folder / file).write_text(text)
        yield folder


def run_before(folder: Path) -> None:
    """Have a project look as if it had been run."""
    checkpoint(folder, "bronze", [{"position": 40}])
    bronze = [add(folder, "bronze", batch, 20 * batch + 1, 20 * batch + 20) for batch in range(2)]
    checkpoint(folder, "judged", [{"logOffset": 0}], bronze[:1])
    add(folder, "judged", 0, 1, 20)
    (folder / ".penstock").mkdir(exist_ok=True)
    (folder / ".penstock" / STATE).write_text(
        json.dumps(
            {
                "flows": {"bronze": {"target": "bronze", "ran": "2026-11-16T00:00:00+00:00", "error": None}},
                "made": {
                    "source": [{"context": "shop"}],
                    "tables": {"order_placed": {"type": ["X"], "columns": {"a": ["x"]}}},
                },
            }
        )
    )


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end before they start Spark."""
    refusal = InvalidRequest("Spark", "is not started here")
    monkeypatch.setattr("penstock.cli.pipeline._running", Mock(side_effect=refusal))


def judged(folder: Path) -> None:
    """See whether tables and checkpoints belong together, as a run does that has started Spark."""
    with suppress(InvalidRequest):
        check_integrity(read_project(folder))


def shown(folder: Path) -> int:
    """Ask how a project stands; the exit code."""
    with untouched(folder.parent):
        return ended("pipeline", "status", folder).code


def test_the_files_of_a_project_are_judged_before_they_are_used(made: Path) -> None:
    """A project whose files cannot be read is refused with the name of the file."""
    seen = Tally()

    @some(4)
    @given(st.sampled_from(FILES), CHANGES | st.lists(LINES, min_size=1, max_size=2) | st.sampled_from(YAML))
    @example("penstock.yml", YAML[0])
    def check(file: str, changes: list[Change | Lines] | str) -> None:
        with copied(made) as folder:
            data = (folder / file).read_bytes()
            new = changes.encode() if isinstance(changes, str) else changed(data, changes)  # type: ignore[arg-type]
            (folder / file).write_bytes(new)
            seen.add(shown(folder) != 0)

    check()
    seen.check(1 / 5)


@pytest.mark.parametrize("file", FILES[:2])
def test_yaml_that_parsers_stumble_over_is_refused(made: Path, file: str) -> None:
    with copied(made) as folder:
        for text in YAML:
            (folder / file).write_text(text, encoding="latin-1")
            assert shown(folder) == 1, text[:80]


def test_what_runs_have_left_is_shown_as_far_as_it_can_be_read(made: Path) -> None:
    """Checkpoints, logs of files, tables and the state: `status` shows the rest, or says which file is damaged."""
    seen = Tally()

    @some(4)
    @given(st.integers(0, 99), CHANGES | EDITS, st.booleans())
    @example(0, [Cut(0)], False)
    def check(file: int, changes: list[Change] | list[Edit], by_line: bool) -> None:
        with copied(made) as folder:
            run_before(folder)
            left = [*folder.glob("storage/**/*"), *folder.glob("tables/**/*"), folder / ".penstock" / STATE]
            files = sorted(each for each in left if each.is_file())
            path = files[file % len(files)]
            path.write_bytes((last_line_spoilt if by_line else spoilt)(path.read_bytes(), changes))
            seen.add(shown(folder) != 0)
            ended("pipeline", "run", folder)
            judged(folder)

    check()
    seen.check(1 / 10)


def last_line_spoilt(data: bytes, changes: list[Change] | list[Edit]) -> bytes:
    """A file of which the last line is another one: in most of those that Spark writes that is the one with JSON."""
    *lines, last = data.splitlines() or [b""]
    return b"\n".join([*lines, spoilt(last, changes)])
