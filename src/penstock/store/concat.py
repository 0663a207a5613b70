"""The columns of several records end to end, checked, as NumPy arrays.

Arrow batches, seals, slices and tombstones are made from them. The loop here is over records, never over events.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import DamagedRecord
from penstock.store.record import CHECKSUM_BYTES, HEADER, VERSION, Record, with_checksum
from penstock.store.selective_decode import HEADER_TYPE, ONE_TYPE, RUN_TYPE, Ints

_ONE_WITH_LENGTHS: Final = np.dtype([("one", ONE_TYPE), ("lengths", "<u2", (3,))])
"""The record of a commit of one event up to its texts: context, stream and type."""
_ONE_HEADER: Final = {"version": VERSION, "flags": 0, "types": 1, "events": 1, "runs": 1, "names": 2}
_CONTINUED: Final = 0x80
"""The top two bits of a byte of UTF-8 that is not a character's first."""


class TextTable:
    """The distinct texts of several records, and their indices for each record's own indices."""

    def __init__(self) -> None:
        self.index: dict[bytes, int] = {}
        self.lookup: list[int] = []

    def add(self, texts: list[bytes]) -> int:
        """Add a record's texts; answers where they begin in `lookup`."""
        base = len(self.lookup)
        index = self.index
        self.lookup += [index.setdefault(text, len(index)) for text in texts]
        return base


