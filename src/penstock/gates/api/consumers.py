"""Queues and subscriptions: a consumer takes batches of events, and reports the outcome of each event."""

import asyncio
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from operator import attrgetter
from types import NoneType
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.engine.queues import TTL_MS_MAX
from penstock.errors import InvalidRequest
from penstock.event_json import compact_json, event_texts
from penstock.gates.api.call import ENGINE_S_MAX, Answer, Call
from penstock.gates.api.incoming import parsed
from penstock.gates.api.media import JSON_TYPE, as_json
from penstock.gates.api.problems import Problem
from penstock.gates.api.streams import END, INLINE_BYTES_MAX, NUMBER_MAX, number_of
from penstock.model import TICKS_MAX, Event, ListPage, Rest, Run, Selection
from penstock.model.times import text_of_ticks, ticks_of_text

COUNT: Final = 100
"""Events of a batch, unless the client says how many."""
LEASE_MS: Final = 30_000
NO_ALLOCATION: Final = -1
DECLARER: Final = "http"
"""The subscriber in declarations of queues. Any name would do, since a declaration takes no events."""
FLOAT_MAX: Final = 1e15
"""Larger numbers cannot be meant as seconds."""


class Kind(NamedTuple):
    """The kind of value that a member of a body has."""

    words: str
    types: tuple[type, ...]


TEXT: Final = Kind("text", (str,))
TEXT_OR_NULL: Final = Kind("text, or null", (str, NoneType))
WHOLE: Final = Kind("a whole number", (int,))
NUMBER: Final = Kind("a number", (float, int))
NUMBER_OR_NULL: Final = Kind("a number, or null", (float, int, NoneType))
FLAG: Final = Kind("true or false", (bool,))
ARRAY: Final = Kind("an array", (list,))
OBJECT: Final = Kind("an object", (dict,))
Members = Mapping[str, Kind]

CONSUMER: Final[Members] = {"subscriber": TEXT}
SELECTED: Final[Members] = {"prefix": TEXT, "prefixes": ARRAY, "types": ARRAY, "from": TEXT}
BATCH: Final[Members] = {"batch": TEXT, "first": WHOLE, "last": WHOLE}
OUTCOMES: Final[Members] = {"retry": ARRAY, "bury": ARRAY, "give_back": ARRAY}
AGAIN: Final[Members] = {"delay": NUMBER_OR_NULL, "reason": TEXT}


# --- queues ---------------------------------------------------------------------------------------------------


async def declare_queue(call: Call) -> Answer:
    given = await _members(call, {}, {**SELECTED, "ordered": TEXT, "retry": OBJECT, "dead_after": WHOLE})
    context, queue = _names(call)
    prefix, selection = _selected(given)
    # None keeps the rule of a queue that exists; a new queue gets the default.
    is_selected = not given.keys().isdisjoint(("prefixes", "types"))
    request = model.SubscribeQueue(
        *(context, queue, DECLARER, prefix, _ticks(given.get("from")), 1, NO_ALLOCATION),
        ordered=given.get("ordered"),
        selection=selection if is_selected else None,
        retry=_policy(given["retry"]) if "retry" in given else None,
        dead_after=_from_one("dead_after", given["dead_after"]) if "dead_after" in given else None,
    )
    await call.execute(request)
    return _answer({"context": context, "queue": queue})


async def list_queues(call: Call) -> Answer:
    page = await _listed(call, model.ListQueues(*_page(call)))
    return _list("queues", "id", page.end, map(_queue, page.items))


def _queue(one: model.QueueInfo) -> dict[str, Any]:
    return {
        "id": one.id,
        "context": one.context,
        "queue": one.name,
        "prefix": one.filter,
        **_selection(one.selection),
        "ordered": one.ordered or None,
        "retry": model.RetryPolicy.parsed(one.retry)._asdict(),
        "dead_after": one.dead_after,
        "paused": one.paused,
        "position": one.position,
        **_lag(one),
        "allocated": one.allocated,
        "delayed": one.delayed,
        "dead": one.dead,
        "deliveries_max": one.deliveries_max,
    }


class Taken(NamedTuple):
    """An event of a batch. Its attempt is known only when the queue hands out the batch."""

    position: int
    stream: str
    text: str


