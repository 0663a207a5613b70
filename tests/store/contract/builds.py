"""Output that was computed elsewhere: staged in chunks, installed in one go behind what the server has by itself."""

from collections.abc import Sequence
from itertools import pairwise

from penstock.errors import InvalidRequest, IteratorNotFound, StageLost, VersionConflict
from penstock.model import LOG_CONTEXT, Installed, Winner
from penstock.store import Store
from penstock.store.contract import (
    AddIterator,
    AddLog,
    DeleteIterator,
    DeleteLog,
    HideStream,
    Install,
    IteratorState,
    ReadLimits,
    Stage,
    Transaction,
    Unstage,
    WriteOutput,
)
from penstock.store.outputs import CHUNK_ITEMS_MAX, make_output_unit, output_job, pack_items
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.kit import append, attempt, commit, do, do_one, some

PLENTY = (64 << 20, 100_000)


def made(store: Store, kind: str = "map", name: str = "it", log: str = "shop/s") -> IteratorState:
    """A new indexed iterator."""
    iterator = do_one(store, AddIterator(name, log, kind, "return msg", True))
    assert isinstance(iterator, IteratorState)
    return iterator


def numbered(first: int, last: int) -> list[bytes]:
    """Items that say which they are; the store does not look into them."""
    return [b"item %d" % number for number in range(first, last)]


def stage_output(iterator: int, part: int, *chunks: Sequence[bytes], attempt: str = "a", number: int = 0) -> Stage:
    units = tuple(make_output_unit(pack_items(chunk)) for chunk in chunks)
    return Stage(output_job(iterator), part, attempt, number, units, *PLENTY)


def staged(store: Store, iterator: int, part: int, *chunks: Sequence[bytes], attempt: str = "a") -> Winner:
    """Stage chunks; the attempt, as a winner."""
    do_one(store, stage_output(iterator, part, *chunks, attempt=attempt))
    return Winner(part, attempt, len(chunks))


def output(store: Store, iterator: int) -> list[bytes]:
    """All items, by small pages."""
    found: list[bytes] = []
    while page := store.read_output(iterator, len(found), ReadLimits(events_max=7, bytes_max=1000)):
        found += page
    return found


def now(store: Store, name: str = "it") -> tuple[int, int, bytes | None]:
    """How far an iterator is, and its accumulator."""
    found = store.iterator(name)
    assert found is not None
    return found.source, found.outputs, found.state


