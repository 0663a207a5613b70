"""docs/mq.md is right: its examples run and print what it says, and it names all that there is."""

import re
import shutil
import subprocess
import sys
from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from penstock import mq
from penstock.mq import Ending, MqServer, SessionInfo
from tests.mq.support import PATIENCE_S
from tests.mq.test_tls import CERTIFICATE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mq.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python(?: with server\.pem)?\n(.*?)^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = BLOCK.findall(PAGE)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_prints_what_the_page_says(code: str, printed: str, tmp_path: Path) -> None:
    shutil.copy(CERTIFICATE, tmp_path / "server.pem")
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.returncode, result.stdout, result.stderr) == (0, printed, "")


def test_every_example_says_what_it_prints() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") == 6


def test_every_handler_is_in_the_table() -> None:
    named = re.findall(r"^\| `(\w+)` \| session", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(set(signature(MqServer).parameters) - {"limits", "name"})


def test_every_figure_of_a_session_and_every_part_of_an_ending_is_named() -> None:
    names = {field.name for field in fields(SessionInfo)} | set(Ending._fields)
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []


def test_every_public_name_is_on_the_page() -> None:
    assert [name for name in mq.__all__ if not re.search(rf"\b{name}\b", PAGE)] == ["SessionInfo"]


def test_the_programs_of_the_page_are_those_of_the_examples() -> None:
    named = set(re.findall(r"^python (examples/\w+\.py) ", PAGE, re.MULTILINE))
    assert named == {f"examples/{path.name}" for path in (ROOT / "examples").glob("mq_*.py")}
