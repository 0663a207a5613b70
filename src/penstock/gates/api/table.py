"""The table of routes: it drives routing, the checks of parameters, the OpenAPI document and docs/http.md."""

from typing import Any, Final

from penstock.cloudevents import BATCH_TYPE, MEDIA_TYPE
from penstock.gates.api import consumers, openapi, schemas, streams, webhooks
from penstock.gates.api.media import ARROW_TYPE, EVENT_STREAM_TYPE, JSON_TYPE, LINES_TYPE
from penstock.gates.api.routes import Parameter, Route, Schema
from penstock.model import Right

POSITION: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": streams.NUMBER_MAX}
TEXT: Final[Schema] = {"type": "string"}

QUEUE: Final = "/v1/queues/{context}/{queue}"
SUBSCRIPTIONS: Final = "/v1/subscriptions"
AFTER: Final = Parameter("after", "only those after this id", POSITION)
LIMIT: Final = Parameter("limit", "at most so many; the server may give fewer (`page_events_max`)", POSITION)
TYPES: Final = Parameter(
    "type", "only events of this type; several times for several types", {"type": "array", "items": TEXT}
)
WAIT: Final = Parameter(
    "wait",
    "if there is nothing yet, wait so many seconds for events (long poll)",
    {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})?$"},
)
NONE_MATCH: Final = Parameter("If-None-Match", "ETags of pages that the client has", where="header")
PAGES: Final[dict[str, Any]] = {
    JSON_TYPE: schemas.ref("EventPage"),
    LINES_TYPE: TEXT,
    BATCH_TYPE: {"type": "array", "items": schemas.ref("CloudEvent")},
    ARROW_TYPE: {"type": "string", "format": "binary"},
}

