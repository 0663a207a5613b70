"""Events in bodies of requests: JSON, and CloudEvents in their three modes. Workers call it for large bodies."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock import cloudevents
from penstock.errors import InvalidRequest, NotJson
from penstock.event_json import BadEvent, Defaults, event_of, exact_decoder, parse_json
from penstock.gates.api.media import JSON_TYPE
from penstock.model import IdempotencyKey, NewEvent
from penstock.model.columns import Columns, columns_of

KEY_CHARACTERS_MAX: Final = 255
STRUCTURED: Final = cloudevents.MEDIA_TYPE
BATCH: Final = cloudevents.BATCH_TYPE
BINARY: Final = "binary"
"""Not a media type: a CloudEvent whose attributes are headers, and whose body can have any type."""


class Parcel(NamedTuple):
    """The events of one request, and their idempotency keys."""

    columns: Columns
    keys: tuple[IdempotencyKey, ...]


def kind_of(headers: Mapping[str, str]) -> str:
    """The form of a body, or its media type if the API does not know the form."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    # The specification decides by the media type first.
    return kind if kind in (STRUCTURED, BATCH) or "ce-specversion" not in headers else BINARY


def parcel_of(kind: str, headers: Mapping[str, str], body: bytes, context: str, stream: str, key: str | None) -> Parcel:
    """The events of a body. Raises NotJson, InvalidRequest or NotACloudEvent."""
    if kind == JSON_TYPE:
        events, ids = _plain_events(body, context, stream), None
    else:
        incoming, ids = _cloudevents(kind, headers, body, context, stream)
        events = [one.event for one in incoming]
    keys: tuple[IdempotencyKey, ...] = ()
    if key is not None:
        keys = (whole_key(key, stream, kind, body),)
    elif ids is not None:
        if len(set(ids)) < len(ids):
            raise InvalidRequest("events", "have the same source and id twice")
        keys = tuple(IdempotencyKey(f"ce:{one}", fingerprint_of(stream)) for one in ids)
    return Parcel(columns_of(events), keys)


def parcel_job(_store: object, *given: Any) -> Parcel:
    """As `parcel_of`, for workers."""
    return parcel_of(*given)


def whole_key(key: str, *same: str | bytes) -> IdempotencyKey:
    """The key of a whole request. Raises InvalidRequest."""
    if not 0 < len(key) <= KEY_CHARACTERS_MAX or not key.isprintable():
        reason = f"must have 1 to {KEY_CHARACTERS_MAX} printable characters"
        raise InvalidRequest("Idempotency-Key", reason)
    return IdempotencyKey(f"key:{key}", fingerprint_of(*same))


def fingerprint_of(*parts: str | bytes) -> int:
    """A number for the part of a request that a repeat must have too. The store keeps it as a producer's number."""
    digest = blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return int.from_bytes(digest.digest()) >> 1


def parsed(body: bytes) -> Any:
    """The value of a JSON body. Raises NotJson."""
    try:
        return parse_json(body.decode(), exact_decoder)
    except (ValueError, RecursionError) as error:
        raise NotJson("the body", str(error)) from None


def _plain_events(body: bytes, context: str, stream: str) -> list[NewEvent]:
    found = parsed(body)
    if not isinstance(found, list):
        raise InvalidRequest("body", 'is no array; send [{"type": …, "body": …}, …]')
    events, here = [], Defaults(context, stream)
    for index, members in enumerate(found):
        if not isinstance(members, dict):
            raise InvalidRequest(f"events[{index}]", "is no object; an event has a type and may have a body")
        try:
            one = event_of(members, here)
        except BadEvent as error:
            reason = "is missing" if error.reason.startswith("is missing") else error.reason
            raise InvalidRequest(f"events[{index}].{error.member}", reason) from None
        if (one.context, one.stream) != (context, stream):
            member = "context" if one.context != context else "stream"
            reason = "is not that of the address; leave it out, or send the event there"
            raise InvalidRequest(f"events[{index}].{member}", reason)
        events.append(one.event)
    return events


def _cloudevents(
    kind: str, headers: Mapping[str, str], body: bytes, context: str, stream: str
) -> tuple[Sequence[cloudevents.Incoming], list[str]]:
    if kind == BINARY:
        # Other headers belong to the transport.
        given = {name: value for name, value in headers.items() if name.startswith("ce-") or name == "content-type"}
        one = cloudevents.from_http(given, body, context=context, stream=stream)
        names = [unquote(given[f"ce-{name}"]) for name in ("source", "id")]
        return [one], ["\n".join(names)]
    found = parsed(body)
    if kind == STRUCTURED:
        found = [found]
    elif not isinstance(found, list):
        raise InvalidRequest("body", "is no array; a batch of CloudEvents is one")
    made, ids = [], []
    for index, value in enumerate(found):
        if not isinstance(value, dict):
            raise InvalidRequest(f"events[{index}]", "is no object; a CloudEvent is one")
        made.append(cloudevents.from_structured(value, context=context, stream=stream))
        ids.append(f"{value['source']}\n{value['id']}")
    return made, ids
