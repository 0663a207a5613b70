"""Every Python example in the README and the docs runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_server import PATIENCE_S, environment

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


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, tmp_path: Path) -> None:
    run(code, tmp_path)


def test_the_example_of_the_readme_prints_its_event(tmp_path: Path) -> None:
    (code,) = BLOCK.findall(PAGES[0].read_text(encoding="utf-8"))
    assert run(code, tmp_path) == """[(1, 'OrderPlaced', b'{"amount": 7}')]\n"""