ROUTES: Final = (
    Route(
        "POST",
        f"{streams.STREAMS}/{{context}}/{{stream}}",
        "append",
        "append events to a stream, all or none",
        streams.append,
        Right.APPEND,
        help=(
            "JSON, or CloudEvents 1.0: structured, as a batch, or binary, where the attributes are `ce-` headers and "
            "the body has any type."
        ),
        parameters=(
            Parameter(
                "Expected-Version",
                "`new`, the version that the first event gets, or `any`, which is the default",
                {"type": "string", "pattern": "^(new|any|[1-9][0-9]{0,17})$"},
                "header",
            ),
            Parameter(
                "Idempotency-Key",
                "the same key again in this context is answered with the first answer (`idempotency_ms_max`)",
                {"type": "string", "minLength": 1, "maxLength": 255, "pattern": r"^[!-~]+$"},
                "header",
            ),
        ),
        takes={
            JSON_TYPE: {"type": "array", "minItems": 1, "items": schemas.ref("NewEvent")},
            MEDIA_TYPE: schemas.ref("CloudEvent"),
            BATCH_TYPE: {"type": "array", "minItems": 1, "items": schemas.ref("CloudEvent")},
        },
        gives={JSON_TYPE: schemas.ref("Appended")},
        status=201,
        fails=(400, 409, 413, 415, 422),
    ),
    Route(
        "GET",
        f"{streams.STREAMS}/{{context}}/{{stream}}",
        "readStream",
        "read a stream, forward or backward",
        streams.read_stream,
        Right.READ,
        parameters=(
            Parameter("from", "the version to begin at; by default the first, backward the last", POSITION),
            Parameter("to", "the version to end at", POSITION),
            LIMIT,
            Parameter("direction", "`forward` or `backward`", {"type": "string", "enum": ["forward", "backward"]}),
            TYPES,
            NONE_MATCH,
        ),
        gives=PAGES,
        fails=(304, 406, 422),
    ),
    Route(
        "GET",
        streams.EVENTS,
        "readEvents",
        "read the whole history by position, or follow it",
        streams.read_events,
        Right.READ,
        help="As `text/event-stream` the answer does not end: it goes on with the events that come.",
        parameters=(
            Parameter("context", "only events of this context"),
            Parameter("prefix", "only events of streams that begin so"),
            TYPES,
            Parameter("from", "a position, a time as in RFC 3339 (with a context), or `end`; by default 1"),
            LIMIT,
            WAIT,
            Parameter("Last-Event-ID", "the id of the last event that a follower has got", where="header"),
            NONE_MATCH,
        ),
        gives={**PAGES, EVENT_STREAM_TYPE: TEXT},
        fails=(304, 406, 410, 422),
    ),
    Route(
        "POST",
        QUEUE,
        "declareQueue",
        "make a queue of a context, unless there is one",
        consumers.declare_queue,
        Right.CONSUME,
        takes={JSON_TYPE: schemas.ref("Start")},
        gives={JSON_TYPE: schemas.ref("Queue")},
        fails=(400, 409, 413, 415, 422),
    ),
    Route(
        "GET",
        "/v1/queues",
        "listQueues",
        "list the queues, with how far behind each is",
        consumers.list_queues,
        Right.READ,
        parameters=(AFTER, LIMIT),
        gives={JSON_TYPE: schemas.ref("QueuePage")},
        fails=(422,),
    ),
    Route(
        "POST",
        f"{QUEUE}/take",
        "take",
        "take the next batch of a queue",
        consumers.take,
        Right.CONSUME,
        help="A batch that is not acknowledged within `lease_ms` goes to another consumer.",
        takes={JSON_TYPE: schemas.ref("Take")},
        gives={JSON_TYPE: schemas.ref("Batch")},
        fails=(400, 404, 409, 413, 415, 422),
    ),
    Route(
        "POST",
        f"{QUEUE}/acknowledge",
        "acknowledge",
        "say that a batch of a queue is done",
        consumers.acknowledge,
        Right.CONSUME,
        takes={JSON_TYPE: schemas.ref("Acknowledge")},
        status=204,
        fails=(400, 404, 409, 413, 415, 422),
    ),
    Route(
        "POST",
        f"{QUEUE}/release",
        "release",
        "give a batch of a queue back, for the next consumer at once",
        consumers.release,
        Right.CONSUME,
        takes={JSON_TYPE: schemas.ref("Release")},
        status=204,
        fails=(400, 404, 409, 413, 415, 422),
    ),
    Route(
        "POST",
        SUBSCRIPTIONS,
        "register",
        "make a subscription, or find it",
        consumers.register,
        Right.CONSUME,
        takes={JSON_TYPE: schemas.ref("Register")},
        gives={JSON_TYPE: schemas.ref("Subscription")},
        fails=(400, 413, 415, 422),
    ),
    Route(
        "GET",
        SUBSCRIPTIONS,
        "listSubscriptions",
        "list the subscriptions",
        consumers.list_subscriptions,
        Right.READ,
        parameters=(AFTER, LIMIT),
        gives={JSON_TYPE: schemas.ref("SubscriptionPage")},
        fails=(422,),
    ),
    Route(
        "POST",
        f"{SUBSCRIPTIONS}/{{id}}/fetch",
        "fetch",
        "get the next batch of a subscription",
        consumers.fetch,
        Right.CONSUME,
        help="It is the same one until you progress past it.",
        takes={JSON_TYPE: schemas.ref("Fetch")},
        gives={JSON_TYPE: schemas.ref("Fetched")},
        fails=(400, 404, 413, 415, 422),
    ),
    Route(
        "POST",
        f"{SUBSCRIPTIONS}/{{id}}/progress",
        "progress",
        "say that a batch of a subscription is done",
        consumers.progress,
        Right.CONSUME,
        takes={JSON_TYPE: schemas.ref("Progress")},
        status=204,
        fails=(400, 404, 413, 415, 422),
    ),
    Route(
        "POST",
        "/v1/webhooks/{webhook}",
        "deliver",
        "deliver a message of a webhook, which becomes an event",
        webhooks.deliver,
        Right.APPEND,
        help="Signed as Standard Webhooks says, or with a token; see the setting `http_webhooks`.",
        parameters=(
            Parameter("webhook-id", "the id of the message", where="header"),
            Parameter("webhook-timestamp", "when it was sent, in seconds since 1970", where="header"),
            Parameter(
                "webhook-signature", "`v1,` and the signature in base64; several with spaces between", where="header"
            ),
        ),
        takes={"*/*": {}},
        gives={JSON_TYPE: schemas.ref("Appended")},
        status=201,
        fails=(400, 404, 409, 413, 422),
        is_public=True,
    ),
    Route(
        "OPTIONS",
        "/v1/webhooks/{webhook}",
        "handshake",
        "ask whether a sender of CloudEvents may deliver to a webhook",
        webhooks.handshake,
        None,
        parameters=(Parameter("WebHook-Request-Origin", "the name of the sender", where="header", required=True),),
        status=204,
        fails=(400, 404),
        is_public=True,
    ),
    Route(
        "GET",
        openapi.PATH,
        "describe",
        "get this description",
        openapi.describe,
        None,
        gives={JSON_TYPE: {"type": "object"}},
        is_public=True,
    ),
)
