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
    listed = info(http, context)
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


def outcome(http: httpx.Client, context: str, what: str, batch: Any, **more: Any) -> httpx.Response:
    return queue(http, context, f"/{what}", subscriber="a", batch=batch, **more)


def info(http: httpx.Client, context: str) -> dict[str, Any]:
    page = http.get("/v1/queues", params={"limit": 1000}).json()["queues"]
    (found,) = [one for one in page if one["context"] == context]
    return dict(found)


def test_a_queue_works_by_the_rules_that_it_was_declared_with(http: httpx.Client, context: str) -> None:
    wanted = [{"type": "Placed", "body": "a"}, {"type": "Other", "body": "b"}]
    for stream in ("order-1", "basket-1", "other-1"):
        append(http, context, stream, *wanted)
    rules: dict[str, Any] = {
        "prefixes": ["order-", "basket-"],
        "types": ["Placed"],
        "ordered": "prefix:-",
        "retry": {"delay": 2, "factor": 3, "cap": 4.5},
        "dead_after": 7,
    }
    assert queue(http, context, **rules).status_code == 200
    # What is left out is as it is.
    assert queue(http, context).status_code == 200
    found = info(http, context)
    assert {name: found[name] for name in ("ordered", "dead_after", "types", "paused")} == {
        "ordered": "prefix:-",
        "dead_after": 7,
        "types": ["Placed"],
        "paused": False,
    }
    assert found["prefixes"] == ["basket-", "order-"]
    assert found["retry"] == {"delay": 2, "factor": 3, "cap": 4.5, "jitter": 0.1}
    assert (found["behind"], found["behind_is_exact"], found["behind_ms"] >= 0) == (2, True, True)
    taken_events = queue(http, context, "/take", subscriber="a").json()["events"]
    assert [(one["stream"], one["type"]) for one in taken_events] == [("order-1", "Placed"), ("basket-1", "Placed")]
    assert problem(queue(http, context, ordered="stream"), 409)["class"] == "QueueMismatch"


def test_an_ordered_queue_gives_several_allocations_and_holds_back_a_failed_key(
    http: httpx.Client, context: str
) -> None:
    for _ in range(2):
        append(http, context, "a", "a")
        append(http, context, "b", "b")
    queue(http, context, ordered="stream", retry={"delay": 0})
    first = queue(http, context, "/take", subscriber="a").json()
    assert [(one["stream"], one["attempt"]) for one in first["events"]] == [("a", 1), ("b", 1)] * 2
    assert first["batch"].count(",") == 1
    failed = {"position": first["events"][0]["position"], "reason": "locked"}
    assert outcome(http, context, "acknowledge", first["batch"], retry=[failed]).status_code == 204
    # Both events of the key come again, in their order, but only the first was tried.
    for event, attempt in ((first["events"][0], 2), (first["events"][2], 1)):
        again = queue(http, context, "/take", subscriber="a", wait=20).json()
        assert [(one["position"], one["attempt"]) for one in again["events"]] == [(event["position"], attempt)]
        assert outcome(http, context, "acknowledge", again["batch"]).status_code == 204


def test_each_event_of_a_batch_has_its_outcome(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *range(5))
    queue(http, context)
    batch = queue(http, context, "/take", subscriber="a").json()
    done, later, soon, bad, untried = (one["position"] for one in batch["events"])
    settled = outcome(
        http,
        context,
        "acknowledge",
        batch["batch"],
        retry=[{"position": later, "delay": 1000, "reason": "busy"}, {"position": soon, "delay": 0}],
        bury=[{"position": bad, "reason": "no\0address"}],
        give_back=[untried],
    )
    assert (settled.status_code, settled.content) == (204, b"")
    again = queue(http, context, "/take", subscriber="b").json()
    assert [(one["position"], one["attempt"]) for one in again["events"]] == [(soon, 2), (untried, 1)]
    state = info(http, context)
    assert (state["delayed"], state["dead"], state["allocated"]) == (1, 1, 2)
    (letter,) = http.get(f"/v1/queues/{context}/ship%2Fall/dead").json()["dead"]
    assert (letter["position"], letter["stream"], letter["sequence"], letter["deliveries"]) == (bad, "s", 4, 1)
    assert (letter["reason"], letter["subscriber"], letter["died"][-1]) == ("no address", "a", "Z")
    assert done not in {one["position"] for one in again["events"]}


