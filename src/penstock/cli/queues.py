"""`penstock queue`: what queues have delivered, and how to make, change, move and repair them."""

import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import uuid4

import typer

from penstock.cli.connection import connected
from penstock.cli.options import AsJson, Data, Filter, Types, Url, Yes, argument, need_name, option
from penstock.cli.output import (
    agreed,
    counted,
    fail,
    need_yes,
    print_document,
    print_fields,
    print_result,
    print_rows,
    refuse,
    remark,
)
from penstock.cli.read import print_events
from penstock.cli.stats import QUEUE_COLUMNS, lag_cells, queue_row
from penstock.cli.subscriptions import OnlyContext, start_time
from penstock.errors import AllocationLost, PenstockError
from penstock.model import QueueInfo, RetryPolicy, Selection
from penstock.model.retries import FACTOR_MAX
from penstock.model.times import text_of_ticks

if TYPE_CHECKING:
    from penstock.client import Client, Queue

BATCH_EVENTS: Final = 100
WAIT_S: Final = 20.0
"""How long one request of `consume --follow` waits for events."""
PREVIEW_EVENTS_MAX: Final = 4096
"""How many events a preview counts."""

queue_app = typer.Typer(no_args_is_help=True)

Context = Annotated[str, argument("CONTEXT", "the queue's context")]
Name = Annotated[str, argument("QUEUE", "the queue's name")]
Prefixes = Annotated[
    list[str] | None,
    option("--prefix", "only streams whose names begin with this, or with another one; can be repeated", "PREFIX"),
]
Ordered = Annotated[
    str | None,
    option(
        "--ordered",
        "in order, one consumer at a time: by stream, or by what streams' names have before a separator",
        "stream|prefix:SEP",
    ),
]
RetryDelay = Annotated[float | None, option("--retry-delay", "how long a failed event waits (1)", "SECONDS", min=0)]
RetryFactor = Annotated[
    float | None, option("--retry-factor", "how much longer each time (2)", "FACTOR", min=1, max=FACTOR_MAX)
]
RetryCap = Annotated[float | None, option("--retry-cap", "how long it waits at most (300)", "SECONDS", min=0)]
RetryJitter = Annotated[
    float | None, option("--retry-jitter", "part by which delays differ at random (0.1)", "PART", min=0, max=1)
]
DEAD_AFTER: Final = "make an event a dead letter after this many deliveries in vain"


