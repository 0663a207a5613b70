"""Events of an answer in one block, column by column: a queue's consumers get them in it.

Eleven frames for each event cost more than everything else that a server does for a batch. A block has all fields of an
event; its layout is in docs/protocols/res01.md. Both directions are hot: no step here is a loop over events in Python.
"""

import struct
from itertools import repeat
from operator import attrgetter
from struct import Struct
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Event
from penstock.model.columns import cuts, struct_of

HEAD: Final = Struct("<IIII")
"""How many events and texts, and the bytes of all texts and of all headers."""
_NUMBERS: Final = attrgetter("position", "sequence", "stamp", "recorded")
_NAMES: Final = attrgetter("context", "stream", "type")


def event_block(events: list[Event]) -> list[bytes]:
    """One frame with all of these events."""
    many = len(events)
    numbers = zip(*map(_NUMBERS, events), strict=True) if events else ((),) * 4
    names = list(zip(*map(_NAMES, events), strict=True)) if events else [()] * 3
    texts: dict[str, int] = {}
    for column in names:
        for name in dict.fromkeys(column):
            texts.setdefault(name, len(texts))
    encoded = [name.encode() for name in texts]
    headers = [event.headers.encode() if event.headers else b"" for event in events]
    bodies = [event.body for event in events]
    text, joined = b"".join(encoded), b"".join(headers)
    block = b"".join(
        (
            HEAD.pack(many, len(texts), len(text), len(joined)),
            struct_of(f"<{4 * many}Q{5 * many}I").pack(
                *(number for column in numbers for number in column),
                *(code for column in names for code in map(texts.__getitem__, column)),
                *map(len, headers),
                *map(len, bodies),
            ),
            *[event.id for event in events],
            *[event.commit for event in events],
            struct_of(f"<{len(texts)}H").pack(*map(len, encoded)),
            text,
            joined,
            *bodies,
        )
    )
    return [block]


def events_of_block(block: bytes) -> list[Event]:
    """The inverse of `event_block`. Raises InvalidRequest for a block that none of ours is."""
    try:
        return _events(block)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise InvalidRequest("Block", f"is no block of events: {error}") from None


def _events(block: bytes) -> list[Event]:
    many, text_count, text_bytes, header_bytes = HEAD.unpack_from(block)
    ids = HEAD.size + 4 * 8 * many + 5 * 4 * many
    lengths_at = ids + 32 * many
    texts_at = lengths_at + 2 * text_count
    headers_at = texts_at + text_bytes
    bodies_at = headers_at + header_bytes
    if bodies_at > len(block):
        raise ValueError("it is too short")
    fixed = struct_of(f"<{4 * many}Q{5 * many}I").unpack_from(block, HEAD.size)
    columns = [fixed[start : start + many] for start in range(0, 9 * many, many)] if many else [()] * 9
    positions, sequences, stamps, recorded, contexts, streams, types, header_lengths, body_lengths = columns
    text_lengths = struct_of(f"<{text_count}H").unpack_from(block, lengths_at)
    sizes = sum(text_lengths), sum(header_lengths), sum(body_lengths)
    if sizes != (text_bytes, header_bytes, len(block) - bodies_at):
        raise ValueError("its parts do not fill it")
    texts = [text.decode() for text in cuts(block, texts_at, text_lengths)]
    name = texts.__getitem__
    headers: list[str | None] = [None] * many
    if header_bytes:
        headers = [part.decode() if part else None for part in cuts(block, headers_at, header_lengths)]
    each = (
        *(positions, map(name, contexts), map(name, streams), sequences),
        *(cuts(block, ids, repeat(16, many)), stamps, map(name, types), headers),
        *(cuts(block, bodies_at, body_lengths), recorded, cuts(block, ids + 16 * many, repeat(16, many))),
    )
    return list(map(Event, *each))
