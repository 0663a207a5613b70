"""The objects of the API, as OpenAPI describes them."""

from typing import Any, Final

_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 1}
_NAME: Final = {"type": "string", "minLength": 1}


def ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str, **members: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": members}


_BODY: Final = {
    "body": {"description": "any JSON value"},
    "text": {"type": "string", "description": "instead of `body`: text that is no JSON"},
    "base64": {"type": "string", "contentEncoding": "base64", "description": "instead of `body`: bytes"},
}
_HEADERS: Final = {"type": ["object", "string", "null"]}

SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "NewEvent": {
        **_object(
            "type",
            type={**_NAME, "maxLength": 1024},
            id={"type": "string", "format": "uuid", "description": "by default a random one"},
            time={"type": "string", "format": "date-time", "description": "by default now"},
            headers={**_HEADERS, "type": ["object", "string"]},
            **_BODY,
        ),
        "description": "An event to append, with at most one of `body`, `text` and `base64`.",
    },
    "Event": _object(
        "position sequence context stream type id timestamp recorded_at headers",
        position=_NUMBER,
        sequence=_NUMBER,
        context=_NAME,
        stream=_NAME,
        type=_NAME,
        id={"type": "string", "format": "uuid"},
        timestamp=_TEXT,
        recorded_at=_TEXT,
        headers=_HEADERS,
        **_BODY,
    ),
    "EventPage": _object(
        "events end next prev",
        events={"type": "array", "items": ref("Event")},
        end={"type": "boolean", "description": "there is no more now"},
        next={"type": ["string", "null"], "description": "where to read on"},
        prev={"type": ["string", "null"], "description": "what lies before"},
    ),
    "Appended": _object(
        "context stream position version events",
        context=_NAME,
        stream=_NAME,
        position={**_NUMBER, "description": "the position of the first event"},
        version={**_NUMBER, "description": "the version of the stream with the first event"},
        events={**_NUMBER, "description": "how many events were written"},
    ),
    "Start": _object(
        "",
        prefix={"type": "string", "description": "only events of streams that begin so"},
        **{"from": {"type": "string", "description": "a time, or `end`; by default the beginning"}},
    ),
    "Register": _object(
        "subscriber context",
        subscriber=_NAME,
        context=_NAME,
        prefix={"type": "string", "description": "only events of streams that begin so"},
        **{"from": {"type": "string", "description": "a time, or `end`; by default the beginning"}},
    ),
    "Take": _object(
        "subscriber",
        subscriber={**_NAME, "description": "who takes: the same name gets the same batch until it is acknowledged"},
        count={**_NUMBER, "description": "at most so many events"},
        lease_ms={**_NUMBER, "description": "how long the consumer holds the batch"},
        wait={"type": "number", "minimum": 0, "description": "seconds to wait for events"},
    ),
    "Fetch": _object(
        "",
        count={**_NUMBER, "description": "at most so many events"},
        wait={"type": "number", "minimum": 0, "description": "seconds to wait for events"},
    ),
    "Acknowledge": _object("subscriber first last", subscriber=_NAME, first=_NUMBER, last=_NUMBER),
    "Release": _object(
        "subscriber first last",
        subscriber=_NAME,
        first=_NUMBER,
        last=_NUMBER,
        counts={"type": "boolean", "description": "whether the batch counts as one that failed"},
    ),
    "Progress": _object("batch", batch={"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}),
    "Queue": _object("context queue", context=_NAME, queue=_NAME),
    "QueuePage": _object(
        "queues after",
        queues={
            "type": "array",
            "items": _object(
                "id context queue prefix position behind allocated dead",
                id=_NUMBER,
                context=_NAME,
                queue=_NAME,
                prefix=_TEXT,
                position=_NUMBER,
                behind={"type": "integer"},
                allocated={"type": "integer"},
                dead={"type": "integer"},
            ),
        },
        after={"type": ["integer", "null"], "description": "pass it as `after` for the next ones"},
    ),
    "Batch": _object(
        "context queue subscriber allocation events",
        context=_NAME,
        queue=_NAME,
        subscriber=_NAME,
        allocation={"anyOf": [{"type": "null"}, ref("Allocation")]},
        events={"type": "array", "items": ref("Event")},
    ),
    "Allocation": _object(
        "first last count deliveries expires",
        first=_NUMBER,
        last=_NUMBER,
        count=_NUMBER,
        deliveries={**_NUMBER, "description": "how many consumers have held it"},
        expires=_TEXT,
    ),
    "Subscription": _object("id", id=_NUMBER),
    "SubscriptionPage": _object(
        "subscriptions after",
        subscriptions={
            "type": "array",
            "items": _object(
                "id subscriber context prefix position",
                id=_NUMBER,
                subscriber=_NAME,
                context=_NAME,
                prefix=_TEXT,
                position=_NUMBER,
            ),
        },
        after={"type": ["integer", "null"], "description": "pass it as `after` for the next ones"},
    ),
    "Fetched": _object(
        "subscription batch events",
        subscription=_NUMBER,
        batch={"type": ["string", "null"], "description": "what to progress past; null if there is nothing"},
        events={"type": "array", "items": ref("Event")},
    ),
    "CloudEvent": {
        **_object(
            "specversion id source type",
            specversion={"const": "1.0"},
            id=_NAME,
            source=_NAME,
            type=_NAME,
            subject=_NAME,
            time={"type": "string", "format": "date-time"},
            datacontenttype=_NAME,
            dataschema=_NAME,
            data={},
            data_base64={"type": "string", "contentEncoding": "base64"},
        ),
        "description": "A CloudEvent of version 1.0; its extensions become headers.",
    },
    "Problem": {
        **_object(
            "type status detail",
            type=_TEXT,
            title=_TEXT,
            status={"type": "integer"},
            detail=_TEXT,
            fields={"type": "object"},
            retry={"enum": ["safe", "never", "unknown"]},
            **{"class": _TEXT},
        ),
        "description": "Why a request failed (RFC 9457): class and fields of the error, as docs/errors.md has them.",
    },
}