def as_taken(events: list[Event]) -> list[Taken]:
    """Workers call it."""
    return [Taken(event.position, event.stream, text) for event, text in zip(events, event_texts(events), strict=True)]


async def take(call: Call) -> Answer:
    """The next batch of a queue, or the one that this consumer holds already."""
    given = await _members(call, CONSUMER, {"count": WHOLE, "lease_ms": WHOLE, "wait": NUMBER})
    wait_ms = _wait_ms(call, given)
    count = _from_one("count", given.get("count", COUNT))
    asked = (0, 0, count, _lease_ms(given), wait_ms)
    request = model.AcknowledgeQueue(*_names(call), given["subscriber"], *asked, several=True)
    done = await _waited(call, request, wait_ms, as_taken)
    assert isinstance(done, model.Delivery)
    held = done.allocation
    document = {
        "context": done.context,
        "queue": done.queue,
        "subscriber": done.subscriber,
        "batch": ",".join(f"{run.first}-{run.last}" for run in done.runs) or None,
        "allocation": held
        and {
            "first": held.first,
            "last": held.last,
            "count": held.count,
            "deliveries": held.deliveries,
            "expires": text_of_ticks(held.expires),
        },
    }
    taken: list[Taken] = [] if done.encoded is None else done.encoded.content
    attempts = done.attempts((one.position, one.stream) for one in taken)
    texts = (f'{one.text[:-1]},"attempt":{attempts[one.position]}}}' for one in taken)
    return _with_events(document, ",".join(texts).encode())


async def acknowledge(call: Call) -> Answer:
    """Acknowledge a batch, except for the events with another outcome."""
    return await _settle(call, await _members(call, CONSUMER, {**BATCH, **OUTCOMES}), Rest.DONE)


async def release(call: Call) -> Answer:
    """Give a batch back: the next consumer gets it, except for the events with another outcome."""
    others = {**BATCH, **OUTCOMES, **AGAIN, "counts": FLAG}
    given = await _members(call, CONSUMER, others)
    return await _settle(call, given, Rest.RETRY if given.get("counts", True) else Rest.BACK)


async def _settle(call: Call, given: Mapping[str, Any], rest: Rest) -> Answer:
    runs = _runs(given)
    retries = [
        model.Retried(one["position"], _delay_ms(one, f"{at}."), _reason(one))
        for at, one in _objects(given, "retry", {"position": WHOLE}, AGAIN)
    ]
    retries += [model.Retried(position, model.NOT_TRIED, "") for position in _positions(given, "give_back")]
    buries = [
        model.Buried(one["position"], _reason(one))
        for _, one in _objects(given, "bury", {"position": WHOLE, "reason": TEXT}, {})
    ]
    _check_outcomes(runs, [*(one.position for one in retries), *(one.position for one in buries)])
    # A released batch comes again at once, unless the client names a delay.
    delay_ms = _delay_ms({"delay": 0, **given})
    place = *_names(call), given["subscriber"], runs
    await call.execute(model.SettleQueue(*place, rest, delay_ms, _reason(given), tuple(retries), tuple(buries)))
    return _done()


def _check_outcomes(runs: Sequence[Run], positions: Sequence[int]) -> None:
    """Otherwise the server would silently ignore an outcome for an event outside of the batch, or one of two."""
    in_order = sorted(runs)
    # Allocations of several keys may overlap.
    ends = [*accumulate((run.last for run in in_order), max)]
    seen: set[int] = set()
    for position in positions:
        at = bisect_right(in_order, position, key=attrgetter("first"))
        if not at or ends[at - 1] < position:
            raise InvalidRequest("position", f"{position} is not in this batch")
        if position in seen:
            raise InvalidRequest("position", f"{position} has two outcomes")
        seen.add(position)


async def extend(call: Call) -> Answer:
    given = await _members(call, CONSUMER, {**BATCH, "lease_ms": WHOLE})
    done = await call.execute(model.ExtendQueue(*_names(call), given["subscriber"], _runs(given), _lease_ms(given)))
    assert isinstance(done, model.Extended)
    return _answer({"expires": text_of_ticks(done.expires)})


async def pause(call: Call) -> Answer:
    await _members(call, {}, {})
    await call.execute(model.PauseQueue(*_names(call), True))
    return _done()


