"""Stored events of the library as events of Penstock, and back.

The topic is the event's type, the state its body, the originator's id its stream's name. Headers say only what cannot
be seen otherwise: a version that is not the sequence, and an id that is text although it looks like a UUID. So streams
that other clients wrote can be read too.
"""

import json
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import Notification, StoredEvent

from penstock.model import Event, NewEvent, event

VERSION: Final = "originator_version"
ID_TYPE: Final = "originator_id_type"
TEXT: Final = "text"

UUID_LENGTH: Final = 36


def new_event_of(stored: StoredEvent, visible_version: int) -> NewEvent:
    """The event that a stored event becomes, where its place alone would show some version."""
    headers: dict[str, Any] = {}
    if stored.originator_version != visible_version:
        headers[VERSION] = stored.originator_version
    if isinstance(stored.originator_id, str) and isinstance(id_of(stored.originator_id, {}), UUID):
        headers[ID_TYPE] = TEXT
    return event(stored.topic, stored.state, headers or None)


def stored_event_of(found: Event) -> StoredEvent:
    """The stored event that an event was."""
    headers = headers_of(found)
    return StoredEvent(id_of(found.stream, headers), _version(found, headers), found.type, found.body)


def notification_of(found: Event) -> Notification:
    """An event in its application's sequence."""
    headers = headers_of(found)
    return Notification(id_of(found.stream, headers), _version(found, headers), found.type, found.body, found.position)


def version_of(found: Event) -> int:
    """The version that an event has."""
    return _version(found, headers_of(found))


def id_of(name: str, headers: dict[str, Any]) -> UUID | str:
    """An originator's id: a UUID if it is written like one and the headers do not say otherwise."""
    if len(name) != UUID_LENGTH or headers.get(ID_TYPE) == TEXT:
        return name
    try:
        found = UUID(name)
    except ValueError:
        return name
    return found if str(found) == name else name


def headers_of(found: Event) -> dict[str, Any]:
    """What an event's headers say; those of other clients may be anything, and mean nothing here."""
    if found.headers is None:
        return {}
    try:
        headers = json.loads(found.headers)
    except (ValueError, RecursionError):
        return {}
    return headers if isinstance(headers, dict) else {}


def _version(found: Event, headers: dict[str, Any]) -> int:
    version = headers.get(VERSION)
    return version if isinstance(version, int) else found.sequence
