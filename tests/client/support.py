"""What the tests of the client share."""

from collections.abc import Iterable, Sequence
from typing import Any

import penstock
from penstock import Client, Event, NewEvent
from tests.client.driven import Driven


def some(count: int, start: int = 1) -> list[NewEvent]:
    """Events whose bodies are numbers."""
    return [penstock.event("Counted", number) for number in range(start, start + count)]


def one(body: object = None) -> list[NewEvent]:
    """A single event."""
    return [penstock.event("Happened", {} if body is None else body)]


def numbers(events: Iterable[Event]) -> list[int]:
    """The numbers that events were made of."""
    return [int(event.body) for event in events]


def fill(client: Client, context: str, stream: str, count: int, each: int = 1) -> None:
    """Append so many numbered events to a stream, a few in each commit."""
    commits = ((context, stream, some(min(each, count - at), at + 1)) for at in range(0, count, each))
    client.append_many(commits)


def as_new(events: Sequence[Event]) -> list[NewEvent]:
    """What events were before they were appended."""
    return [NewEvent(event.id, event.stamp, event.type, event.headers, event.body) for event in events]


def calls_of(used: Any) -> Any:
    """What is behind a client, or behind something that it has made."""
    return (used.inner if isinstance(used, Driven) else used._inner)._calls


def loop_calls_of(client: Any) -> Any:
    """The same for what a client does on an event loop, such as `append_many`."""
    return calls_of(client if isinstance(client, Driven) else client._on_loop())


def append_by(method: str, client: Client, context: str, events: list[NewEvent]) -> None:
    """Append in one of the ways that there are."""
    if method == "append":
        client.append(context, "s", events)
    elif method == "append_many":
        client.append_many([(context, "s", events)])
    else:
        with client.transaction() as transaction:
            transaction.append(context, "s", events)