@pytest.mark.parametrize("what", ["acknowledge", "release", "extend"])
def test_a_lost_lease_is_a_problem_of_its_own(http: httpx.Client, context: str, what: str) -> None:
    append(http, context, "s", 1)
    queue(http, context)
    batch = queue(http, context, "/take", subscriber="a").json()
    assert (
        outcome(http, context, "extend", batch["batch"], lease_ms=60_000).json()["expires"]
        > batch["allocation"]["expires"]
    )
    assert outcome(http, context, "release", batch["batch"], counts=False).status_code == 204
    assert taken(queue(http, context, "/take", subscriber="b")) == [1]
    found = problem(outcome(http, context, what, batch["batch"]), 409)
    assert found["class"] == "AllocationLost"
    assert found["fields"]["first"] == batch["allocation"]["first"]
    markers = {name: batch["allocation"][name] for name in ("first", "last")}
    assert problem(queue(http, context, f"/{what}", subscriber="a", **markers), 409)["class"] == "AllocationLost"


def test_a_batch_comes_again_after_a_delay_or_as_the_policy_says(http: httpx.Client, context: str) -> None:
    append(http, context, "s", 1)
    queue(http, context, retry={"delay": 1000})
    batch = queue(http, context, "/take", subscriber="a").json()["batch"]
    assert outcome(http, context, "release", batch, delay=0.001, reason="later").status_code == 204
    again = queue(http, context, "/take", subscriber="a", wait=20).json()
    assert [one["attempt"] for one in again["events"]] == [2]
    assert outcome(http, context, "release", again["batch"], delay=None).status_code == 204
    assert queue(http, context, "/take", subscriber="a").json()["events"] == []
    assert info(http, context)["delayed"] == 1


def test_dead_letters_are_put_back_or_dropped_one_by_one_or_all(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *range(5))
    queue(http, context)
    batch = queue(http, context, "/take", subscriber="a").json()
    positions = [one["position"] for one in batch["events"]]
    outcome(http, context, "acknowledge", batch["batch"], bury=[{"position": p, "reason": "bad"} for p in positions])
    dead = f"/v1/queues/{context}/ship%2Fall/dead"
    page = http.get(dead, params={"limit": 2}).json()
    assert [one["position"] for one in page["dead"]] == positions[:2]
    rest = http.get(dead, params={"after": page["after"]}).json()
    assert [one["position"] for one in rest["dead"]] == positions[2:]
    assert rest["after"] is None
    assert queue(http, context, "/requeue", positions=positions[:1]).json() == {"events": 1}
    assert queue(http, context, "/drop", positions=positions[1:2]).json() == {"events": 1}
    again = queue(http, context, "/take", subscriber="b").json()
    assert [(one["position"], one["attempt"]) for one in again["events"]] == [(positions[0], 1)]
    assert queue(http, context, "/requeue", all=True).json() == {"events": 3}
    assert queue(http, context, "/drop", all=True).json() == {"events": 0}
    assert taken(queue(http, context, "/take", subscriber="c")) == [2, 3, 4]


def test_a_queue_is_paused_moved_and_deleted(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *[{"type": "T", "body": n, "time": f"2026-01-01T00:00:0{n}Z"} for n in range(4)])
    queue(http, context)
    assert queue(http, context, "/pause").status_code == 204
    assert (info(http, context)["paused"], taken(queue(http, context, "/take", subscriber="a"))) == (True, [])
    assert http.post(f"/v1/queues/{context}/ship%2Fall/resume").status_code == 204
    batch = queue(http, context, "/take", subscriber="a").json()
    assert len(batch["events"]) == 4
    assert info(http, context)["behind"] == 0
    third = batch["events"][2]["position"]
    asked = {"context": context, "queue": "ship/all"}
    for place, behind in (({"position": third}, 2), ({"from": "2026-01-01T00:00:01Z"}, 3), ({"from": "end"}, 0)):
        found = http.get("/v1/queues/preview", params={**asked, **place}).json()
        assert (found["behind"], found["behind_is_exact"], found["allocations"], found["dead"]) == (behind, True, 1, 0)
    assert info(http, context)["behind"] == 0
    assert queue(http, context, "/move", position=third).status_code == 204
    assert problem(outcome(http, context, "acknowledge", batch["batch"]), 409)["class"] == "AllocationLost"
    assert taken(queue(http, context, "/take", subscriber="b")) == [2, 3]
    assert queue(http, context, "/move", **{"from": "2026-01-01T00:00:01Z"}).status_code == 204
    assert taken(queue(http, context, "/take", subscriber="b")) == [1, 2, 3]
    assert http.delete("/v1/queues", params=asked).status_code == 204
    assert problem(http.delete(f"/v1/queues/{context}/ship%2Fall"), 404)["class"] == "QueueNotFound"


