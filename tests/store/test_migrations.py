"""Stores of every schema that was released, opened by today's code.

`schemas/NNNN` has a store as the code of that schema left it, packed, and what that code read from it: streams, queues,
subscriptions, producers, logs and iterators with outputs, an erasure that is finished and one that is not.
"""

import json
import lzma
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StorageFailure, StorageFull, StoreError, StoreTooNew
from penstock.model import ANY, ProducerMark
from penstock.store.contract import LOG_CONTEXT, AddLog, Hid, HideStream, ReadLimits
from penstock.store.sqlite import SqliteReader, SqliteStore
from penstock.store.sqlite.schema import INCREMENTAL, SCHEMA_VERSION
from tests.faults.support import FailingDisk
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import append_singly, close_block, seal_all
from tests.store.kit import append, do_one, everything, findings, some, stream_of

FILE = "penstock.db"
SCHEMAS = sorted(path.name for path in (Path(__file__).parent / "schemas").iterdir() if path.is_dir())


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> str:
    name = request.param
    assert isinstance(name, str)
    return name


@pytest.fixture
def directory(schema: str, tmp_path: Path) -> Path:
    """The store of a schema, unpacked."""
    return unpack(schema, tmp_path / "store")


@pytest.fixture
def expected(schema: str) -> dict[str, Any]:
    """What was in it."""
    found: dict[str, Any] = json.loads((Path(__file__).parent / "schemas" / schema / "expected.json").read_text())
    return found


def unpack(schema: str, directory: Path) -> Path:
    directory.mkdir()
    packed = Path(__file__).parent / "schemas" / schema / f"{FILE}.xz"
    (directory / FILE).write_bytes(lzma.decompress(packed.read_bytes()))
    return directory


def contents(store: SqliteReader) -> dict[str, Any]:
    """All that `expected.json` has, read from a store."""
    everyone = [store.iterator(one.name) for one in store.iterators(None, "", 99)]
    iterators = [one for one in everyone if one is not None]
    text = [(one, one.state.decode() if one.state is not None else None) for one in iterators]
    return {
        "identity": list(store.identity()),
        "head": store.head(),
        "events": [
            [*one[:4], one.id.hex(), *one[5:8], one.body.decode(), one.recorded, one.commit.hex()]
            for one in everything(store)
        ],
        "contexts": [[c.name, c.events, c.commits, c.streams, c.bytes] for c in store.contexts("", 99)],
        "subscriptions": [
            [s.id, s.subscriber, s.context, s.filter, s.position, s.last_ticks] for s in store.subscriptions(0, 99)
        ],
        "queues": [[q.id, q.context, q.name, q.filter, q.position] for q in store.find_queues("work")],
        "allocations": [
            [a.first, a.last, a.count, a.subscriber, a.expires, a.deliveries] for a in store.allocations(1, 0, 99)
        ],
        "logs": [[one.name, one.created, one.base, one.bytes] for one in store.logs("", 99)],
        "iterators": [
            [i.id, i.name, i.log, i.over, i.kind, i.function, i.indexed, i.created, i.base, i.source, i.outputs, state]
            for i, state in text
        ],
        "outputs": {
            one.name: [item.decode() for item in store.read_output(one.id, 0, ReadLimits())] for one in iterators
        },
        "open_erasures": store.open_erasures(),
    }


def test_every_schema_that_was_released_has_a_store_here() -> None:
    assert [f"{number:04}" for number in range(1, SCHEMA_VERSION)] == SCHEMAS


def test_an_older_store_has_all_that_it_had(directory: Path, expected: dict[str, Any]) -> None:
    number, position = expected.pop("producer")
    with closing(SqliteStore(directory)) as store:
        assert contents(store) == expected
        assert store.stats().schema == SCHEMA_VERSION
        assert store.db.pragma("auto_vacuum") == INCREMENTAL
        assert findings(store) == []
        again = append(store, "order-0", some(1), mark=ProducerMark("producer", number))
        assert (again.position, again.repeated) == (position, True)
        assert append(store, "order-0", some(1), ANY).position == expected["head"] + 1
    with closing(SqliteReader(directory)) as reader:
        assert contents(reader)["events"][:-1] == expected["events"]
        assert findings(reader) == []


