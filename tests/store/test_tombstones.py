"""Tombstones: what is erased keeps its place and loses its contents, and nothing else changes."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import Event
from penstock.store.arrow import record_batch
from penstock.store.record import Record
from penstock.store.sealing import merge
from penstock.store.tombstones import Gone, entomb, shown
from tests.store.kit import event, some
from tests.store.strategies import Run, arrow_rows, commit_record, event_rows, runs, sealed_record, small_names

SMALL = Run(b"c" * 16, 3, 99, "shop", "orders", [event(5, "made", "h", b"one"), event(6, "paid", None, b"")])
ORDERS = Gone({("shop", "orders"): 99})


def erased(gone: Gone, one: Event) -> bool:
    """Whether an event is among what is gone, found the slow way."""
    in_stream = one.sequence <= gone.streams.get((one.context, one.stream), 0)
    return in_stream or any(first <= one.position <= last for first, last in gone.ranges)


def ranges_of(edges: list[int]) -> list[tuple[int, int]]:
    """Disjoint ranges in order from distinct numbers."""
    return [(first, last - 1) for first, last in zip(edges[::2], edges[1::2], strict=False)]


edges = st.lists(st.integers(0, 120), unique=True, max_size=12).map(sorted)
gones = st.builds(
    Gone,
    st.dictionaries(st.tuples(small_names, small_names), st.integers(0, 120), max_size=8),
    edges.map(ranges_of),
)
histories = st.lists(runs, min_size=1, max_size=5).map(
    lambda several: [run._replace(sequence=1 + n * 7) for n, run in enumerate(several)]
)


@given(histories, gones)
def test_tombstones_keep_their_place_and_lose_their_contents(several: list[Run], gone: Gone) -> None:
    before = Record(sealed_record(several, 5), 5)
    after = Record(entomb(before, gone), 5)
    kept = [one for one in before.events() if not erased(gone, one)]
    assert after.events() == kept
    assert arrow_rows(record_batch([after])) == event_rows(kept)
    assert (after.ids(), after.runs(), after.last) == (before.ids(), before.runs(), before.last)
    assert entomb(after, gone) == after.data
    assert (shown(before, gone) is not before) == (len(kept) < len(before.events()))


@given(histories, gones)
def test_readers_see_a_record_itself_or_with_tombstones(several: list[Run], gone: Gone) -> None:
    before = Record(sealed_record(several, 5), 5)
    seen = shown(before, gone)
    if any(erased(gone, one) for one in before.events()):
        assert seen.data == entomb(before, gone)
    else:
        assert seen is before


@given(histories, gones, gones)
def test_what_is_a_tombstone_stays_one(several: list[Run], first: Gone, second: Gone) -> None:
    record = Record(sealed_record(several, 5), 5)
    once = Record(entomb(Record(entomb(record, first), 5), second), 5)
    assert once.events() == [one for one in record.events() if not erased(first, one) and not erased(second, one)]


@given(histories, gones)
def test_it_is_the_same_to_erase_before_and_after_merging(several: list[Run], gone: Gone) -> None:
    records, position = [], 5
    for run in several:
        records.append(Record(commit_record(run, position), position))
        position = records[-1].last + 1
    before = merge([shown(record, gone) for record in records])
    after = entomb(Record(merge(records), 5), gone)
    assert Record(before, 5).events() == Record(after, 5).events()
    assert Record(before, 5).ids() == Record(after, 5).ids()
    assert entomb(Record(before, 5), gone) == after


def test_nothing_is_nothing() -> None:
    assert not Gone()
    assert Gone(ranges=[(1, 1)])
    assert ORDERS
    record = Record(commit_record(SMALL, 1), 1)
    assert shown(record, Gone()) is record


def test_the_bytes_of_erased_events_are_gone() -> None:
    secret = [event(9, "secret-type", "secret-head", b"secret-body"), event(9, "other-secret", None, b"secret-too")]
    mine = SMALL._replace(context="remits", stream="log", sequence=1, events=secret)
    for data in (commit_record(mine, 1), sealed_record([SMALL, mine, SMALL], 1)):
        assert b"secret" in data
        at = 1 if len(Record(data, 1).runs()) == 1 else 3
        for gone in (Gone({("remits", "log"): 2}), Gone(ranges=[(at, at + 1)]), Gone(ranges=[(at, at), (at + 1, 99)])):
            record = Record(entomb(Record(data, 1), gone), 1)
            assert b"secret" not in record.data
            assert [one.id for one in secret] == record.ids()[at - 1 : at + 1]


def test_an_erasure_ends_at_its_sequence() -> None:
    run = SMALL._replace(sequence=10, events=some(5))
    for last in range(9, 16):
        record = Record(entomb(Record(commit_record(run, 1), 1), Gone({("shop", "orders"): last})), 1)
        assert [one.sequence for one in record.events()] == list(range(last + 1, 15))


def test_only_the_stream_of_the_context_is_erased() -> None:
    data = sealed_record([SMALL, SMALL._replace(context="other"), SMALL._replace(stream="orders2")], 1)
    left = Record(entomb(Record(data, 1), ORDERS), 1).events()
    assert {(one.context, one.stream) for one in left} == {("other", "orders"), ("shop", "orders2")}


def test_a_long_ledger_hits_only_what_it_names() -> None:
    several = [SMALL._replace(sequence=1 + n * 2, stream=f"s{n}") for n in range(500)]
    record = Record(sealed_record(several, 20_001), 20_001)
    around = [(n * 2, n * 2) for n in range(10_000)] + [(n * 2, n * 2) for n in range(10_501, 20_000)]
    streams = {("shop", f"z{n}"): 99 for n in range(10_000)}
    assert shown(record, Gone(streams, around)) is record
    hit = sorted([*around, (20_400, 20_402)])
    assert changed(record, shown(record, Gone(streams, hit))) == [20_400, 20_401, 20_402]
    streams["shop", "s3"] = 7
    assert changed(record, shown(record, Gone(streams))) == [20_007]


def changed(before: Record, after: Record) -> list[int]:
    """The positions of events that are gone, or not the same."""
    left = {one.position: one for one in after.events()}
    return [one.position for one in before.events() if left.get(one.position) != one]