async def resume(call: Call) -> Answer:
    await _members(call, {}, {})
    await call.execute(model.PauseQueue(*_names(call), False))
    return _done()


async def preview(call: Call) -> Answer:
    """Count what a queue would deliver after a move; nothing changes."""
    position = call.one("position")
    ticks, number = _place(call.one("from"), None if position is None else number_of("position", position))
    found = await call.execute(model.PreviewQueue(*_names(call), None, None, ticks, number))
    assert isinstance(found, model.QueuePreview)
    dropped = {"allocations": found.allocations, "dead": found.dead}
    return _answer({"position": found.position, **_lag(found), **dropped})


async def move(call: Call) -> Answer:
    given = await _members(call, {}, {"from": TEXT, "position": WHOLE})
    ticks, position = _place(given.get("from"), given.get("position"))
    if ticks is None and position is None:
        raise InvalidRequest("position", "is missing; say where the queue goes on, with position or from")
    await call.execute(model.ResetQueue(*_names(call), ticks or 0, position))
    return _done()


async def delete_queue(call: Call) -> Answer:
    await call.execute(model.DeleteQueue(*_names(call)))
    return _done()


# --- dead letters ---------------------------------------------------------------------------------------------


async def list_dead(call: Call) -> Answer:
    page = await _listed(call, model.ListLetters(*_names(call), *_page(call)))
    letters = ({**asdict(one), "died": text_of_ticks(one.died)} for one in page.items)
    return _list("dead", "position", page.end, letters)


async def requeue(call: Call) -> Answer:
    return await _end_letters(call, drop=False)


async def drop(call: Call) -> Answer:
    return await _end_letters(call, drop=True)


async def _end_letters(call: Call, *, drop: bool) -> Answer:
    """Put dead letters back, or forget them: those at some positions, or all."""
    given = await _members(call, {}, {"positions": ARRAY, "all": FLAG})
    positions = tuple(_positions(given, "positions"))
    if bool(positions) == given.get("all", False):
        raise InvalidRequest("positions", 'say which dead letters: {"positions": […]} or {"all": true}')
    if positions:
        return _answer({"events": await _end_some(call, positions, drop)})
    done, after, is_end = 0, 0, False
    while not is_end:
        # Each page takes time, and there may be many.
        call.connection.give_time(ENGINE_S_MAX)
        page = await _listed(call, model.ListLetters(*_names(call), after))
        if page.items:
            done += await _end_some(call, tuple(one.position for one in page.items), drop)
            after = page.items[-1].position
        is_end = page.end
    return _answer({"events": done})


async def _end_some(call: Call, positions: tuple[int, ...], drop: bool) -> int:
    done = await call.execute(model.PutBackLetters(*_names(call), positions, drop))
    assert isinstance(done, model.PutBackCount)
    return done.events


# --- subscriptions --------------------------------------------------------------------------------------------


async def register(call: Call) -> Answer:
    given = await _members(call, CONSUMER, {"context": TEXT_OR_NULL, **SELECTED})
    prefix, selection = _selected(given)
    start = model.SubscriptionStart(given.get("context"), prefix, _ticks(given.get("from")), selection)
    done = await call.execute(model.RegisterSubscriptions(given["subscriber"], (start,)))
    assert isinstance(done, model.Registered)
    return _answer({"id": done.ids[0]})


async def list_subscriptions(call: Call) -> Answer:
    page = await _listed(call, model.ListSubscriptions(*_page(call)))
    return _list("subscriptions", "id", page.end, map(_subscription, page.items))


def _subscription(one: model.SubscriptionInfo) -> dict[str, Any]:
    return {
        "id": one.id,
        "subscriber": one.subscriber,
        "context": one.context,
        "prefix": one.filter,
        **_selection(one.selection),
        "position": one.position,
        **_lag(one),
    }


async def fetch(call: Call) -> Answer:
    """The next batch of a subscription; the same one until it is progressed."""
    given = await _members(call, {}, {"count": WHOLE, "wait": NUMBER})
    number, wait_ms = number_of("id", call.names["id"]), _wait_ms(call, given)
    count = _from_one("count", given.get("count", COUNT))
    done = await _waited(call, model.FetchSubscription(number, count, wait_ms), wait_ms, as_json)
    assert isinstance(done, model.FetchedBatch)
    assert done.encoded is not None
    # A text: many readers of JSON round numbers of this size.
    batch = str(done.encoded.content.last_ticks) if done.encoded.count else None
    return _with_events({"subscription": number, "batch": batch}, done.encoded.content.content)


