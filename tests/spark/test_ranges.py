"""Ranges of positions: together they have every event once, whatever the sizes of commits and whenever it is sealed."""

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import CannotConnect, DamagedRecord, PenstockError, StorageFailure, StoreChanged
from penstock.history import source
from penstock.history.options import ReadOptions
from penstock.history.ranges import RANGES_MAX, ReadPartition, plan, read_range
from penstock.history.source import History, Now, open_history
from penstock.model import EventFilter, new_event
from penstock.spark.source import TABLE, PenstockReader, PenstockStreamReader, arrow_schema
from penstock.store.contract import StoreIdentity, Transaction
from penstock.store.seals import SEALED_EVENTS, next_seal
from penstock.store.sqlite import SqliteStore
from penstock.testing import server
from tests.postgres import Schemas
from tests.spark.support import NOON, counted, fill, history

SCHEMA = arrow_schema(TABLE)
SIZES = (1, 4095, 3, 9000, 10, 1, 8192, 2, 700, 5)


def mixed(data: Path, *, seal: bool) -> str:
    """A store with commits of many sizes, of several contexts."""
    commits = [("shop" if number % 3 else "audit", f"s-{number}", counted(size)) for number, size in enumerate(SIZES)]
    return fill(data, commits, seal=seal)


def parts(url: str, **options: Any) -> tuple[PenstockReader, list[Any]]:
    reader = PenstockReader(ReadOptions.of({"url": url, **options}), SCHEMA)
    return reader, reader.partitions()


def read(reader: PenstockReader, planned: list[Any]) -> list[int]:
    return [position for part in planned for batch in reader.read(part) for position in batch["position"].to_pylist()]


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("context", [None, "audit"])
def test_every_event_is_read_once_and_in_order(tmp_path: Path, context: str | None, seal: bool) -> None:
    url = mixed(tmp_path / "data", seal=seal)
    reader, planned = parts(url, partitionBytes="1", **({} if context is None else {"context": context}))
    assert len(planned) > 2
    expected = [event.position for event in history(tmp_path / "data", EventFilter(context))]
    assert read(reader, planned) == expected


@pytest.mark.parametrize("seal", [False, True])
def test_every_event_of_a_store_on_postgresql_is_read_once(schemas: Schemas, tmp_path: Path, seal: bool) -> None:
    url = fill(schemas.url(tmp_path), [("shop", f"s-{size}", counted(size)) for size in SIZES], seal=seal)
    reader, planned = parts(url, partitionBytes="1")
    assert len(planned) > 2
    assert read(reader, planned) == list(range(1, sum(SIZES) + 1))


@pytest.mark.parametrize("first", [1, 4095, 4096, 4097, 5000, 13_100, 22_009])
@pytest.mark.parametrize("length", [1, 4096, 30_000])
def test_any_range_may_be_asked_for(tmp_path_factory: pytest.TempPathFactory, first: int, length: int) -> None:
    data = tmp_path_factory.getbasetemp() / "any-range"
    url = f"sqlite:///{data}" if data.exists() else mixed(data, seal=True)
    reader, planned = parts(url, partitionBytes="1", startPosition=str(first), endPosition=str(first + length - 1))
    assert read(reader, planned) == list(range(first, min(first + length, sum(SIZES) + 1)))


def test_a_store_that_is_sealed_between_plan_and_read_gives_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    commits = [("shop", "s", counted(7)) for _ in range(2500)]
    reader, planned = parts(fill(data, commits), partitionBytes="1")
    assert len(planned) == 5
    found = read(reader, planned[:2])
    store = SqliteStore(data)
    for _ in range(2):
        step = next_seal(store)
        assert step is not None
        store.write([Transaction((step,))])
    store.close()
    found += read(reader, planned[2:4])
    fill(data, [], seal=True)
    assert found + read(reader, planned[4:]) == list(range(1, 17_501))


def test_what_comes_after_the_plan_is_not_read(tmp_path: Path) -> None:
    reader, planned = parts(fill(tmp_path / "data", [("shop", "s", counted(5))]))
    fill(tmp_path / "data", [("shop", "s", counted(5))])
    assert read(reader, planned) == [1, 2, 3, 4, 5]


