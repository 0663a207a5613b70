"""A history that is read through a server, by executors that cannot reach its store."""

from collections.abc import Iterator
from typing import Final

from penstock.client.aio import TIMEOUT_S
from penstock.client.calls import Calls
from penstock.client.reader import HistoryRange, record_pages
from penstock.client.sync import Portal
from penstock.client.transport import transport_to
from penstock.history.source import History, Now
from penstock.model import (
    ContextInfo,
    EventFilter,
    EventPage,
    FindPosition,
    Found,
    GetStats,
    ListContexts,
    ListPage,
    ReadAll,
    StoreStats,
)
from penstock.store.contract import StoreIdentity
from penstock.store.record import Record

SAMPLE_EVENTS: Final = 8


class RemoteHistory(History):
    def __init__(self, url: str) -> None:
        self._calls = Calls(transport_to(url), TIMEOUT_S, retries=True)
        self._portal = Portal()
        try:
            self._portal.run(self._calls.open())
        except BaseException:
            self.close()
            raise

    def now(self) -> Now:
        stats = self._portal.run(self._calls.ask(GetStats(), StoreStats))
        return Now(StoreIdentity(stats.store_id, stats.timeline), stats.head)

    def all_bytes(self) -> int:
        return self._portal.run(self._calls.ask(GetStats(), StoreStats)).body_bytes

    def event_bytes(self, position: int) -> int:
        page = self._portal.run(self._calls.ask(ReadAll(position, limit=SAMPLE_EVENTS), EventPage))
        return sum(len(event.body) + len(event.headers or "") for event in page.events) // max(len(page.events), 1)

    def _contexts(self, after: str) -> list[ContextInfo]:
        return self._portal.run(self._calls.ask(ListContexts(after), ListPage)).items

    def position_of(self, context: str, ticks: int) -> int | None:
        return self._portal.run(self._calls.ask(FindPosition(context, "", ticks), Found)).position

    def records(self, wanted: EventFilter, position: int, end: int) -> Iterator[list[Record]]:
        if position < end:
            wanted_range = HistoryRange(position, context=wanted.context, filter=wanted.prefix, until=end - 1)
            yield from self._portal.iterate(record_pages(self._calls, wanted_range))

    def close(self) -> None:
        try:
            self._portal.run(self._calls.close())
        finally:
            self._portal.close()
