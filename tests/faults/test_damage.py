"""Damage to the file: it is noticed by whoever reads it, named by its place, and never served."""

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from penstock.errors import DamagedRecord, NotAStore, StorageFailure
from penstock.model import (
    ANY,
    Append,
    Event,
    EventFilter,
    EventPage,
    ReadAll,
    ReadRecords,
    ReadStream,
    RecordPage,
    SubscribeQueue,
    new_event,
)
from penstock.model.columns import columns_of
from penstock.store.contract import (
    Allocate,
    Commit,
    DeclareQueue,
    Proposal,
    ReadLimits,
    Register,
    Transaction,
)
from penstock.store.record import Record
from penstock.store.sqlite import SqliteReader, SqliteStore
from tests.faults.support import append, ask, engine_on, findings, run

COMMITS = 40
DAMAGED = 17


def _body(number: int) -> bytes:
    return f"the body of event number {number:04} ".encode() * 5


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store of forty commits of one event in four streams, all of it in the file."""
    store = SqliteStore(tmp_path)
    for number in range(1, COMMITS + 1):
        columns = columns_of([new_event("made", _body(number))])
        store.write([Transaction((Commit("c", f"s{number % 4}", ANY, columns),))])
    store.write([Transaction((Register("reader", "c", "", 1), DeclareQueue("c", "work", "", 1)))])
    fresh = Proposal(Proposal.FRESH, 1, 6, 1, 5, 5)
    store.write([Transaction((Allocate(1, "a", 3_600_000, fresh),))])
    store.db.restart_wal()
    store.close()
    return tmp_path


def _flip(directory: Path, wanted: bytes) -> None:
    """Flip one bit of the only place in the file that holds these bytes."""
    path = directory / "penstock.db"
    content = bytearray(path.read_bytes())
    assert content.count(wanted) == 1
    content[content.index(wanted) + len(wanted) // 2] ^= 0x10
    path.write_bytes(content)


def _edit(directory: Path, *statements: str) -> None:
    connection = apsw.Connection(str(directory / "penstock.db"))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_whole_store_has_no_findings(directory: Path) -> None:
    assert findings(directory) == []


# --- a damaged body -------------------------------------------------------------------------------------------


def test_verify_names_the_position_of_a_damaged_body(directory: Path) -> None:
    _flip(directory, _body(DAMAGED))
    assert findings(directory) == [f"position {DAMAGED}: damaged: its checksum does not match"]


def test_reads_that_touch_a_damaged_record_fail_and_others_work(directory: Path) -> None:
    _flip(directory, _body(DAMAGED))
    touched = f"s{DAMAGED % 4}"

    async def scenario() -> None:
        async with engine_on(directory) as engine:
            for request in (
                ReadAll(1),
                ReadAll(DAMAGED),
                ReadAll(1, "c", touched),
                ReadStream("c", touched),
                ReadStream("c", touched, 0, backward=True),
            ):
                with pytest.raises(DamagedRecord) as error:
                    await ask(engine, request)
                assert error.value.position == DAMAGED
            # Records are passed on as they are, and their reader checks them.
            page = await ask(engine, ReadRecords(1))
            assert isinstance(page, RecordPage)
            with pytest.raises(DamagedRecord) as error:
                [Record.stored(bytes(data)) for data in page.records]
            assert error.value.position == DAMAGED
            before = await ask(engine, ReadAll(1, limit=DAMAGED - 1))
            after = await ask(engine, ReadAll(DAMAGED + 1))
            other = await ask(engine, ReadStream("c", "s0"))
            assert isinstance(before, EventPage)
            assert isinstance(after, EventPage)
            assert isinstance(other, EventPage)
            assert [event.position for event in before.events] == list(range(1, DAMAGED))
            assert [event.position for event in after.events] == list(range(DAMAGED + 1, COMMITS + 1))
            assert [event.body for event in other.events] == [_body(n) for n in range(4, COMMITS + 1, 4)]
            # The worker that met the damage goes on, and so does the writer, in the damaged stream too.
            assert (await append(engine, touched)).position == COMMITS + 1
            with pytest.raises(DamagedRecord):
                await ask(engine, SubscribeQueue("c", "work", "b", "", 0, 99, 1000))

    run(scenario())
    assert findings(directory) == [f"position {DAMAGED}: damaged: its checksum does not match"]


def test_a_repeated_commit_whose_first_record_is_damaged_is_neither_repeated_nor_written(directory: Path) -> None:
    _flip(directory, _body(DAMAGED))
    stream = f"s{DAMAGED % 4}"

    async def scenario() -> None:
        async with engine_on(directory) as engine:
            sequence = DAMAGED // 4 + 1
            with pytest.raises(DamagedRecord):
                await ask(engine, Append("c", stream, [new_event("made")], sequence))
            assert (await append(engine, "s0")).position == COMMITS + 1

    run(scenario())


def test_a_store_whose_last_record_is_damaged_opens_and_goes_on(directory: Path) -> None:
    _flip(directory, _body(COMMITS))

    async def scenario() -> None:
        async with engine_on(directory) as engine:
            assert (await append(engine, "new")).position == COMMITS + 1

    run(scenario())
    assert findings(directory) == [f"position {COMMITS}: damaged: its checksum does not match"]


# --- a damaged page -------------------------------------------------------------------------------------------


def test_every_damaged_page_is_noticed_and_nothing_wrong_is_served(directory: Path) -> None:
    path = directory / "penstock.db"
    whole = path.read_bytes()
    reader = SqliteReader(directory)
    good = reader.read_all(1, EventFilter(), ReadLimits()).events
    reader.close()
    noticed = 0
    for page in range(len(whole) // 4096):
        content = bytearray(whole)
        # The first bytes of a page say what it is; page 1 begins with the file's own header.
        at = page * 4096 + (100 if page == 0 else 0)
        content[at : at + 8] = bytes(8)
        if bytes(content) == whole:
            continue
        path.write_bytes(content)
        assert _is_refused(directory, good) or findings(directory), f"page {page + 1}"
        noticed += 1
    assert noticed > 10


def _is_refused(directory: Path, good: list[Event]) -> bool:
    """Read everything: what is served is right, or else the store does not serve it."""
    try:
        with closing(SqliteReader(directory)) as reader:
            events = reader.read_all(1, EventFilter(), ReadLimits()).events
    except (StorageFailure, DamagedRecord, NotAStore):
        return True
    assert all(event in good for event in events)
    return False


# --- rows that are not what they should be --------------------------------------------------------------------

CASES: dict[str, tuple[str, list[str]]] = {
    "a deleted record": (
        "DELETE FROM records WHERE position = 17",
        ["position 17: missing: the next record begins at 18", "stream number 1: no commit of sequences 5 to 5 at 17"],
    ),
    "the last record deleted": (
        "DELETE FROM records WHERE position = 40",
        [
            "stream number 4: no commit of sequences 10 to 10 at 40",
            "contexts: count 40 events, and the last position is 39",
        ],
    ),
    "a record in another's place": (
        "UPDATE records SET data = (SELECT data FROM records WHERE position = 16) WHERE position = 17",
        ["position 17: damaged: it belongs at position 16"],
    ),
    "a record that counts wrong": (
        "UPDATE records SET count = 2 WHERE position = 17",
        ["position 17: holds 1 events, its row says 2", "position 19: missing: the next record begins at 18"],
    ),
    "a record of another stream": (
        "UPDATE records SET stream_id = 2 WHERE position = 17",
        ["position 17: its row names another context or stream"],
    ),
    "an index row that points elsewhere": (
        "UPDATE commits SET position = 18 WHERE position = 17",
        ["position 17: is not in the index of stream s1 at 5"],
    ),
    "an index row too few": (
        "DELETE FROM commits WHERE position = 17",
        [
            "position 17: is not in the index of stream s1 at 5",
            "stream number 1: no commit of sequences 5 to 6 at 21",
        ],
    ),
    "an index row too many": (
        "INSERT INTO commits (stream_id, last, position) VALUES (1, 11, 40)",
        ["stream number 1: no commit of sequences 11 to 11 at 40"],
    ),
    "an index row beyond the head": (
        "INSERT INTO commits (stream_id, last, position) VALUES (1, 11, 41)",
        ["stream number 1: no commit of sequences 11 to 11 at 41"],
    ),
    "a block too few": (
        "DELETE FROM blocks",
        ["context c: its index lacks block 0, where position 1 is"],
    ),
    "a counter that is wrong": (
        "UPDATE contexts SET events = events + 1",
        ["contexts: count 41 events, and the last position is 40"],
    ),
    "a queue's marker beyond the head": (
        "UPDATE queues SET position = 42",
        ["queue work of c (number 1): marker 42 lies outside"],
    ),
    "an allocation beyond its queue's marker": (
        "UPDATE allocations SET last = 6",
        ["queue number 1: allocation 1 to 6 does not fit"],
    ),
    "an allocation of no queue": (
        "UPDATE allocations SET queue_id = 9",
        [
            "queue number 9: allocation 1 to 5 does not fit",
            "queue work of c (number 1): has another number of allocations than 1",
        ],
    ),
    "a dead letter of no queue": (
        "INSERT INTO dead_letters VALUES (9, 1, 's1', 1, 1, 'a', '', 1)",
        ["queue number 9: dead letter 1 does not fit"],
    ),
    "a dead letter beyond the head": (
        "INSERT INTO dead_letters VALUES (1, 41, 's1', 1, 1, 'a', '', 1)",
        ["queue number 1: dead letter 41 does not fit"],
    ),
    "a bookmark beyond the head": (
        "UPDATE subscriptions SET position = 42",
        ["subscription 1 of reader: bookmark 42 lies outside"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verify_names(directory: Path, case: str) -> None:
    statement, expected = CASES[case]
    _edit(directory, statement)
    assert findings(directory) == expected


def test_a_missing_record_of_a_stream_is_not_passed_over_in_silence(directory: Path) -> None:
    _edit(directory, "DELETE FROM records WHERE position = 17")
    reader = SqliteReader(directory)
    with pytest.raises(DamagedRecord) as error:
        reader.read_stream("c", "s1", 1, None, ReadLimits())
    assert error.value.position == DAMAGED
    reader.close()
