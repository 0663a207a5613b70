"""Records as they are: whole, checked, in order, and enough to decode what `read_all` gives."""

import pytest

from penstock.model import EventFilter
from penstock.store import Store
from penstock.store.arrow import record_batch
from penstock.store.contract import ReadLimits
from penstock.store.record import Record
from tests.store.contract.case import StoreCase
from tests.store.contract.reads import LIMITS, fill, filters_with
from tests.store.kit import append, passes, some


def records_of(store: Store, wanted: EventFilter, limits: ReadLimits, start: int = 1) -> list[Record]:
    """All records that may hold events of a filter, page by page."""
    records: list[Record] = []
    while True:
        span = store.read_records(start, wanted, limits)
        records += span.records
        if span.end:
            return records
        assert span.next > start
        start = span.next


class RecordContract(StoreCase):
    @pytest.mark.parametrize("limits", LIMITS)
    def test_records_hold_what_a_filter_wants(self, store: Store, limits: ReadLimits) -> None:
        history = fill(store)
        for wanted in filters_with(limits):
            right = [one for one in history if passes(wanted, one)]
            records = records_of(store, wanted, limits)
            assert [one for record in records for one in record.events(wanted)] == right
            assert record_batch(records, wanted)["position"].to_pylist() == [one.position for one in right]

    def test_records_come_once_and_in_order(self, store: Store) -> None:
        fill(store)
        for limits in LIMITS:
            records = records_of(store, EventFilter(), limits)
            positions = [position for record in records for position in range(record.position, record.last + 1)]
            assert positions == list(range(1, store.head() + 1))

    def test_the_first_record_may_begin_before_the_position(self, store: Store) -> None:
        append(store, "orders", some(10))
        append(store, "orders", some(10))
        span = store.read_records(15, EventFilter(), ReadLimits())
        assert [(record.position, record.last) for record in span.records] == [(11, 20)]
        assert (span.next, span.end) == (21, True)

    def test_a_record_can_be_checked_again_by_whoever_gets_it(self, store: Store) -> None:
        append(store, "orders", some(10))
        (record,) = store.read_records(1, EventFilter(), ReadLimits()).records
        assert Record(record.data, 1).events() == record.events()

    def test_a_span_keeps_its_limits_to_within_a_record(self, store: Store) -> None:
        for _ in range(20):
            append(store, "orders", some(10, body=b"x" * 100))
        assert len(store.read_records(1, EventFilter(), ReadLimits(events_max=30)).records) == 3
        span = store.read_records(1, EventFilter(), ReadLimits(bytes_max=5000))
        assert 3 <= len(span.records) <= 5
        assert not span.end

    def test_beyond_the_end_there_is_nothing(self, store: Store) -> None:
        append(store, "orders", some(1))
        for position in (2, 100, 1 << 62):
            assert store.read_records(position, EventFilter(), ReadLimits()) == ([], position, True)
            assert store.read_all(position, EventFilter(), ReadLimits()) == ([], position, True)
