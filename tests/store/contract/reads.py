"""Reading streams, and everything, page by page: any limits give the same events as no limits."""

from collections.abc import Collection
from itertools import product

import pytest

from penstock.model import Event, EventFilter
from penstock.store import Store
from penstock.store.contract import Page, ReadLimits, Transaction
from tests.seeds import rng
from tests.store.contract.case import StoreCase
from tests.store.kit import append, commit, everything, new_part, pages, passes, some, stream_of

FILTERS = [
    EventFilter(context, prefix, types)
    for context, prefix, types in product(
        (None, "shop", "other", "nowhere"),
        ("", "*", "or", "orders", "orders-", "*x", "zz", "Ω"),
        (None, ("a",), ("b", "a"), ("z",), ()),
    )
]
LIMITS = [
    ReadLimits(),
    ReadLimits(events_max=1),
    ReadLimits(events_max=7),
    ReadLimits(bytes_max=1),
    ReadLimits(bytes_max=700),
    ReadLimits(scan_ms_max=0),
]


def filters_with(limits: ReadLimits) -> list[EventFilter]:
    """All of them with the usual limits; with others, which take many pages, some: other ones in each run."""
    return FILTERS if limits == ReadLimits() else rng(f"filters with {limits}").sample(FILTERS, 40)


def fill(store: Store) -> list[Event]:
    """A small history of many streams in several contexts."""
    streams = ["orders", "orders-1", "orders-10", "or", "*", "*x", "Ωmega", "x"]
    batch = [
        Transaction((commit(streams[n % 8], some(n % 5 + 1, type="ab"[n % 2]), context=("shop", "other")[n % 3 == 0]),))
        for n in range(60)
    ]
    store.write(batch)
    return everything(store)


def backward(
    store: Store, stream: str, first: int = 0, last: int | None = None, limits: ReadLimits | None = None
) -> list[int]:
    """The sequences of a backward read, page by page."""
    found: list[int] = []
    while True:
        page = store.read_stream("shop", stream, first, last, limits or ReadLimits(), backward=True)
        found += [one.sequence for one in page.events]
        if page.end:
            return found
        assert page.next >= 1, "there is more, so there is a sequence to read on from"
        first = page.next


def all_of(
    store: Store, limits: ReadLimits, first: int, last: int | None, back: bool, types: Collection[str]
) -> list[Event]:
    """A part of a stream, page by page, each of which keeps its limit."""
    found: list[Event] = []
    while True:
        page = store.read_stream("shop", "orders", first, last, limits, back, types)
        assert len(page.events) <= limits.events_max
        found += page.events
        if page.end:
            return found
        assert page.next < (first or 1000) if back else page.next > first
        first = page.next


