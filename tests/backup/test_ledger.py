"""Erasures outlive restores, and nothing is erased that was not."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.backup.restore import EVERYWHERE, Erasures, Ledger, LedgerEntry, agreed
from penstock.model import Buried
from penstock.model.columns import columns_of
from penstock.store.contract import AddIterator, AddLog, DeleteLog, HideEvents, HideStream
from penstock.store.record import Record, encode_commit
from tests.backup.support import (
    back_up_directory,
    backed_up,
    check_same,
    erase_all,
    holds,
    ones,
    reading,
    restored,
    say,
    seal_all,
    writing,
)
from tests.store.contract.consumers import made, settle, take
from tests.store.kit import append, do_one, event, everything, findings, some, stream_of

SECRET = b"the secret that nobody shall find"
HEADER = '{"subject": "a secret customer"}'
TYPE = "AThingThatNobodyShallFind"


def _secret(count: int = 1) -> list[object]:
    return [event(type=TYPE, headers=HEADER, body=SECRET) for _ in range(count)]


def _is_nowhere(directory: Path) -> bool:
    return not any(holds(directory, wanted) for wanted in (SECRET, HEADER.encode(), TYPE.encode()))


def test_what_was_erased_after_a_backup_does_not_come_back_with_it(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        ones(store, 2000)
        append(store, "person", _secret(2))  # type: ignore[arg-type]
        append(store, "other", [*some(1), *_secret(1), *some(1)])  # type: ignore[list-item]
        place_of_it = store.head() - 1
        backed_up(store, tmp_path / "place")
        assert holds(tmp_path / "place", SECRET)
        ones(store, 3000)
        seal_all(store)
        do_one(store, HideStream("shop", "person"))
        do_one(store, HideEvents(((place_of_it, place_of_it),), (("shop", "other"),)))
        erase_all(store)
        backed_up(store, tmp_path / "place")
        left = everything(store)
    for number, head in ((1, place_of_it + 1), (2, place_of_it + 3001)):
        target = tmp_path / f"copy-{number}"
        report = restored(tmp_path / "place", target, number=number)
        assert (report.events, report.erasures) == (head, 2)
        assert _is_nowhere(target)
        with reading(target) as copy:
            assert everything(copy) == [found for found in left if found.position <= head]
            assert findings(copy) == []
            assert [(entry.context, entry.stream) for entry in copy.erasures(0, 9)] == [
                ("shop", "person"),
                (None, None),
            ]
            assert all(entry.finished is not None for entry in copy.erasures(0, 9))


def test_dead_letters_of_what_was_erased_after_a_backup_do_not_come_back_with_it(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "person", some(3))
        append(store, "other", some(3))
        queue = made(store)
        batch = take(store, queue, "ann")
        said = SECRET.decode()
        settle(store, queue, batch, buries=[Buried(position, f"{said} {position}") for position in batch.positions])
        backed_up(store, tmp_path / "place")
        assert holds(tmp_path / "place", SECRET)
        do_one(store, HideStream("shop", "person", 2))
        do_one(store, HideEvents(((5, 5),), (("shop", "other"),)))
        assert [one.position for one in store.letters(queue.id, 0, 9)] == [3, 4, 6]
        erase_all(store)
        backed_up(store, tmp_path / "place")
    assert [number for number in range(1, 7) if holds(tmp_path / "data", f"{said} {number}".encode())] == [3, 4, 6]
    for number in (1, 2):
        restored(tmp_path / "place", tmp_path / f"copy-{number}", number=number)
        with reading(tmp_path / f"copy-{number}") as copy:
            assert [one.position for one in copy.letters(queue.id, 0, 9)] == [3, 4, 6]
            assert findings(copy) == []


def test_what_was_erased_after_the_last_backup_is_known_to_the_store_that_is_replaced(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "person", _secret(2))  # type: ignore[arg-type]
        append(store, "s", some(2))
        backed_up(store, tmp_path / "place")
        do_one(store, HideStream("shop", "person"))
        append(store, "s", some(2))
    assert restored(tmp_path / "place", tmp_path / "elsewhere").erasures == 0
    assert not _is_nowhere(tmp_path / "elsewhere")
    report = restored(tmp_path / "place", tmp_path / "data", replace=True)
    assert (report.events, report.erasures, report.timeline) == (4, 1, 2)
    assert _is_nowhere(tmp_path / "data")
    with reading(tmp_path / "data") as store:
        assert [found.stream for found in everything(store)] == ["s", "s"]
        (entry,) = store.erasures(0, 9)
        assert (entry.stream, entry.last, entry.finished is not None) == ("person", 2, True)


def test_a_log_that_was_deleted_after_a_backup_does_not_come_back_with_it(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        for name in ("log", "kept"):
            do_one(store, AddLog(name))
            say(store, name, SECRET if name == "log" else 1)
            do_one(store, AddIterator(f"over-{name}", name, "map", "return msg", True))
            do_one(store, AddIterator(f"above-{name}", f"over-{name}", "map", "return msg", True))
        backed_up(store, tmp_path / "place")
        do_one(store, DeleteLog("log"))
        do_one(store, AddLog("log"))
        say(store, "log", 2)
        backed_up(store, tmp_path / "place")
    restored(tmp_path / "place", tmp_path / "copy", number=1)
    with reading(tmp_path / "copy") as copy:
        assert [log.name for log in copy.logs("", 9)] == ["kept"]
        assert [each.name for each in copy.iterators(None, "", 9)] == ["above-kept", "over-kept"]
        assert findings(copy) == []
    assert not holds(tmp_path / "copy", SECRET)
    restored(tmp_path / "place", tmp_path / "newest")
    with reading(tmp_path / "newest") as newest, reading(tmp_path / "data") as store:
        assert newest.logs("", 9) == store.logs("", 9)


def test_events_of_a_new_timeline_are_not_erased_for_what_the_old_one_had_in_their_place(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
        backed_up(store, tmp_path / "place")
        append(store, "s", some(5))
        do_one(store, HideStream("shop", "s"))
        do_one(store, HideEvents(((2, 7),), (("shop", "s"),)))
    # The restored store has none of the five; what it writes in their place is new.
    restored(tmp_path / "place", tmp_path / "data", replace=True)
    with writing(tmp_path / "data") as store:
        assert stream_of(store, "s") == []
        append(store, "s", some(4))
        assert [found.sequence for found in stream_of(store, "s")] == [4, 5, 6, 7]
        backed_up(store, tmp_path / "second")
    restored(tmp_path / "second", tmp_path / "copy")
    with reading(tmp_path / "copy") as copy, writing(tmp_path / "data") as store:
        check_same(store, copy)
        assert [found.sequence for found in stream_of(copy, "s")] == [4, 5, 6, 7]
        # Erasing that stream now takes the new events, too.
        do_one(store, HideStream("shop", "s"))
        erase_all(store)
        assert stream_of(store, "s") == []
    # What the new timeline has erased are not the events that the old one has after they part.
    back_up_directory(tmp_path / "data", tmp_path / "second")
    restored(tmp_path / "second", tmp_path / "copy", replace=True)
    with reading(tmp_path / "copy") as copy:
        assert everything(copy) == []


def test_an_older_timeline_that_replaces_a_newer_one_keeps_its_own_events(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        append(store, "s", some(3))
        backed_up(store, tmp_path / "place")
        append(store, "s", some(3))
        backed_up(store, tmp_path / "place")
        before = everything(store)
    restored(tmp_path / "place", tmp_path / "copy", number=1)
    with writing(tmp_path / "copy") as copy:
        append(copy, "s", some(2))
        do_one(copy, HideStream("shop", "s"))
    assert restored(tmp_path / "place", tmp_path / "copy", replace=True).timeline == 3
    with reading(tmp_path / "copy") as copy:
        # The first three were in both; of the others, two numbers were used twice.
        assert everything(copy) == before[3:]
        assert findings(copy) == []
        assert [row[:2] for row in copy.state().tables["timelines"]] == [(1, 0), (3, 6)]


# ---------------------------------------------------------------- timelines


def test_timelines_agree_up_to_where_the_first_of_them_parts() -> None:
    one, two, three, other = (1, 0, 10), (2, 50, 20), (3, 70, 30), (2, 60, 25)
    assert agreed([one], [one]) == EVERYWHERE
    assert agreed([one], [one, two]) == 50
    assert agreed([one, two, three], [one]) == 50
    assert agreed([one, two], [one, two, three]) == 70
    assert agreed([one, two], [one, other]) == 50
    assert agreed([(1, 0, 11)], [one]) == 0


@given(limit=st.integers(0, 12), first=st.integers(1, 4), count=st.integers(1, 8))
def test_a_record_across_the_parting_of_timelines_is_erased_up_to_there(limit: int, first: int, count: int) -> None:
    events = some(count)
    record = Record(encode_commit(columns_of(events), first, b"c", b"s", first, bytes(16), 0), first)
    entry = LedgerEntry(1, "c", "s", 1 << 40, (), 1, 0, 0, None, 0)
    replay = Erasures([(1, 0, 0), (2, limit, 1)], [Ledger([(1, 0, 0)], [entry])])
    pieces = replay.apply(record)
    assert [piece.position for piece in pieces] == sorted(
        {first, *([limit + 1] if first <= limit < record.last else [])}
    )
    shown = [found.position for piece in pieces for found in piece.events()]
    assert shown == [position for position in range(first, first + count) if position > limit]
    assert b"".join(each for piece in pieces for each in piece.ids()) == b"".join(record.ids())
    (row,) = replay.rows()
    assert row[3] == max(0, min(limit, record.last) if limit >= first else 0)