def test_a_subscription_to_all_contexts_selects_types_and_prefixes(http: httpx.Client, context: str) -> None:
    other = f"{context} too"
    selected = {"types": [context], "prefixes": ["order-", "basket-"]}
    number = http.post("/v1/subscriptions", json={"subscriber": context, "context": None, **selected}).json()["id"]
    for place in (context, other):
        for stream in ("order-1", "basket-1", "mail-1"):
            append(http, place, stream, {"type": context, "body": f"{place} {stream}"}, {"type": "Other"})
    (listed,) = [one for one in http.get("/v1/subscriptions").json()["subscriptions"] if one["id"] == number]
    assert (listed["context"], listed["types"], listed["prefixes"]) == (None, [context], ["basket-", "order-"])
    assert (listed["behind"], listed["behind_is_exact"]) == (4, True)
    again = http.post("/v1/subscriptions", json={"subscriber": context})
    assert problem(again, 409)["class"] == "SubscriptionMismatch"
    wanted = [f"{place} {stream}" for place in (context, other) for stream in ("order-1", "basket-1")]
    assert taken(http.post(f"/v1/subscriptions/{number}/fetch", json={})) == wanted
    assert http.delete(f"/v1/subscriptions/{number}").status_code == 204
    assert problem(http.delete(f"/v1/subscriptions/{number}"), 404)["class"] == "SubscriptionNotFound"


def test_a_large_body_is_understood(http: httpx.Client, context: str) -> None:
    append(http, context, "s", *range(1000))
    queue(http, context)
    batch = queue(http, context, "/take", subscriber="a", count=1000).json()
    bury = [{"position": one["position"], "reason": "x" * 200} for one in batch["events"]]
    assert outcome(http, context, "acknowledge", batch["batch"], bury=bury).status_code == 204
    assert info(http, context)["dead"] == 1000


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
        ("/release", {"subscriber": "a", "batch": "1-1", "delay": -1}, 422),
        ("/release", {"subscriber": "a", "batch": "1-1", "delay": 10**400}, 422),
        ("/release", {"subscriber": "a", "batch": "1-1", "delay": -(10**400)}, 422),
        ("/release", {"subscriber": "a", "batch": "1-1", "delay": "1"}, 422),
        ("/acknowledge", {"subscriber": "a"}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "first": 1, "last": 1}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-"}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": None}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "retry": [1]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "retry": [{}]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "retry": [{"position": 1, "at": 1}]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "bury": [{"position": 1}]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "retry": [{"position": 1}]}, 404),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "retry": [{"position": 2}]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-9,3-4", "give_back": [9, 10]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "2-3,5-6", "give_back": [4]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-9,3-4", "give_back": [9, 9]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-9,3-4", "give_back": [9, 3]}, 404),
        ("/release", {"subscriber": "a", "batch": "1-1", "retry": [{"position": 1}], "give_back": [1]}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "bury": {}}, 422),
        ("/acknowledge", {"subscriber": "a", "batch": "1-1", "give_back": [True]}, 422),
        ("/extend", {"subscriber": "a", "batch": "1-1", "lease_ms": 0}, 422),
        ("/extend", {"subscriber": "a", "batch": "1-1"}, 404),
        ("/requeue", {}, 422),
        ("/requeue", {"positions": [1], "all": True}, 422),
        ("/requeue", {"positions": [1]}, 404),
        ("/drop", {"positions": [*range(1, 1002)]}, 413),
        ("/drop", {"all": True}, 404),
        ("/move", {}, 422),
        ("/move", {"position": 1, "from": "end"}, 422),
        ("/move", {"position": 0}, 422),
        ("/move", {"position": 1}, 404),
        ("/pause", {"paused": True}, 422),
        ("/pause", {}, 404),
        ("", {"ordered": "backward"}, 422),
        ("", {"dead_after": 0}, 422),
        ("", {"retry": {"delay": -1}}, 422),
        ("", {"retry": {"delay": 10**400}}, 422),
        ("", {"retry": {"factor": -(10**400)}}, 422),
        ("", {"retry": {"colour": 1}}, 422),
        ("", {"types": "T"}, 422),
        ("", {"types": [7]}, 422),
        ("", {"types": []}, 422),
        ("", {"prefix": "a", "prefixes": ["b"]}, 422),
        ("", {"from": "yesterday"}, 422),
        ("", {"prefix": None}, 422),
        ("/nothing", {}, 404),
    ],
    ids=lambda one: str(one)[:60],
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