class Concat:
    """Columns of at least one record. Raises DamagedRecord if the insides of one do not fit together.

    `contexts` and `streams` (per run) are indices into `names`, `codes` (per event) into `types`.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.names, self.types = TextTable(), TextTable()
        bases = np.array(self._add_texts(), np.int64).reshape(-1, 2)
        if all(record.count == record.run_count == 1 for record in records):
            self._join_ones()
        else:
            self._join()
        self._check()
        self.first = self.heads["position"].astype(np.int64)
        self.run_lengths: Ints = self.runs["count"].astype(np.int64)
        self._single = bool((self.run_lengths == 1).all())
        names = np.array(self.names.lookup, np.int64)
        run_bases = np.repeat(bases[:, 0], self.run_counts)
        self.contexts: Ints = names[self.runs["context"] + run_bases]
        self.streams: Ints = names[self.runs["stream"] + run_bases]
        self.codes: Ints = np.array(self.types.lookup, np.int64)[self.own_codes + np.repeat(bases[:, 1], self.counts)]

    def _add_texts(self) -> list[tuple[int, int]]:
        seen: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        bases = []
        for record in self.records:
            key = (record.data[record.at.lengths : record.at.headers], record.name_count, record.type_count)
            base = seen.get(key)
            if base is None:
                texts = record.texts()
                names, types = texts[: record.name_count], texts[record.name_count :]
                base = seen[key] = (self.names.add(names), self.types.add(types))
            bases.append(base)
        return bases

    def _join_ones(self) -> None:
        """All records have a single event, as most commits do."""
        datas = [record.data for record in self.records]
        ones = np.frombuffer(b"".join([data[: ONE_TYPE.itemsize] for data in datas]), ONE_TYPE)
        ats = [record.at for record in self.records]
        self.heads: Any = ones["header"]
        self.runs: Any = np.ascontiguousarray(ones["run"])
        self.ids: Any = np.ascontiguousarray(ones["id"])
        self.stamps: Any = np.ascontiguousarray(ones["stamp"])
        self.own_codes: Any = ones["type"]
        self.header_lengths: Any = np.ascontiguousarray(ones["header_length"])
        self.body_lengths: Any = np.ascontiguousarray(ones["body_length"])
        self.headers: Any = b"".join([data[at.headers : at.bodies] for data, at in zip(datas, ats, strict=True)])
        self.bodies: Any = b"".join([data[at.bodies :] for data, at in zip(datas, ats, strict=True)])

    def _join(self) -> None:
        parts: Any = []
        for record in self.records:
            data = memoryview(record.data)
            parts.append([data[start:end] for start, end in pairwise((0, *record.at, len(data)))])
        # The columns of a single record are used where they are.
        columns: Any = parts[0] if len(parts) == 1 else [b"".join(column) for column in zip(*parts, strict=True)]
        heads, runs, ids, stamps, codes, header_lengths, body_lengths, _, _, self.headers, self.bodies = columns
        self.heads = np.frombuffer(heads, HEADER_TYPE)
        self.runs = np.frombuffer(runs, RUN_TYPE)
        self.ids = np.frombuffer(ids, "V16")
        self.stamps = np.frombuffer(stamps, "<u8")
        self.own_codes = np.frombuffer(codes, "<u2")
        self.header_lengths = np.frombuffer(header_lengths, "<u4")
        self.body_lengths = np.frombuffer(body_lengths, "<u4")

    def _check(self) -> None:
        """A checksum proves that a record is unchanged, not that its writer was right."""
        self.counts: Ints = self.heads["events"].astype(np.int64)
        self.run_counts: Ints = self.heads["runs"].astype(np.int64)
        bad = (self.counts < 1) | (self.run_counts < 1)
        if not bad.any():
            body_bytes = np.array([len(record.data) - record.at.bodies for record in self.records], np.int64)
            starts, run_starts = starts_of(self.counts), starts_of(self.run_counts)
            bad |= np.add.reduceat(self.header_lengths, starts, dtype=np.int64) != self.heads["header_bytes"]
            bad |= np.add.reduceat(self.body_lengths, starts, dtype=np.int64) != body_bytes
            bad |= np.add.reduceat(self.runs["count"], run_starts, dtype=np.int64) != self.counts
            named = np.maximum(self.runs["context"], self.runs["stream"])
            bad |= np.maximum.reduceat(named, run_starts) >= self.heads["names"]
            bad |= np.maximum.reduceat(self.own_codes, starts) >= self.heads["types"]
        if bad.any():
            raise DamagedRecord(self.records[int(bad.argmax())].position, "its insides do not fit together")

    def check_text(self) -> None:
        """Raise DamagedRecord if names, types or headers of a record are no text."""
        try:
            for text in (*self.names.index, *self.types.index):
                text.decode()
            cut = self._is_header_cut()
        except UnicodeDecodeError:
            cut = True
        if cut:
            self._blame()

    def _is_header_cut(self) -> bool:
        """Whether a header begins within a character of UTF-8; UnicodeDecodeError if they are no text together."""
        raw = np.frombuffer(self.headers, "u1")
        if not len(raw) or raw.max() < _CONTINUED:
            return False
        str(self.headers, "utf-8")
        begins = starts_of(self.header_lengths.astype(np.int64))[self.header_lengths > 0]
        return bool((raw[begins] & 0xC0 == _CONTINUED).any())

    def _blame(self) -> None:
        for record in self.records:
            record.runs()
            record.events()
        raise DamagedRecord(self.records[0].position, "it or one after it has broken text")

    def parts(self) -> "RecordColumns":
        runs = self.runs.copy()
        runs["context"], runs["stream"] = self.contexts, self.streams
        lists = list(self.names.index), list(self.types.index)
        lengths = self.header_lengths, self.body_lengths
        return RecordColumns(runs, self.ids, self.stamps, self.codes, *lengths, *lists, self.headers, self.bodies)

    def per_event(self, values: Any) -> npt.NDArray[Any]:
        """One value per run as one per event."""
        return np.ascontiguousarray(values) if self._single else np.repeat(values, self.run_lengths)

    def sequences(self) -> Ints:
        firsts: Ints = self.runs["sequence"].astype(np.int64)
        if self._single:
            return firsts
        found: Ints = self.per_event(firsts - starts_of(self.run_lengths)) + np.arange(len(self.stamps))
        return found

    def positions(self) -> Ints:
        total = np.arange(len(self.stamps), dtype=np.int64)
        found: Ints = np.repeat(self.first - starts_of(self.counts), self.counts) + total
        return found


class RecordColumns(NamedTuple):
    """The columns of a record; `codes` are indices into `types`."""

    runs: Any
    ids: Any
    stamps: Any
    codes: Ints
    header_lengths: Any
    body_lengths: Any
    names: list[bytes]
    types: list[bytes]
    headers: Any
    bodies: Any

    def encode(self, position: int) -> bytes:
        texts = self.names + self.types
        text = b"".join(texts)
        header = HEADER.pack(
            *(0, VERSION, 0, len(self.types), len(self.stamps), position, len(self.runs), len(self.names)),
            *(len(text), len(self.headers)),
        )[CHECKSUM_BYTES:]
        fixed: Any = (
            self.runs,
            self.ids,
            self.stamps,
            self.codes.astype("<u2"),
            self.header_lengths,
            self.body_lengths,
        )
        lengths: Any = np.array(list(map(len, texts)), "<u2")
        return with_checksum(b"".join((header, *fixed, lengths, text, self.headers, self.bodies)))


def is_merge_of_ones(merged: Record, datas: Sequence[bytes]) -> bool:
    """Whether a record has the events of others, one each, as appends write them; False if one of them is otherwise."""
    whole = Concat([merged])
    size = _ONE_WITH_LENGTHS.itemsize
    try:
        ones: Any = np.frombuffer(b"".join([data[:size] for data in datas]), _ONE_WITH_LENGTHS)
    except ValueError:
        return False
    if len(ones) != len(datas) or len(whole.runs) != len(datas) or whole.heads["flags"].any():
        return False
    one, head, run, lengths = ones["one"], ones["one"]["header"], ones["one"]["run"], ones["lengths"]
    names, types = list(whole.names.index), list(whole.types.index)
    name_lengths, type_lengths = (np.array(list(map(len, texts)), "<u2") for texts in (names, types))
    text_bytes = lengths.sum(axis=1, dtype=np.int64)
    columns = (
        *((head[name], value) for name, value in _ONE_HEADER.items()),
        *((head["position"], whole.positions()), (head["text_bytes"], text_bytes)),
        *((head["header_bytes"], one["header_length"]), (one["header_length"], whole.header_lengths)),
        *((one["body_length"], whole.body_lengths), (one["id"], whole.ids), (one["stamp"], whole.stamps)),
        *((run[name], whole.runs[name]) for name in ("commit", "sequence", "recorded", "count")),
        *((run["context"], 0), (run["stream"], 1), (one["type"], 0)),
        *((lengths[:, 0], name_lengths[whole.contexts]), (lengths[:, 1], name_lengths[whole.streams])),
        (lengths[:, 2], type_lengths[whole.codes]),
    )
    if not all(np.all(ours == theirs) for ours, theirs in columns):
        return False
    headers = size + text_bytes
    bodies = headers + whole.header_lengths
    starts, ends = headers.tolist(), bodies.tolist()
    pairs = zip(whole.contexts.tolist(), whole.streams.tolist(), whole.codes.tolist(), strict=True)
    texts = b"".join([names[context] + names[stream] + types[code] for context, stream, code in pairs])
    return (
        np.array_equal(np.fromiter(map(len, datas), np.int64, len(datas)), bodies + whole.body_lengths)
        and b"".join([data[size:start] for data, start in zip(datas, starts, strict=True)]) == texts
        and b"".join([data[start:end] for data, start, end in zip(datas, starts, ends, strict=True)]) == whole.headers
        and b"".join([data[end:] for data, end in zip(datas, ends, strict=True)]) == whole.bodies
    )


def starts_of(lengths: Ints) -> Ints:
    """Where things of these lengths begin, one after the other."""
    starts: Ints = np.cumsum(lengths) - lengths
    return starts


def renumber(codes: Ints) -> tuple[Ints, list[int]]:
    """Number indices in the order of their first use; also the old index of each new one."""
    used, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    return np.argsort(order)[inverse], used[order].tolist()
