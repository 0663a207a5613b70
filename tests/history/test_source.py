"""Reading a history in steps while its records are merged."""

from contextlib import closing
from pathlib import Path

import pytest

import penstock
from penstock.history import source
from penstock.history.source import open_history
from penstock.model import EventFilter
from penstock.store.contract import Transaction
from penstock.store.record import Record
from penstock.store.seals import next_seal
from penstock.store.sqlite import SqliteStore
from penstock.testing import server
from tests.gates.serving import until
from tests.spark.support import counted, fill

EVENTS = 6000


def positions(records: list[Record]) -> list[int]:
    return [event.position for record in records for event in record.events()]


def test_a_store_that_is_sealed_between_two_steps_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STEP_EVENTS_MAX", 100)
    url = fill(tmp_path / "data", [("shop", "s", counted(1)) for _ in range(EVENTS)])
    with closing(open_history(url)) as history:
        steps = history.records(EventFilter(), 1, EVENTS + 1)
        found = positions(next(steps))
        with closing(SqliteStore(tmp_path / "data")) as store:
            while (seal := next_seal(store)) is not None:
                store.write([Transaction((seal,))])
        for records in steps:
            found += positions(records)
    assert found == list(range(1, EVENTS + 1))


def test_a_client_reads_once_what_is_sealed_between_two_pages(tmp_path: Path) -> None:
    with server(tmp_path / "data", page_bytes_max=16_384) as own, penstock.connect(own.url) as client:
        client.append_many(("shop", "s", [penstock.event("T", number)]) for number in range(1000))
        pages = client.event_pages(context="shop")
        found = [event.position for event in next(pages)]
        client.append_many(("shop", "s", [penstock.event("T", number)]) for number in range(EVENTS - 1000))
        until(lambda: client.stats().sealed > 1)
        for page in pages:
            found += [event.position for event in page]
    assert found == list(range(1, EVENTS + 1))
