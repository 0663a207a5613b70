"""The OpenAPI document, made from the table of routes."""

import json
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from penstock import __version__
from penstock.gates.api import problems
from penstock.gates.api.call import Answer, Call
from penstock.gates.api.routes import Parameter, Route
from penstock.gates.api.schemas import SCHEMAS, ref

PATH: Final = "/openapi.json"
EVERYWHERE: Final = (400, 401, 403, 429, 500, 503)
"""Statuses of every route that authenticates its sender."""


async def describe(call: Call) -> Answer:
    content = json.dumps(document(call.api.router.routes), ensure_ascii=False).encode() + b"\n"
    return Answer(content, headers={"cache-control": "public, max-age=60"})


def document(routes: Iterable[Route]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, "path")
        if route.twin is not None:
            paths.setdefault(route.twin, {})[route.method.lower()] = _operation(route, "query")
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "summary": "An event store and durable log"},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # Without principals a server needs none.
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, names_in: str) -> dict[str, Any]:
    name: dict[str, Any] = {"type": "string", "minLength": 1}
    number = {"type": "integer", "minimum": 1}
    parameters = [
        {"name": one, "in": names_in, "required": True, "schema": number if one == "id" else name}
        for one in route.names
    ]
    parameters += map(_parameter, route.parameters)
    answers = {str(route.status): _answer(route)}
    for status in sorted({*route.fails, *(() if route.path == PATH else EVERYWHERE)}):
        answers[str(status)] = {"description": HTTPStatus(status).phrase}
        if status >= 400:
            answers[str(status)]["content"] = {problems.MEDIA_TYPE: {"schema": ref("Problem")}}
    made: dict[str, Any] = {
        "operationId": route.name if names_in == "path" else f"{route.name}Named",
        "summary": route.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if route.help:
        made["description"] = route.help
    if route.takes:
        content = {media: {"schema": schema} for media, schema in route.takes.items()}
        made["requestBody"] = {"required": True, "content": content}
    if route.is_public:
        made["security"] = []
    return made


def _parameter(one: Parameter) -> dict[str, Any]:
    return {
        "name": one.name,
        "in": one.where,
        "required": one.required,
        "description": re.sub("`", "", one.help),
        "schema": one.schema,
    }


def _answer(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.gives:
        made["content"] = {media: {"schema": schema} for media, schema in route.gives.items()}
    return made