def test_what_was_being_erased_is_erased(directory: Path) -> None:
    with closing(SqliteStore(directory)) as store:
        assert [one.finished is None for one in store.erasures(0, 9)] == [False, False, True, True]
        (iterator,) = [one.iterator for one in store.erasures(3, 9)]
        assert store.db.value("output_to_erase", {"id": iterator, "ordinal": 0}) is not None
        erase_all(store)
        assert store.open_erasures() == 0
        assert store.db.value("output_to_erase", {"id": iterator, "ordinal": 0}) is None
        assert findings(store) == []
    assert [path.name for path in directory.iterdir() if b"secret of half erased" in path.read_bytes()] == []
    assert any(b"secret of kept" in path.read_bytes() for path in directory.iterdir())


def test_an_older_store_can_be_sealed_and_erased(directory: Path, expected: dict[str, Any]) -> None:
    with closing(SqliteStore(directory)) as store:
        append_singly(store, ["order-1", "order-9"], 500, body=b"new")
        close_block(store)
        before = everything(store)
        assert seal_all(store) > 0
        assert everything(store) == before
        hid = do_one(store, HideStream("shop", "order-1"))
        assert isinstance(hid, Hid)
        assert [one.name for one in hid.rebuilt] == ["over orders", "below"]
        erase_all(store)
        left = [one for one in before if (one.context, one.stream) != ("shop", "order-1")]
        assert everything(store) == left
        assert len(left) > len(expected["events"])
        assert do_one(store, AddLog("erased")) is True
        append(store, "erased", some(1), context=LOG_CONTEXT)
        assert [one.sequence for one in stream_of(store, "erased", LOG_CONTEXT)] == [13]
        assert findings(store) == []


def test_that_a_file_is_written_anew_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = unpack("0001", tmp_path / "store")
    for _ in range(2):
        with closing(SqliteStore(directory)):
            pass
    (line,) = caplog.messages
    assert f"the store in {directory} is from an older version: writing its 0.2 MiB anew" in line


@pytest.mark.parametrize("kind", [FailingDisk.FULL, FailingDisk.WRITE, FailingDisk.SYNC])
def test_a_migration_that_fails_leaves_a_store_that_opens_again(
    schema: str, tmp_path: Path, expected: dict[str, Any], kind: str
) -> None:
    """The disk fails at each sync of the migration in turn, and at every fifteenth write."""
    del expected["producer"]
    failed: list[StoreError] = []
    for number in range(10_000):
        directory = unpack(schema, tmp_path / f"{number}")
        with FailingDisk() as disk:
            disk.fails_after(number * (1 if kind == FailingDisk.SYNC else 15), kind)
            try:
                SqliteStore(directory, vfs=disk.vfs).close()
            except StoreError as error:
                failed.append(error)
            passed = not disk.failures
        with closing(SqliteStore(directory)) as store:
            assert contents(store) == expected
            assert findings(store) == []
        shutil.rmtree(directory)
        if passed:
            break
    assert len(failed) >= 3
    if kind == FailingDisk.FULL:
        assert {type(error) for error in failed} == {StorageFull}


def test_a_newer_store_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        store.db.connection.pragma("user_version", SCHEMA_VERSION + 1)
    before = (tmp_path / FILE).read_bytes()
    for kind in (SqliteStore, SqliteReader):
        with pytest.raises(StoreTooNew) as caught:
            kind(tmp_path)
        assert str(caught.value) == (
            f"the store in {tmp_path} has schema version {SCHEMA_VERSION + 1}, and this Penstock knows versions up to "
            f"{SCHEMA_VERSION}; use a newer Penstock"
        )
    assert (tmp_path / FILE).read_bytes() == before


def test_a_reader_does_not_read_an_older_store(directory: Path) -> None:
    before = (directory / FILE).read_bytes()
    with pytest.raises(StorageFailure, match="has an older schema; start a server on it once"):
        SqliteReader(directory)
    assert (directory / FILE).read_bytes() == before


def test_a_new_store_gives_space_back_in_steps(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        assert store.db.pragma("auto_vacuum") == INCREMENTAL
