"""Files with given events."""

from collections.abc import Sequence
from typing import IO

from penstock.interchange.exporter import POSITION_MAX
from penstock.interchange.parquet_format import ParquetEvents, batch_of_records
from penstock.model import Event, EventFilter, NewEvent
from penstock.model.columns import columns_of
from penstock.store.record import Record, encode_commit


def record_of(event: Event) -> Record:
    columns = columns_of([NewEvent(event.id, event.stamp, event.type, event.headers, event.body)])
    place = event.position, event.context.encode(), event.stream.encode(), event.sequence
    return Record(encode_commit(columns, *place, event.commit, event.recorded), event.position)


def write_parquet(file: IO[bytes], events: Sequence[Event]) -> None:
    writer = ParquetEvents(file)
    writer.write(batch_of_records(list(map(record_of, events)), EventFilter(), 0, POSITION_MAX, None, None))
    writer.close()
