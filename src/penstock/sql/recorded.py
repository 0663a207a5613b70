"""Positions of recorded times. They never go backwards, so that a few looks find one among any number of events."""

from itertools import accumulate

from penstock.errors import DamagedRecord
from penstock.history.histories import History
from penstock.model import EventFilter
from penstock.sql.extents import Span
from penstock.store.record import Record


def recorded_between(history: History, times: Span, first: int, last: int) -> tuple[int, int]:
    """The first and last of some positions whose events were recorded between two ticks.

    If a record is damaged they are left as they are: whoever reads them finds out whether it is one of them.
    """
    try:
        low = first if times.low is None else _first_at(history, times.low, first, last)
        return low, last if times.high is None else _first_at(history, times.high + 1, low, last) - 1
    except (DamagedRecord, LookupError):
        return first, last


def _first_at(history: History, ticks: int, first: int, last: int) -> int:
    """The first position that was recorded at or after a time; the one after the last if none was."""
    low, high = first, last
    while low <= high:
        record = _record_at(history, (low + high) // 2)
        runs = record.runs()
        if runs[-1].recorded < ticks:
            low = record.last + 1
        elif runs[0].recorded >= ticks:
            high = record.position - 1
        else:
            begins = accumulate((run.length for run in runs), initial=record.position)
            found = next(begin for begin, run in zip(begins, runs, strict=False) if run.recorded >= ticks)
            return min(max(first, found), last + 1)
    return min(low, last + 1)


def _record_at(history: History, position: int) -> Record:
    for records in history.records(EventFilter(), position, position + 1):
        for record in records:
            if record.position <= position <= record.last:
                return record
    raise LookupError(position)
