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
