"""Queues and subscriptions over HTTP."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

import penstock
from penstock import testing
from tests.gates.test_api import append, problem
from tests.test_server import until


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server() as served:
        yield served


@pytest.fixture
def http(server: testing.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


@pytest.fixture
def context(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def queue(http: httpx.Client, context: str, what: str = "", **body: Any) -> httpx.Response:
    # The last part is a name with a slash.
    return http.post(f"/v1/queues/{context}/ship%2Fall{what}", json=body)


def taken(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    return [one["body"] for one in answer.json()["events"]]


def test_a_queue_hands_out_what_is_acknowledged_once(http: httpx.Client, context: str) -> None:
    append(http, context, "order-1", *range(5))
    append(http, context, "basket-1", 99)
    assert queue(http, context, prefix="order-").json() == {"context": context, "queue": "ship/all"}
    first = queue(http, context, "/take", subscriber="a", count=3)
    assert taken(first) == [0, 1, 2]
    held = first.json()["allocation"]
    assert (held["count"], held["deliveries"]) == (3, 1)
    assert held["expires"].endswith("Z")
    # The same consumer gets the same batch, another one the next.
    assert taken(queue(http, context, "/take", subscriber="a")) == [0, 1, 2]
    assert taken(queue(http, context, "/take", subscriber="b")) == [3, 4]
    markers = {"first": held["first"], "last": held["last"]}
    assert queue(http, context, "/acknowledge", subscriber="a", **markers).status_code == 204
    empty = queue(http, context, "/take", subscriber="a").json()
    assert (empty["allocation"], empty["events"]) == (None, [])
    (listed,) = [one for one in http.get("/v1/queues").json()["queues"] if one["context"] == context]
    assert (listed["queue"], listed["prefix"], listed["allocated"], listed["behind"]) == ("ship/all", "order-", 2, 0)


def test_a_batch_that_is_given_back_goes_to_the_next_consumer(http: httpx.Client, context: str) -> None:
    append(http, context, "s", 1)
    queue(http, context)
    held = queue(http, context, "/take", subscriber="a").json()["allocation"]
    markers = {"first": held["first"], "last": held["last"]}
    assert queue(http, context, "/release", subscriber="a", counts=False, **markers).status_code == 204
    other = queue(http, context, "/take", subscriber="b")
    assert taken(other) == [1]
    assert other.json()["allocation"]["deliveries"] == 1


def test_a_take_waits_for_events(server: testing.Server, http: httpx.Client, context: str) -> None:
    queue(http, context, **{"from": "end"})
    found: list[Any] = []

    def take() -> None:
        path = f"{server.http}/v1/queues/take?context={context}&queue=ship%2Fall"
        found.append(httpx.post(path, json={"subscriber": "a", "wait": 60}, timeout=30))

    thread = threading.Thread(target=take)
    thread.start()
    assert server._running is not None
    metrics = server._running.engine.metrics
    until(lambda: metrics.waiting_polls == 1)
    append(http, context, "s", "late")
    thread.join()
    assert taken(found[0]) == ["late"]


def test_another_client_goes_on_where_http_was(server: testing.Server, http: httpx.Client, context: str) -> None:
    append(http, context, "s", 1, 2)
    queue(http, context)
    held = queue(http, context, "/take", subscriber="a", count=1).json()["allocation"]
    queue(http, context, "/acknowledge", subscriber="a", first=held["first"], last=held["last"])
    with penstock.connect(server.url) as client:
        batch = client.queue(context, "ship/all", subscriber="b").take()
        assert [event.json() for event in batch] == [2]


def test_a_subscription_gives_the_same_batch_until_it_is_progressed(http: httpx.Client, context: str) -> None:
    append(http, context, "order-1", *[{"type": "T", "body": n, "time": f"2026-01-01T00:00:0{n}Z"} for n in range(6)])
    append(http, context, "basket-1", 99)
    start = {"subscriber": "me", "context": context, "prefix": "order-", "from": "2026-01-01T00:00:01Z"}
    number = http.post("/v1/subscriptions", json=start).json()["id"]
    assert http.post("/v1/subscriptions", json=start).json()["id"] == number

    def fetch(**body: Any) -> httpx.Response:
        return http.post(f"/v1/subscriptions/{number}/fetch", json=body)

    first = fetch(count=3)
    assert taken(first) == taken(fetch(count=3)) == [1, 2, 3]
    batch = first.json()["batch"]
    assert isinstance(batch, str)
    for _ in range(2):
        done = http.post(f"/v1/subscriptions/{number}/progress", json={"batch": batch})
        assert (done.status_code, done.content) == (204, b"")
    second = fetch(count=3)
    assert taken(second) == [4, 5]
    http.post(f"/v1/subscriptions/{number}/progress", json={"batch": second.json()["batch"]})
    assert fetch(wait=0.01).json() == {"subscription": number, "batch": None, "events": []}
    (listed,) = [one for one in http.get("/v1/subscriptions").json()["subscriptions"] if one["context"] == context]
    assert (listed["id"], listed["subscriber"], listed["prefix"]) == (number, "me", "order-")


def test_lists_come_in_pages(http: httpx.Client, context: str) -> None:
    for number in range(5):
        http.post("/v1/queues", params={"context": context, "queue": f"q{number}"}, json={})
    found: list[str] = []
    after: int | None = 0
    while after is not None:
        page = http.get("/v1/queues", params={"limit": 2, **({"after": after} if after else {})}).json()
        found += [one["queue"] for one in page["queues"] if one["context"] == context]
        after = page["after"]
    assert found == [f"q{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("what", "body", "status"),
    [
        ("/take", {"subscriber": "a"}, 404),
        ("/take", {}, 422),
        ("/take", {"subscriber": ""}, 422),
        ("/take", {"subscriber": 7}, 422),
        ("/take", {"subscriber": "a", "count": 0}, 422),
        ("/take", {"subscriber": "a", "count": True}, 422),
        ("/take", {"subscriber": "a", "count": 1.5}, 422),
        ("/take", {"subscriber": "a", "lease_ms": 10**30}, 422),
        ("/take", {"subscriber": "a", "wait": -1}, 422),
        ("/take", {"subscriber": "a", "colour": "red"}, 422),
        ("/acknowledge", {"subscriber": "a", "first": 1, "last": 1}, 404),
        ("/acknowledge", {"subscriber": "a", "first": 0, "last": 0}, 422),
        ("/release", {"subscriber": "a", "first": 1}, 422),
        ("", {"from": "yesterday"}, 422),
        ("", {"prefix": None}, 422),
        ("/nothing", {}, 404),
    ],
    ids=str,
)
def test_a_wrong_request_to_a_queue_is_a_problem(
    http: httpx.Client, what: str, body: dict[str, Any], status: int
) -> None:
    problem(queue(http, "nowhere", what, **body), status)


def test_a_queue_keeps_its_filter(http: httpx.Client, context: str) -> None:
    queue(http, context, prefix="a")
    found = problem(queue(http, context, prefix="b"), 409)
    assert found["class"] == "QueueFilterMismatch"


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b'{"count":NaN}'])
@pytest.mark.parametrize("number", ["0", "x", "99999", "9" * 30])
def test_a_wrong_request_to_a_subscription_is_a_problem(http: httpx.Client, number: str, body: bytes) -> None:
    path = f"/v1/subscriptions/{number}/fetch"
    answer = http.post(path, content=body, headers={"content-type": "application/json"})
    assert problem(answer, answer.status_code)["status"] in (400, 422)
    if number == "99999":
        assert problem(http.post(path, json={}), 404)["class"] == "SubscriptionNotFound"
    problem(http.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415)
