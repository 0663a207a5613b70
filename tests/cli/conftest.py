"""One server for all tests of a module; each test has contexts of its own on it."""

import itertools
import os
from collections.abc import Iterator

import pytest

import penstock
from penstock.testing import Server, server
from penstock.testing.harness import ThreadedEngine

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def served() -> Iterator[Server]:
    with server() as own:
        yield own


@pytest.fixture(scope="module")
def client(served: Server) -> Iterator[penstock.Client]:
    with penstock.connect(served.url) as connected:
        yield connected


@pytest.fixture
def context() -> str:
    """A context that nobody else uses."""
    return f"shop{next(_numbers)}"


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands on a store without a server read in threads: a worker process takes longer than a whole test."""
    monkeypatch.setattr("penstock.client.local.Engine", ThreadedEngine)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
