"""From what a caller says to a commit. Mistakes that a wire would choke on are found here, before anything is sent."""

from collections.abc import Sequence

from penstock.errors import InvalidRequest
from penstock.model import ANY, Append, NewEvent
from penstock.tracing import traced


def append_of(context: str, stream: str, events: Sequence[NewEvent], expected: int = ANY) -> Append:
    """A commit of these events. Raises InvalidRequest."""
    if isinstance(events, NewEvent):
        raise InvalidRequest("events", "are one event by itself: put it into a list")
    try:
        found = tuple(events)
    except TypeError:
        raise InvalidRequest("events", f"are {type(events).__name__}, where a list of events belongs") from None
    if not found:
        raise InvalidRequest("events", "are missing: a commit has at least one")
    for event in found:
        if type(event) is not NewEvent or not _is_sound(*event):
            _refuse(event)
    for name, value in (("context", context), ("stream", stream)):
        if type(value) is not str:
            raise InvalidRequest(name, f"is {value!r}, where a name belongs")
    if type(expected) is not int:
        raise InvalidRequest("expected", f"is {expected!r}; it must be a number, NEW or ANY")
    return Append(context, stream, traced(found), expected)


def _is_sound(number: object, stamp: object, kind: object, headers: object, body: object) -> bool:
    return (
        type(body) is bytes
        and type(number) is bytes
        and type(stamp) is int
        and type(kind) is str
        and (headers is None or type(headers) is str)
    )


def _refuse(event: object) -> None:
    if not isinstance(event, NewEvent):
        raise InvalidRequest("events", f"have {type(event).__name__} among them; penstock.event makes one")
    for field, kinds in NewEvent.__annotations__.items():
        value = getattr(event, field)
        if not isinstance(value, kinds):
            raise InvalidRequest(
                field, f"of an event is {type(value).__name__}; penstock.event makes what belongs there"
            )
