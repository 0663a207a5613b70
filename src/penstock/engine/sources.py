"""What an iterator reads, as messages: each one CBOR item, numbered from 0.

The messages of a log are its events' bodies. Those of another iterator are the items of its kept output. A stream of
any other context has its events as maps. An event that was erased keeps its number and has no message.
"""

import json
from typing import Any, Final

import cbor2

from penstock.errors import IteratorNotFound
from penstock.lua import LuaLimits
from penstock.model import Event, Over
from penstock.model.times import TICKS_PER_SECOND, UNIX_EPOCH_TICKS
from penstock.store import Store
from penstock.store.contract import LOG_CONTEXT, IteratorState, ReadLimits

BODY_DEPTH_MAX: Final = LuaLimits().depth_max - 1
"""Levels of a body that functions can be given; the event around it is one more."""
FAILED: Final = b""
"""In an iterator's kept output, the item of a message that its function failed at."""


def count(store: Store, iterator: IteratorState) -> int:
    """How many messages there are for an iterator now."""
    if iterator.over == Over.ITERATOR:
        return _above(store, iterator).outputs
    return max(0, store.stream_head(*_stream(iterator)) - iterator.base)


def read(store: Store, iterator: IteratorState, ordinal: int, limits: ReadLimits) -> list[bytes | None]:
    """Messages of an iterator's log from an ordinal on; None stands for one that was erased."""
    if iterator.over == Over.ITERATOR:
        return [*store.read_output(_above(store, iterator).id, ordinal, limits)]
    first = iterator.base + ordinal + 1
    # Asked first: what comes meanwhile is not erased.
    head = store.stream_head(*_stream(iterator))
    page = store.read_stream(*_stream(iterator), first, None, limits)
    events = page.events
    following = page.next
    if page.end:
        # The page does not say what was erased behind its last event.
        following = max(following, min(head + 1, first + limits.events_max))
    bodies = [event.body for event in events] if iterator.over == Over.LOG else list(map(event_message, events))
    if len(events) == following - first:
        return [*bodies]
    found: list[bytes | None] = [None] * (following - first)
    for event, body in zip(events, bodies, strict=True):
        found[event.sequence - first] = body
    return found


def position(store: Store, iterator: IteratorState, ordinal: int) -> int | None:
    """Where in the history the event of a message is; None if it is erased, or an item of another iterator."""
    if iterator.over == Over.ITERATOR:
        return None
    sequence = iterator.base + ordinal + 1
    found = store.read_stream(*_stream(iterator), sequence, sequence, ReadLimits(events_max=1)).events
    return found[0].position if found else None


def _above(store: Store, iterator: IteratorState) -> IteratorState:
    above = store.iterator(iterator.log)
    if above is None:
        raise IteratorNotFound(iterator.name)
    return above


def _stream(iterator: IteratorState) -> tuple[str, str]:
    if iterator.over == Over.LOG:
        return LOG_CONTEXT, iterator.log
    context, _, stream = iterator.log.partition("/")
    return context, stream


def event_message(event: Event) -> bytes:
    """An event of a stream as the map that functions get."""
    fields = {
        "id": str(event.uuid),
        "stream": event.stream,
        "sequence": event.sequence,
        "timestamp": (event.ticks - UNIX_EPOCH_TICKS) / TICKS_PER_SECOND,
        "ticks": event.ticks,
        "type": event.type,
        "headers": event.headers,
    }
    try:
        return cbor2.dumps({**fields, "body": _parsed(event.body)})
    except (ValueError, RecursionError, cbor2.CBOREncodeError):
        # Not JSON, or JSON that CBOR cannot say, such as half a surrogate pair, or Lua cannot hold.
        return cbor2.dumps({**fields, "body": _text(event.body)})


def _parsed(body: bytes) -> Any:
    """The value of a JSON object or array; raises ValueError if it is neither, or nested too deep."""
    if body.lstrip()[:1] not in (b"{", b"["):
        raise ValueError
    value = json.loads(body.decode())
    # Every level has its bracket. Most bodies have so few that there is nothing to look for.
    if body.count(b"[") + body.count(b"{") >= BODY_DEPTH_MAX and _is_deeper(value, BODY_DEPTH_MAX):
        raise ValueError
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether there are more levels than so many. An integer beyond 64 bits is one too: CBOR has it as a tag."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not isinstance(value, dict | list) and not (isinstance(value, int) and value.bit_length() > 64):
        return False
    return not levels or any(_is_deeper(one, levels - 1) for one in inner)


def _text(body: bytes) -> str | bytes:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
