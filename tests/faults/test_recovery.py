"""A store that recovers from a failed write while others read it: ours make way, others are named."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import StorageFailure
from penstock.store.sqlite import SqliteReader, SqliteStore, database
from penstock.store.sqlite.directory import LOCK_NAME, is_recovering, write_owner
from tests.faults.support import FailingDisk
from tests.store.kit import append, everything, findings, some

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n, records"
FOREIGN = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1])
other.execute("BEGIN")
other.execute("SELECT count(*) FROM records").fetchall()
print("reads", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    with FailingDisk() as failing:
        yield failing


@pytest.fixture
def failed(disk: FailingDisk, tmp_path: Path) -> Iterator[SqliteStore]:
    """A store whose last write has failed, on a disk that works again."""
    with closing(SqliteStore(tmp_path, vfs=disk.vfs)) as store:
        append(store, "order-1", some(1))
        disk.fails_with = FailingDisk.SYNC
        with pytest.raises(StorageFailure):
            append(store, "order-1", some(1))
        disk.fails_with = None
        yield store
        append(store, "order-1", some(1))
        assert len(everything(store)) == 2, "what had failed is not there"
        assert findings(store) == []


def test_a_long_read_of_ours_makes_way_for_a_recovery(failed: SqliteStore, tmp_path: Path) -> None:
    raised: list[BaseException] = []

    def read() -> None:
        with closing(SqliteReader(tmp_path)) as reader:
            try:
                with reader.db.snapshot():
                    reader.head()
                    begun.set()
                    reader.db.command(ENDLESS)
            except StorageFailure as error:
                raised.append(error)

    begun = threading.Event()
    thread = threading.Thread(target=read)
    thread.start()
    begun.wait()
    failed.recover()
    thread.join()
    assert "stopped for a recovery" in str(raised[0])


def test_a_foreign_reader_that_blocks_a_recovery_is_named(
    failed: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = database.SqliteDatabase.restart_wal
    monkeypatch.setattr(database.SqliteDatabase, "restart_wal", lambda self, _ms: wait(self, 10))
    command = [sys.executable, "-c", FOREIGN, str(tmp_path / "penstock.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "reads\n"
        with pytest.raises(StorageFailure, match=rf"read by process {other.pid} \(python.*\); end that to recover"):
            failed.recover()
        assert not is_recovering(tmp_path), "nobody waits for readers between two attempts"
        other.communicate("")
    failed.recover()


def test_a_recovery_that_died_with_its_server_stops_no_reader(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        append(store, "order-1", some(1))
        write_owner(store._lock, recovering=True)
        assert is_recovering(tmp_path)
    assert "recovering" in (tmp_path / LOCK_NAME).read_text()
    assert not is_recovering(tmp_path)
    with closing(SqliteReader(tmp_path)) as reader:
        count = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000000) SELECT count(*) FROM n"
        assert reader.db.connection.execute(count).fetchall() == [(1_000_000,)]
    with closing(SqliteStore(tmp_path)):
        assert not is_recovering(tmp_path)
