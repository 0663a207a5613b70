"""What erasures, seals and giving back leave in the files of a store on SQLite, searched byte by byte."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import apsw
import pytest

from penstock.errors import StorageFailure
from penstock.model import Event
from penstock.store import seals
from penstock.store.contract import (
    AddIterator,
    Erase,
    GiveBack,
    Hid,
    HideEvents,
    HideStream,
    IteratorState,
    Operation,
    ReadLimits,
    Seal,
    Transaction,
    WriteOutput,
)
from penstock.store.sqlite import SqliteReader, SqliteStore, database
from penstock.store.sqlite import store as sqlite_store
from penstock.store.sqlite.database import PAGE_BYTES
from tests.seeds import rng
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import BLOCK, append_singly, close_block, seal_all, spans
from tests.store.kit import append, commit, do, do_one, everything, findings, some, stream_of

FILE = "penstock.db"
STREAMS = [f"s{number}" for number in range(8)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store
        assert findings(store) == []


def holders(directory: Path, secret: bytes) -> list[str]:
    """The files of a store in which some bytes are."""
    return sorted(path.name for path in directory.iterdir() if secret in path.read_bytes())


# --- nothing is left behind -----------------------------------------------------------------------------------


def seal_some(store: SqliteStore, number: int) -> None:
    """Merge the next records whether their block is closed or not: any records may be neighbours of any others."""
    mark = store.sealed()
    rows = store.db.rows("unsealed_records", {"low": mark, "high": store.head()})[:number]
    records = seals.checked(rows)
    assert len(records) == len(rows)
    if len(records) > 1:
        _, erasures, rewrites = store.db.row("ledger")
        ledger = erasures, int(rewrites)
        data, last = seals.merge(records), records[-1].last
        assert do_one(store, Seal(mark, last, data, last + 1, ledger)) is True


class Load:
    """Commits and outputs of random sizes that say over and over which stream they belong to.

    A stream that was erased says something else afterwards.
    """

    def __init__(self, store: SqliteStore, chance: Random, size: int) -> None:
        self.store = store
        self.chance = chance
        self.size = size
        self.times = dict.fromkeys(STREAMS, 0)
        self.read = dict.fromkeys(STREAMS, 0)
        for name in STREAMS:
            do_one(store, AddIterator(f"over {name}", f"shop/{name}", "reduce", "return msg", True))

    def secret(self, name: str) -> bytes:
        return f"secret {self.times[name]} of {name};".encode()

    def write(self, number: int) -> None:
        operations = [operation for _ in range(number) for operation in self._operations()]
        for outcome in self.store.write([Transaction((operation,)) for operation in operations]):
            assert isinstance(outcome, list)

    def _operations(self) -> list[Operation]:
        name = self.chance.choice(STREAMS)
        secret, start = self.secret(name), self.read[name]
        self.read[name] += 1
        body = secret * (self.chance.randrange(self.size) // len(secret) + 1)
        state = body[: self.chance.randrange(len(body) + 1)] or None
        iterator = self.store.iterator(f"over {name}")
        assert iterator is not None
        return [
            commit(name, some(self.chance.choice((1, 1, 3)), body=body, headers=secret.decode())),
            WriteOutput(iterator.id, start, start + 1, (body,), state),
        ]

    def erase(self, name: str) -> bytes:
        """Erase a stream in one way or the other; what was in it."""
        secret = self.secret(name)
        mine = [one.position for one in stream_of(self.store, name)]
        ranges = tuple((position, position) for position in mine)
        ways: list[Operation] = [HideStream("shop", name), HideEvents(ranges, (("shop", name),))]
        hid = do_one(self.store, self.chance.choice(ways))
        assert isinstance(hid, Hid)
        assert hid.events >= len(mine), "those erased by position are counted once more"
        self.times[name] += 1
        self.read[name] = 0
        return secret


@pytest.mark.parametrize("time", [0, *(pytest.param(time, marks=pytest.mark.long) for time in range(1, 6))])
@pytest.mark.parametrize("size", [20, 250, *(pytest.param(size, marks=pytest.mark.long) for size in (1500, 6000))])
def test_streams_erased_among_seals_leave_nothing_behind(
    tmp_path: Path, store: SqliteStore, size: int, time: int
) -> None:
    """Rows come and go between others, and SQLite moves rows from page to page: none may leave a copy."""
    load = Load(store, rng(f"streams of {size}/{time}"), size)
    chance = load.chance
    for name in chance.choices(STREAMS, k=6):
        load.write(chance.randrange(10, 80))
        for _ in range(chance.randrange(4)):
            seal_some(store, chance.choice((2, 5, 30, 100)))
        left = [one for one in everything(store) if one.stream != name]
        secret = load.erase(name)
        if chance.random() < 0.5:
            seal_some(store, 40)
        erase_all(store, chance.randint(1, 10))
        assert holders(tmp_path, secret) == []
        if chance.random() < 0.3:
            store.db.command("PRAGMA incremental_vacuum(20)")
            store.recover()
        assert everything(store) == left
    for name in STREAMS:
        secret = load.erase(name)
        erase_all(store)
        assert holders(tmp_path, secret) == []
    assert store.db.connection.execute("SELECT count(*) FROM outputs").get == 0


def test_erased_events_of_sealed_blocks_are_in_no_file(tmp_path: Path, store: SqliteStore) -> None:
    for number in range(2):
        append_singly(store, [f"a{number}"], BLOCK // 2, body=b"top-secret", headers="top-secret")
        append_singly(store, ["b"], BLOCK // 2, body=b"known", type="top-secret" if number else "known")
    seal_all(store)
    positions = tuple((one.position, one.position) for one in stream_of(store, "b") if one.type == "top-secret")
    do_one(store, HideStream("shop", "a0"))
    do_one(store, HideEvents(positions, (("shop", "b"),)))
    seal_all(store)
    do_one(store, HideStream("shop", "a1"))
    erase_all(store, 64)
    assert holders(tmp_path, b"top-secret") == []
    assert {one.body for one in everything(store)} == {b"known"}


def test_an_erased_event_makes_its_record_longer_and_nothing_is_left_of_its_neighbours(tmp_path: Path) -> None:
    """A type that other events still have stays, and that of tombstones comes to it."""
    with closing(SqliteStore(tmp_path)) as store:
        for number in range(300):
            append(store, "a", [*some(2, body=b""), *some(1, body=b"secret of a")])
            append(store, "b", some(1, body=b"secret of b" * (number % 30)))
        firsts = [(one.position, one.position) for one in stream_of(store, "a") if one.sequence % 3 == 1]
        sizes = [size for _, size in store.db.rows("records_after_row", {"row": 0})]
        do_one(store, HideEvents(tuple(firsts), (("shop", "a"),)))
        erase_all(store, 20)
        longer = [size for _, size in store.db.rows("records_after_row", {"row": 0})]
        assert any(after > before for before, after in zip(sizes, longer, strict=True))
        for name in "ab":
            do_one(store, HideStream("shop", name))
            erase_all(store, 20)
            assert holders(tmp_path, f"secret of {name}".encode()) == []
        assert findings(store) == []


# --- output ---------------------------------------------------------------------------------------------------


def test_rows_of_erased_output_go_and_those_between_them_stay(tmp_path: Path, store: SqliteStore) -> None:
    append(store, "a", some(1))
    append(store, "b", some(1))
    numbers = {}
    for name in "ab":
        made = do_one(store, AddIterator(name, f"shop/{name}", "map", "return msg", True))
        assert isinstance(made, IteratorState)
        numbers[name] = made.id
    for number in range(600):
        name = "ab"[number % 7 == 0]
        source = store.iterator(name)
        assert source is not None
        items = (f"secret of {name}".encode() * (number % 40), b"")
        do_one(store, WriteOutput(numbers[name], source.source, source.source + 1, items, items[0] * (number % 5)))
    kept = store.read_output(numbers["a"], 0, ReadLimits())
    before = store.iterator("a")
    do_one(store, HideStream("shop", "b"))
    erase_all(store, 64)
    assert holders(tmp_path, b"secret of b") == []
    assert store.read_output(numbers["a"], 0, ReadLimits()) == kept
    assert store.iterator("a") == before
    owners = store.db.connection.execute("SELECT DISTINCT iterator_id FROM outputs").fetchall()
    assert owners == [(numbers["a"],)]


# --- space ----------------------------------------------------------------------------------------------------


def free_pages(store: SqliteStore) -> int:
    return store.db.pragma("freelist_count")


def give_back(store: SqliteStore, bytes_max: int = 1 << 20) -> list[int]:
    """What each step left."""
    left = []
    while True:
        answer = do_one(store, GiveBack(bytes_max))
        assert isinstance(answer, int)
        left.append(answer)
        if not answer:
            return left


def erase_much(store: SqliteStore) -> list[Event]:
    """Leave some 8 MiB of free pages in the midst of the file; what is left."""
    append_singly(store, ["a"], 50, body=b"kept" * 100)
    append_singly(store, ["secret"], 200, body=b"top-secret" * 4000)
    append_singly(store, ["a"], 50, body=b"kept" * 5000)
    do_one(store, HideStream("shop", "secret"))
    erase_all(store, 64)
    return everything(store)


def test_free_space_is_given_back_in_steps_when_it_is_worth_it(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = erase_much(store)
    before = free_pages(store)
    assert give_back(store) == [0], "it is little"
    assert free_pages(store) == before
    monkeypatch.setattr(sqlite_store, "WORTH_BYTES", 2 << 20)
    steps = give_back(store)
    assert len(steps) > 3
    assert steps == sorted(steps, reverse=True)
    rest = free_pages(store) * PAGE_BYTES
    assert (2 << 20) * sqlite_store.REST_SHARE <= rest <= (2 << 20) * sqlite_store.REST_SHARE + PAGE_BYTES
    assert give_back(store) == [0], "it does not begin again for what is left"
    store.recover()
    assert (tmp_path / FILE).stat().st_size < before * PAGE_BYTES
    assert holders(tmp_path, b"top-secret") == []
    assert everything(store) == left


def test_what_is_erased_after_its_pages_were_moved_is_in_no_file(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    erase_much(store)
    monkeypatch.setattr(sqlite_store, "WORTH_BYTES", 1 << 16)
    monkeypatch.setattr(sqlite_store, "WORTH_SHARE", 0.0)
    do_one(store, GiveBack(3 << 20))
    close_block(store)
    seal_all(store)
    give_back(store)
    do_one(store, HideStream("shop", "a"))
    do_one(store, GiveBack(1 << 20))
    erase_all(store, 64)
    assert holders(tmp_path, b"kept") == []


def test_nothing_is_given_back_beside_seals(store: SqliteStore) -> None:
    for _ in range(3):
        append_singly(store, ["a"], BLOCK, body=b"x" * 100)
        seal_all(store)
        assert do_one(store, GiveBack(1 << 30)) == 0
    assert free_pages(store) > 0
    assert len(spans(store)) == 4


def test_a_log_file_that_a_reader_let_grow_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CUT_PAUSE_S", 0.0)
    wal, limit = tmp_path / f"{FILE}-wal", 1 << 20
    with closing(SqliteStore(tmp_path, wal_bytes_max=limit)) as store, closing(SqliteReader(tmp_path)) as reader:
        append(store, "a", some(1))
        with reader.db.snapshot():
            reader.head()
            while wal.stat().st_size <= 2 * database.OVERGROWN * limit:
                append(store, "a", some(5, body=b"x" * 4000))
        for _ in range(10_000):
            do_one(store, GiveBack(1 << 20))
            if wal.stat().st_size < limit:
                break
        assert wal.stat().st_size < limit
        append(store, "a", some(5))
        assert findings(store) == []


def test_a_log_file_that_was_found_long_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        append_singly(store, ["a"], 2000, body=b"x" * 4000)
    wal = tmp_path / f"{FILE}-wal"
    assert wal.stat().st_size > 8 << 20
    monkeypatch.setattr(database, "CUT_PAUSE_S", 0.0)
    with closing(SqliteStore(tmp_path, wal_bytes_max=1 << 20)) as store:
        append(store, "a", some(1))
        append(store, "a", some(1))
        assert wal.stat().st_size < 1 << 20
        assert store.head() == 2002


def test_free_space_is_known_as_long_as_the_directory_is_there(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "store")) as store:
        found = store.free_bytes()
        assert found is not None
        assert found > 0
        (tmp_path / "store").rename(tmp_path / "moved")
        assert store.free_bytes() is None
        (tmp_path / "moved").rename(tmp_path / "store")


# --- damaged pages --------------------------------------------------------------------------------------------


def test_a_record_with_a_damaged_page_does_not_keep_others_from_being_erased(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        for stream, body in (("a", b"a" * 200_000), ("b", b"secret"), ("c", b"secret" * 50_000)):
            append(store, stream, some(1, body=body))
    damage_overflow_page(tmp_path / FILE, b"a")
    with closing(SqliteStore(tmp_path)) as store:
        for stream in "abc":
            do_one(store, HideStream("shop", stream))
        with pytest.raises(StorageFailure):
            do_one(store, Erase(64))
        store.recover()
        erase_all(store)
        assert [(entry.damaged, entry.finished is not None) for entry in store.erasures(0, 9)] == [
            (1, True),
            (0, True),
            (0, True),
        ]
    assert [path.name for path in tmp_path.iterdir() if b"secret" in path.read_bytes()] == []


def test_a_damaged_page_beside_records_keeps_them_from_being_sealed_once(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        bodies = [b"body%07d" % number + b"y" * 300 for number in range(1, 6001)]
        do(store, *(commit("a", some(1, body=body)) for body in bodies))
    with closing(apsw.Connection(str(tmp_path / FILE))) as connection:
        connection.pragma("journal_mode", "delete")
    data = bytearray((tmp_path / FILE).read_bytes())
    data[data.index(b"body0004110") // PAGE_BYTES * PAGE_BYTES] = 77
    (tmp_path / FILE).write_bytes(data)
    with closing(SqliteStore(tmp_path)) as store:
        seal = seals.next_seal(store)
        assert seal is not None
        with pytest.raises(StorageFailure):
            do_one(store, seal)
        store.recover()
        assert do_one(store, seal) is True
        assert store.sealed() == seal.next == BLOCK
        append(store, "b", some(1))


def damage_overflow_page(file: Path, body: bytes) -> None:
    """Let a page in the middle of a long value name a page after it that cannot be."""
    with closing(apsw.Connection(str(file))) as connection:
        connection.pragma("journal_mode", "delete")
    data = bytearray(file.read_bytes())
    full = body * (PAGE_BYTES - 4)
    at = [at for at in range(0, len(data), PAGE_BYTES) if data[at + 4 : at + PAGE_BYTES] == full][5]
    data[at : at + 4] = b"\xff\xff\xff\xf0"
    file.write_bytes(data)
