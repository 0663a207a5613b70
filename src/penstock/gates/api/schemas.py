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
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": _NAME, "minItems": 1, "maxItems": 100}
_SELECTED: Final[dict[str, Any]] = {
    "prefix": {"type": "string", "description": "only events of streams that begin so"},
    "prefixes": {**_TEXTS, "description": "instead of `prefix`: several beginnings"},
    "types": {**_TEXTS, "description": "only events of these types"},
    "from": {"type": "string", "description": "a time, or `end`; by default the beginning"},
}
_SELECTION: Final[dict[str, Any]] = {
    name: {"type": ["array", "null"], "items": _NAME} for name in ("prefixes", "types")
}
_POLICY: Final[dict[str, Any]] = {
    "delay": {"type": "number", "minimum": 0, "description": "seconds that a failed event waits at first"},
    "factor": {"type": "number", "minimum": 1, "description": "how much longer each time"},
    "cap": {"type": "number", "minimum": 0, "description": "seconds at most"},
    "jitter": {"type": "number", "minimum": 0, "maximum": 1, "description": "part by which delays differ"},
}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0}
_LAG: Final[dict[str, Any]] = {
    "behind": {**_COUNT, "description": "how many events it still has to deliver"},
    "behind_is_exact": {"type": "boolean", "description": "false: there may be more"},
    "behind_ms": {**_COUNT, "description": "how long ago the oldest of them was recorded"},
}
_LEASE: Final[dict[str, Any]] = {**_NUMBER, "description": "how long the consumer holds the batch; by default 30,000"}
_REASON: Final[dict[str, Any]] = {
    "type": "string",
    "description": "the reason of a dead letter; the first 1,000 characters count",
}
_BATCH: Final[dict[str, Any]] = {
    "subscriber": {**_NAME, "description": "who took it"},
    "batch": {"type": "string", "pattern": "^[0-9]{1,18}-[0-9]{1,18}(,[0-9]{1,18}-[0-9]{1,18})*$"},
    "first": {**_NUMBER, "description": "with `last`, instead of `batch`: one allocation of it"},
    "last": _NUMBER,
}
_DELAY: Final[dict[str, Any]] = {
    "type": ["number", "null"],
    "minimum": 0,
    "maximum": 604800,
    "description": "seconds; null: as the retry policy says",
}
_OUTCOMES: Final[dict[str, Any]] = {
    "retry": {
        "type": "array",
        "items": _object("position", position=_NUMBER, delay=_DELAY, reason=_REASON),
        "description": "events that failed and come again",
    },
    "bury": {
        "type": "array",
        "items": _object("position reason", position=_NUMBER, reason=_REASON),
        "description": "events that become dead letters",
    },
    "give_back": {
        "type": "array",
        "items": _NUMBER,
        "description": "events that were not tried: the next consumer gets them, and this delivery does not count",
    },
}
_AFTER: Final[dict[str, Any]] = {"type": ["integer", "null"], "description": "pass it as `after` for the next ones"}
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
    "Declare": _object(
        "",
        **_SELECTED,
        ordered={"type": "string", "description": "`stream`, or `prefix:` and a separator; by default not at all"},
        retry={"type": "object", "properties": _POLICY, "description": "how long failed events wait"},
        dead_after={**_NUMBER, "description": "events become dead letters after so many deliveries in vain"},
    ),
    "Register": _object(
        "subscriber",
        subscriber=_NAME,
        context={"type": ["string", "null"], "description": "null: all contexts that the principal may read"},
        **_SELECTED,
    ),
    "Take": _object(
        "subscriber",
        subscriber={**_NAME, "description": "who takes: the same name gets the same batch until it is acknowledged"},
        count={**_NUMBER, "description": "at most so many events"},
        lease_ms=_LEASE,
        wait={"type": "number", "minimum": 0, "description": "seconds to wait for events"},
    ),
    "Fetch": _object(
        "",
        count={**_NUMBER, "description": "at most so many events"},
        wait={"type": "number", "minimum": 0, "description": "seconds to wait for events"},
    ),
    "Acknowledge": _object("subscriber", **_BATCH, **_OUTCOMES),
    "Release": _object(
        "subscriber",
        **_BATCH,
        counts={"type": "boolean", "description": "whether this delivery counts as one in vain; by default true"},
        delay={**_DELAY, "description": "seconds until it comes again, by default 0; null: as the retry policy says"},
        reason=_REASON,
        **_OUTCOMES,
    ),
    "Extend": _object("subscriber", **_BATCH, lease_ms={**_LEASE, "description": "how long from now on"}),
    "Extended": _object("expires", expires=_TEXT),
    "Move": _object(
        "",
        position={**_NUMBER, "description": "the position at which it goes on"},
        **{"from": {"type": "string", "description": "instead: a time, or `end`"}},
    ),
    "Preview": _object(
        "position behind behind_is_exact behind_ms allocations dead",
        position={**_NUMBER, "description": "where the queue would be"},
        **_LAG,
        allocations={**_COUNT, "description": "how many allocations a move would drop"},
        dead={**_COUNT, "description": "how many dead letters a move would drop"},
    ),
    "Letters": _object(
        "",
        positions={"type": "array", "items": _NUMBER, "maxItems": 1000},
        all={"type": "boolean", "description": "instead: all of them"},
    ),
    "LettersDone": _object("events", events={**_COUNT, "description": "how many there were"}),
    "LetterPage": _object(
        "dead after",
        dead={
            "type": "array",
            "items": _object(
                "position stream sequence deliveries subscriber reason died",
                position=_NUMBER,
                stream=_NAME,
                sequence=_NUMBER,
                deliveries=_COUNT,
                subscriber={"type": "string", "description": "who had it last"},
                reason=_TEXT,
                died={"type": "string", "format": "date-time"},
            ),
        },
        after=_AFTER,
    ),
    "Progress": _object("batch", batch={"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}),
    "Queue": _object("context queue", context=_NAME, queue=_NAME),
    "QueuePage": _object(
        "queues after",
        queues={
            "type": "array",
            "items": _object(
                "id context queue prefix position behind behind_is_exact behind_ms paused allocated delayed dead",
                id=_NUMBER,
                context=_NAME,
                queue=_NAME,
                prefix=_TEXT,
                **_SELECTION,
                ordered={"type": ["string", "null"]},
                retry={"type": "object", "properties": _POLICY},
                dead_after={"type": ["integer", "null"]},
                paused={"type": "boolean"},
                position={**_NUMBER, "description": "what lies below it was handed out or passed over"},
                **_LAG,
                allocated={**_COUNT, "description": "events that consumers hold"},
                delayed={**_COUNT, "description": "events that wait for a time"},
                dead={**_COUNT, "description": "dead letters"},
                deliveries_max={**_COUNT, "description": "how many consumers had the same event, at most"},
            ),
        },
        after=_AFTER,
    ),
    "Batch": _object(
        "context queue subscriber batch allocation events",
        context=_NAME,
        queue=_NAME,
        subscriber=_NAME,
        batch={"type": ["string", "null"], "description": "pass it on as it is; null if there is nothing"},
        allocation={"anyOf": [{"type": "null"}, ref("Allocation")], "description": "the first of the batch"},
        events={
            "type": "array",
            "items": {
                "allOf": [
                    ref("Event"),
                    _object(
                        "attempt", attempt={**_NUMBER, "description": "how often it was delivered; 1: the first time"}
                    ),
                ]
            },
        },
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
                "id subscriber context prefix position behind behind_is_exact behind_ms",
                id=_NUMBER,
                subscriber=_NAME,
                context={"type": ["string", "null"]},
                prefix=_TEXT,
                **_SELECTION,
                position=_NUMBER,
                **_LAG,
            ),
        },
        after=_AFTER,
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
