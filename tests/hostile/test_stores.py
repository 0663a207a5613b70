"""Stores whose files are damaged or made up: no command crashes on them, and none shows what was never written."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tests.backup.support import furnish, reading, writing
from tests.hostile.mutations import CHANGES, Change, Cut, changed
from tests.hostile.support import Tally, ended, some, untouched
from tests.store.kit import Clock, append, everything
from tests.store.kit import some as events

COMMANDS: tuple[tuple[object, ...], ...] = (
    ("verify",),
    ("verify",),
    ("stats", "--json"),
    ("read", "shop", "--json"),
    ("contexts",),
    ("streams", "shop"),
    ("erasures",),
    ("queue", "list"),
    ("subscription", "list"),
    ("log", "list"),
    ("iterator", "list"),
    ("doctor",),
)
"""Commands on a store that may be damaged."""
JUDGING = tuple(command for command in COMMANDS if command[0] not in ("contexts", "erasures"))
"""Those that bear values of any type. The others print numbers of the store as they are, and `verify` names those."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store with one of everything; some of it is in its log, which no checkpoint has taken over."""
    made, clock = tmp_path_factory.mktemp("made"), Clock()
    with writing(made, clock) as store:
        furnish(store, clock, commits=12)
        store.db.restart_wal()
        append(store, "s", events(3))
        for name in ("penstock.db", "penstock.db-wal"):
            shutil.copyfile(made / name, made / f"{name}.copy")
    for name in ("penstock.db", "penstock.db-wal"):
        (made / f"{name}.copy").replace(made / name)
    (made / "penstock.db-shm").unlink(missing_ok=True)
    return made


@contextmanager
def copied(made: Path) -> Iterator[Path]:
    with TemporaryDirectory() as name:
        shutil.copytree(made, Path(name) / "data")
        yield Path(name) / "data"


def asked(store: Path, command: tuple[object, ...], whole: Any) -> bool:
    """Ask a store; whether it was refused. Events that are shown were written."""
    with untouched(store.parent, store):
        done = ended(*command, "--data", store)
    if command[0] == "read" and whole is not None:
        assert all(line in whole for line in done.out.splitlines()), done.out
    return done.code != 0


@pytest.fixture(scope="module")
def whole(made: Path) -> set[str]:
    """All events, as they are shown."""
    with copied(made) as store:
        return set(ended("read", "shop", "--json", "--data", store).out.splitlines())


@pytest.mark.parametrize("file", ["penstock.db", "penstock.db-wal"])
def test_commands_bear_a_damaged_file(made: Path, whole: set[str], file: str) -> None:
    """Each is done, or refuses it in a line; `verify` and `read` show nothing that was never written."""
    seen = Tally()

    @some(6)
    @given(CHANGES, st.sampled_from(COMMANDS))
    @example([Cut(100)], ("verify",))
    def check(changes: list[Change], command: tuple[object, ...]) -> None:
        with copied(made) as store:
            (store / file).write_bytes(changed((store / file).read_bytes(), changes))
            seen.add(asked(store, command, whole))

    check()
    if file == "penstock.db":
        seen.check(1 / 10)


TYPES = (
    "NULL",
    "-1",
    "0",
    "9223372036854775807",
    "1.5",
    "'x'",
    "''",
    "x''",
    "x'ff'",
    "CAST(x'ff' AS TEXT)",
)


def tables(made: Path) -> list[tuple[str, str]]:
    with copied(made) as store:
        connection = apsw.Connection(str(store / "penstock.db"))
        query = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        found = [(table, column) for table, column in connection.execute(query) if not table.startswith("sqlite")]
        connection.close()
    return sorted(found)


def put(store: Path, table: str, column: str, value: str) -> None:
    """Put a value in a column of all rows, whatever the schema says. Raises apsw.Error where SQLite cannot hold it."""
    path = str(store / "penstock.db")
    with closing(apsw.Connection(path)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_WRITABLE_SCHEMA, 1)
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(replace(sql, ' NOT NULL', ''), 'INTEGER,', 'BLOB,') "
            "WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        )
    with closing(apsw.Connection(path)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {value}")


def test_commands_bear_any_value_in_any_column(made: Path) -> None:
    """SQLite takes any value in any column."""
    columns, seen = tables(made), Tally()

    @some(6)
    @given(st.integers(0, 1000), st.sampled_from(TYPES), st.sampled_from(JUDGING))
    @example(columns.index(("iterators", "source")), "'x'", ("read", "shop", "--json"))
    @example(columns.index(("iterators", "outputs")), "NULL", ("queue", "list"))
    @example(columns.index(("iterators", "log")), "NULL", ("streams", "shop"))
    @example(columns.index(("queues", "position")), "NULL", ("stats", "--json"))
    def check(number: int, value: str, command: tuple[object, ...]) -> None:
        with copied(made) as store:
            try:
                put(store, *columns[number % len(columns)], value)
            except apsw.Error:
                # Numbers of rows are numbers, and what is unique stays so.
                assume(False)
            seen.add(asked(store, command, None))

    check()
    seen.check(1 / 20)


NO_STORES = (b"", b"x", b"SQLite format 3\0", b"SQLite format 3\0" + bytes(84), bytes(8192))


@pytest.mark.parametrize("content", NO_STORES, ids=["empty", "short", "magic", "header", "zeros"])
def test_a_file_that_is_no_store_is_refused(tmp_path: Path, content: bytes) -> None:
    """An empty file is what is left where a server was refused; all others are left as they are."""
    (tmp_path / "data").mkdir()
    for command in (
        ("verify",),
        ("read", "shop"),
        ("stats",),
        ("backup", tmp_path / "place"),
        ("export", tmp_path / "file.jsonl"),
    ):
        (tmp_path / "data" / "penstock.db").write_bytes(content)
        assert ended(*command, "--data", tmp_path / "data").code == 1
        assert (tmp_path / "data" / "penstock.db").read_bytes() == content


def test_a_store_is_replaced_whatever_is_wrong_with_it(made: Path) -> None:
    """A restore over a damaged store brings back the backup."""
    with copied(made) as store:
        place = store.parent / "place"
        assert ended("backup", place, "--data", store).code == 0
        with reading(store) as opened:
            events_before = everything(opened)

        @some(6)
        @given(CHANGES)
        def check(changes: list[Change]) -> None:
            with copied(made) as damaged:
                path = damaged / "penstock.db"
                path.write_bytes(changed(path.read_bytes(), changes))
                done = ended("restore", place, "--data", damaged, "--replace")
                if done.code:
                    assert (damaged / "penstock.db").exists()
                    return
                with reading(damaged) as opened:
                    assert everything(opened) == events_before

        check()
