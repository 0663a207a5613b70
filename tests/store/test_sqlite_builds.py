"""Output that was computed elsewhere, on SQLite: what is left of it in the files, and what a death in between does."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.model import Installed, Winner
from penstock.store.contract import AddLog, DeleteLog, HideStream, Install, Operation, ReadLimits
from penstock.store.sqlite import SqliteStore
from tests.store.contract.builds import made, now, numbered, output, stage_output, staged
from tests.store.contract.logs import erase_all
from tests.store.kit import append, do_one, findings, some
from tests.store.test_sqlite_upkeep import holders

DYING = """
import os, sys
from penstock.model import Winner
from penstock.store.contract import Install, Transaction
from penstock.store.sqlite import SqliteStore
from penstock.store.tables.stages import Stages
store, at, put = SqliteStore(sys.argv[1]), int(sys.argv[2]), Stages._add_output
rows = []
def die(self, *row):
    following = put(self, *row)
    rows.append(row)
    if len(rows) == at:
        os._exit(9)
    return following
Stages._add_output = die
store.write([Transaction((Install(1, 0, 0, 9000, (Winner(0, "a", 9),)),))])
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store
        assert findings(store) == []


@pytest.mark.parametrize("operation", [HideStream("shop", "s"), DeleteLog("log")], ids=["erased", "deleted"])
@pytest.mark.parametrize("installs", [False, True], ids=["staged", "installed"])
def test_output_made_of_what_is_erased_is_in_no_file(
    tmp_path: Path, store: SqliteStore, operation: Operation, installs: bool
) -> None:
    do_one(store, AddLog("log"))
    append(store, "log", some(2), context="remits")
    append(store, "s", some(2))
    its = [made(store, name=f"over {log}", log=log) for log in ("shop/s", "log")]
    own, other = its if isinstance(operation, HideStream) else reversed(its)
    secret, kept = [b"the secret %d;" % size * size for size in (1, 40, 2000, 30_000)], [b"the others;" * 300] * 4
    # By turns, so that what goes lies between what stays.
    for number, (mine, theirs) in enumerate(zip(secret, kept, strict=True)):
        do_one(store, stage_output(own.id, 0, [mine, mine], number=number))
        do_one(store, stage_output(other.id, 0, [theirs, theirs], number=number))
    assert holders(tmp_path, b"the secret")
    if installs:
        do_one(store, Install(own.id, 0, 0, 8, (Winner(0, "a", 4),)))
    do_one(store, operation)
    erase_all(store)
    assert holders(tmp_path, b"the secret") == []
    assert do_one(store, Install(other.id, 0, 0, 8, (Winner(0, "a", 4),))) == Installed(8, 8, 8)
    assert output(store, other.id) == [b"the others;" * 300] * 8


@pytest.mark.parametrize("rows", [1, 3])
def test_one_that_dies_while_it_installs_leaves_nothing_but_what_was_staged(tmp_path: Path, rows: int) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        assert made(store).id == 1
        winner = staged(store, 1, 0, *(numbered(at, at + 1000) for at in range(0, 9000, 1000)))
    died = subprocess.run([sys.executable, "-c", DYING, str(tmp_path), str(rows)], check=False)
    assert died.returncode == 9
    with closing(SqliteStore(tmp_path)) as store:
        assert (now(store), output(store, 1)) == ((0, 0, None), [])
        assert do_one(store, Install(1, 0, 0, 9000, (winner,))) == Installed(9000, 9000, 9000)
        assert store.read_output(1, 8999, ReadLimits()) == [b"item 8999"]
        assert findings(store) == []
