"""A store of the test's own in this process, and as many datastores on it as a test wants."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.integrations.eventsourcing import PenstockDatastore
from penstock.testing.harness import ThreadedEngine

Opener = Callable[[], PenstockDatastore]


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines in this process read in threads: a worker process takes longer to start than a whole test."""
    monkeypatch.setattr("penstock.client.local.Engine", ThreadedEngine)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'data'}"


@pytest.fixture
def another(url: str) -> Iterator[Opener]:
    """Opens datastores, each as another process would have it."""
    with ExitStack() as stack:

        def opened() -> PenstockDatastore:
            datastore = PenstockDatastore(url)
            stack.callback(datastore.close)
            return datastore

        yield opened


@pytest.fixture
def datastore(another: Opener) -> PenstockDatastore:
    return another()
