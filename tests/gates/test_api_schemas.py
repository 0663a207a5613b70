"""Requests of every kind, made from the OpenAPI document, and the document itself."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    negative_data_rejection,
    positive_data_acceptance,
    unsupported_method,
)

from penstock import testing
from penstock.gates.api.openapi import PATH, document
from penstock.gates.api.table import ROUTES
from tests.seeds import run_seed

EXAMPLES: Final = 30
"""Requests for each route: some seconds for all of them."""
TWIN_EXAMPLES: Final = 10
"""The same for a path that takes its names as parameters: the rest of the route is that of its twin."""
TWINS: Final = frozenset(route.twin for route in ROUTES)
DOCUMENT: Final = document(ROUTES)
QUEUE: Final = {"context": "shop", "queue": "q"}
SUBSCRIPTION: Final = {"subscriber": "me", "context": "shop"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Server]:
    path: Path = tmp_path_factory.mktemp("webhooks") / "webhooks.toml"
    path.touch(0o600)
    path.write_text('[webhooks.w]\ncontext = "shop"\nstream = "w"\norigins = ["*"]\n', encoding="utf-8")
    with testing.server(http_webhooks=str(path), poll_wait_ms_max=10) as served:
        with httpx.Client(base_url=served.http) as http:
            http.post("/v1/streams/shop/s", json=[{"type": "T", "body": n} for n in range(1000)])
        yield served


def test_the_document_is_served_and_describes_every_route(server: testing.Server) -> None:
    answer = httpx.get(server.http + PATH)
    assert answer.json() == DOCUMENT
    assert DOCUMENT["openapi"].startswith("3.1")
    described = {(method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    assert {(route.method, route.path) for route in ROUTES} <= described
    assert {(route.method, route.twin) for route in ROUTES if route.twin} <= described
    names = [one["operationId"] for methods in DOCUMENT["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)


schema: Final = schemathesis.openapi.from_dict(DOCUMENT)


OPERATIONS: Final = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]


def aim(case: Any, subscription: int) -> None:
    """Make a request one about a queue, or a subscription, that exists."""
    for names in filter(None, (case.path_parameters, case.query)):
        if "queue" in names:
            names.update(QUEUE)
        if "id" in names:
            names["id"] = subscription


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_every_answer_is_one_that_the_document_describes(server: testing.Server, operation: Any) -> None:
    # The document does not say all that makes a name or a body valid, nor that other parameters are refused; other
    # tests have those rules.
    left_out = [positive_data_acceptance, negative_data_rejection, unsupported_method]

    with httpx.Client(base_url=server.http) as http:
        # Some of the requests delete them.
        http.post("/v1/queues", params=QUEUE, json={}).raise_for_status()
        number = http.post("/v1/subscriptions", json=SUBSCRIPTION).raise_for_status().json()["id"]

    @seeded(run_seed())
    @settings(
        max_examples=TWIN_EXAMPLES if operation.path in TWINS else EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any, is_there: bool) -> None:
        if re.search("event-stream", str(case.headers or {})):
            return
        if is_there:
            aim(case, number)
        case.call_and_validate(base_url=server.http, excluded_checks=left_out, timeout=30)

    given(case=operation.as_strategy(), is_there=st.booleans())(check)()
