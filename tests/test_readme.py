"""Every Python example in the README and the docs runs as it stands."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.test_server import PATIENCE_S, Served, environment

DEFAULT_RES = "tcp://127.0.0.1:8471"
DEFAULT_MQ = '"127.0.0.1", 8472'
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


class Addresses(NamedTuple):
    """Where a server of the test's own serves Res01, over ZeroMQ and over TCP."""

    res: str
    mq: str

    def put_into(self, code: str) -> str:
        """An example that talks to this server instead of one with the default ports."""
        return code.replace(DEFAULT_RES, self.res).replace(DEFAULT_MQ, f'"127.0.0.1", {self.mq.rpartition(":")[2]}')


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[Addresses]:
    with Served(tmp_path / "served") as server:
        pairs = dict(pair.split("=", 1) for pair in server.ready.split()[2:])
        yield Addresses(pairs["res"], pairs["mq"])


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(code: str, tmp_path: Path, addresses: Addresses) -> None:
    run(addresses.put_into(code), tmp_path)


def test_the_examples_of_the_readme_print_what_they_say(tmp_path: Path, addresses: Addresses) -> None:
    served, over_tcp, in_process = BLOCK.findall(PAGES[0].read_text(encoding="utf-8"))
    assert DEFAULT_RES in served
    assert run(addresses.put_into(served), tmp_path) == "b'CR'\n"
    assert DEFAULT_MQ in over_tcp
    answer = run(addresses.put_into(over_tcp), tmp_path)
    assert answer.startswith("[b'Res01', b'request-2', b'QR', b'1', ")
    assert "OrderPlaced" in answer
    assert run(in_process, tmp_path) == """[(1, 'OrderPlaced', b'{"amount": 7}')]\n"""
