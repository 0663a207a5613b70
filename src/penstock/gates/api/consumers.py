"""Queues and subscriptions: batches of events that a consumer takes, and says that it is done with."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.event_json import compact_json
from penstock.gates.api.call import ENGINE_S_MAX, Answer, Call
from penstock.gates.api.incoming import parsed
from penstock.gates.api.media import JSON_TYPE, as_json
from penstock.gates.api.problems import Problem
from penstock.gates.api.streams import END, NUMBER_MAX, number_of
from penstock.model import (
    TICKS_MAX,
    AcknowledgeQueue,
    Delivery,
    Encoded,
    FetchedBatch,
    FetchSubscription,
    ListPage,
    ListQueues,
    ListSubscriptions,
    ProgressSubscription,
    Registered,
    RegisterSubscriptions,
    ReleaseQueue,
    Reply,
    Request,
    SubscribeQueue,
    SubscriptionStart,
)
from penstock.model.times import text_of_ticks, ticks_of_text

COUNT: Final = 100
"""Events of a batch, unless the client says how many."""
LEASE_MS: Final = 30_000
NO_ALLOCATION: Final = -1
DECLARER: Final = "http"
"""Who declares a queue, where that does not matter: it takes nothing."""
_KINDS: Final = {str: "text", int: "a whole number", bool: "true or false", float: "a number"}


# --- queues ---------------------------------------------------------------------------------------------------


async def declare_queue(call: Call) -> Answer:
    given = _members(call, {}, {"prefix": str, "from": str})
    context, queue = call.names["context"], call.names["queue"]
    wanted = given.get("prefix", ""), _ticks(given.get("from"))
    await call.execute(SubscribeQueue(context, queue, DECLARER, *wanted, 1, NO_ALLOCATION))
    return _answer({"context": context, "queue": queue})


async def list_queues(call: Call) -> Answer:
    page = await _listed(call, ListQueues)
    return _list(
        "queues",
        page,
        lambda one: {
            "id": one.id,
            "context": one.context,
            "queue": one.name,
            "prefix": one.filter,
            "position": one.position,
            "behind": one.behind,
            "allocated": one.allocated,
            "dead": one.dead,
        },
    )


async def take(call: Call) -> Answer:
    """The next batch of a queue, or the one that this consumer holds already."""
    given = _members(call, {"subscriber": str}, {"count": int, "lease_ms": int, "wait": float})
    names = call.names["context"], call.names["queue"], given["subscriber"]
    wait_ms = _wait_ms(call, given)
    lease_ms = _from_one("lease_ms", given.get("lease_ms", LEASE_MS))
    count = _from_one("count", given.get("count", COUNT))
    done = await _waited(call, AcknowledgeQueue(*names, 0, 0, count, lease_ms, wait_ms), wait_ms)
    assert isinstance(done, Delivery)
    held = done.allocation
    document = {
        "context": done.context,
        "queue": done.queue,
        "subscriber": done.subscriber,
        "allocation": held
        and {
            "first": held.first,
            "last": held.last,
            "count": held.count,
            "deliveries": held.deliveries,
            "expires": text_of_ticks(held.expires),
        },
    }
    return _with_events(document, done.encoded)


async def acknowledge(call: Call) -> Answer:
    """Done with a batch. One that is not held any more is left as it is."""
    given = _members(call, {"subscriber": str, "first": int, "last": int}, {})
    first, last = _markers(given)
    names = call.names["context"], call.names["queue"], given["subscriber"]
    await call.execute(AcknowledgeQueue(*names, first, last, 1, NO_ALLOCATION))
    return _done()


async def release(call: Call) -> Answer:
    """Give a batch back, for the next consumer."""
    given = _members(call, {"subscriber": str, "first": int, "last": int}, {"counts": bool})
    first, last = _markers(given)
    names = call.names["context"], call.names["queue"], given["subscriber"]
    await call.execute(ReleaseQueue(*names, first, last, given.get("counts", True)))
    return _done()


# --- subscriptions --------------------------------------------------------------------------------------------


async def register(call: Call) -> Answer:
    given = _members(call, {"subscriber": str, "context": str}, {"prefix": str, "from": str})
    start = SubscriptionStart(given["context"], given.get("prefix", ""), _ticks(given.get("from")))
    done = await call.execute(RegisterSubscriptions(given["subscriber"], (start,)))
    assert isinstance(done, Registered)
    return _answer({"id": done.ids[0]})


async def list_subscriptions(call: Call) -> Answer:
    page = await _listed(call, ListSubscriptions)
    return _list(
        "subscriptions",
        page,
        lambda one: {
            "id": one.id,
            "subscriber": one.subscriber,
            "context": one.context,
            "prefix": one.filter,
            "position": one.position,
        },
    )


async def fetch(call: Call) -> Answer:
    """The next batch of a subscription; the same one until it is progressed."""
    given = _members(call, {}, {"count": int, "wait": float})
    number, wait_ms = number_of("id", call.names["id"]), _wait_ms(call, given)
    count = _from_one("count", given.get("count", COUNT))
    done = await _waited(call, FetchSubscription(number, count, wait_ms), wait_ms)
    assert isinstance(done, FetchedBatch)
    assert done.encoded is not None
    # A text: many readers of JSON round numbers of this size.
    batch = str(done.encoded.content.last_ticks) if done.encoded.count else None
    return _with_events({"subscription": number, "batch": batch}, done.encoded)


async def progress(call: Call) -> Answer:
    """Done with a batch of a subscription. Any other than the one that was fetched last is left as it is."""
    given = _members(call, {"batch": str}, {})
    batch = number_of("batch", given["batch"])
    await call.execute(ProgressSubscription(number_of("id", call.names["id"]), batch))
    return _done()


# --- bodies and answers ---------------------------------------------------------------------------------------


def _members(call: Call, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """The members of an object that a body is. Raises Problem, NotJson or InvalidRequest."""
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise Problem(415, f"a body of type {kind[:80] or 'none'} is not known here; send {JSON_TYPE}")
    found, known = parsed(call.body), {**required, **optional}
    if not isinstance(found, dict):
        raise InvalidRequest("body", "is no object; send {…}")
    for name, value in found.items():
        if name not in known:
            raise InvalidRequest(name[:40], f"is no member here; there are {', '.join(known)}")
        wanted = known[name]
        # True is an int, too, and a whole number is a number.
        is_one = type(value) is wanted or (wanted is float and type(value) is int)
        if not is_one:
            raise InvalidRequest(name, f"must be {_KINDS[wanted]}")
    if missing := [name for name in required if name not in found]:
        raise InvalidRequest(missing[0], "is missing")
    return found


def _markers(given: Mapping[str, Any]) -> tuple[int, int]:
    return _from_one("first", given["first"]), _from_one("last", given["last"])


def _from_one(name: str, value: int) -> int:
    if not 1 <= value <= NUMBER_MAX:
        raise InvalidRequest(name, f"is {value}; it must be from 1 to {NUMBER_MAX}")
    return value


def _ticks(text: str | None) -> int:
    """Where to begin: the beginning, a time, or the end."""
    if text is None or text == END:
        return 0 if text is None else TICKS_MAX
    try:
        return ticks_of_text(text)
    except ValueError:
        reason = f"is {text[:40]!r}; it must be a time such as 2026-11-15T06:00:00Z, or {END}"
        raise InvalidRequest("from", reason) from None


def _wait_ms(call: Call, given: Mapping[str, Any]) -> int:
    seconds = given.get("wait", 0)
    if seconds < 0:
        raise InvalidRequest("wait", "must be seconds from 0 on")
    maximum = call.engine.settings.poll_wait_ms_max
    # A number may be too large to count its milliseconds.
    return maximum if seconds >= maximum / 1000 else round(seconds * 1000)


async def _waited(call: Call, request: Request, wait_ms: int) -> Reply:
    if not wait_ms:
        return await call.execute(request, as_json)
    attendance = call.attend()
    call.connection.give_time(wait_ms / 1000 + ENGINE_S_MAX)
    return await attendance.result(asyncio.ensure_future(call.execute(request, as_json)))


async def _listed(call: Call, kind: type[ListQueues] | type[ListSubscriptions]) -> ListPage[Any]:
    after, limit = call.one("after"), call.one("limit")
    request = kind(
        0 if after is None else number_of("after", after), None if limit is None else number_of("limit", limit)
    )
    page = await call.execute(request)
    assert isinstance(page, ListPage)
    return page


def _list(name: str, page: ListPage[Any], shown: Any) -> Answer:
    items = [shown(one) for one in page.items]
    return _answer({name: items, "after": None if page.end or not items else items[-1]["id"]})


def _with_events(document: Mapping[str, Any], encoded: Encoded | None) -> Answer:
    content = encoded.content.content if encoded is not None else b""
    return Answer(b'%s,"events":[%s]}\n' % (compact_json("answer", document).encode()[:-1], content))


def _answer(document: Mapping[str, Any]) -> Answer:
    return Answer(compact_json("answer", document).encode() + b"\n")


def _done() -> Answer:
    return Answer(status=204, media=None)
