"""Records in SQLite as a sealer leaves them, and damage to any table: read alike, or seen by `verify`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import DamagedRecord, StoreError
from penstock.model import LOG_CONTEXT, NEW, Event, EventFilter, NewEvent
from penstock.store.contract import AddLog, Allocate, DeclareQueue, DeleteLog, Erase, Proposal, ReadLimits, Transaction
from penstock.store.record import Record, with_checksum
from penstock.store.sqlite import SqliteStore
from tests.store.contract.logs import erase_all
from tests.store.contract.reads import FILTERS, backward, fill
from tests.store.contract.search import first_at
from tests.store.kit import (
    append,
    commit,
    do,
    do_one,
    event,
    everything,
    find,
    findings,
    new_part,
    passes,
    some,
    stream_of,
)
from tests.store.strategies import Run, sealed_record


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    yield store
    store.close()


def seal(store: SqliteStore, first: int, last: int) -> None:
    """Merge the records of these positions into one, as the sealer will."""
    runs: list[tuple[Event, list[NewEvent]]] = []
    for one in everything(store, EventFilter(), ReadLimits(), first, last):
        if not runs or runs[-1][0].commit != one.commit:
            runs.append((one, []))
        runs[-1][1].append(new_part(one))
    merged = [Run(e.commit, e.sequence, e.recorded, e.context, e.stream, events) for e, events in runs]
    execute = store.db.connection.execute
    execute("DELETE FROM records WHERE position BETWEEN ? AND ?", (first, last))
    execute(
        "INSERT INTO records (position, count, data) VALUES (?, ?, ?)",
        (first, last - first + 1, sealed_record(merged, first)),
    )


@pytest.fixture
def sealed(store: SqliteStore) -> list[Event]:
    """A history of which the middle is sealed in two records."""
    history = fill(store)
    starts = [
        one.position
        for one in history
        if one.sequence and (one.position == 1 or one.commit != history[one.position - 2].commit)
    ]
    seal(store, starts[3], starts[20] - 1)
    seal(store, starts[20], starts[45] - 1)
    store.recover()
    return history


def test_sealed_records_read_like_the_commits_they_were(store: SqliteStore, sealed: list[Event]) -> None:
    for wanted in FILTERS:
        for limits in (ReadLimits(), ReadLimits(events_max=3), ReadLimits(bytes_max=1), ReadLimits(scan_ms_max=0)):
            assert everything(store, wanted, limits) == [one for one in sealed if passes(wanted, one)]
    for start in range(1, len(sealed) + 2, 5):
        assert everything(store, EventFilter(), ReadLimits(events_max=7), start) == sealed[start - 1 :]
    assert findings(store) == []


def test_streams_are_read_through_sealed_records(store: SqliteStore, sealed: list[Event]) -> None:
    for context, stream in {(one.context, one.stream) for one in sealed}:
        mine = [one for one in sealed if (one.context, one.stream) == (context, stream)]
        for limits in (ReadLimits(), ReadLimits(events_max=1), ReadLimits(bytes_max=1)):
            assert stream_of(store, stream, context, limits) == mine
            if context == "shop":
                assert backward(store, stream, limits=limits) == [one.sequence for one in reversed(mine)]


def test_repeats_and_appends_see_through_sealed_records(store: SqliteStore, sealed: list[Event]) -> None:
    for context, stream in {(one.context, one.stream) for one in sealed}:
        mine = [one for one in sealed if (one.context, one.stream) == (context, stream)]
        for first in range(len(mine)):
            stretch = mine[first : first + 4]
            again = append(store, stream, [new_part(one) for one in stretch], first + 1, context)
            assert (again.commit, again.position, again.repeated) == (stretch[0].commit, stretch[0].position, True)
        assert append(store, stream, some(1), len(mine) + 1, context).sequence == len(mine) + 1


def test_times_are_found_in_sealed_records(store: SqliteStore) -> None:
    store.write([Transaction((commit("ab"[n % 2], [event(n * 7 % 50)]),)) for n in range(60)])
    history = everything(store)
    seal(store, 10, 50)
    for wanted in (EventFilter("shop"), EventFilter("shop", "b"), EventFilter()):
        for ticks in range(55):
            assert find(store, wanted, ticks) == first_at(history, wanted, ticks)


@pytest.mark.parametrize("records_max", [1, 2, 100])
def test_a_log_is_erased_from_sealed_records(store: SqliteStore, records_max: int) -> None:
    do_one(store, AddLog("log"))
    for _ in range(6):
        append(store, "log", some(2, body=b"secret"), context=LOG_CONTEXT)
        append(store, "log", some(2))
    append(store, "log", some(2), 13, context=LOG_CONTEXT)
    seal(store, 5, 20)
    seal(store, 21, 26)
    # As if the last two had come after the log was made again; a sealer comes later than that.
    do(store, DeleteLog("log"), AddLog("log"))
    store.db.connection.execute("UPDATE erasures SET last = 12")
    assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT)] == [13, 14]
    while do_one(store, Erase(records_max)):
        pass
    assert b"secret" not in b"".join(row[0] for row in store.db.connection.execute("SELECT data FROM records"))
    assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT)] == [13, 14]
    assert len(stream_of(store, "log")) == 12
    assert findings(store) == []


# --- damage ---------------------------------------------------------------------------------------------------

DAMAGE = {
    "a flipped byte": (
        "UPDATE records SET data = CAST(substr(data, 1, 60) || x'ff00' || substr(data, 63) AS BLOB) WHERE position = 4",
        "position 4",
    ),
    "a lost record": ("DELETE FROM records WHERE position = 4", "position 4"),
    "a lost last record": ("DELETE FROM records WHERE position = 10", "stream number 1"),
    "a swapped record": (
        "UPDATE records SET data = (SELECT data FROM records WHERE position = 1) WHERE position = 4",
        "position 4",
    ),
    "a wrong count": ("UPDATE records SET count = 2 WHERE position = 4", "position 4"),
    "a wrong stream": ("UPDATE records SET stream_id = 2 WHERE position = 4", "position 4"),
    "a lost index": ("DELETE FROM commits WHERE position = 4", "position 4"),
    "a shifted index": ("UPDATE commits SET position = 5 WHERE position = 4", "stream number 1"),
    "a false index": ("INSERT INTO commits VALUES (1, 99, 4)", "stream number 1"),
    "a lost stream": ("DELETE FROM streams WHERE id = 1", "position 1"),
    "an allocation of nothing": ("INSERT INTO allocations VALUES (1, 3, 2, 1, 'me', 1, 1, '', 0)", "queue number 1"),
    "an allocation twice": ("INSERT INTO allocations VALUES (1, 2, 2, 1, 'me', 1, 1, '', 0)", "queue number 1"),
    "an allocation beyond": ("INSERT INTO allocations VALUES (1, 9, 9, 1, 'me', 1, 1, '', 0)", "queue number 1"),
    "an allocation of no queue": ("INSERT INTO allocations VALUES (7, 1, 2, 1, 'me', 1, 1, '', 0)", "queue number 7"),
    "a lost output": ("UPDATE iterators SET outputs = 3", "iterator it"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_names_what_is_damaged(store: SqliteStore, damage: str) -> None:
    for number in range(4):
        append(store, "orders", some(3), number * 3 + 1)
    append(store, "others", some(2), NEW)
    do_one(store, DeclareQueue("shop", "work", "", 1))
    do_one(store, Allocate(1, "me", 1000, Proposal(Proposal.FRESH, 1, 4, 1, 3, 3)))
    store.db.connection.execute(
        "INSERT INTO iterators (name, log, over, kind, function, indexed, created, base, source, outputs)"
        " VALUES ('it', 'log', 'log', 'map', 'f', 1, 0, 0, 0, 0)"
    )
    assert findings(store) == []
    statement, where = DAMAGE[damage]
    store.db.connection.execute(statement)
    assert store.db.connection.changes() == 1
    assert any(found.startswith(where) for found in findings(store)), findings(store)


@pytest.mark.parametrize("damage", ["a flipped byte", "a swapped record"])
def test_a_damaged_record_is_never_served(store: SqliteStore, damage: str) -> None:
    for number in range(4):
        append(store, "orders", some(3), number * 3 + 1)
    store.db.connection.execute(DAMAGE[damage][0])
    questions = (
        lambda: store.read_all(1, EventFilter(), ReadLimits()),
        lambda: store.read_records(5, EventFilter(), ReadLimits()),
        lambda: store.read_stream("shop", "orders", 1, None, ReadLimits()),
        lambda: store.read_stream("shop", "orders", 0, None, ReadLimits(), backward=True),
        lambda: store.find_position(EventFilter("shop"), 1, ReadLimits()),
    )
    for question in questions:
        with pytest.raises(DamagedRecord) as caught:
            question()
        assert caught.value.position == 4
    outcome, neighbour = store.write(
        [Transaction((commit("orders", some(3), 4),)), Transaction((commit("orders", some(1), 13),))]
    )
    assert isinstance(outcome, DamagedRecord)
    assert isinstance(neighbour, list)
    assert [one.position for one in store.read_all(7, EventFilter(), ReadLimits()).events] == list(range(7, 14))


@pytest.mark.parametrize("damage", ["a flipped byte", "a swapped record", "a lost record", "broken insides"])
def test_a_damaged_record_does_not_keep_others_from_being_erased(
    store: SqliteStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    do(store, AddLog("log"), AddLog("other"))
    for _ in range(4):
        append(store, "log", some(3, body=b"secret"), context=LOG_CONTEXT)
    append(store, "other", some(1, body=b"secret"), context=LOG_CONTEXT)
    if damage == "broken insides":
        data: bytes = store.db.row("record_at", {"position": 4})[1]
        text = Record(data, 4).at.text
        broken = with_checksum(data[8:text] + b"\xff" + data[text + 1 :])
        store.db.connection.execute("UPDATE records SET data = ? WHERE position = 4", (broken,))
    else:
        store.db.connection.execute(DAMAGE[damage][0])
    do(store, DeleteLog("log"), DeleteLog("other"))
    erase_all(store)
    rows = store.db.connection.execute("SELECT position FROM records WHERE instr(data, x'736563726574')").fetchall()
    assert [position for (position,) in rows] == ([] if damage == "a lost record" else [4])
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        "deleted events of remits/log cannot be erased in a damaged record"
    ]


@pytest.mark.parametrize(
    "value", ["CAST(data AS TEXT)", "'plain text, long enough to be a record of one event or more'", "7"]
)
def test_a_record_that_is_not_bytes_any_more_is_never_served(store: SqliteStore, value: str) -> None:
    append(store, "orders", some(3))
    store.db.connection.execute(f"UPDATE records SET data = {value}")
    with pytest.raises((DamagedRecord, StoreError)):
        everything(store)
    with pytest.raises((DamagedRecord, StoreError)):
        stream_of(store, "orders")
    try:
        assert findings(store)
    except StoreError as error:
        assert "damaged" in str(error)  # noqa: PT017 -- both are fine: to find it, or to fail because of it


def test_a_damaged_name_is_a_failure_of_the_store(store: SqliteStore) -> None:
    append(store, "orders", some(3))
    store.db.connection.execute("UPDATE streams SET name = CAST(x'ff' AS TEXT)")
    with pytest.raises(StoreError):
        store.streams("shop", "", "", 10)