class BuildContract(StoreCase):
    def test_what_was_staged_becomes_the_output_part_by_part(self, store: Store, reader: Store) -> None:
        it = made(store).id
        two = staged(store, it, 2, numbered(7, 9))
        staged(store, it, 0, numbered(90, 95), attempt="lost")
        none = staged(store, it, 1)
        one = staged(store, it, 0, numbered(0, 3), [], numbered(3, 7))
        assert output(store, it) == []
        assert do_one(store, Install(it, 0, 0, 9, (two, none, one))) == Installed(9, 9, 9)
        assert output(reader, it) == numbered(0, 9)
        assert now(reader) == (9, 9, None)
        assert do_one(store, Unstage(output_job(it))) == 0, "the losers are dropped too"
        do_one(store, WriteOutput(it, 9, 10, (b"the server's",)))
        assert output(store, it) == [*numbered(0, 9), b"the server's"]

    def test_wherever_the_server_is_by_then_the_output_is_the_same(self, store: Store) -> None:
        for begun, built in ((0, 0), (2, 0), (0, 1), (0, 3), (2, 2), (0, 4), (3, 5), (0, 11), (0, 12), (2, 11)):
            it = made(store, name=f"{begun} {built}").id
            for first, last in ((0, begun), (begun, begun + built)):
                do_one(store, WriteOutput(it, first, last, tuple(numbered(first, last))))
            cuts = (begun, begun + 3, begun + 4, begun + 9, begun + 12)
            chunks = [numbered(*ends) for ends in pairwise(cuts)]
            winners = staged(store, it, 0, *chunks[:2]), staged(store, it, 1, *chunks[2:])
            total = begun + 12
            assert do_one(store, Install(it, begun, begun, total, winners)) == Installed(total, 12 - built, total)
            assert output(store, it) == numbered(0, total)

    def test_a_filter_passes_over_what_it_has_however_far_it_has_read(self, store: Store) -> None:
        it = made(store, "filter").id
        do_one(store, WriteOutput(it, 0, 40, tuple(numbered(0, 2))))
        winner = staged(store, it, 0, numbered(0, 5))
        assert do_one(store, Install(it, 0, 0, 100, (winner,))) == Installed(5, 3, 100)
        assert output(store, it) == numbered(0, 5)
        assert do_one(store, Install(it, 100, 5, 150, ())) == Installed(5, 0, 150), "nothing passed"
        assert now(store) == (150, 5, None)

    def test_nothing_is_added_where_the_server_has_read_as_far(self, store: Store) -> None:
        it = made(store).id
        winner = staged(store, it, 0, numbered(0, 5))
        do_one(store, WriteOutput(it, 0, 6, tuple(numbered(0, 6))))
        assert do_one(store, Install(it, 0, 0, 5, (winner,))) == Installed(6, 0, 6)
        assert do_one(store, Unstage(output_job(it))) == 0
        assert do_one(store, Install(it, 0, 0, 5, (winner,))) == Installed(6, 0, 6), "the same again is no error"
        assert output(store, it) == numbered(0, 6)

    def test_messages_are_counted_from_where_a_log_begins(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        append(store, "log", some(4), context=LOG_CONTEXT)
        do(store, DeleteLog("log"), AddLog("log"))
        it = made(store, log="log")
        assert it.base == 4
        winner = staged(store, it.id, 0, numbered(0, 3))
        assert do_one(store, Install(it.id, 0, 0, 3, (winner,))) == Installed(3, 3, 3)
        assert now(store) == (7, 3, None)
        erase_all(store)

    def test_the_accumulator_is_that_of_the_last_item(self, store: Store) -> None:
        it = made(store, "reduce").id
        do_one(store, WriteOutput(it, 0, 2, tuple(numbered(0, 2)), b"two"))
        winner = staged(store, it, 0, numbered(2, 4), [b"x" * 300_000], numbered(5, 6))
        assert do_one(store, Install(it, 2, 2, 6, (winner,), b"six")) == Installed(6, 4, 6)
        assert now(store) == (6, 6, b"six")
        do_one(store, Install(it, 6, 6, 6, (), b"ignored"))
        assert now(store) == (6, 6, b"six")
        do_one(store, WriteOutput(it, 6, 7, (b"item 6",)))
        assert now(store) == (7, 7, None), "an accumulator of an earlier row is none"

    def test_chunks_that_are_not_there_any_more_fail_the_installation(self, store: Store) -> None:
        it = made(store).id
        winner = staged(store, it, 0, numbered(0, 3), numbered(3, 4))
        for winners in ((Winner(0, "a", 3),), (Winner(0, "b", 2),), (winner, Winner(1, "a", 1))):
            lost = attempt(store, Install(it, 0, 0, 4, winners))
            assert isinstance(lost, StageLost)
        assert now(store) == (0, 0, None)
        assert do_one(store, Install(it, 0, 0, 4, (winner,))) == Installed(4, 4, 4)

    def test_items_that_cannot_be_leave_nothing_behind(self, store: Store) -> None:
        for kind, place, reason in (
            ("map", (0, 0, 4), "3 items for 4 messages of a map"),
            ("reduce", (0, 0, 2), "3 items for 2 messages"),
            ("filter", (0, 0, 2), "3 items for 2 messages"),
            ("map", (1, 0, 4), "where the iterator has never been"),
            ("map", (0, 1, 3), "where the iterator has never been"),
            ("map", (-1, 0, 2), "where the iterator has never been"),
        ):
            name = f"{kind} {place}"
            it = made(store, kind, name).id
            winner = staged(store, it, 0, numbered(0, 2), numbered(2, 3))
            bad = Transaction((Install(it, *place, (winner,)),))
            refused, neighbour = store.write([bad, Transaction((commit("other", some(1)),))])
            assert isinstance(refused, InvalidRequest)
            assert reason in str(refused)
            assert isinstance(neighbour, list)
            assert (now(store, name), output(store, it)) == ((0, 0, None), [])
            assert do_one(store, Install(it, 0, 0, 3, (winner,))) == Installed(3, 3, 3), "it is staged still"

    def test_a_filter_that_has_more_for_fewer_messages_is_refused(self, store: Store) -> None:
        it = made(store, "filter").id
        winner = staged(store, it, 0, numbered(0, 2))
        do_one(store, WriteOutput(it, 0, 10, tuple(numbered(0, 3))))
        assert isinstance(attempt(store, Install(it, 0, 0, 20, (winner,))), InvalidRequest)
        assert now(store) == (10, 3, None)

    def test_a_map_and_a_reduce_begin_with_as_many_items_as_messages(self, store: Store) -> None:
        for kind in ("map", "reduce"):
            it = made(store, kind, name=kind).id
            do_one(store, WriteOutput(it, 0, 3, tuple(numbered(0, 3))))
            winner = staged(store, it, 0, numbered(2, 5))
            for begun in ((2, 3), (3, 2)):
                assert isinstance(attempt(store, Install(it, *begun, 6, (winner,))), InvalidRequest)
            assert do_one(store, Install(it, 2, 2, 5, (winner,))) == Installed(5, 2, 5)

    def test_an_installation_whose_transaction_fails_is_none(self, store: Store) -> None:
        it = made(store).id
        winner = staged(store, it, 0, numbered(0, 3))
        install = Install(it, 0, 0, 3, (winner,))
        assert isinstance(attempt(store, install, commit("s", some(1), 9)), VersionConflict)
        assert (now(store), output(store, it)) == ((0, 0, None), [])
        assert do_one(store, install) == Installed(3, 3, 3)

    def test_what_is_no_chunk_is_not_installed(self, store: Store) -> None:
        it = made(store).id
        for part, chunk in enumerate((b"", b"\x01", b"\x02\0\0\0\x01\0\0\0\x01\0\0\0x", b"\xff\xff\xff\xff")):
            unit = make_output_unit(chunk)
            do_one(store, Stage(output_job(it), part, "a", 0, (unit,), *PLENTY))
            assert isinstance(attempt(store, Install(it, 0, 0, 1, (Winner(part, "a", 1),))), InvalidRequest)
        assert now(store) == (0, 0, None)

    def test_many_items_are_installed_in_few_rows(self, store: Store) -> None:
        it = made(store).id
        total = 3 * CHUNK_ITEMS_MAX
        winner = staged(store, it, 0, *(numbered(at, at + 128) for at in range(0, total, 128)))
        do_one(store, Install(it, 0, 0, total, (winner,)))
        for ordinal in (0, 127, CHUNK_ITEMS_MAX - 1, CHUNK_ITEMS_MAX, total - 1):
            page = store.read_output(it, ordinal, ReadLimits(events_max=200))
            assert page == numbered(ordinal, min(ordinal + 200, total))

    # -- iterators that are gone

    def test_output_is_staged_only_for_an_iterator_that_is_there(self, store: Store) -> None:
        it = made(store).id
        for number in (it + 1, 10**17):
            assert isinstance(attempt(store, stage_output(number, 0, numbered(0, 1))), IteratorNotFound)
            assert isinstance(attempt(store, Install(number, 0, 0, 1, ())), IteratorNotFound)
        for job in ("penstock:output:", f"penstock:output:{it}x", "penstock:output:-1", "penstock:other"):
            assert isinstance(attempt(store, Stage(job, 0, "a", 0, (), *PLENTY)), InvalidRequest)
        plain = do_one(store, AddIterator("plain", "shop/s", "map", "return msg", False))
        assert isinstance(plain, IteratorState)
        assert isinstance(attempt(store, Install(plain.id, 0, 0, 1, ())), InvalidRequest)

    def test_what_is_staged_for_an_iterator_is_dropped_with_it(self, store: Store) -> None:
        do(store, AddLog("log"), AddLog("other"))
        gone = [made(store, name="a", log="log"), made(store, name="b", log="a"), made(store, name="c", log="b")]
        stays = made(store, name="stays", log="other")
        winners = [staged(store, one.id, 0, numbered(0, 2)) for one in (*gone, stays)]
        do_one(store, DeleteIterator("b", "c"))
        assert do_one(store, Unstage(output_job(gone[2].id))) == 0
        do_one(store, DeleteLog("log"))
        for one, winner in zip(gone, winners, strict=False):
            assert do_one(store, Unstage(output_job(one.id))) == 0
            assert isinstance(attempt(store, Install(one.id, 0, 0, 2, (winner,))), IteratorNotFound)
            assert isinstance(attempt(store, stage_output(one.id, 0, numbered(0, 1))), IteratorNotFound)
        assert do_one(store, Install(stays.id, 0, 0, 2, (winners[3],))) == Installed(2, 2, 2)

    def test_what_is_staged_is_dropped_when_an_iterator_begins_anew(self, store: Store) -> None:
        append(store, "s", some(2))
        before = made(store).id
        below = made(store, name="below", log="it").id
        winners = [staged(store, one, 0, numbered(0, 2)) for one in (before, below)]
        do_one(store, HideStream("shop", "s"))
        for one, winner in zip((before, below), winners, strict=True):
            assert isinstance(attempt(store, Install(one, 0, 0, 2, (winner,))), IteratorNotFound)
            assert do_one(store, Unstage(output_job(one))) == 0
        again = store.iterator("it")
        assert again is not None
        winner = staged(store, again.id, 0, [b"\xf6", b"\xf6"])
        assert do_one(store, Install(again.id, 0, 0, 2, (winner,))) == Installed(2, 2, 2)
        erase_all(store)