async def progress(call: Call) -> Answer:
    """Progress a subscription past a batch. Only the batch of the last fetch changes anything."""
    given = await _members(call, {"batch": TEXT}, {})
    batch = number_of("batch", given["batch"])
    await call.execute(model.ProgressSubscription(number_of("id", call.names["id"]), batch))
    return _done()


async def delete_subscription(call: Call) -> Answer:
    await call.execute(model.DeleteSubscription(number_of("id", call.names["id"])))
    return _done()


# --- bodies ---------------------------------------------------------------------------------------------------


async def _members(call: Call, required: Members, optional: Members) -> dict[str, Any]:
    """The members of a body that is an object; no body means no members. Raises Problem, NotJson or InvalidRequest."""
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE and (kind or call.body):
        raise Problem(415, f"a body of type {kind[:80] or 'none'} is not known here; send {JSON_TYPE}")
    if not kind:
        found: Any = {}
    elif len(call.body) <= INLINE_BYTES_MAX:
        found = parsed(call.body)
    else:
        found = await call.engine.pool.run(_parsed_job, call.body)
    if not isinstance(found, dict):
        raise InvalidRequest("body", "is no object; send {…}")
    return _checked(found, required, optional)


def _parsed_job(_store: object, body: bytes) -> Any:
    return parsed(body)


def _checked(found: dict[str, Any], required: Members, optional: Members, at: str = "") -> dict[str, Any]:
    """The members of an object, each of a known kind."""
    known = {**required, **optional}
    for name, value in found.items():
        if name not in known:
            raise InvalidRequest(f"{at}{name[:40]}", f"is no member here; there are {', '.join(known) or 'none'}")
        # Not isinstance: True is an int, too.
        if type(value) not in known[name].types:
            raise InvalidRequest(f"{at}{name}", f"must be {known[name].words}")
    if missing := [name for name in required if name not in found]:
        raise InvalidRequest(f"{at}{missing[0]}", "is missing")
    return found


def _objects(
    given: Mapping[str, Any], name: str, required: Members, optional: Members
) -> Iterable[tuple[str, dict[str, Any]]]:
    """The objects of an array, each with what errors call it."""
    for index, one in enumerate(given.get(name, ())):
        if not isinstance(one, dict):
            raise InvalidRequest(f"{name}[{index}]", "must be an object")
        yield f"{name}[{index}]", _checked(one, required, optional, f"{name}[{index}].")


def _positions(given: Mapping[str, Any], name: str) -> Iterable[int]:
    for index, one in enumerate(given.get(name, ())):
        if type(one) is not int:
            raise InvalidRequest(f"{name}[{index}]", "must be a whole number")
        yield _from_one(f"{name}[{index}]", one)


def _names(call: Call) -> tuple[str, str]:
    return call.names["context"], call.names["queue"]


def _runs(given: Mapping[str, Any]) -> tuple[Run, ...]:
    """The allocations of a batch, from its text, or the one with these markers."""
    if ("batch" in given) == ("first" in given or "last" in given):
        raise InvalidRequest("batch", "is missing; pass on that of the answer, or first and last of one allocation")
    if "batch" not in given:
        if missing := [name for name in ("first", "last") if name not in given]:
            raise InvalidRequest(missing[0], "is missing")
        return (Run(_from_one("first", given["first"]), _from_one("last", given["last"])),)
    batch: str = given["batch"]
    if not re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}(,[0-9]{1,18}-[0-9]{1,18})*", batch):
        raise InvalidRequest("batch", f"is {batch[:40]!r}, which no answer has; pass it on as it is")
    return tuple(Run(*map(int, part.split("-"))) for part in batch.split(","))


def _selected(given: Mapping[str, Any]) -> tuple[str, str]:
    """The filter of a consumer: a prefix, and its other rules as the text of a Selection."""
    for name in ("prefixes", "types"):
        if not all(isinstance(one, str) for one in given.get(name, ())):
            raise InvalidRequest(name, "must be an array of texts")
    return model.selection_of(given.get("prefix", ""), given.get("types"), given.get("prefixes"))