class Sized:
    """A history of which only the sizes are known: in all, of a context, and of events by position."""

    def __init__(self, size: int, mine: int, event_bytes: Callable[[int], int]) -> None:
        self._size = size
        self._mine = mine
        self.event_bytes = event_bytes

    def all_bytes(self) -> int:
        return self._size

    def context_bytes(self, context: str) -> int:
        return self._mine


def planned_for(head: int, size: int, mine: int = 0, **options: str) -> list[ReadPartition]:
    return planned_like(Sized(size, mine, lambda _: 250), head, **options)


def planned_like(sized: Sized, head: int, **options: str) -> list[ReadPartition]:
    now = Now(StoreIdentity("a", 1), head)
    return plan(cast("History", sized), now, ReadOptions.of({"url": "sqlite:///data", **options}), 1, head)


@given(
    head=st.integers(1, 10**12),
    event_bytes=st.integers(40, 10**6),
    partition_bytes=st.integers(1, 10**9),
)
def test_ranges_are_whole_blocks_end_to_end_and_not_too_many(head: int, event_bytes: int, partition_bytes: int) -> None:
    planned = planned_for(head, head * event_bytes, partitionBytes=str(partition_bytes))
    assert 1 <= len(planned) <= RANGES_MAX + 1
    assert [part.end for part in planned[:-1]] == [part.begin for part in planned[1:]]
    assert (planned[0].begin, planned[0].first, planned[-1].end) == (0, 1, head + 1)
    assert all(part.begin % SEALED_EVENTS == 0 for part in planned)
    widths = [after.begin - before.begin for before, after in pairwise(planned)]
    assert max(widths, default=0) - min(widths, default=0) <= SEALED_EVENTS


def test_ranges_have_about_as_many_bytes_as_they_should() -> None:
    assert len(planned_for(5_000_000, 5_000_000 * 250)) == 16
    assert len(planned_for(5_000_000, 5_000_000 * 250, partitionBytes="32MiB")) == 38
    assert len(planned_for(500_000_000, 500_000_000 * 250)) == 932
    assert len(planned_for(5_000_000, 5_000_000 * 250, 50_000 * 250, context="rare")) == 5
    assert len(planned_for(50_000, 50_000 * 250)) == 1


def test_where_events_are_large_ranges_are_narrow() -> None:
    """A tenth of the events has nine tenths of the bytes."""
    head = 10_000_000
    sized = Sized(head * 1000, 0, lambda position: 9000 if position > 0.8995 * head else 111)
    planned = planned_like(sized, head, partitionBytes="100000000")
    sizes = [sum(map(sized.event_bytes, range(max(part.begin, 1), part.end, 500))) * 500 for part in planned]
    assert len(planned) == 100
    assert max(sizes) < 2 * min(sizes)


