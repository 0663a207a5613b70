"""Records that come in steps, each position once.

A step ends somewhere, and the next one begins there. Small records are merged meanwhile: then the first record of a
step may begin with what was in the step before.
"""

from penstock.store.record import Record


class Unread:
    """How far somebody has read."""

    def __init__(self) -> None:
        self._reached = 0

    def of(self, records: list[Record]) -> list[Record]:
        """The records of the next step, without what was read before."""
        if records and records[0].position < self._reached:
            # It needs NumPy, and is seldom needed.
            from penstock.store.cutting import cut  # noqa: PLC0415

            records = [cut(record, self._reached, record.last) for record in records if record.last >= self._reached]
        if records:
            self._reached = records[-1].last + 1
        return records