class ReadContract(StoreCase):
    # -- one stream

    def test_a_stream_has_its_own_events_only(self, store: Store) -> None:
        history = fill(store)
        for context in ("shop", "other"):
            for stream in {one.stream for one in history}:
                mine = [one for one in history if (one.context, one.stream) == (context, stream)]
                assert stream_of(store, stream, context) == mine
                assert store.stream_head(context, stream) == len(mine)

    def test_names_that_begin_alike_are_different_streams(self, store: Store) -> None:
        for name in ("a", "ab", "abc", "*", "a*", "A"):
            append(store, name, some(2, body=name.encode()))
        for name in ("a", "ab", "abc", "*", "a*", "A"):
            assert {one.body for one in stream_of(store, name)} == {name.encode()}
            assert backward(store, name) == [2, 1]

    def test_a_stream_that_is_not_there_is_empty(self, store: Store) -> None:
        append(store, "orders", some(1))
        for context, stream in (("shop", "order"), ("nowhere", "orders"), ("shop", "")):
            assert store.read_stream(context, stream, 1, None, ReadLimits()).events == []
            assert store.read_stream(context, stream, 1, None, ReadLimits()).end
            assert store.read_stream(context, stream, 0, None, ReadLimits(), backward=True).end
            assert store.stream_head(context, stream) == 0

    @pytest.mark.parametrize("limits", LIMITS)
    def test_any_stretch_of_a_stream_can_be_read_with_any_limits(self, store: Store, limits: ReadLimits) -> None:
        for size in (3, 1, 1, 4, 2):
            append(store, "orders", some(size))
            append(store, "others", some(1))
        for first, last in product((0, 1, 2, 4, 9, 11, 12, 50), (None, 1, 3, 4, 9, 11, 12, 50)):
            wanted = [n for n in range(1, 12) if n >= first and (last is None or n <= last)]
            found: list[int] = []
            start = first
            while True:
                page = store.read_stream("shop", "orders", start, last, limits)
                found += [one.sequence for one in page.events]
                if page.end:
                    break
                assert page.next > start
                start = page.next
            assert found == wanted, (first, last)

    @pytest.mark.parametrize("limits", LIMITS)
    def test_any_stretch_of_a_stream_can_be_read_backward(self, store: Store, limits: ReadLimits) -> None:
        for size in (3, 1, 1, 4, 2):
            append(store, "orders", some(size))
            append(store, "others", some(1))
        for first, last in product((0, 1, 2, 4, 9, 11, 12, 50), (None, 1, 3, 4, 9, 11, 12, 50)):
            top = 11 if first == 0 else min(first, 11)
            assert backward(store, "orders", first, last, limits) == list(range(top, (last or 1) - 1, -1)), (
                first,
                last,
            )

    @pytest.mark.parametrize("limits", LIMITS)
    def test_a_stream_of_some_types_can_be_read_both_ways(self, store: Store, limits: ReadLimits) -> None:
        sizes = [3, 1, 40, 1, 4, 2]
        for number, size in enumerate(sizes):
            events = [some(1, type="rare" if number == 4 else "ab"[at % 2])[0] for at in range(size)]
            append(store, "orders", events)
            append(store, "others", some(1, type="rare"))
        history = stream_of(store, "orders")
        wanted = (("rare",), ("a",), ("b", "rare"), ("z",), ())
        for types, first, last in product(wanted, (0, 3, 45), (None, 4, 49, 99)):
            for back in (False, True):
                low, high = (last or 1, first or 99) if back else (first, last or 99)
                right = [one for one in history if one.type in types and low <= one.sequence <= high]
                assert all_of(store, limits, first, last, back, types) == (right[::-1] if back else right)

    def test_a_page_of_types_goes_on_behind_what_it_has_searched(self, store: Store) -> None:
        for number in range(40):
            append(store, "orders", some(10, type="rare" if number == 30 else "common"))
        hasty = ReadLimits(scan_ms_max=0)
        page = store.read_stream("shop", "orders", 1, None, hasty, types=("rare",))
        assert (page.events, page.next, page.end) == ([], 11, False)
        page = store.read_stream("shop", "orders", 0, None, hasty, backward=True, types=("rare",))
        assert (page.events, page.next, page.end) == ([], 390, False)
        page = store.read_stream("shop", "orders", 1, 5, hasty, types=("rare",))
        assert (page.events, page.next, page.end) == ([], 6, True)
        page = store.read_stream("shop", "orders", 1, None, ReadLimits(), types=("never",))
        assert (page.events, page.next, page.end) == ([], 401, True)
        page = store.read_stream("shop", "orders", 1, None, ReadLimits(events_max=4), types=("rare",))
        assert ([one.sequence for one in page.events], page.next, page.end) == ([301, 302, 303, 304], 305, False)

    def test_a_page_of_a_stream_keeps_its_limits(self, store: Store) -> None:
        append(store, "orders", some(10, body=b"x" * 1000))
        page = store.read_stream("shop", "orders", 1, None, ReadLimits(events_max=4))
        assert ([one.sequence for one in page.events], page.next, page.end) == ([1, 2, 3, 4], 5, False)
        assert 2 <= len(store.read_stream("shop", "orders", 1, None, ReadLimits(bytes_max=3000)).events) <= 4
        assert len(store.read_stream("shop", "orders", 1, None, ReadLimits(bytes_max=1)).events) == 1
        page = store.read_stream("shop", "orders", 0, None, ReadLimits(events_max=4), backward=True)
        assert ([one.sequence for one in page.events], page.next, page.end) == ([10, 9, 8, 7], 6, False)

    def test_the_last_page_of_a_stream_says_so(self, store: Store) -> None:
        append(store, "orders", some(4))
        assert store.read_stream("shop", "orders", 1, None, ReadLimits(events_max=4)).end
        assert store.read_stream("shop", "orders", 1, 2, ReadLimits(events_max=2)).end
        assert store.read_stream("shop", "orders", 3, 2, ReadLimits()).end
        end = store.read_stream("shop", "orders", 1, None, ReadLimits())
        assert (end.next, end.end) == (5, True)
        append(store, "orders", some(1))
        assert [one.sequence for one in store.read_stream("shop", "orders", end.next, None, ReadLimits()).events] == [5]

    def test_a_stream_of_many_commits_is_read_whole(self, store: Store) -> None:
        sent = some(1500)
        store.write([Transaction((commit(("orders", "others")[n % 2], [one]),)) for n, one in enumerate(sent)])
        assert [new_part(one) for one in stream_of(store, "orders")] == sent[::2]
        assert backward(store, "orders") == list(range(750, 0, -1))

    # -- everything

    @pytest.mark.parametrize("limits", LIMITS)
    def test_every_filter_gives_what_it_says(self, store: Store, limits: ReadLimits) -> None:
        history = fill(store)
        for wanted in filters_with(limits):
            assert everything(store, wanted, limits) == [one for one in history if passes(wanted, one)], wanted

    def test_reading_from_any_position_to_any_end_gives_the_same_events(self, store: Store) -> None:
        history = fill(store)[:60]
        for wanted in (EventFilter(), EventFilter("shop"), EventFilter(None, "or"), EventFilter("shop", "or", ("a",))):
            for start, limits in product(range(0, 62, 3), (ReadLimits(), ReadLimits(events_max=3))):
                for end in (1, 2, 7, 31, 59, 60):
                    right = [one for one in history if start <= one.position <= end and passes(wanted, one)]
                    assert everything(store, wanted, limits, start, end) == right, (wanted, start, end, limits)

    @pytest.mark.parametrize("limits", [ReadLimits(), ReadLimits(events_max=2), ReadLimits(bytes_max=1)])
    def test_a_read_with_an_end_leads_on_to_what_comes_after_it(self, store: Store, limits: ReadLimits) -> None:
        append(store, "orders", some(10))
        append(store, "others", some(10))
        for end in range(1, 21):
            start, found = 1, []
            while True:
                page = store.read_all(start, EventFilter(), limits, end)
                found += [one.position for one in page.events]
                start = page.next
                if page.end:
                    break
            assert found == list(range(1, end + 1))
            rest = [one.position for one in everything(store, EventFilter(), limits, start)]
            assert found + rest == list(range(1, 21)), end

    def test_a_read_at_the_end_leads_on_to_what_comes_later(self, store: Store) -> None:
        empty = store.read_all(1, EventFilter(), ReadLimits())
        assert empty == Page([], 1, True)
        append(store, "orders", some(3))
        page = store.read_all(empty.next, EventFilter(), ReadLimits())
        assert (len(page.events), page.next, page.end) == (3, 4, True)
        assert store.read_all(page.next, EventFilter(), ReadLimits()) == ([], 4, True)
        append(store, "others", some(3))
        sparse = store.read_all(page.next, EventFilter("shop", "orders"), ReadLimits())
        assert sparse == Page([], 7, True)
        append(store, "orders", some(1))
        assert [one.position for one in everything(store, EventFilter("shop", "orders"), start=sparse.next)] == [7]

    def test_a_page_keeps_its_limit_of_events(self, store: Store) -> None:
        fill(store)
        for wanted in (EventFilter(), EventFilter("shop", "or", ("a",))):
            sizes = [len(page) for page in pages(store, wanted, ReadLimits(events_max=4))]
            assert max(sizes) <= 4

    def test_a_page_keeps_its_limit_of_bytes_to_within_a_record(self, store: Store) -> None:
        store.write([Transaction((commit("orders", some(1, body=b"x" * 1000)),)) for _ in range(50)])
        sizes = [len(page) for page in pages(store, EventFilter(), ReadLimits(bytes_max=10_000))]
        assert max(sizes) <= 11
        assert sum(sizes) == 50

    @pytest.mark.parametrize("limits", [ReadLimits(), ReadLimits(scan_ms_max=0), ReadLimits(events_max=1000)])
    def test_records_of_any_length_across_any_border_come_once(self, store: Store, limits: ReadLimits) -> None:
        # Backends cut long scans into steps; a record that lies across a border belongs to one step only.
        for size in (4000, 200, 5000, 1, 9000, 3):
            append(store, "orders", some(size))
            append(store, "others", some(2), context="other")
        right = list(range(1, store.head() + 1))
        assert [one.position for one in everything(store, limits=limits)] == right
        shop = [one.position for one in everything(store, EventFilter("shop"), limits)]
        other = [one.position for one in everything(store, EventFilter("other"), limits)]
        assert len(other) == 12
        assert sorted(shop + other) == right
        for start in (4095, 4096, 4097, 4202, 8192, 9204, 18_300):
            found = [one.position for one in everything(store, EventFilter("shop"), limits, start)]
            assert found == [position for position in shop if position >= start]