@queue_app.command("list")
def list_queues(context: OnlyContext = None, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List queues: position, lag, events that consumers hold, and dead letters.

    `behind` is the lag: the queue's events from its position to the end of the history, and the events that will be
    delivered again because a consumer released them or let them expire. It is 0 when nothing is left. The count ends at
    10,000 events, or after some milliseconds: a `+` says that there may be more. `oldest` is how long ago the oldest of
    these events was recorded. `allocated` are the events that consumers hold now, `tries` is the largest number of
    consumers that had the same event, and `dead` is the number of dead letters. `penstock queue show` has the rest.
    """
    with connected(url, data) as client:
        found = [info for info in client.queues() if context in (None, info.context)]
    columns: tuple[str, ...] = (*QUEUE_COLUMNS, "#dead after")
    rows = [queue_row(info) for info in found]
    if any(notes := [", ".join(queue_notes(info)) for info in found]):
        columns, rows = (*columns, "notes"), [[*row, note] for row, note in zip(rows, notes, strict=True)]
    print_rows(map(asdict, found), columns, rows, empty="no queues", as_json=as_json)


def queue_notes(info: QueueInfo) -> list[str]:
    """How a queue differs from the usual one."""
    selection = Selection.parsed(info.selection)
    notes = [
        ("paused", info.paused),
        (f"ordered by {info.ordered}", info.ordered),
        (f"types {' '.join(selection.types or ())}", selection.types),
        (f"prefixes {' '.join(selection.prefixes or ())}", selection.prefixes),
        (f"{info.delayed:,} delayed", info.delayed),
    ]
    return [note for note, applies in notes if applies]


@queue_app.command("show")
def show_command(context: Context, name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show one queue: what it delivers and how, how far it is, and what waits in it."""
    with connected(url, data) as client:
        info = _queue_info(client, context, name)
    if as_json:
        print_document(asdict(info))
        return
    selection, (behind, oldest) = Selection.parsed(info.selection), lag_cells(info)
    policy = RetryPolicy.parsed(info.retry)
    retry = f"after {policy.delay:g} s, then {policy.factor:g} times as long, up to {policy.cap:g} s"
    print_fields(
        {
            "queue": f"{info.name} in context {info.context}{', paused' if info.paused else ''}",
            "streams": "\n".join(selection.prefixes or (info.filter or "*",)),
            "types": "\n".join(selection.types or ("*",)),
            "ordered": f"by {info.ordered}" if info.ordered else "no",
            "retry": f"{retry}, jitter {policy.jitter:g}",
            "dead after": "never" if info.dead_after is None else f"{info.dead_after:,} deliveries in vain",
            "position": f"{info.position:,}",
            "behind": f"{behind} events, the oldest {oldest}",
            "delayed": f"{info.delayed:,}",
            "allocated": f"{info.allocated:,}",
            "dead letters": f"{info.dead:,}",
        }
    )


def _find_queue(client: "Client", context: str, name: str) -> QueueInfo | None:
    return next((info for info in client.queues() if (info.context, info.name) == (context, name)), None)


def _queue_info(client: "Client", context: str, name: str) -> QueueInfo:
    found = _find_queue(client, context, name)
    if found is None:
        fail(f"no queue {name} in context {context}; list them with: penstock queue list")
    return found


def _existing_queue(client: "Client", context: str, name: str) -> "Queue":
    _queue_info(client, context, name)
    return client.queue(context, name)


@queue_app.command("create")
def create_command(
    context: Context,
    name: Name,
    filter_: Filter = "",
    prefixes: Prefixes = None,
    types: Types = None,
    ordered: Ordered = None,
    start: Annotated[
        str, option("--start", "begin at a time, or so long ago (10m); beginning; end: only new events", "TIME")
    ] = "beginning",
    delay: RetryDelay = None,
    factor: RetryFactor = None,
    cap: RetryCap = None,
    jitter: RetryJitter = None,
    dead_after: Annotated[int | None, option("--dead-after", DEAD_AFTER, "N", min=1)] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue. If it exists already, the command fails; `penstock queue set` changes it.

    A failed event waits for the first delay before it is delivered again, after the next failure `--retry-factor` times
    as long, and so on.
    """
    need_name(context, "a context")
    need_name(name, "a queue")
    retry = _policy(RetryPolicy(), delay, factor, cap, jitter)
    with connected(url, data, create=True) as client:
        if _find_queue(client, context, name) is not None:
            fail(f"queue {name} in context {context} exists already; change it with: penstock queue set")
        rules: dict[str, Any] = {
            "types": types,
            "prefixes": prefixes,
            "ordered": ordered,
            "retry": retry,
            "dead_after": dead_after,
        }
        queue = client.queue(context, name, filter=filter_, start=start_time(start), **rules)
        queue.declare()
        info = _queue_info(client, context, name)
    print_result(asdict(info), f"created queue {name} in context {context}", as_json=as_json)


def _policy(
    known: RetryPolicy, delay: float | None, factor: float | None, cap: float | None, jitter: float | None
) -> RetryPolicy | None:
    """The policy with what the options change; None if they change nothing."""
    given = {"delay": delay, "factor": factor, "cap": cap, "jitter": jitter}
    changes = {name: value for name, value in given.items() if value is not None}
    return known._replace(**changes).checked() if changes else None


@queue_app.command("consume")
def consume_command(
    context: Context,
    name: Name,
    count: Annotated[int | None, option("-n --count", "end after this many events", "N", min=1)] = None,
    follow: Annotated[bool, option("-f --follow", "wait for new events, until Ctrl-C or --count")] = False,
    filter_: Annotated[
        str | None, option("--filter", "of a new queue: only streams whose names begin with this", "PREFIX")
    ] = None,
    prefixes: Prefixes = None,
    types: Types = None,
    ordered: Ordered = None,
    subscriber: Annotated[
        str | None, option("--subscriber", "the name of this consumer (default: random)", "NAME")
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Print events of a queue and acknowledge them, until there are no more.

    A queue that does not exist is created, with --filter, --prefix, --type and --ordered if they are given.

    Events are acknowledged when their whole batch (100, or what --count still
    wants) is printed. If it could not be printed, because the reader of the output is gone or the command was
    ended, the next consumer gets the batch, and it does not count as failed (see `penstock queue dead`).

    Events that a consumer released or let expire are delivered again in the batch they were in. If that batch is larger
    than what --count still wants, the command prints and acknowledges nothing of it and fails; the batch stays queued.
    """
    need_name(subscriber or "", "a consumer")
    with connected(url, data) as client:
        known = _find_queue(client, context, name)
        if known is None:
            need_name(context, "a context")
            need_name(name, "a queue")
        if filter_ is None and prefixes is None:
            filter_ = "" if known is None else known.filter
        # One name for all batches: a consumer that asks again under its name gets what it holds.
        consumer = subscriber or f"penstock-{uuid4().hex}"
        taken = 0
        while count is None or taken < count:
            left = None if count is None else count - taken
            most = BATCH_EVENTS if left is None else min(BATCH_EVENTS, left)
            rules: dict[str, Any] = {"prefixes": prefixes, "types": types, "ordered": ordered}
            queue = client.queue(context, name, filter=filter_ or "", subscriber=consumer, count=most, **rules)
            found = _consume_batch(queue, WAIT_S if follow else 0.0, left, as_json)
            taken += found
            if not found and not follow:
                break
        info = None if count is not None and taken >= count else _find_queue(client, context, name)
    if not taken and not as_json:
        remark("nothing to consume")
    if info is not None and info.paused:
        remark(f"queue {name} is paused")
    if info is not None and info.allocated:
        remark(f"other consumers hold {counted(info.allocated, 'event')}")


def _consume_batch(queue: "Queue", wait_s: float, left: int | None, as_json: bool) -> int:
    try:
        batch = queue.take(wait_s)
    except (KeyboardInterrupt, SystemExit):
        # An answer may have been in flight, and other consumers would wait until its events expire.
        queue.give_back()
        raise
    try:
        if left is not None and len(batch) > left:
            fail(
                f"the next {len(batch)} events were delivered together before and are delivered together again: "
                "use a larger --count, or none"
            )
        print_events(batch, as_json=as_json)
        # What is still in a buffer is not printed yet.
        sys.stdout.flush()
    except BaseException:
        # Nothing is wrong with the events, so this try does not count.
        with suppress(PenstockError):
            queue.release(batch, counts=False)
        raise
    try:
        queue.acknowledge(batch)
    except (KeyboardInterrupt, SystemExit):
        # The events are printed, so they are acknowledged; the first attempt may have done it.
        with suppress(AllocationLost):
            queue.acknowledge(batch)
        raise
    return len(batch)


@queue_app.command("reset")
def reset_command(
    context: Context,
    name: Name,
    to: Annotated[
        str,
        option("--to", "a position; a time, or so long ago (10m); beginning; end: only new events", "POSITION|TIME"),
    ],
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Move a queue to a position or a time. Events that consumers hold are taken from them and delivered again.

    `penstock queue move` does the same, and says first what it will deliver again and what it will skip.
    """
    position = int(to) if to.isdecimal() else None
    start = start_time(to) if position is None else None
    with connected(url, data) as client:
        _existing_queue(client, context, name).reset(start, position=position)
        info = _queue_info(client, context, name)
    line = f"queue {name} continues at position {info.position}, {lag_cells(info)[0]} events behind"
    print_result(asdict(info), line, as_json=as_json)


@queue_app.command("move")
def move_command(
    context: Context,
    name: Name,
    to: Annotated[
        str,
        option("--to", "a position; a time, or so long ago (10m); beginning; end: only new events", "POSITION|TIME"),
    ],
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Say what moving a queue to a position or a time delivers again or skips, ask, and move it.

    The leases of consumers end, and dead letters and events that wait for their next delivery are dropped: those behind
    the new position are delivered again, the others are skipped.
    """
    need_yes(yes, "a queue that was moved delivers events again, or skips them")
    with connected(url, data) as client:
        queue, info = _existing_queue(client, context, name), _queue_info(client, context, name)
        start = None if to.isdecimal() else start_time(to)
        first = 1 if start is None and not to.isdecimal() else None
        found = queue.preview(start, position=int(to) if to.isdecimal() else first)
        if not yes and not agreed(f"{_move_preview(client, info, found.position)}. Move it?"):
            fail("nothing was moved")
        # To the end is to the end as it is by then.
        queue.reset(start, position=found.position if to != "end" else None)
        info = _queue_info(client, context, name)
    line = f"queue {name} continues at position {info.position}, {lag_cells(info)[0]} events behind"
    print_result(asdict(info), line, as_json=as_json)


def _move_preview(client: "Client", info: QueueInfo, position: int) -> str:
    """The effects of a move: `queue mail is at position 7: it will deliver 3 events again, …`."""
    first, last = sorted((position, info.position))
    between = _counted_events(client, info, first, last)
    if position < info.position:
        what = [f"deliver {between} again"]
    elif position > info.position:
        what = [f"skip {between}"]
    else:
        what = ["stay where it is"]
    for number, words in (
        (info.allocated, "end the leases of {} that consumers hold"),
        (info.delayed, "drop {} waiting to be delivered"),
        (info.dead, "drop {} among the dead letters"),
    ):
        if number:
            what.append(words.format(counted(number, "event")))
    return f"queue {info.name} is at position {info.position}; moved to {position} it will {', '.join(what)}"


def _counted_events(client: "Client", info: QueueInfo, first: int, end: int) -> str:
    """How many events of a queue are between two positions, such as `3 events` or `more than 4,096 events`."""
    wanted, found = info.wanted, 0
    options: dict[str, Any] = {
        "context": info.context,
        "filter": wanted.prefix,
        "types": wanted.types,
        "limit": PREVIEW_EVENTS_MAX,
    }
    position = first
    while position < end and found <= PREVIEW_EVENTS_MAX:
        events = list(client.read_all(position, until=end - 1, **options))
        found += sum(wanted.within is None or wanted.within.has_stream(event.context, event.stream) for event in events)
        if len(events) < PREVIEW_EVENTS_MAX:
            return counted(found, "event")
        position = events[-1].position + 1
    more = found > PREVIEW_EVENTS_MAX
    return f"more than {PREVIEW_EVENTS_MAX:,} events" if more else counted(found, "event")


@queue_app.command("set")
def set_queue_command(
    context: Context,
    name: Name,
    filter_: Annotated[
        str | None, option("--filter", "deliver only streams whose names begin with this; empty: all", "PREFIX")
    ] = None,
    prefixes: Prefixes = None,
    types: Types = None,
    delay: RetryDelay = None,
    factor: RetryFactor = None,
    cap: RetryCap = None,
    jitter: RetryJitter = None,
    dead_after: Annotated[str | None, option("--dead-after", f"{DEAD_AFTER}; never: no event", "N|never")] = None,
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change which events a queue delivers, its retry policy, or when an event becomes a dead letter.

    --filter, --prefix and --type replace all that was selected before. The command says how many events behind the
    queue's position that leaves, and asks. No consumer may hold events then: pause the queue first.
    """
    selects = filter_ is not None or prefixes is not None or types is not None
    policy_given = any(value is not None for value in (delay, factor, cap, jitter))
    if not (selects or policy_given or dead_after is not None):
        refuse("say what to change: --filter, --prefix, --type, --retry-… or --dead-after")
    if selects:
        need_yes(yes, "a queue with another filter skips events that it would have delivered")
    holders = None if dead_after is None else _dead_after(dead_after, "--dead-after")
    with connected(url, data) as client:
        queue, info = _existing_queue(client, context, name), _queue_info(client, context, name)
        if selects:
            now = queue.preview()
            then = queue.preview(filter=filter_ or "", types=types, prefixes=prefixes)
            before, after = (f"{lag_cells(one)[0]} events" for one in (now, then))
            question = f"queue {name} has {before} to deliver from position {now.position} on, and will have {after}"
            if not yes and not agreed(f"{question}. Change it?"):
                fail("nothing was changed")
            queue.set_filter(filter_ or "", types=types, prefixes=prefixes)
        policy = _policy(RetryPolicy.parsed(info.retry), delay, factor, cap, jitter)
        if policy is not None:
            queue.set_retry(policy)
        if holders is not None:
            queue.dead_after(holders or None)
        info = _queue_info(client, context, name)
    print_result(asdict(info), f"changed queue {name} in context {context}", as_json=as_json)


def _dead_after(text: str, option: str) -> int:
    """A number of deliveries; 0 is never."""
    if text != "never" and (not text.isdecimal() or int(text) < 1):
        refuse(f"{option} {text!r} is not a number of consumers: use 1 or more, or never")
    return 0 if text == "never" else int(text)


@queue_app.command("pause")
def pause_command(context: Context, name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Hand out nothing more until `penstock queue resume`. Consumers keep, and acknowledge, what they hold."""
    with connected(url, data) as client:
        _existing_queue(client, context, name).pause()
        info = _queue_info(client, context, name)
    held = f"; consumers hold {counted(info.allocated, 'event')}" if info.allocated else ""
    print_result(asdict(info), f"queue {name} is paused{held}", as_json=as_json)


@queue_app.command("resume")
def resume_command(context: Context, name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Hand out events again after `penstock queue pause`."""
    with connected(url, data) as client:
        _existing_queue(client, context, name).resume()
        info = _queue_info(client, context, name)
    print_result(asdict(info), f"queue {name} is resumed, {lag_cells(info)[0]} events behind", as_json=as_json)


@queue_app.command("rename")
def rename_command(
    context: Context,
    name: Name,
    new: Annotated[str, argument("NEW", "its new name")],
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Give a queue another name. It keeps its position, its leases and its dead letters.

    Stop its consumers first: one that goes on with the old name creates a new queue, which begins where the consumer
    says, by default at the beginning of the history.
    """
    need_name(new, "a queue")
    need_yes(yes, "consumers that go on with the old name create a new queue")
    with connected(url, data) as client:
        queue, info = _existing_queue(client, context, name), _queue_info(client, context, name)
        if not yes and not agreed(f"{_held(info)}, and those that go on with its name create a new queue. Rename it?"):
            fail("nothing was renamed")
        queue.rename(new)
        info = _queue_info(client, context, new)
    print_result(asdict(info), f"queue {name} is now {new}", as_json=as_json)


def _held(info: QueueInfo) -> str:
    return f"consumers of queue {info.name} hold {counted(info.allocated, 'event')}"


@queue_app.command("delete")
def delete_command(
    context: Context, name: Name, yes: Yes = False, url: Url = None, data: Data = None, as_json: AsJson = False
) -> None:
    """Delete a queue with its position, its leases and its dead letters. The events stay in the history.

    Stop its consumers first: one that goes on creates the queue again.
    """
    need_yes(yes, "a deleted queue forgets its position and its dead letters")
    with connected(url, data) as client:
        queue, info = _existing_queue(client, context, name), _queue_info(client, context, name)
        dead = counted(info.dead, "dead letter")
        lost = f"{_held(info)}; it is {lag_cells(info)[0]} events behind, and has {dead}"
        if not yes and not agreed(f"{lost}. Delete it?"):
            fail("nothing was deleted")
        queue.delete()
    print_result(asdict(info), f"deleted queue {name} in context {context}", as_json=as_json)


@queue_app.command("dead")
def dead_command(
    context: Context,
    name: Name,
    after: Annotated[
        str | None,
        option(
            "--after",
            "set the rule: an event is set aside after this many deliveries in vain; never: no event is",
            "N|never",
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters: events set aside because too many consumers failed with them. Or set how many are too many.

    A consumer fails with an event if it says so, if it lets its lease expire, or if its work failed. It may also bury
    an event at once, with a reason. Ctrl-C gives a batch back without a failure, as `penstock queue consume` does with
    events that it could not print. `penstock queue requeue` delivers dead letters again, and `penstock queue drop`
    forgets them.
    """
    holders = None if after is None else _dead_after(after, "--after")
    with connected(url, data) as client:
        queue = _existing_queue(client, context, name)
        if holders is not None:
            queue.dead_after(holders or None)
        found = queue.dead_letters()
    documents = [{**asdict(dead), "died": text_of_ticks(dead.died)} for dead in found]
    rows = (
        (dead.position, f"{dead.stream} {dead.sequence}", dead.deliveries, dead.subscriber, died["died"], dead.reason)
        for dead, died in zip(found, documents, strict=True)
    )
    columns = ("#position", "event", "#tries", "last consumer", "died", "reason")
    print_rows(documents, columns, rows, empty="no dead letters", as_json=as_json)


Letters = Annotated[
    list[int] | None, argument("POSITION", "positions of dead letters, as `penstock queue dead` shows them")
]
AllLetters = Annotated[bool, option("--all", "all dead letters")]


@queue_app.command("requeue")
def requeue_command(
    context: Context,
    name: Name,
    letters: Letters = None,
    everything: AllLetters = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Return dead letters to a queue: the next consumer gets them, and their tries are counted from 0 again."""
    if bool(letters) == everything:
        refuse("say what to return: either POSITIONs or --all")
    with connected(url, data) as client:
        queue = _existing_queue(client, context, name)
        returned = letters or [dead.position for dead in queue.dead_letters()]
        if everything:
            queue.put_back_all()
        for number in letters or ():
            queue.put_back(number)
    document = {"queue": name, "context": context, "first": returned}
    print_result(document, f"returned {counted(len(returned), 'dead letter')} to queue {name}", as_json=as_json)


@queue_app.command("drop")
def drop_command(
    context: Context,
    name: Name,
    letters: Letters = None,
    everything: AllLetters = False,
    yes: Yes = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Forget dead letters: no consumer gets them any more. The events stay in the history."""
    if bool(letters) == everything:
        refuse("say what to drop: either POSITIONs or --all")
    need_yes(yes, "no consumer gets a dropped event any more")
    with connected(url, data) as client:
        queue = _existing_queue(client, context, name)
        known = {dead.position for dead in queue.dead_letters()}
        wanted = known if everything else known & {*(letters or ())}
        if not yes and not agreed(
            f"{counted(len(wanted), 'dead letter')} of queue {name} will be forgotten. Drop them?"
        ):
            fail("nothing was dropped")
        dropped = queue.drop_dead() if everything else sum(queue.drop_dead(number) for number in sorted(wanted))
    document = {"queue": name, "context": context, "dropped": dropped}
    print_result(document, f"dropped {counted(dropped, 'dead letter')} of queue {name}", as_json=as_json)
