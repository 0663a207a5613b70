"""What the tests of builds share: places of each kind, servers that are held back, and indexes that can be compared."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.engine.index_builder import Builder, IndexState
from penstock.errors import FunctionFailed
from penstock.lua import LuaLimits
from penstock.spark.builds import TASK_MESSAGES_MAX, BuildOutcome, begin_build
from penstock.spark.parallel import parallel_map
from penstock.store import open_reader
from penstock.store.contract import IteratorState, ReadLimits
from tests.spark.sink_targets import Target

RANGE: Final = 7
"""Messages of one part here, so that short logs have many."""
ALL: Final = ReadLimits(events_max=1_000_000, bytes_max=1 << 30)


class Held:
    """Iterators that servers in this process do not build for now."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __call__(self, *names: str) -> None:
        self._names.update(names)

    def release(self) -> None:
        """From now on they are built when there is a reason to."""
        self._names.clear()

    def has(self, index: IndexState) -> bool:
        return index.name in self._names


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made, enqueue = Held(), Builder._enqueue

    def enqueue_unless_held(builder: Builder, index: IndexState) -> None:
        if not made.has(index):
            enqueue(builder, index)

    monkeypatch.setattr(Builder, "_enqueue", enqueue_unless_held)
    return made


@dataclass(frozen=True)
class Place:
    """Where iterators are: a history, and how one comes to it."""

    target: Target

    @property
    def url(self) -> str:
        return self.target.url

    @contextmanager
    def client(self) -> Iterator[penstock.Client]:
        """Whoever has this owns an embedded store."""
        with penstock.connect(self.url, timeout=60) as client:
            yield client

    def state(self, name: str) -> IteratorState:
        with closing(open_reader(self._store)) as store:
            found = store.iterator(name)
        assert found is not None
        return found

    def output(self, name: str) -> list[bytes]:
        """All kept items, as they are on disk."""
        with closing(open_reader(self._store)) as store:
            return store.read_output(self.state(name).id, 0, ALL)

    @property
    def _store(self) -> str:
        return f"sqlite:///{self.target.directory}" if self.target.directory else self.url


def place_of(path: Path) -> Place:
    """A new embedded store."""
    return Place(Target("sqlite", f"sqlite:///{path}", path))


def built(spark: SparkSession | None, place: Place, name: str, size: int = RANGE) -> BuildOutcome:
    """Build an iterator in many parts."""
    return build(spark, place.url, name, size)


def build(
    spark: SparkSession | None,
    url: str,
    name: str,
    task_messages: int = TASK_MESSAGES_MAX,
    lua: LuaLimits = LuaLimits(),  # noqa: B008 - it cannot be changed
) -> BuildOutcome:
    """Build an iterator."""
    with begin_build(url, name, lua) as begun:
        return begun.run(spark, lambda _done, _total: None, task_messages)


def meanwhile(
    monkeypatch: pytest.MonkeyPatch, *, before: Callable[[], Any] = int, after: Callable[[], Any] = int
) -> None:
    """Have something happen when a build has begun, or when its tasks are done and nothing is installed yet."""

    def map_and_more(spark: Any, tasks: Sequence[Any], *more: Any) -> Any:
        before()
        found = parallel_map(spark, tasks, *more)
        after()
        return found

    monkeypatch.setattr("penstock.spark.builds.parallel_map", map_and_more)


def answers(client: penstock.Client, name: str, count: int) -> list[Any]:
    """What a server says at every ordinal: an item, an error with its message, or nothing."""
    return [_answer(client, name, ordinal) for ordinal in (*range(count), -1)]


def _answer(client: penstock.Client, name: str, ordinal: int) -> Any:
    try:
        return client.iterator(name).next(ordinal, 1)
    except FunctionFailed as error:
        return type(error), error.reason, error.message
