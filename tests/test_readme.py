"""Every Python example in the README and the docs runs as it stands."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_server import PATIENCE_S, Served, environment

DEFAULT_ADDRESS = "tcp://127.0.0.1:8471"
ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")), 1)
]


def run(code: str, folder: Path) -> str:
    """Run a script in a folder of its own, warnings being errors; what it prints."""
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Where a server of the test's own serves Res01."""
    with Served(tmp_path / "served") as server:
        yield server.ready.split("res=")[1].split()[0]


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, tmp_path: Path, address: str) -> None:
    run(code.replace(DEFAULT_ADDRESS, address), tmp_path)


def test_the_examples_of_the_readme_print_what_they_say(tmp_path: Path, address: str) -> None:
    served, in_process = BLOCK.findall(PAGES[0].read_text(encoding="utf-8"))
    assert DEFAULT_ADDRESS in served
    assert run(served.replace(DEFAULT_ADDRESS, address), tmp_path) == "b'CR'\n"
    assert run(in_process, tmp_path) == """[(1, 'OrderPlaced', b'{"amount": 7}')]\n"""
