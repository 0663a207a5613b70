"""Pages of logs and iterators, and trials of functions.

A trial reads messages with the rights of the principal, and runs the function on them in a Lua worker: a process that
has given up its rights, with the same limits as for iterators.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.console import bodies
from penstock.console.bodies import Message
from penstock.console.visit import NUMBER_MAX, Refused, Visit, number, url
from penstock.engine import iterator_jobs
from penstock.engine.iterator_jobs import Tried
from penstock.engine.iterators import lua_limits
from penstock.errors import FunctionFailed, IteratorNotFound, LogNotFound, NotAllowed, PenstockError
from penstock.model import LOG_CONTEXT, EventPage, IteratorKind, IteratorSummary, LogSummary, Over, Right

NAMES: Final = 50
MESSAGES: Final = 50
"""Names, messages and items in a page."""
TRIED: Final = 20
TRIED_MAX: Final = 100
"""Messages of a trial."""
TRIED_BYTES_MAX: Final = 4 << 20
TRIED_S_MAX: Final = 3.0
"""After so long a trial begins no other message."""
CHOICES_MAX: Final = 200
"""Names that forms propose."""
EXAMPLES: Final = {
    IteratorKind.MAP: "return msg",
    IteratorKind.FILTER: "return msg ~= null",
    IteratorKind.REDUCE: "return (acc or 0) + 1",
}


class LogRow(NamedTuple):
    summary: LogSummary
    last: int | None
    """When its last message was recorded (ticks)."""


async def logs(visit: Visit) -> Mapping[str, Any]:
    names, next = _page(await visit.ask(model.ListLogs(), model.Names), visit.one("after"))
    rows = await asyncio.gather(*(_log_row(visit, name) for name in names))
    return {
        "rows": [row for row in rows if row is not None],
        "after": visit.one("after"),
        "next": next,
        "may_append": visit.may(Right.APPEND),
    }


def _page(found: model.Names, after: str) -> tuple[list[str], str | None]:
    """A page of names, which are in order, and behind which the next begins."""
    names = [name for name in found.names if name > after]
    return names[:NAMES], names[NAMES - 1] if len(names) > NAMES else None


async def _log_row(visit: Visit, name: str) -> LogRow | None:
    try:
        summary, newest = await asyncio.gather(
            visit.ask(model.ShowLog(name), LogSummary), _newest(visit, LOG_CONTEXT, name)
        )
    except LogNotFound:
        # It was deleted meanwhile.
        return None
    return LogRow(summary, None if newest is None else newest.recorded)


async def _newest(visit: Visit, context: str, stream: str) -> bodies.Row | None:
    rows = await _presented(visit, model.ReadStream(context, stream, 0, None, 1, True), bodies.rows)
    return rows[0] if rows else None


async def _presented(visit: Visit, request: model.ReadStream, present: Any) -> Any:
    page = await visit.ask(request, EventPage, present)
    assert page.encoded is not None
    return page.encoded.content


async def log(visit: Visit) -> Mapping[str, Any]:
    """The newest messages first: those before a number, or from one on."""
    name = visit.one("log")
    summary, newest = await asyncio.gather(
        visit.ask(model.ShowLog(name), LogSummary), _newest(visit, LOG_CONTEXT, name)
    )
    base = 0 if newest is None else newest.sequence - summary.messages
    end = visit.number("from", 0) + MESSAGES if visit.one("from") else visit.number("before", summary.messages)
    first = max(0, end - MESSAGES)
    messages: list[Message] = []
    if first < min(end, summary.messages):
        request = model.ReadStream(LOG_CONTEXT, name, base + first + 1, base + end, MESSAGES)
        messages = await _presented(visit, request, bodies.messages)
    return {
        "title": name,
        "summary": summary,
        "newest": newest,
        "base": base,
        "messages": messages[::-1],
        "older": first or None,
        "newer": end + MESSAGES if end < summary.messages else None,
        "iterators": [
            one for one in await asyncio.gather(*(_iterator(visit, one) for one in summary.iterators[:NAMES])) if one
        ],
        "may_append": visit.may(Right.APPEND),
    }


async def create_log(visit: Visit) -> str:
    name = visit.field("log").strip()
    await visit.ask(model.CreateLog(name), model.Done)
    visit.left = url("/logs/log", log=name)
    return f"The log {name} is there."


async def delete_log(visit: Visit) -> str:
    name = visit.field("log")
    await visit.ask(model.DropLog(name, number("the log's number", visit.field("created"))), model.Done)
    visit.left = url("/logs")
    return f"The log {name} is deleted, with its messages and iterators."


# --- iterators ------------------------------------------------------------------------------------------------


async def _iterator(visit: Visit, name: str) -> IteratorSummary | None:
    try:
        return await visit.ask(model.ShowIterator(name), IteratorSummary)
    except IteratorNotFound:
        return None


async def iterators(visit: Visit) -> Mapping[str, Any]:
    names, next = _page(await visit.ask(model.ListIterators(None), model.Names), visit.one("after"))
    found = await asyncio.gather(*(_iterator(visit, name) for name in names))
    return {"iterators": [one for one in found if one is not None], "after": visit.one("after"), "next": next}


async def iterator(visit: Visit) -> Mapping[str, Any]:
    """An iterator and a page of its output: the first items, or those from a number on."""
    name, first = visit.one("iterator"), visit.number("from", 0)
    summary = await visit.ask(model.ShowIterator(name), IteratorSummary)
    readers = await visit.ask(model.ListIterators(name), model.Names)
    items: Sequence[Message] = []
    error = ""
    # A part that refreshes shows how far it is; it runs no function.
    if not visit.part:
        try:
            page = await visit.ask(model.NextItems(name, first, MESSAGES), model.ItemPage)
            items = await visit.engine.pool.run(bodies.items, page.items, first)
        except FunctionFailed as failed:
            error = str(failed)
    return {
        "title": name,
        "one": summary,
        "source": source_url(summary.over, summary.log),
        "readers": readers.names,
        "items": items,
        "error": error,
        "first": first,
        "older": max(0, first - MESSAGES) if first else None,
        "newer": first + MESSAGES if len(items) == MESSAGES else None,
        "may_append": visit.may(Right.APPEND),
    }


def source_url(over: Over, log: str) -> str:
    """The page of what an iterator reads."""
    if over is Over.LOG:
        return url("/logs/log", log=log)
    if over is Over.ITERATOR:
        return url("/iterators/iterator", iterator=log)
    context, _, stream = log.partition("/")
    return url("/browse/stream", context=context, stream=stream)


async def create_iterator(visit: Visit) -> str:
    name, log = visit.field("iterator").strip(), visit.field("log").strip()
    function, is_indexed = _function(visit), bool(visit.field("indexed"))
    await visit.ask(model.CreateIterator(name, log, _kind(visit), function, is_indexed), model.Done)
    visit.left = url("/iterators/iterator", iterator=name)
    return f"The iterator {name} over {log} is there."


async def delete_iterator(visit: Visit) -> str:
    name, log = visit.field("iterator"), visit.field("log")
    await visit.ask(model.DropIterator(log, name), model.Done)
    visit.left = url("/iterators")
    return f"The iterator {name} is deleted, with its output and those that read it."


def _function(visit: Visit) -> str:
    """The text of a form has the line ends of the network."""
    return visit.field("function").replace("\r\n", "\n")


def _kind(visit: Visit) -> IteratorKind:
    try:
        return IteratorKind(visit.field("kind"))
    except ValueError:
        raise Refused(400, "choose map, filter or reduce as the kind") from None


# --- trials ---------------------------------------------------------------------------------------------------


class Trial(NamedTuple):
    """A message of a trial, and what became of it: done, dropped, failed, or not run."""

    message: Message
    outcome: str
    output: Message | None
    reason: str


async def attempt(visit: Visit) -> Mapping[str, Any]:
    """The editor for functions: with GET it is filled in, with POST the function runs."""
    is_sent = visit.http.method == "POST"
    names = visit.field if is_sent else visit.one
    kind = (
        _kind(visit) if is_sent else next((one for one in IteratorKind if one == visit.one("kind")), IteratorKind.MAP)
    )
    log, first, count = names("log").strip(), _digits(names, "first", 0), _digits(names, "count", TRIED)
    function = _function(visit) if is_sent else EXAMPLES[kind]
    if not is_sent and (of := visit.one("iterator")):
        shown = await visit.ask(model.ShowIterator(of), IteratorSummary)
        log, kind, function = shown.log, shown.kind, shown.function
    found: dict[str, Any] = {
        "log": log,
        "kind": kind,
        "kinds": list(IteratorKind),
        "first": first,
        "count": min(max(count, 1), TRIED_MAX),
        "count_max": TRIED_MAX,
        "function": function,
        "examples": EXAMPLES,
        "choices": await _choices(visit),
        "trials": None,
        "error": "",
        "name": visit.field("iterator"),
        "may_append": visit.may(Right.APPEND),
        "limits": visit.engine.settings,
    }
    if not is_sent:
        return found
    if not visit.may(Right.APPEND):
        # As for an iterator: the right to read alone runs no functions in the server.
        raise NotAllowed(visit.login.principal.name, Right.APPEND.words, log)
    try:
        inputs = await _inputs(visit, log, first, found["count"])
        with visit.console.trials.one():
            found["trials"] = await _tried(visit, kind, function, inputs)
    except (PenstockError, Refused) as error:
        found["error"] = visit.refused(error)
    return found


def _digits(names: Any, name: str, default: int) -> int:
    return number(name, text) if (text := names(name).strip()) else default


async def _choices(visit: Visit) -> list[str]:
    """Logs and iterators that the principal may read."""
    logs, iterators = await asyncio.gather(
        visit.ask(model.ListLogs(), model.Names), visit.ask(model.ListIterators(None), model.Names)
    )
    return [*logs.names[:CHOICES_MAX], *iterators.names[:CHOICES_MAX]]


class Input(NamedTuple):
    number: int
    message: bytes


async def _inputs(visit: Visit, log: str, first: int, count: int) -> list[Input]:
    """Messages that an iterator over a log, an iterator or a stream gets, up to a size."""
    try:
        summary = await visit.ask(model.ShowLog(log), LogSummary)
    except (LogNotFound, NotAllowed):
        pass
    else:
        newest = await _newest(visit, LOG_CONTEXT, log)
        base = 0 if newest is None else newest.sequence - summary.messages
        return await _stream_inputs(visit, LOG_CONTEXT, log, base, first, count)
    try:
        page = await visit.ask(model.NextItems(log, first, count), model.ItemPage)
        return _bounded([Input(first + at, item) for at, item in enumerate(page.items)])
    except (IteratorNotFound, NotAllowed):
        context, slash, stream = log.partition("/")
        if not slash:
            raise LogNotFound(log) from None
    return await _stream_inputs(visit, context, stream, 0, first, count)


async def _stream_inputs(visit: Visit, context: str, stream: str, base: int, first: int, count: int) -> list[Input]:
    request = model.ReadStream(context, stream, min(base + first + 1, NUMBER_MAX), limit=count)
    found = await _presented(visit, request, bodies.contents if context == LOG_CONTEXT else bodies.event_messages)
    return _bounded([Input(sequence - base - 1, message) for sequence, message in found])


def _bounded(inputs: list[Input]) -> list[Input]:
    size = 0
    for at, one in enumerate(inputs):
        size += len(one.message)
        if at and size > TRIED_BYTES_MAX:
            return inputs[:at]
    return inputs


async def _tried(visit: Visit, kind: IteratorKind, function: str, inputs: list[Input]) -> list[Trial]:
    if not inputs:
        raise Refused(404, "there are no messages to try the function on", "Choose another log, or begin earlier.")
    engine, messages = visit.engine, [one.message for one in inputs]
    limits = lua_limits(engine.settings)
    ran: Tried = await engine.lua.run(iterator_jobs.try_function, kind, function, messages, TRIED_S_MAX, limits)
    outputs = [output for output in ran.outputs if output is not None]
    shown: list[Message] = await engine.pool.run(bodies.items, [*messages, *outputs], 0)
    results = iter(shown[len(messages) :])
    errors = {error.message: error.reason for error in ran.errors}
    trials = []
    for at, one in enumerate(inputs):
        message, output = shown[at]._replace(number=one.number), None
        if at in errors:
            outcome = "failed"
        elif at >= len(ran.outputs):
            outcome = "not run"
        elif ran.outputs[at] is None:
            outcome = "dropped"
        else:
            outcome, output = "done", next(results)
        trials.append(Trial(message, outcome, output, errors.get(at, "")))
    return trials
