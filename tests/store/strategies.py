"""Events of every kind that a client may send, and a record as a sealer makes it, built from the documented layout."""

from collections.abc import Sequence
from struct import pack
from typing import Any, NamedTuple

from hypothesis import strategies as st
from msgspec import structs
from xxhash import xxh3_64_intdigest

from penstock.model import TICKS_MAX, Event, EventFilter, NewEvent
from penstock.model.columns import columns_of
from penstock.store.record import encode_commit

characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
names = st.text(characters, min_size=1, max_size=12)
types = st.text(characters, min_size=1, max_size=8) | st.sampled_from(["a", "b", "t" * 1024, "ü" * 512])
headers = st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
stamps = st.builds(lambda kind, ticks: kind << 62 | ticks, st.integers(0, 3), st.integers(0, TICKS_MAX))
new_events = st.builds(NewEvent, st.binary(min_size=16, max_size=16), stamps, types, headers, st.binary(max_size=60))
event_lists = st.lists(new_events, min_size=1, max_size=20)
small_names = st.sampled_from(["a", "ab", "abc", "b", "*", "Ω"])
filters = st.builds(
    EventFilter, st.none() | small_names, st.just("") | small_names, st.none() | st.sets(types, max_size=3)
)


class Run(NamedTuple):
    """The events of one commit, as a sealer finds them."""

    commit: bytes
    sequence: int
    recorded: int
    context: str
    stream: str
    events: Sequence[NewEvent]

    def rows(self, position: int) -> list[Event]:
        """What a reader must see."""
        rest = (self.recorded, self.commit)
        return [
            Event(position + n, self.context, self.stream, self.sequence + n, *one, *rest)
            for n, one in enumerate(one._replace(headers=one.headers or None) for one in self.events)
        ]


runs = st.builds(
    Run,
    st.binary(min_size=16, max_size=16),
    st.integers(1, 1 << 40),
    st.integers(0, TICKS_MAX),
    small_names,
    small_names,
    event_lists,
)


def commit_record(run: Run, position: int) -> bytes:
    """The record that an append of this run writes."""
    return encode_commit(
        columns_of(run.events),
        position,
        run.context.encode(),
        run.stream.encode(),
        *(run.sequence, run.commit, run.recorded),
    )


def sealed_record(several: Sequence[Run], position: int, version: int = 1) -> bytes:
    """A record of many runs, byte by byte as `penstock.store.record` documents it."""
    events = [one for run in several for one in run.events]
    texts = list(dict.fromkeys(name for run in several for name in (run.context, run.stream)))
    kinds = list(dict.fromkeys(one.type for one in events))
    text = [name.encode() for name in texts + kinds]
    heads = [(one.headers or "").encode() for one in events]
    parts: list[bytes] = [
        pack("<BBHIQ", version, 0, len(kinds), len(events), position),
        pack("<IIII", len(several), len(texts), len(b"".join(text)), len(b"".join(heads))),
    ]
    for run in several:
        places = texts.index(run.context), texts.index(run.stream)
        parts.append(run.commit + pack("<QQIII", run.sequence, run.recorded, len(run.events), *places))
    parts += [one.id for one in events]
    parts += [pack("<Q", one.stamp) for one in events]
    parts += [pack("<H", kinds.index(one.type)) for one in events]
    parts += [pack("<I", len(head)) for head in heads]
    parts += [pack("<I", len(one.body)) for one in events]
    parts += [pack("<H", len(name)) for name in text]
    parts += [*text, *heads, *(one.body for one in events)]
    rest = b"".join(parts)
    return pack("<Q", xxh3_64_intdigest(rest)) + rest


def arrow_rows(batch: Any) -> list[tuple[Any, ...]]:
    """The rows of an Arrow batch, comparable with `event_rows`."""
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) if batch.num_rows else []


def event_rows(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Events as Arrow shows them: a time instead of a stamp."""
    return [structs.astuple(structs.replace(one, stamp=one.ticks)) for one in events]
