"""Filling a new store, as restores and copies do: in steps, resumable, and refused to everybody until it is whole."""

from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import DamagedRecord, InvalidRequest, PlaceRefused, StoreInUse, StoreUnfinished
from penstock.model import EventFilter
from penstock.store import Store, open_import, open_reader, store_url
from penstock.store.contract import AddLog, DeleteLog, ReadLimits
from penstock.store.record import HEADER, RUN, Record, with_checksum
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.tables.imports import StoreImport
from tests.backup.support import check_same, furnish, ones, seal_all, writing
from tests.store.kit import Clock, append, commit, do, everything, findings, some, stream_of


def records_of(store: Store) -> list[Record]:
    return store.read_records(1, EventFilter(), ReadLimits(1 << 30, 1 << 30, 60_000)).records


def opened(directory: Path) -> StoreImport:
    return open_import(store_url(directory))


def test_an_import_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    clock = Clock()
    with writing(tmp_path / "data", clock) as store:
        furnish(store, clock, 5000)
        records, state = records_of(store), store.state()
        for start in range(0, len(records), 97):
            with closing(opened(tmp_path / "copy")) as filling:
                assert filling.head() == (records[start - 1].last if start else 0)
                filling.add(records[start : start + 97])
        with closing(opened(tmp_path / "copy")) as filling:
            filling.finish(state)
        with closing(open_reader(store_url(tmp_path / "copy"))) as copy:
            check_same(store, copy, timelines=0)


def test_nobody_opens_it_before_it_is_finished(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(2))
        records, state = records_of(store), store.state()
    filling = opened(tmp_path / "copy")
    with pytest.raises(StoreInUse):
        opened(tmp_path / "copy")
    filling.add(records)
    filling.close()
    for open_ in (SqliteStore, SqliteReader):
        with pytest.raises(StoreUnfinished):
            open_(tmp_path / "copy")
    with closing(opened(tmp_path / "copy")) as again:
        again.finish(state)
    with writing(tmp_path / "copy") as copy:
        assert len(everything(copy)) == 2
    with pytest.raises(PlaceRefused, match="holds a store already"):
        opened(tmp_path / "copy")


def test_a_store_that_was_never_used_can_be_filled(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store, writing(tmp_path / "copy"):
        append(store, "s", some(2))
        records, state = records_of(store), store.state()
    with closing(opened(tmp_path / "copy")) as filling:
        filling.add(records)
        filling.finish(state)
    with writing(tmp_path / "copy") as copy:
        assert copy.identity() == state.identity


def test_a_log_of_a_copy_and_its_successor_are_told_apart_though_the_clock_stands_still(tmp_path: Path) -> None:
    clock = Clock()
    with writing(tmp_path / "data", clock) as store, writing(tmp_path / "copy", clock):
        for name in ("a", "b", "log"):
            do(store, AddLog(name))
        append(store, "s", some(1))
        records, state = records_of(store), store.state()
    with closing(opened(tmp_path / "copy")) as filling:
        filling.add(records)
        filling.finish(state)
    with writing(tmp_path / "copy", clock) as copy:
        before = copy.log("log")
        assert before is not None
        for name in ("a", "b", "log"):
            do(copy, DeleteLog(name))
        do(copy, AddLog("log"))
        assert do(copy, DeleteLog("log", before.created)) == [False]


def test_records_that_do_not_follow_are_refused_and_nothing_is_added(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        for _ in range(4):
            append(store, "s", some(2))
        records, state = records_of(store), store.state()
    with closing(opened(tmp_path / "copy")) as filling:
        filling.add(records[:1])
        for wrong in (records[2:], records[:2], [records[1], records[3]]):
            with pytest.raises(InvalidRequest, match="comes next"):
                filling.add(wrong)
            assert filling.head() == 2
        with pytest.raises(InvalidRequest, match="the records end at 2"):
            filling.finish(state)
        filling.add(records[1:])
        filling.finish(state)
    with writing(tmp_path / "copy") as copy:
        assert len(everything(copy)) == 8


def test_a_record_whose_insides_do_not_fit_is_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(2))
        (record,) = records_of(store)
    later = Record(_changed(record, sequence=7), 1)
    short = Record(_changed(record, count=1), 1)
    nowhere = Record(_changed(record, stream=9), 1)
    with closing(opened(tmp_path / "copy")) as filling:
        for wrong in (later, short, nowhere):
            with pytest.raises(DamagedRecord):
                filling.add([wrong])
        filling.add([record])
        assert filling.head() == 2


def _changed(record: Record, sequence: int | None = None, count: int | None = None, stream: int | None = None) -> bytes:
    was = RUN.unpack_from(record.data, HEADER.size)
    run = RUN.pack(
        was[0],
        was[1] if sequence is None else sequence,
        was[2],
        was[3] if count is None else count,
        was[4],
        was[5] if stream is None else stream,
    )
    return with_checksum(record.data[8 : HEADER.size] + run + record.data[HEADER.size + RUN.size :])


def test_more_streams_than_are_kept_in_memory_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.tables.imports.STREAMS_KNOWN_MAX", 3)
    with writing(tmp_path / "data") as store:
        for _ in range(3):
            do(store, *(commit(f"s{number}", some(1)) for number in range(50)))
        records, state = records_of(store), store.state()
        with closing(opened(tmp_path / "copy")) as filling:
            for record in records:
                filling.add([record])
            filling.finish(state)
        with writing(tmp_path / "copy") as copy:
            check_same(store, copy, timelines=0)


def test_a_filled_store_goes_on_in_streams_contexts_and_blocks(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        ones(store, 5000)
        seal_all(store)
        records, state = records_of(store), store.state()
    with closing(opened(tmp_path / "copy")) as filling:
        filling.add(records)
        filling.finish(state)
    with writing(tmp_path / "copy") as copy:
        head = copy.stream_head("shop", "s1")
        assert append(copy, "s1", some(2), expected=head + 1).sequence == head + 1
        append(copy, "new", some(1), context="new")
        ones(copy, 5000)
        seal_all(copy)
        assert findings(copy) == []
        assert len(stream_of(copy, "new", "new")) == 1
