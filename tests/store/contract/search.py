"""The position of a time, and the lists of contexts and streams."""

import random

import pytest

from penstock.model import Event, EventFilter, StreamInfo
from penstock.store import Store
from penstock.store.contract import ReadLimits, Transaction
from tests.store.contract.case import StoreCase
from tests.store.kit import append, commit, event, everything, find, passes, some

SHOP = EventFilter("shop")
NAMES = [
    "A",
    "Ab",
    "a",
    "a%",
    "a_",
    "ab",
    "b",
    "\ud7ff",
    "\ud7ffx",
    "\ue000",
    "Ω",
    "Ωa",
    "\U0010ffff",
    "\U0010ffffz",
    "z",
    "z\U0010ffff",
    "z*",
]
"""In the order of their UTF-8 bytes when sorted, which is that of their code points."""


def first_at(history: list[Event], wanted: EventFilter, ticks: int) -> int | None:
    """What `find_position` means, said plainly."""
    return next((one.position for one in history if passes(wanted, one) and one.ticks >= ticks), None)


class SearchContract(StoreCase):
    # -- times

    def test_a_time_is_found_at_the_first_event_at_or_after_it(self, store: Store) -> None:
        for ticks in (10, 20, 20, 30):
            append(store, "orders", [event(ticks)])
        right = {0: 1, 10: 1, 11: 2, 20: 2, 21: 4, 30: 4, 31: None}
        assert {ticks: find(store, SHOP, ticks) for ticks in right} == right

    def test_times_out_of_order_are_found_in_the_order_of_positions(self, store: Store) -> None:
        append(store, "orders", [event(50), event(10), event(70)])
        append(store, "orders", [event(5), event(100), event(60)])
        right = {1: 1, 50: 1, 51: 3, 70: 3, 71: 5, 100: 5, 101: None}
        assert {ticks: find(store, SHOP, ticks) for ticks in right} == right

    def test_nothing_is_found_where_nothing_is(self, store: Store) -> None:
        assert find(store, SHOP, 0) is None
        append(store, "orders", [event(10)])
        assert find(store, EventFilter("nowhere"), 0) is None
        assert find(store, EventFilter("shop", "x"), 0) is None
        assert find(store, EventFilter("nowhere", "x"), 0) is None

    def test_the_kind_of_a_time_does_not_count(self, store: Store) -> None:
        sent = [event()._replace(stamp=kind << 62 | ticks) for kind, ticks in ((3, 10), (0, 20), (1, 30), (2, 40))]
        append(store, "orders", sent)
        assert [find(store, SHOP, ticks) for ticks in (10, 20, 30, 40, 41)] == [1, 2, 3, 4, None]

    def test_one_context_never_moves_the_time_of_another(self, store: Store) -> None:
        append(store, "orders", [event(10)])
        append(store, "orders", [event(1_000_000)], context="other")
        append(store, "orders", [event(20)])
        assert find(store, SHOP, 15) == 3
        assert find(store, EventFilter("other"), 15) == 2
        assert find(store, EventFilter(), 15) == 2

    @pytest.mark.parametrize("limits", [ReadLimits(), ReadLimits(events_max=5), ReadLimits(scan_ms_max=0)])
    def test_a_search_in_steps_finds_the_same(self, store: Store, limits: ReadLimits) -> None:
        chance = random.Random(1)
        for _ in range(40):
            append(store, chance.choice("ab"), [event(chance.randrange(100)) for _ in range(chance.randrange(1, 5))])
        history = everything(store)
        for wanted in (EventFilter(), SHOP, EventFilter("shop", "b")):
            for ticks in range(0, 102, 3):
                assert find(store, wanted, ticks, limits) == first_at(history, wanted, ticks)

    def test_a_search_from_somewhere_finds_nothing_before_it(self, store: Store) -> None:
        append(store, "orders", [event(ticks) for ticks in (50, 10, 50, 10, 50)])
        for start, right in ((1, 1), (2, 3), (3, 3), (4, 5), (5, 5)):
            assert store.find_position(SHOP, 50, ReadLimits(), start).position == right
        assert store.find_position(SHOP, 50, ReadLimits(), 6) == (None, 6, True)

    def test_times_in_a_long_history_are_found_exactly(self, store: Store) -> None:
        # Longer than three of the blocks a backend might index by, with records across their borders, a context
        # that is quiet for long, and times that jump ahead and fall back.
        chance = random.Random(2)
        batch: list[Transaction] = []
        clock = 0
        while len(batch) < 900:
            clock += 1000
            size = chance.choice((1, 3, 40))
            jump = 50_000_000 if len(batch) == 300 else 0
            times = [clock + jump - chance.randrange(5000) for _ in range(size)]
            context = "rare" if len(batch) % 297 == 5 else "shop" if len(batch) % 3 else "busy"
            batch.append(
                Transaction((commit(chance.choice("ab"), [event(max(t, 0)) for t in times], context=context),))
            )
        store.write(batch)
        history = everything(store)
        assert len(history) > 3 * 4096
        times = [chance.randrange(clock + 5000) for _ in range(60)] + [0, clock + 10_000, 50_300_000, 60_000_000]
        times += [one.ticks + extra for one in chance.sample(history, 30) for extra in (0, 1)]
        for context in ("shop", "busy", "rare"):
            for wanted in (EventFilter(context), EventFilter(context, "b")):
                for ticks in times:
                    assert find(store, wanted, ticks) == first_at(history, wanted, ticks), (wanted, ticks)

    def test_a_time_is_found_while_the_context_still_grows(self, store: Store) -> None:
        for number in range(30):
            append(store, "orders", some(500, ticks=number * 10))
            assert find(store, SHOP, number * 10) == number * 500 + 1
            assert find(store, SHOP, number * 10 + 1) is None

    # -- names

    def test_contexts_are_listed_by_name_with_their_counts(self, store: Store) -> None:
        append(store, "a", some(3), context="b")
        append(store, "a", some(1), context="b")
        append(store, "b", some(1), context="b")
        append(store, "a", some(1), context="a")
        store.write([Transaction((commit("c", some(1), 9, "b"),))])
        found = store.contexts("", 10)
        assert [(one.name, one.events, one.commits, one.streams) for one in found] == [("a", 1, 1, 1), ("b", 5, 3, 2)]
        assert all(one.bytes > 0 for one in found)

    def test_the_counts_of_a_context_survive_a_failed_neighbour_and_opening_again(self, store: Store) -> None:
        for number in range(5):
            store.write(
                [
                    Transaction((commit("a", some(2)), commit(f"s{number}", some(1)))),
                    Transaction((commit("a", some(2)), commit(f"t{number}", some(1)), commit("a", some(1), 999))),
                    Transaction((commit("a", some(1), 999),)),
                ]
            )
            store.recover()
        (found,) = store.contexts("", 10)
        assert (found.events, found.commits, found.streams) == (15, 10, 6)

    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_lists_are_paged_in_the_order_of_names(self, store: Store, limit: int) -> None:
        store.write([Transaction((commit(name, some(1), context=name),)) for name in NAMES])
        store.write([Transaction((commit(name, some(2)),)) for name in NAMES])
        contexts, after = [], ""
        while page := store.contexts(after, limit):
            contexts += [one.name for one in page]
            after = contexts[-1]
        assert contexts == sorted([*NAMES, "shop"])
        streams: list[StreamInfo] = []
        after = ""
        while found := store.streams("shop", "", after, limit):
            assert len(found) <= limit
            streams += found
            after = found[-1].name
        assert streams == [StreamInfo(name, 2) for name in sorted(NAMES)]

    @pytest.mark.parametrize("prefix", ["", *NAMES, "c", "\U0010ffff\U0010ffff", "\ud7ff\U0010ffff", "zz", "*"])
    def test_a_prefix_means_what_it_says_in_any_script(self, store: Store, prefix: str) -> None:
        store.write([Transaction((commit(name, some(1)),)) for name in NAMES])
        right = [name for name in sorted(NAMES) if name.startswith(prefix)]
        assert [one.name for one in store.streams("shop", prefix, "", 100)] == right
        for after in NAMES:
            found = [one.name for one in store.streams("shop", prefix, after, 100)]
            assert found == [name for name in right if name > after]
        if prefix != "*":
            for context in ("shop", None):
                assert sorted(one.stream for one in everything(store, EventFilter(context, prefix))) == right

    def test_a_context_that_is_not_there_has_no_streams(self, store: Store) -> None:
        append(store, "orders", some(1))
        assert store.streams("nowhere", "", "", 10) == []
        assert store.contexts("shop", 10) == []
