"""Seals: many small records become one, and nobody can tell but by the records themselves."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle

import pytest

from penstock.errors import DamagedRecord
from penstock.model import LOG_CONTEXT, Appended, Event, EventFilter
from penstock.store import Store
from penstock.store.contract import AddLog, DeleteLog, Erase, HideStream, ReadLimits, Seal, Transaction
from penstock.store.record import CHECKSUM_BYTES, with_checksum
from penstock.store.seals import BLOCK_BITS, next_seal
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.contract.reads import FILTERS, LIMITS, backward, fill
from tests.store.contract.records import records_of
from tests.store.contract.search import first_at
from tests.store.contract.transactions import picture
from tests.store.kit import append, commit, do_one, event, everything, find, new_part, passes, some, stream_of

BLOCK = 1 << BLOCK_BITS


def close_block(store: Store, stream: str = "filler", context: str = "filler") -> None:
    """Append up to where the next position lies in another block."""
    missing = BLOCK - (store.head() + 1) % BLOCK
    append(store, stream, some(missing), context=context)
    assert (store.head() + 1) % BLOCK == 0


def append_singly(store: Store, streams: Sequence[str], number: int, **fields: object) -> None:
    """Many commits of one event each."""
    commits = [commit(streams[n % len(streams)], some(1, **fields)) for n in range(number)]
    for outcome in store.write([Transaction((one,)) for one in commits]):
        assert isinstance(outcome, list)


def seal_all(store: Store) -> int:
    """Seal whatever is closed; how many steps it took."""
    steps = 0
    while (step := next_seal(store)) is not None:
        assert step.next > store.sealed(), "a step must lead on"
        assert do_one(store, step) is True
        assert store.sealed() == step.next
        steps += 1
    return steps


def spans(store: Store) -> list[tuple[int, int]]:
    """Where each record begins and ends."""
    return [(record.position, record.last) for record in records_of(store, EventFilter(), ReadLimits())]


class SealContract(StoreCase):
    @pytest.fixture
    def history(self, store: Store) -> list[Event]:
        """A history of several closed blocks, of small commits and large ones."""
        fill(store)
        append_singly(store, ["a", "b", "orders"], BLOCK - 300)
        close_block(store)
        append(store, "b", some(2 * BLOCK + 7))
        for _ in range(5):
            fill(store)
        close_block(store)
        fill(store)
        return everything(store)

    def test_nothing_is_sealed_before_its_block_is_closed(self, store: Store) -> None:
        assert store.sealed() == 1
        assert store.unsealed() is None
        append_singly(store, ["a"], BLOCK - 2)
        assert (store.head(), store.unsealed(), next_seal(store)) == (BLOCK - 2, None, None)
        append(store, "a", some(1))
        assert seal_all(store) == 1
        assert store.sealed() == BLOCK
        assert spans(store) == [(1, BLOCK - 1)]
        assert store.unsealed() is None

    def test_a_sealed_history_reads_like_it_did_before(self, store: Store, history: list[Event]) -> None:
        before, records = picture(store), len(spans(store))
        assert seal_all(store) > 1
        assert picture(store) == before
        assert len(spans(store)) < records / 10
        # All filters with all limits are for histories that are short.
        for wanted, limits in zip(FILTERS, cycle(LIMITS), strict=False):
            found = everything(store, wanted, limits._replace(events_max=max(limits.events_max, 50)))
            assert found == [one for one in history if passes(wanted, one)]

    def test_positions_stay_dense_and_records_begin_in_their_blocks(self, store: Store, history: list[Event]) -> None:
        seal_all(store)
        found = spans(store)
        assert [position for first, last in found for position in range(first, last + 1)] == [
            one.position for one in history
        ]
        mark = store.sealed()
        assert mark in [first for first, _ in found]
        assert mark >> BLOCK_BITS == (store.head() + 1) >> BLOCK_BITS

    def test_streams_and_times_are_found_in_sealed_records(self, store: Store) -> None:
        store.write([Transaction((commit("ab"[n % 2], [event(n * 7 % 50)]),)) for n in range(BLOCK)])
        history = everything(store)
        seal_all(store)
        for stream in "ab":
            mine = [one for one in history if one.stream == stream]
            assert stream_of(store, stream) == mine
            assert backward(store, stream, limits=ReadLimits()) == [one.sequence for one in reversed(mine)]
            page = store.read_stream("shop", stream, 1000, 1010, ReadLimits())
            assert [one.sequence for one in page.events] == list(range(1000, 1011))
        for wanted in (EventFilter("shop"), EventFilter("shop", "b"), EventFilter()):
            for ticks in range(0, 55, 6):
                assert find(store, wanted, ticks) == first_at(history, wanted, ticks)

    def test_repeats_appends_and_conflicts_see_through_sealed_records(self, store: Store) -> None:
        commits = [commit("a", some(3), 3 * n + 1) for n in range(BLOCK // 3 + 1)]
        first = store.write([Transaction((one,)) for one in commits])
        seal_all(store)
        for index in (0, 1, 700, len(commits) - 1):
            again, answer = do_one(store, commits[index]), first[index]
            assert isinstance(again, Appended)
            assert isinstance(answer, list)
            assert isinstance(answer[0], Appended)
            assert (again.commit, again.position) == (answer[0].commit, answer[0].position)
            assert again.repeated
        assert append(store, "a", some(1), 3 * len(commits) + 1).position == store.head()

    @pytest.mark.parametrize("events", [1, 3], ids=["commits of one event", "commits of three"])
    def test_a_seal_that_has_other_events_than_it_replaces_is_refused(self, store: Store, events: int) -> None:
        for number in range(12):
            made = [event(number, f"t{number % 2}", "{}" if number % 3 else None, b"%d" % number), *some(events - 1)]
            append(store, f"s{number % 4}", made, context=f"c{number % 2}")
        close_block(store)
        seal = next_seal(store)
        assert seal is not None
        assert seal.data is not None
        before, records = everything(store), spans(store)
        rest = seal.data[CHECKSUM_BYTES:]
        for at in (*range(0, len(rest), 11), len(rest) - 1):
            other = rest[:at] + bytes([rest[at] ^ 0x01]) + rest[at + 1 :]
            (outcome,) = store.write([Transaction((replace(seal, data=with_checksum(other)),))])
            assert outcome == [False] or isinstance(outcome, DamagedRecord), at
            # The last byte is one of a body.
            assert at < len(rest) - 1 or "other events" in str(outcome)
        assert (everything(store), spans(store), store.sealed()) == (before, records, 1)
        assert do_one(store, seal) is True
        assert everything(store) == before
        assert len(spans(store)) < len(records)

    def test_a_commit_that_reaches_into_the_next_block_is_sealed_with_its_own(self, store: Store) -> None:
        append_singly(store, ["a"], BLOCK - 10)
        append(store, "b", some(100))
        append_singly(store, ["a"], BLOCK)
        history = everything(store)
        seal_all(store)
        assert spans(store)[:2] == [(1, BLOCK + 90), (BLOCK + 91, 2 * BLOCK - 1)]
        assert everything(store) == history

    def test_a_seal_is_done_once(self, store: Store) -> None:
        append_singly(store, ["a"], BLOCK)
        step = next_seal(store)
        assert step is not None
        assert do_one(store, step) is True
        before = spans(store)
        assert do_one(store, step) is False
        assert spans(store) == before

    def test_a_seal_that_does_not_fit_the_records_is_not_done(self, store: Store) -> None:
        append_singly(store, ["a"], BLOCK)
        step = next_seal(store)
        assert step is not None
        before = spans(store)
        for wrong in (
            Seal(step.first, step.last + 1, step.data, step.next, step.ledger),
            Seal(step.first, store.head() + 10, step.data, step.next, step.ledger),
            Seal(step.first, step.last, step.data, store.sealed(), step.ledger),
            Seal(step.first, step.last, step.data, step.next, (step.ledger[0] + 1, step.ledger[1])),
            Seal(step.first, step.last, step.data, step.next, (step.ledger[0], step.ledger[1] + 1)),
        ):
            assert do_one(store, wrong) is False
        assert spans(store) == before
        assert store.sealed() == 1

    def test_a_seal_from_before_an_erasure_or_a_step_of_it_is_not_done(self, store: Store) -> None:
        append_singly(store, ["a", "b"], BLOCK)
        stale = next_seal(store)
        assert stale is not None
        do_one(store, HideStream("shop", "a"))
        assert do_one(store, stale) is False
        between = next_seal(store)
        assert between is not None
        do_one(store, Erase(10))
        assert do_one(store, between) is False
        erase_all(store, 1000)
        seal_all(store)
        assert {one.stream for one in everything(store)} == {"b"}

    @pytest.mark.parametrize("records_max", [1, 1000])
    def test_an_erasure_goes_on_in_sealed_records(self, store: Store, records_max: int) -> None:
        append_singly(store, ["a", "b"], BLOCK + 100)
        do_one(store, HideStream("shop", "a"))
        for _ in range(3):
            do_one(store, Erase(5))
        seal_all(store)
        assert {one.stream for one in everything(store)} == {"b"}
        erase_all(store, records_max)
        assert {one.stream for one in everything(store)} == {"b"}
        assert stream_of(store, "a") == []
        assert store.stream_head("shop", "a") == (BLOCK + 100) // 2

    def test_a_deleted_log_is_erased_from_sealed_records_and_what_came_after_it_stays(self, store: Store) -> None:
        do_one(store, AddLog("log"))
        store.write([Transaction((commit("log", some(1), context=LOG_CONTEXT),)) for _ in range(500)])
        do_one(store, DeleteLog("log"))
        do_one(store, AddLog("log"))
        append_singly(store, ["x"], 100)
        append(store, "log", some(3), context=LOG_CONTEXT)
        close_block(store)
        seal_all(store)
        erase_all(store)
        assert [one.sequence for one in stream_of(store, "log", LOG_CONTEXT)] == [501, 502, 503]

    def test_tombstones_are_sealed_like_other_events(self, store: Store) -> None:
        append_singly(store, ["a", "b"], 200)
        do_one(store, HideStream("shop", "a"))
        erase_all(store, 1000)
        close_block(store)
        before = everything(store)
        assert seal_all(store) == 1
        assert everything(store) == before
        again = append(store, "a", some(1), 101)
        assert (again.sequence, again.repeated) == (101, False)

    def test_a_reader_says_the_same_as_the_writer(self, store: Store, reader: Store) -> None:
        append_singly(store, ["a", "b"], BLOCK)
        step = next_seal(reader)
        assert step == next_seal(store)
        assert step is not None
        assert do_one(store, step) is True
        assert reader.sealed() == store.sealed() == BLOCK
        assert reader.unsealed() is None
        assert [new_part(one) for one in everything(reader)] == [new_part(one) for one in everything(store)]

    def test_the_mark_stays_when_the_store_is_recovered(self, store: Store) -> None:
        append_singly(store, ["a"], BLOCK)
        seal_all(store)
        store.recover()
        assert store.sealed() == BLOCK
        assert store.unsealed() is None
