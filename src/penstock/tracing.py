"""Traces through the history: an event's headers have the `traceparent` of the span that appended it.

A producer that runs in a span of OpenTelemetry puts its trace into the headers of what it appends, and a consumer goes
on with it from there, as they would over HTTP (W3C Trace Context). A program that does not use OpenTelemetry pays one
look-up for it, and never imports it.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from penstock.model import Event, NewEvent

if TYPE_CHECKING:
    from opentelemetry.context import Context

FIELDS: Final = ("traceparent", "tracestate")
"""The members of an event's headers that say which trace it belongs to."""


def traced(events: Sequence[NewEvent]) -> tuple[NewEvent, ...]:
    """Events with the current trace, if there is one, unless their headers name a trace or are no JSON object."""
    # Who has not imported it is in no span.
    if "opentelemetry.trace" not in sys.modules:
        return tuple(events)
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    fields: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(fields)
    return tuple(_with(event, fields) for event in events) if fields else tuple(events)


def _with(event: NewEvent, fields: dict[str, str]) -> NewEvent:
    added = json.dumps(fields, separators=(",", ":"))
    if not event.headers:
        return event._replace(headers=added)
    members = _members(event.headers)
    if members is None or any(name.lower() in FIELDS for name in members):
        return event
    # The members that are there stay as they were written.
    begun = event.headers.rstrip().removesuffix("}").rstrip()
    return event._replace(headers=f"{begun}{',' if members else ''}{added.removeprefix('{')}")


def _members(headers: str) -> dict[str, Any] | None:
    try:
        members = json.loads(headers)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def context_of(event: Event | NewEvent) -> "Context | None":
    """The context that an event was appended in, for OpenTelemetry: `start_span(name, context=context_of(event))`.

    None, which starts a span as ever, if the event names no trace or OpenTelemetry is not installed.
    """
    members = _members(event.headers or "") or {}
    carrier = {name: value for name in FIELDS if isinstance(value := members.get(name), str)}
    if FIELDS[0] not in carrier:
        return None
    try:
        from opentelemetry.context import get_current  # noqa: PLC0415
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
    except ImportError:
        return None
    return TraceContextTextMapPropagator().extract(carrier, get_current())


@contextmanager
def continued(event: Event | NewEvent) -> Iterator[None]:
    """Go on with the trace that an event was appended in: spans that are started in the body belong to it."""
    context = context_of(event)
    if context is None:
        yield
        return
    from opentelemetry.context import attach, detach  # noqa: PLC0415

    token = attach(context)
    try:
        yield
    finally:
        detach(token)