def test_a_store_with_large_events_at_its_end_is_cut_there(tmp_path: Path) -> None:
    sizes = [*[10] * 6, *[2000] * 2]
    commits = [("shop", "s", [new_event("Made", bytes(size)) for _ in range(SEALED_EVENTS)]) for size in sizes]
    url = fill(tmp_path / "data", commits)
    reader, planned = parts(url, partitionBytes="9MiB")
    assert [part.value.begin // SEALED_EVENTS for part in planned] == [0, 7]
    assert read(reader, planned) == list(range(1, 8 * SEALED_EVENTS + 1))
    with server(tmp_path / "data") as served:
        assert [part.value.begin // SEALED_EVENTS for part in parts(served.url, partitionBytes="9MiB")[1]] == [0, 7]


def test_nothing_to_read_is_no_range(tmp_path: Path) -> None:
    assert parts(fill(tmp_path / "data", []))[1] == []


def test_a_range_of_another_store_is_refused(tmp_path: Path) -> None:
    commits = [("shop", "s", counted(5))]
    reader, planned = parts(fill(tmp_path / "one", commits))
    other = PenstockReader(ReadOptions.of({"url": fill(tmp_path / "two", commits)}), SCHEMA)
    with pytest.raises(StoreChanged, match="as the plan of this read says, and is timeline 1 of store"):
        read(other, planned)
    assert read(reader, planned) == [1, 2, 3, 4, 5]


def test_damage_is_told_by_those_ranges_only_that_have_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    url = fill(data, [("shop", "s", counted(10)) for _ in range(2000)], seal=True)
    store = SqliteStore(data)
    store.db.connection.execute("UPDATE records SET data = zeroblob(99) WHERE position = 8201")
    store.close()
    reader, planned = parts(url, partitionBytes="1")
    assert len(read(reader, planned[:2])) == 8200
    with pytest.raises(DamagedRecord, match="position 8201"):
        read(reader, planned[2:3])


def test_damage_is_told_by_a_server_too(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, [("shop", "s", counted(10)) for _ in range(20)])
    store = SqliteStore(data)
    store.db.connection.execute("UPDATE records SET data = zeroblob(99) WHERE position = 101")
    store.close()
    with server(data, seal=False) as served:
        reader, planned = parts(served.url)
        with pytest.raises(PenstockError, match="position 101"):
            read(reader, planned)


def test_histories_answer_alike_from_a_store_and_from_its_server(tmp_path: Path) -> None:
    with server(tmp_path / "data") as served, penstock.connect(served.url) as client:
        for minute in (7, 3, 9):
            client.append("shop", "s", [new_event("Made", b"x", time=NOON.replace(minute=minute))])
            client.append("zoo", "s", counted(2))
        infos = {info.name: info.bytes for info in client.contexts()}
        for url in (f"sqlite:///{tmp_path / 'data'}", served.url, served.zmq_url):
            with closing(open_history(url)) as opened:
                stats = client.stats()
                assert opened.now() == Now(StoreIdentity(stats.store_id, stats.timeline), 9)
                assert opened.all_bytes() == stats.body_bytes
                assert opened.event_bytes(1) >= 1
                assert opened.event_bytes(10) == 0
                assert {name: opened.context_bytes(name) for name in infos} == infos
                assert [opened.context_bytes(name) for name in ("a", "sho", "shoq", "zzz")] == [0, 0, 0, 0]
                ticks = {minute: opened.position_of("shop", ticks_at(minute)) for minute in (0, 7, 8, 10)}
                assert ticks == {0: 1, 7: 1, 8: 7, 10: None}
                assert list(opened.records(EventFilter(), 5, 5)) == []


def ticks_at(minute: int) -> int:
    from penstock.model import ticks_of_datetime

    return ticks_of_datetime(NOON.replace(minute=minute))


def test_a_server_that_is_not_there_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.history.remote.TIMEOUT_S", 0.5)
    with pytest.raises(CannotConnect):
        open_history("penstock://127.0.0.1:9")


def test_readers_and_ranges_travel(tmp_path: Path) -> None:
    import pickle

    reader, planned = parts(fill(tmp_path / "data", [("shop", "s", counted(5))]))
    assert read(*pickle.loads(pickle.dumps((reader, planned)))) == [1, 2, 3, 4, 5]
    stream = PenstockStreamReader(ReadOptions.of({"url": f"sqlite:///{tmp_path / 'data'}"}), SCHEMA)
    part: Any
    (part,) = stream.partitions(*[{**stream.initialOffset(), "position": at} for at in (1, 4)])
    stream.stop()
    (batch,) = pickle.loads(pickle.dumps(stream)).read(pickle.loads(pickle.dumps(part)))
    assert batch["position"].to_pylist() == [2, 3, 4]
    assert [
        b.num_rows for b in read_range(ReadOptions.of({"url": f"sqlite:///{tmp_path / 'data'}"}), SCHEMA, part.value)
    ] == [3]


def test_a_database_that_is_away_for_a_moment_is_waited_for(
    schemas: Schemas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "PAUSE_S", 0.01)
    url = fill(schemas.url(tmp_path), [("shop", "s", counted(5))])
    with closing(source.StoredHistory(url)) as opened:
        store, failures = opened._store, iter([StorageFailure("away")] * 3)
        identity = store.identity

        def away() -> StoreIdentity:
            for failure in failures:
                raise failure
            return identity()

        monkeypatch.setattr(store, "identity", away)
        assert opened.now().head == 5
        monkeypatch.setattr(source, "PATIENCE_S", 0.0)
        failures = iter([StorageFailure("away")])
        with pytest.raises(StorageFailure, match="away"):
            opened.now()