def _policy(given: dict[str, Any]) -> str:
    policy = _checked(given, {}, dict.fromkeys(model.RetryPolicy._fields, NUMBER), "retry.")
    return model.RetryPolicy(**{name: _bounded(value) for name, value in policy.items()}).checked().text


def _bounded(value: float) -> float:
    """Whole numbers can be too large for a float; the checks refuse those anyway."""
    return float(max(-1, min(value, FLOAT_MAX)))


def _delay_ms(given: Mapping[str, Any], at: str = "") -> int | None:
    """A delay of so many seconds; None: as the queue's policy says."""
    seconds = given.get("delay")
    if seconds is not None and not 0 <= seconds <= TTL_MS_MAX / 1000:
        raise InvalidRequest(f"{at}delay", f"must be from 0 to {TTL_MS_MAX // 1000} s")
    return None if seconds is None else round(seconds * 1000)


def _reason(given: Mapping[str, Any]) -> str:
    return model.short_reason(given.get("reason", ""))


def _from_one(name: str, value: int) -> int:
    if not 1 <= value <= NUMBER_MAX:
        raise InvalidRequest(name, f"is {value}; it must be from 1 to {NUMBER_MAX}")
    return value


def _lease_ms(given: Mapping[str, Any]) -> int:
    return _from_one("lease_ms", given.get("lease_ms", LEASE_MS))


def _ticks(text: str | None) -> int:
    """Where to begin: the beginning, a time, or the end."""
    if text is None or text == END:
        return 0 if text is None else TICKS_MAX
    try:
        return ticks_of_text(text)
    except ValueError:
        reason = f"is {text[:40]!r}; it must be a time such as 2026-11-15T06:00:00Z, or {END}"
        raise InvalidRequest("from", reason) from None


def _place(start: str | None, position: int | None) -> tuple[int | None, int | None]:
    """Where a queue goes on: at a time or the end, or at a position."""
    if start is not None and position is not None:
        raise InvalidRequest("position", "and from were both given; one of them is enough")
    if position is not None:
        _from_one("position", position)
    return None if start is None else _ticks(start), position


def _wait_ms(call: Call, given: Mapping[str, Any]) -> int:
    seconds = given.get("wait", 0)
    if seconds < 0:
        raise InvalidRequest("wait", "must be seconds from 0 on")
    maximum = call.engine.settings.poll_wait_ms_max
    # A number may be too large to count its milliseconds.
    return maximum if seconds >= maximum / 1000 else round(seconds * 1000)


# --- answers --------------------------------------------------------------------------------------------------


async def _waited(call: Call, request: model.Request, wait_ms: int, present: Any) -> model.Reply:
    if not wait_ms:
        return await call.execute(request, present)
    attendance = call.attend()
    call.connection.give_time(wait_ms / 1000 + ENGINE_S_MAX)
    return await attendance.result(asyncio.ensure_future(call.execute(request, present)))


def _page(call: Call) -> tuple[int, int | None]:
    """After which item a page of a list begins, and how long it may be."""
    after, limit = call.one("after"), call.one("limit")
    return 0 if after is None else number_of("after", after), None if limit is None else number_of("limit", limit)


async def _listed(call: Call, request: model.Request) -> ListPage[Any]:
    page = await call.execute(request)
    assert isinstance(page, ListPage)
    return page


def _list(name: str, key: str, end: bool, shown: Iterable[dict[str, Any]]) -> Answer:
    items = [*shown]
    return _answer({name: items, "after": None if end or not items else items[-1][key]})


def _selection(text: str) -> dict[str, Any]:
    selection = Selection.parsed(text)
    return {"prefixes": selection.prefixes, "types": selection.types}


def _lag(one: model.QueueInfo | model.SubscriptionInfo | model.QueuePreview) -> dict[str, Any]:
    return {"behind": one.behind, "behind_is_exact": one.behind_is_exact, "behind_ms": one.behind_ms}


def _with_events(document: Mapping[str, Any], events: bytes) -> Answer:
    return Answer(b'%s,"events":[%s]}\n' % (compact_json("answer", document).encode()[:-1], events))


def _answer(document: Mapping[str, Any]) -> Answer:
    return Answer(compact_json("answer", document).encode() + b"\n")


def _done() -> Answer:
    return Answer(status=204, media=None)
