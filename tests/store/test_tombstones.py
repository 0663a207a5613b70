"""Tombstones: what is erased keeps its place and loses its contents, and nothing else changes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Event
from penstock.store.arrow import record_batch
from penstock.store.erasure_filter import Hidden
from penstock.store.record import Record
from penstock.store.rewrites import erased
from penstock.store.seals import merge
from tests.store.kit import event, some
from tests.store.strategies import Run, arrow_rows, commit_record, event_rows, runs, sealed_record, small_names

SMALL = Run(b"c" * 16, 3, 99, "shop", "orders", [event(5, "made", "h", b"one"), event(6, "paid", None, b"")])
ORDERS = Hidden({("shop", "orders"): 99})


def is_hidden(gone: Hidden, one: Event) -> bool:
    """Whether an event is among what is gone, found the slow way."""
    in_stream = one.sequence <= gone.streams.get((one.context, one.stream), 0)
    return in_stream or any(first <= one.position <= last for first, last in gone.ranges)


def ranges_of(edges: list[int]) -> list[tuple[int, int]]:
    """Disjoint ranges in order from distinct numbers."""
    return [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=False)]


edges = st.lists(st.integers(0, 120), unique=True, max_size=12).map(sorted)
gones = st.builds(
    Hidden,
    st.dictionaries(st.tuples(small_names, small_names), st.integers(0, 120), max_size=8),
    edges.map(ranges_of),
)
histories = st.lists(runs, min_size=1, max_size=5).map(
    lambda several: [run._replace(sequence=1 + n * 7) for n, run in enumerate(several)]
)


@given(histories, gones)
def test_tombstones_keep_their_place_and_lose_their_contents(several: list[Run], gone: Hidden) -> None:
    before = Record(sealed_record(several, 5), 5)
    after = erased(before, gone)
    kept = [one for one in before.events() if not is_hidden(gone, one)]
    assert after.events() == kept
    assert arrow_rows(record_batch([after])) == event_rows(kept)
    assert (after.ids(), after.runs(), after.last) == (before.ids(), before.runs(), before.last)
    assert erased(after, gone).data == after.data
    assert (erased(before, gone) is not before) == (len(kept) < len(before.events()))


@given(histories, gones)
def test_readers_see_a_record_itself_or_with_tombstones(several: list[Run], gone: Hidden) -> None:
    before = Record(sealed_record(several, 5), 5)
    seen = erased(before, gone)
    if any(is_hidden(gone, one) for one in before.events()):
        assert seen.data != before.data
    else:
        assert seen is before


@given(histories, gones, gones)
def test_what_is_a_tombstone_stays_one(several: list[Run], first: Hidden, second: Hidden) -> None:
    record = Record(sealed_record(several, 5), 5)
    once = erased(erased(record, first), second)
    assert once.events() == [one for one in record.events() if not is_hidden(first, one) and not is_hidden(second, one)]


@given(histories, gones)
def test_it_is_the_same_to_erase_before_and_after_merging(several: list[Run], gone: Hidden) -> None:
    records, position = [], 5
    for run in several:
        records.append(Record(commit_record(run, position), position))
        position = records[-1].last + 1
    before = merge([erased(record, gone) for record in records])
    after = erased(Record(merge(records), 5), gone)
    assert Record(before, 5).events() == after.events()
    assert Record(before, 5).ids() == after.ids()
    assert erased(Record(before, 5), gone).data == after.data


def test_nothing_is_nothing() -> None:
    assert not Hidden()
    assert Hidden(ranges=[(1, 1)])
    assert ORDERS
    record = Record(commit_record(SMALL, 1), 1)
    assert erased(record, Hidden()) is record


def test_the_bytes_of_erased_events_are_gone() -> None:
    secret = [event(9, "secret-type", "secret-head", b"secret-body"), event(9, "other-secret", None, b"secret-too")]
    mine = SMALL._replace(context="remits", stream="log", sequence=1, events=secret)
    for data in (commit_record(mine, 1), sealed_record([SMALL, mine, SMALL], 1)):
        assert b"secret" in data
        at = 1 if len(Record(data, 1).runs()) == 1 else 3
        for gone in (
            Hidden({("remits", "log"): 2}),
            Hidden(ranges=[(at, at + 1)]),
            Hidden(ranges=[(at, at), (at + 1, 99)]),
        ):
            record = erased(Record(data, 1), gone)
            assert b"secret" not in record.data
            assert [one.id for one in secret] == record.ids()[at - 1 : at + 1]


def test_an_erasure_ends_at_its_sequence() -> None:
    run = SMALL._replace(sequence=10, events=some(5))
    for last in range(9, 16):
        record = erased(Record(commit_record(run, 1), 1), Hidden({("shop", "orders"): last}))
        assert [one.sequence for one in record.events()] == list(range(last + 1, 15))


def test_only_the_stream_of_the_context_is_erased() -> None:
    data = sealed_record([SMALL, SMALL._replace(context="other"), SMALL._replace(stream="orders2")], 1)
    left = erased(Record(data, 1), ORDERS).events()
    assert {(one.context, one.stream) for one in left} == {("other", "orders"), ("shop", "orders2")}


def test_a_long_ledger_hits_only_what_it_names() -> None:
    several = [SMALL._replace(sequence=1 + n * 2, stream=f"s{n}") for n in range(500)]
    record = Record(sealed_record(several, 20_001), 20_001)
    around = [(n * 2, n * 2) for n in range(10_000)] + [(n * 2, n * 2) for n in range(10_501, 20_000)]
    streams = {("shop", f"z{n}"): 99 for n in range(10_000)}
    assert erased(record, Hidden(streams, around)) is record
    hit = sorted([*around, (20_400, 20_402)])
    assert changed(record, erased(record, Hidden(streams, hit))) == [20_400, 20_401, 20_402]
    streams["shop", "s3"] = 7
    assert changed(record, erased(record, Hidden(streams))) == [20_007]


def changed(before: Record, after: Record) -> list[int]:
    """The positions of events that are gone, or not the same."""
    left = {one.position: one for one in after.events()}
    return [one.position for one in before.events() if left.get(one.position) != one]
