"""Pages of queues and subscriptions: how far they are, who holds what, dead letters, and changes with a preview."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.console.jobs import (
    ROWS,
    QueueFacts,
    count_between,
    find_time,
    preview_of,
    queue_facts,
    subscription_facts,
    ticks_at,
)
from penstock.console.visit import Refused, Visit, number, ticks, url
from penstock.model import (
    DeadLetter,
    DeleteQueue,
    DeleteSubscription,
    Done,
    ListLetters,
    ListPage,
    ListQueues,
    ListSubscriptions,
    PauseQueue,
    PreviewQueue,
    PutBackCount,
    PutBackLetters,
    QueueInfo,
    QueuePreview,
    RenameQueue,
    Replayed,
    ReplayQueue,
    ResetQueue,
    RetryPolicy,
    Right,
    Selection,
    SetDeadLetterRule,
    SetQueueFilter,
    SetRetryPolicy,
    SetSubscription,
    SubscriptionInfo,
    selection_of,
)
from penstock.model.times import TICKS_MAX
from penstock.store.contract import Search

LETTERS_AT_ONCE: Final = 1000
LETTERS_MAX: Final = 10_000
"""Dead letters that one action puts back or drops."""
NAMES_MAX: Final = 100
"""Prefixes, or types, of a filter."""

QUEUE: Final = "/queues/queue"
SUBSCRIPTION: Final = "/subscriptions/subscription"


class Place(NamedTuple):
    """The target of a move: a position, or a time (ticks)."""

    by: str
    at: str
    position: int | None
    ticks: int


# --- pages of queues ------------------------------------------------------------------------------------------


async def queues(visit: Visit) -> Mapping[str, Any]:
    after = visit.number("after", 0)
    page = await visit.ask(ListQueues(after, ROWS), ListPage)
    return {"queues": page.items, "after": after, "next": None if page.end else page.items[-1].id}


async def queue(visit: Visit) -> Mapping[str, Any]:
    """One queue, with its allocations and its dead letters."""
    context, name = visit.one("context"), visit.one("queue")
    letters = await visit.ask(ListLetters(context, name, visit.number("letters", 0), ROWS), ListPage)
    facts = await _facts(visit, context, name)
    return {
        "title": name,
        **_rules(facts.info),
        "holdings": facts.holdings,
        "holdings_next": facts.next,
        "letters": letters.items,
        "letters_next": None if letters.end else letters.items[-1].position,
        "may_change": visit.may(Right.CONSUME),
    }


async def change(visit: Visit) -> Mapping[str, Any]:
    """The preview of a change of a queue, with the form that makes the change."""
    context, name, what = visit.one("context"), visit.one("queue"), visit.one("do")
    if what not in CHANGES:
        raise Refused(404, f"there is no change {what[:60]!r} of a queue", "The page of the queue has all changes.")
    facts = await _facts(visit, context, name)
    found = {"title": f"{CHANGES[what]} {name}", "what": what, **_rules(facts.info)}
    if what == "move":
        found |= await _move_preview(visit, facts.info)
    elif what == "replay":
        found |= await _replay_preview(visit, facts.info)
    elif what == "filter":
        found |= await _filter_preview(visit, facts.info)
    elif what == "rename":
        found["name"] = _needed("the new name", visit.one("name"))
    return found


CHANGES: Final = {
    "move": "Move",
    "replay": "Replay events of",
    "filter": "Change the filter of",
    "rename": "Rename",
    "drop": "Drop all dead letters of",
    "delete": "Delete",
}


async def _facts(visit: Visit, context: str, name: str) -> QueueFacts:
    request = ListLetters(context, name)
    found: QueueFacts = await visit.run(request, queue_facts, context, name, visit.number("held", 0))
    return found


def _rules(info: QueueInfo) -> dict[str, Any]:
    selection = Selection.parsed(info.selection)
    return {
        "info": info,
        "prefixes": _prefixes(info.filter, selection),
        "types": selection.types or (),
        "retry": RetryPolicy.parsed(info.retry),
        "here": {"context": info.context, "queue": info.name},
    }


async def _move_preview(visit: Visit, info: QueueInfo) -> dict[str, Any]:
    place = _place(visit.one("by"), visit.one("at"))
    at = place.ticks if place.position is None else None
    then = await visit.ask(PreviewQueue(info.context, info.name, ticks=at, position=place.position), QueuePreview)
    first, end = sorted((then.position, info.position))
    between = await visit.run(ListLetters(info.context, info.name), count_between, info.wanted, first, end - 1)
    return {"place": place, "then": then, "between": between}


async def _replay_preview(visit: Visit, info: QueueInfo) -> dict[str, Any]:
    first, last = _needed_number("first", visit.one("first")), _needed_number("last", visit.one("last"))
    if last < first:
        raise Refused(400, f"the last position, {last:,}, is before the first, {first:,}", "Go back and correct it.")
    between = await visit.run(ListLetters(info.context, info.name), count_between, info.wanted, first, last)
    return {"first": first, "last": last, "between": between, "is_ahead": last >= info.position}


async def _filter_preview(visit: Visit, info: QueueInfo) -> dict[str, Any]:
    prefix, selection = _selection(visit.one("prefixes"), visit.one("types"))
    now = await visit.ask(PreviewQueue(info.context, info.name), QueuePreview)
    # As it is would be None.
    then = await visit.ask(PreviewQueue(info.context, info.name, prefix, selection.text), QueuePreview)
    return {
        "now": now,
        "then": then,
        "new_prefixes": _prefixes(prefix, selection),
        "new_types": selection.types or (),
        "prefixes_text": visit.one("prefixes"),
        "types_text": visit.one("types"),
    }


def _selection(prefixes: str, types: str) -> tuple[str, Selection]:
    """The filter and the selection of two texts with a name in each line."""
    starts, kinds = (tuple(dict.fromkeys(_lines(text))) for text in (prefixes, types))
    for what, names in (("prefixes", starts), ("types", kinds)):
        if len(names) > NAMES_MAX:
            raise Refused(400, f"these are {len(names)} {what}; a queue takes up to {NAMES_MAX}", "Take fewer.")
    only, several = ("".join(starts), None) if len(starts) < 2 else ("", starts)
    filter, _ = selection_of(only, None, several)
    return filter, Selection(kinds or None, several)


def _prefixes(filter: str, selection: Selection) -> tuple[str, ...]:
    return selection.prefixes or ((filter,) if filter else ())


def _lines(text: str) -> list[str]:
    return [line for one in text.split("\n") if (line := one.strip())]


def _place(by: str, at: str) -> Place:
    if by == "position":
        return Place(by, at, _needed_number("the position", at), 0)
    if by == "time":
        return Place(by, at, None, ticks(at))
    if by in ("beginning", "end"):
        return Place(by, "", 1 if by == "beginning" else None, 0 if by == "beginning" else TICKS_MAX)
    raise Refused(400, "say where to move it: to a position, a time, the beginning or the end", "Go back and choose.")


def _needed(what: str, text: str) -> str:
    if not text:
        raise Refused(400, f"{what} is missing", "Go back and fill it in.")
    return text


def _needed_number(what: str, text: str) -> int:
    return number(what, _needed(what, text.strip()))


# --- changes of queues ----------------------------------------------------------------------------------------


def _named(visit: Visit) -> tuple[str, str]:
    context, name = visit.field("context"), visit.field("queue")
    visit.left = url(QUEUE, context=context, queue=name)
    return context, name


def _counted(events: int, thing: str = "event") -> str:
    return f"{events:,} {thing}{'' if events == 1 else 's'}"


async def pause(visit: Visit) -> str:
    context, name = _named(visit)
    paused = visit.field("paused") == "1"
    await visit.ask(PauseQueue(context, name, paused), Done)
    return f"queue {name} is {'paused: it hands out nothing' if paused else 'resumed'}"


async def move(visit: Visit) -> str:
    context, name = _named(visit)
    place = _place(visit.field("by"), visit.field("at"))
    await visit.ask(ResetQueue(context, name, place.ticks, place.position), Done)
    now = await visit.ask(PreviewQueue(context, name), QueuePreview)
    more = "" if now.behind_is_exact else "+"
    return f"queue {name} goes on at position {now.position:,}; {now.behind:,}{more} events wait"


async def replay(visit: Visit) -> str:
    context, name = _named(visit)
    first, last = number("first", visit.field("first")), number("last", visit.field("last"))
    done = await visit.ask(ReplayQueue(context, name, first, last), Replayed)
    if done.is_full:
        raise Refused(
            409,
            f"{done.waiting:,} events wait in queue {name} already, so the queue stays as it was",
            "Try again when fewer wait.",
        )
    left_out = f"; {done.left_out:,} are held, wait or are dead letters" if done.left_out else ""
    return f"queue {name} delivers {_counted(done.events)} again{left_out}"


async def set_filter(visit: Visit) -> str:
    context, name = _named(visit)
    prefix, selection = _selection(visit.field("prefixes"), visit.field("types"))
    await visit.ask(SetQueueFilter(context, name, prefix, selection.text), Done)
    return f"queue {name} has another filter now"


async def set_retry(visit: Visit) -> str:
    context, name = _named(visit)
    try:
        policy = RetryPolicy(*(float(visit.field(one)) for one in RetryPolicy._fields)).checked()
    except ValueError:
        raise Refused(400, "each part of a retry policy is a number", "Correct it and try again.") from None
    await visit.ask(SetRetryPolicy(context, name, policy.text), Done)
    return f"queue {name} has another retry policy now"


async def set_dead_after(visit: Visit) -> str:
    context, name = _named(visit)
    text = visit.field("dead_after").strip()
    holders = number("the number of deliveries", text) if text else None
    await visit.ask(SetDeadLetterRule(context, name, holders), Done)
    rule = "no event" if holders is None else f"an event after {holders:,} deliveries in vain"
    return f"queue {name} makes {rule} a dead letter from now on"


async def rename(visit: Visit) -> str:
    context, name = _named(visit)
    new = _needed("the new name", visit.field("name"))
    await visit.ask(RenameQueue(context, name, new), Done)
    visit.left = url(QUEUE, context=context, queue=new)
    return f"queue {name} is now {new}"


async def delete(visit: Visit) -> str:
    context, name = _named(visit)
    await visit.ask(DeleteQueue(context, name), Done)
    visit.left = url("/queues")
    return f"queue {name} is deleted; its events are still in the history"


async def put_back(visit: Visit) -> str:
    """One dead letter, or all."""
    return await _revive(visit, drop=False)


async def drop(visit: Visit) -> str:
    return await _revive(visit, drop=True)


async def _revive(visit: Visit, *, drop: bool) -> str:
    context, name = _named(visit)
    if text := visit.field("position"):
        at = number("the position", text)
        if not await _revive_page(visit, (at,), drop=drop):
            raise Refused(404, f"there is no dead letter at position {at:,} any more", "Somebody was faster.")
        return f"the dead letter at position {at:,} is {'dropped' if drop else 'put back'}"
    done, last, is_end = 0, 0, False
    while not is_end and done < LETTERS_MAX:
        page = await visit.ask(ListLetters(context, name, last, LETTERS_AT_ONCE), ListPage)
        letters: list[DeadLetter] = page.items
        is_end = page.end
        if letters:
            last = letters[-1].position
            done += await _revive_page(visit, tuple(one.position for one in letters), drop=drop)
    verb = "is" if done == 1 else "are"
    rest = "" if is_end else "; there are more, so repeat it"
    return f"{_counted(done, 'dead letter')} of queue {name} {verb} {'dropped' if drop else 'put back'}{rest}"


async def _revive_page(visit: Visit, positions: tuple[int, ...], *, drop: bool) -> int:
    context, name = _named(visit)
    return (await visit.ask(PutBackLetters(context, name, positions, drop), PutBackCount)).events


# --- subscriptions --------------------------------------------------------------------------------------------


async def subscriptions(visit: Visit) -> Mapping[str, Any]:
    after = visit.number("after", 0)
    page = await visit.ask(ListSubscriptions(after, ROWS), ListPage)
    return {"subscriptions": page.items, "after": after, "next": None if page.end else page.items[-1].id}


async def subscription(visit: Visit) -> Mapping[str, Any]:
    """One subscription; with `by`, what moving it there would do."""
    info = await _subscription(visit, visit.number("id", 0))
    found: dict[str, Any] = {}
    if visit.one("by"):
        place = _place(visit.one("by"), visit.one("at"))
        position = await _position(visit, info, await _time_of(visit, info, place))
        then = await visit.run(ListSubscriptions(), preview_of, info.wanted, position)
        found = {"place": place, "then": then}
        first, end = sorted((position, info.position))
        found["between"] = await visit.run(ListSubscriptions(), count_between, info.wanted, first, end - 1)
    selection = Selection.parsed(info.selection)
    return {
        "title": info.subscriber,
        "info": info,
        "prefixes": _prefixes(info.filter, selection),
        "types": selection.types or (),
        "may_change": visit.may(Right.CONSUME),
        "place": None,
        **found,
    }


async def _subscription(visit: Visit, id: int) -> SubscriptionInfo:
    found: SubscriptionInfo = await visit.run(ListSubscriptions(), subscription_facts, id)
    return found


async def _position(visit: Visit, info: SubscriptionInfo, at: int) -> int:
    start = 1
    while True:
        search: Search = await visit.run(ListSubscriptions(), find_time, info.wanted, at, start)
        if search.position is not None or search.end:
            return search.next if search.position is None else search.position
        start = search.next


async def _time_of(visit: Visit, info: SubscriptionInfo, place: Place) -> int:
    """A subscription moves to a time: that of the first event at or after a position."""
    if place.by != "position":
        return place.ticks
    assert place.position is not None
    found = await visit.run(ListSubscriptions(), ticks_at, info.wanted, place.position)
    return TICKS_MAX if found is None else int(found)


async def set_subscription(visit: Visit) -> str:
    info = await _subscription(visit, number("the subscription", visit.field("id")))
    place = _place(visit.field("by"), visit.field("at"))
    at = await _time_of(visit, info, place)
    await visit.ask(SetSubscription(info.subscriber, info.context, info.filter, at, info.selection), Done)
    visit.left = url(SUBSCRIPTION, id=info.id)
    return f"subscription {info.subscriber} goes on at position {(await _subscription(visit, info.id)).position:,}"


async def delete_subscription(visit: Visit) -> str:
    info = await _subscription(visit, number("the subscription", visit.field("id")))
    if visit.field("subscriber") != info.subscriber:
        raise Refused(409, f"subscription {info.id} is not of this subscriber, so nothing was changed")
    await visit.ask(DeleteSubscription(info.id), Done)
    visit.left = url("/subscriptions")
    return f"subscription {info.subscriber} is deleted; its events are still in the history"
