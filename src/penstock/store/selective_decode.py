"""Selective decoding: some events of a record without the rest, and all events of many short runs quickly.

NumPy scans the table of runs and the columns of lengths, which tell where everything lies. Only picked events become
Python objects. For a few events in one run this is slower than plain unpacking: see `Record.events`.

A record of many runs lists a name once, so the runs of a stream are those with the same two indices.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DamagedRecord
from penstock.model import Event, EventFilter
from penstock.model.columns import cuts
from penstock.model.times import TICKS_MASK
from penstock.store.record import SEQUENCE_MAX, Record

_HEADER_NAMES: Final = "checksum version flags types events position runs names text_bytes header_bytes"
HEADER_TYPE: Final = np.dtype(
    {"names": _HEADER_NAMES.split(), "formats": ["<u8", "u1", "u1", "<u2", "<u4", "<u8", "<u4", "<u4", "<u4", "<u4"]}
)
RUN_TYPE: Final = np.dtype(
    {
        "names": ["commit", "sequence", "recorded", "count", "context", "stream"],
        "formats": ["V16", "<u8", "<u8", "<u4", "<u4", "<u4"],
    }
)
ONE_TYPE: Final = np.dtype(
    {
        "names": ["header", "run", "id", "stamp", "type", "header_length", "body_length"],
        "formats": [HEADER_TYPE, RUN_TYPE, "V16", "<u8", "<u2", "<u4", "<u4"],
    }
)
"""How the record of a single event begins."""

Ints = npt.NDArray[np.int64]


class Picked(NamedTuple):
    """Events of a record by their offsets from its first, and the run of each."""

    offsets: Ints
    runs: Ints

    def cut(self, limit: int | None, backward: bool = False) -> "Picked":
        """The first so many of them, or the last ones, from the last to the first."""
        step = slice(None, None, -1 if backward else 1)
        return Picked(self.offsets[step][:limit], self.runs[step][:limit])


class Picker:
    """A record's table of runs, and where its texts lie; DamagedRecord if totals do not fit.

    It may raise IndexError for a broken record: see `Record.sound`.
    """

    def __init__(self, record: Record) -> None:
        data, at = record.data, record.at
        self.record = record
        self.runs = np.frombuffer(data, RUN_TYPE, record.run_count, at.runs)
        self.counts = self.runs["count"].astype(np.int64)
        self.ends = np.cumsum(self.counts)
        record.check_lengths(int(self.counts.sum()))
        total = record.name_count + record.type_count
        self.texts = self._places("<u2", total, at.lengths, at.text, at.headers, "names and types")
        self.names = self.texts[: record.name_count + 1]
        self.types = self.texts[record.name_count :]

    def _column(self, kind: str, at: int) -> npt.NDArray[Any]:
        return np.frombuffer(self.record.data, kind, self.record.count, at)

    def _places(self, kind: str, count: int, at: int, start: int, end: int, what: str) -> Ints:
        """Where things of these lengths begin, one after the other from `start`; the last number is where they end."""
        places = np.empty(count + 1, np.int64)
        places[0] = start
        np.cumsum(np.frombuffer(self.record.data, kind, count, at), out=places[1:])
        places[1:] += start
        if places[-1] != end:
            raise DamagedRecord(self.record.position, f"its {what} do not fill their place")
        return places

    def _cut(self, places: Ints) -> list[bytes]:
        data = self.record.data
        return [data[start:end] for start, end in pairwise(places.tolist())]

    # -- which

    def wanted(self, wanted: EventFilter, first: int, last: int, since: int = 0) -> Picked:
        """The events that pass, tombstones left out: between two positions, with a time at or after `since` (ticks)."""
        record = self.record
        low = min(max(first - record.position, 0), record.count)
        high = max(min(last + 1 - record.position, record.count), 0)
        starts = np.maximum(self.ends - self.counts, low)
        lengths = np.minimum(self.ends, high) - starts
        if wanted.context is not None or wanted.prefix or wanted.within is not None:
            lengths[~self._is_wanted(wanted)] = 0
        return self.living(_spread(starts, lengths), wanted.types, since)

    def _is_wanted(self, wanted: EventFilter) -> npt.NDArray[np.bool_]:
        """A mask of the runs of wanted streams."""
        names = self._cut(self.names)
        found = np.ones(len(self.runs), bool)
        if wanted.context is not None:
            context = wanted.context.encode()
            found &= np.array([name == context for name in names], bool)[self.runs["context"]]
        if wanted.prefix:
            prefix = wanted.prefix.encode()
            found &= np.array([name.startswith(prefix) for name in names], bool)[self.runs["stream"]]
        if wanted.within is not None:
            places = list(zip(self.runs["context"].tolist(), self.runs["stream"].tolist(), strict=True))
            seen = {
                place: wanted.within.has_stream(names[place[0]].decode(), names[place[1]].decode())
                for place in set(places)
            }
            found &= np.array([seen[place] for place in places], bool)
        return found

    def living(self, picked: Picked, types: Collection[str] | None = None, since: int = 0) -> Picked:
        """Those that are no tombstones, have one of these types, and a time at or after `since` (ticks)."""
        passing = np.diff(self.types) > 0
        if types is not None:
            passing &= np.array([name.decode() in types for name in self._cut(self.types)], bool)
        keep = np.ones(len(picked.offsets), bool) if passing.all() else passing[self._codes(picked)]
        if since > 0:
            stamps = self._column("<u8", self.record.at.stamps)[picked.offsets]
            keep &= stamps & np.uint64(TICKS_MASK) >= np.uint64(min(since, TICKS_MASK))
        return picked if keep.all() else Picked(picked.offsets[keep], picked.runs[keep])

    def of_stream(self, position: int, context: str, stream: str, low: int, high: int) -> Picked:
        """The events, tombstones too, between two sequences of a stream; none unless it has one at that position."""
        run = int(np.searchsorted(self.ends, position - self.record.position, "right"))
        contexts, streams = self.runs["context"], self.runs["stream"]
        mine = (contexts == contexts[run]) & (streams == streams[run])
        if (self._name(int(contexts[run])), self._name(int(streams[run]))) != (context, stream):
            mine[:] = False
        sequences = self.runs["sequence"].astype(np.int64)
        low, high = min(max(low, 0), SEQUENCE_MAX), min(max(high, 0), SEQUENCE_MAX)
        skipped = np.clip(low - sequences, 0, self.counts)
        lengths = np.clip(high - sequences, -1, self.counts - 1) + 1 - skipped
        return _spread(self.ends - self.counts + skipped, np.where(mine, lengths, 0))

    # -- what

    def ids(self, picked: Picked) -> list[bytes]:
        found: list[bytes] = self._column("V16", self.record.at.ids)[picked.offsets].tolist()
        return found

    def place(self, picked: Picked) -> tuple[list[bytes], bytes, int]:
        """The ids of events, and the commit and position of the first."""
        if not len(picked.offsets):
            return [], b"", 0
        commit: bytes = self.runs["commit"][picked.runs[0]].item()
        return self.ids(picked), commit, self.record.position + int(picked.offsets[0])

    def events(self, picked: Picked) -> list[Event]:
        offsets, runs = picked
        at, table = self.record.at, self.runs
        contexts, streams = self._texts(self.names, table["context"][runs], table["stream"][runs])
        (types,) = self._texts(self.types, self._codes(picked))
        within = offsets - (self.ends - self.counts)[runs]
        columns = (
            (offsets + self.record.position).tolist(),
            *(contexts, streams),
            (table["sequence"][runs] + within.astype(np.uint64)).tolist(),
            self.ids(picked),
            self._column("<u8", at.stamps)[offsets].tolist(),
            *(types, self._headers(offsets)),
            self._variable(offsets, at.body_lengths, at.bodies, len(self.record.data), "bodies"),
            *(table["recorded"][runs].tolist(), table["commit"][runs].tolist()),
        )
        return list(map(Event, *columns))

    def _codes(self, picked: Picked) -> npt.NDArray[Any]:
        return self._column("<u2", self.record.at.types)[picked.offsets]

    def _headers(self, offsets: Ints) -> Iterable[str | None]:
        at = self.record.at
        found = self._variable(offsets, at.header_lengths, at.headers, at.bodies, "headers")
        return [cut.decode() if cut else None for cut in found] if at.bodies > at.headers else repeat(None)

    def _variable(self, offsets: Ints, lengths: int, start: int, end: int, what: str) -> Iterable[bytes]:
        data, places = self.record.data, self._places("<u4", self.record.count, lengths, start, end, what)
        begins, ends = places[offsets], places[offsets + 1]
        if len(offsets) and offsets[-1] - offsets[0] + 1 == len(offsets):
            # One after the other, as when all are picked.
            return cuts(data, int(begins[0]), (ends - begins).tolist())
        return [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]

    def _texts(self, places: Ints, *columns: npt.NDArray[Any]) -> list[list[str]]:
        """The texts that columns of indices refer to; each is decoded once."""
        data, used = self.record.data, np.zeros(len(places) - 1, bool)
        for column in columns:
            used[column] = True
        numbers = np.flatnonzero(used)
        texts = np.empty(len(used), object)
        cut = zip(places[numbers].tolist(), places[numbers + 1].tolist(), strict=True)
        texts[numbers] = [data[start:end].decode() for start, end in cut]
        return [texts[column].tolist() for column in columns]

    def _name(self, number: int) -> str:
        return self._texts(self.names, np.array([number]))[0][0]


def _spread(starts: Ints, lengths: Ints) -> Picked:
    """The offsets of ranges of events, one range for each run."""
    lengths = np.maximum(lengths, 0)
    runs = np.repeat(np.arange(len(lengths)), lengths)
    return Picked(np.arange(len(runs)) + (starts - np.cumsum(lengths) + lengths)[runs], runs)
