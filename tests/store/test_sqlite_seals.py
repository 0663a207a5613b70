"""Seals in SQLite: which rows come of them, and what they do about damage, which `verify` still names."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock.errors import DamagedRecord
from penstock.model import EventFilter
from penstock.store.contract import Erase, Hid, HideEvents, HideStream, ReadLimits, Transaction
from penstock.store.record import with_checksum
from penstock.store.sqlite import SqliteStore
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import BLOCK, append_singly, seal_all
from tests.store.kit import commit, do_one, everything, findings, some


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store
        assert findings(store) == []


def test_a_sealed_record_names_its_context_and_stream_if_it_has_but_one(store: SqliteStore) -> None:
    append_singly(store, ["a"], BLOCK - 1)
    append_singly(store, ["a", "b"], BLOCK)
    contexts = [("shop", "other")[number % 2] for number in range(BLOCK)]
    store.write([Transaction((commit("a", some(1), context=context),)) for context in contexts])
    seal_all(store)
    columns = "SELECT position, count, context_id, stream_id FROM records WHERE position < ? ORDER BY position"
    rows = store.db.connection.execute(columns, (3 * BLOCK,)).fetchall()
    assert rows == [(1, BLOCK - 1, 1, 1), (BLOCK, BLOCK, 1, None), (2 * BLOCK, BLOCK, None, None)]


def test_a_step_of_an_erasure_rewrites_a_sealed_record_once(store: SqliteStore) -> None:
    append_singly(store, ["a", "b"], 2 * BLOCK - 1)
    seal_all(store)
    do_one(store, HideStream("shop", "a"))
    rewrites = []
    while store.db.rows("unerased", {"limit": 1}):
        do_one(store, Erase(1))
        rewrites.append(store.db.value("meta", {"key": "rewrites"}))
    assert rewrites == ["1", "2"]


def damage(store: SqliteStore, position: int, change: Callable[[bytes], object]) -> None:
    data = store.db.row("record_at", {"position": position})[1]
    store.db.connection.execute("UPDATE records SET data = ? WHERE position = ?", (change(data), position))


DAMAGES: dict[str, Callable[[bytes], object]] = {
    "a flipped byte": lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
    "broken insides": lambda data: with_checksum(data[8:44] + bytes(44) + data[88:]),
    "no bytes": lambda _: 7,
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_record_is_sealed_around(tmp_path: Path, kind: str) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        append_singly(store, ["a", "b"], BLOCK)
        before = everything(store)
        damage(store, 100, DAMAGES[kind])
        damage(store, 101, DAMAGES[kind])
        damage(store, 200, DAMAGES[kind])
        damaged = [store.db.row("record_at", {"position": number}) for number in (100, 101, 200)]
        seal_all(store)
        assert spans_of(store) == [
            (1, 99),
            (100, 100),
            (101, 101),
            (102, 199),
            (200, 200),
            (201, BLOCK - 1),
            (BLOCK, BLOCK),
        ]
        assert [store.db.row("record_at", {"position": number}) for number in (100, 101, 200)] == damaged
        assert everything(store, EventFilter(), ReadLimits(), 201) == before[200:]
        with pytest.raises(DamagedRecord):
            everything(store)
        assert sorted({found.split(":")[0] for found in findings(store)}) == [
            "position 100",
            "position 101",
            "position 200",
        ]


def spans_of(store: SqliteStore) -> list[tuple[int, int]]:
    rows = store.db.rows("unsealed_rows", {"low": 1, "high": 1 << 62})
    return [(position, position + count - 1) for position, count, _ in rows]


@pytest.fixture(scope="module")
def three_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with three blocks of one stream that are not sealed, for tests that copy it."""
    path = tmp_path_factory.mktemp("three-blocks")
    with closing(SqliteStore(path)) as store:
        append_singly(store, ["a"], 3 * BLOCK)
    return path


@pytest.fixture(scope="module")
def two_sealed_blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two sealed blocks of two streams, for tests that copy it."""
    path = tmp_path_factory.mktemp("two-sealed-blocks")
    with closing(SqliteStore(path)) as store:
        append_singly(store, ["a", "b"], 2 * BLOCK)
        seal_all(store)
        assert findings(store) == []
    return path


@contextmanager
def copied(template: Path, path: Path) -> Iterator[SqliteStore]:
    shutil.copytree(template, path / "copy")
    with closing(SqliteStore(path / "copy")) as store:
        yield store


@pytest.mark.parametrize("missing", [(1, 5), (300, 400), (BLOCK - 3, BLOCK + 3), (2, BLOCK - 1), (1, 2 * BLOCK + 9)])
def test_missing_records_do_not_stop_seals(tmp_path: Path, three_blocks: Path, missing: tuple[int, int]) -> None:
    with copied(three_blocks, tmp_path) as store:
        store.db.connection.execute("DELETE FROM records WHERE position BETWEEN ? AND ?", missing)
        seal_all(store)
        assert store.sealed() == 3 * BLOCK
        first, last = missing
        kept = [position for a, b in spans_of(store) for position in range(a, b + 1)]
        assert kept == [*range(1, first), *range(last + 1, 3 * BLOCK + 1)]


@pytest.mark.parametrize("count", [-1, 0, 1 << 40])
def test_a_damaged_count_does_not_lead_the_mark_astray(tmp_path: Path, three_blocks: Path, count: int) -> None:
    with copied(three_blocks, tmp_path) as store:
        store.db.connection.execute("UPDATE records SET count = ? WHERE position IN (7, ?)", (count, BLOCK - 1))
        seal_all(store)
        assert store.sealed() == 3 * BLOCK


INDEX_DAMAGES = {
    "a lost entry": ("DELETE FROM commits WHERE position = 700", ["position 700"]),
    "a shifted entry": ("UPDATE commits SET position = 701 WHERE position = 700", ["position 700", "stream number 2"]),
    "a false entry": ("INSERT INTO commits VALUES (1, 99999, 700)", ["stream number 1"]),
    "another stream": ("UPDATE commits SET stream_id = 1, last = 77777 WHERE position = 700", ["position 700"]),
    "a false entry at the end": ("INSERT INTO commits VALUES (1, 99999, 999999)", ["stream number 1"]),
    "a lost block": ("DELETE FROM blocks WHERE block = 1", ["context shop"]),
}


@pytest.mark.parametrize("kind", INDEX_DAMAGES)
def test_verify_names_what_is_wrong_with_the_index_of_sealed_records(
    tmp_path: Path, two_sealed_blocks: Path, kind: str
) -> None:
    with copied(two_sealed_blocks, tmp_path) as store:
        statement, where = INDEX_DAMAGES[kind]
        store.db.connection.execute(statement)
        assert store.db.connection.changes() == 1
        found = findings(store)
        assert set(where) <= {line.split(":")[0] for line in found}
        assert len(found) <= 3, "what is not wrong is not named"


def test_a_damaged_record_is_counted_and_the_erasure_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        append_singly(store, ["a", "b"], 40)
        damage(store, 11, DAMAGES["a flipped byte"])
        damage(store, 13, DAMAGES["no bytes"])
        do_one(store, HideStream("shop", "a"))
        do_one(store, HideEvents(((9, 14), (20, 20)), (("shop", "a"), ("shop", "b"))))
        erase_all(store, 3)
        assert [one.damaged for one in store.erasures(0, 9)] == [2, 2]
        assert len(caplog.records) == 4
        hid = do_one(store, HideStream("shop", "a"))
        assert isinstance(hid, Hid)
        assert hid.events == 20, "it may be tried again"
