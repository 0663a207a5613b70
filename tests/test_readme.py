"""Every Python example of the docs runs as it stands. test_quickstart.py runs the README and the quickstart."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest

from penstock import Client, cloudevents, tracing
from penstock.client.sync import Access, Log, LogIterator, Queue, Subscription, Transaction
from penstock.testing import Server, server
from tests.test_server import PATIENCE_S, environment

DEFAULT_RES = "tcp://127.0.0.1:8471"
DEFAULT_MQ = '"127.0.0.1", 8472'
DEFAULT_URL = "penstock://127.0.0.1:8472"
ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
CLIENT = ROOT / "docs" / "client.md"
QUEUES = ROOT / "docs" / "queues.md"
"""The examples of these two are one session each: an example goes on where the one before it ended."""
QUICKSTART = ROOT / "docs" / "quickstart.md"
"""Run by test_quickstart.py, with the README and the commands of both."""
SPARK = ROOT / "docs" / "spark.md"
"""Run by tests/spark, in the session that all its tests share."""
LAKE = ROOT / "docs" / "lake.md"
"""Run by tests/lake, in the same session."""
HTTP = ROOT / "docs" / "http.md"
"""Run by test_http_page.py, with its commands."""
PIPELINES = ROOT / "docs" / "pipelines.md"
"""Run by tests/pipelines, in the same session."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRINTED = re.compile(r"^```python\n(?:[^`]|`[^`])*?^```\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    if page not in (CLIENT, QUEUES, QUICKSTART, SPARK, LAKE, HTTP, PIPELINES)
    for number, code in enumerate(blocks(page), 1)
]


QUIET: Final = 'import logging; logging.getLogger("penstock.engine.traffic").setLevel("ERROR")\n'
"""On a busy machine any request may be slow, and a server inside of the example would say so."""


def run(code: str, folder: Path) -> str:
    """Run a script in a folder of its own, warnings being errors; what it prints."""
    command = [sys.executable, "-W", "error", "-c", QUIET + code]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


class Addresses(NamedTuple):
    """Where a server of the test's own serves Res01, over ZeroMQ and over TCP."""

    res: str
    mq: str

    def put_into(self, code: str) -> str:
        """An example that talks to this server instead of one with the default ports."""
        code = code.replace(DEFAULT_RES, self.res).replace(DEFAULT_URL, f"penstock://{self.mq}")
        return code.replace(DEFAULT_MQ, f'"127.0.0.1", {self.mq.rpartition(":")[2]}')


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[Addresses]:
    with server(tmp_path / "served") as served:
        yield Addresses(served.zmq_url.removeprefix("zmq+"), served.url.removeprefix("penstock://"))


@pytest.mark.parametrize("code", EXAMPLES)
def test_the_example_runs(
    code: str, tmp_path: Path, addresses: Addresses, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # As a module, and not as a process, which takes longer than most examples do.
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)
    with chdir(tmp_path), patch.dict(os.environ, environment(), clear=True):
        exec(compile(addresses.put_into(code), "example", "exec"), vars(example))
    assert not capsys.readouterr().err


@pytest.mark.parametrize("page", [CLIENT, QUEUES], ids=["client", "queues"])
def test_the_examples_of_a_guide_run_in_turn_and_twice_on_one_store(
    page: Path, tmp_path: Path, addresses: Addresses
) -> None:
    printed = "".join(PRINTED.findall(page.read_text(encoding="utf-8")))
    code = addresses.put_into("\n".join(blocks(page)))
    assert run(code, tmp_path) == printed
    # Positions and counts are those of a new store.
    assert re.sub(r"\d+", "N", run(code, tmp_path)) == re.sub(r"\d+", "N", printed)


GUIDE = CLIENT.read_text(encoding="utf-8")
CALLED = [Access, Client, Log, LogIterator, Queue, Subscription, Transaction, Server]
NOT_CALLED = {"inner", "is_running"}


@pytest.mark.parametrize("kind", CALLED)
def test_the_guide_names_every_call(kind: type) -> None:
    names = {name for name in vars(kind) if not name.startswith("_")} - NOT_CALLED
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", GUIDE)] == []


@pytest.mark.parametrize("module", [cloudevents, tracing])
def test_the_guide_names_every_function(module: ModuleType) -> None:
    functions = (value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__)
    names = {value.__name__ for value in functions if isfunction(value) and not value.__name__.startswith("_")}
    assert [name for name in sorted(names) if f"`{name}" not in GUIDE and f"{name}(" not in GUIDE] == []
    assert names
