"""The HTTP API: every route without a credential, with a wrong one, in the wrong place, and rightly; and from pages."""

import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

import penstock
from penstock import testing
from penstock.gates.api.api import NO_BEARER
from penstock.gates.api.routes import Route
from penstock.gates.api.table import ROUTES
from penstock.model import now_ticks
from penstock.model.times import TICKS_PER_MS
from tests.certificates import Authority
from tests.gates.test_api import append, events, named, problem
from tests.principals import issue, put
from tests.test_server import until

HERE: Final = {"context": "shop", "stream": "s"}
BODIES: Final[dict[str, object]] = {
    "append": [{"type": "T", "body": 1}],
    "declareQueue": {},
    "take": {"subscriber": "me"},
    "acknowledge": {"subscriber": "me", "first": 1, "last": 1},
    "release": {"subscriber": "me", "first": 1, "last": 1},
    "extend": {"subscriber": "me", "batch": "1-1"},
    "requeue": {"all": True},
    "drop": {"positions": [1]},
    "move": {"from": "end"},
    "register": {"subscriber": "me", "context": "shop"},
    "fetch": {},
    "progress": {"batch": "1"},
}
"""A body for each route that takes one. A route without one here fails its tests."""


class Guarded(NamedTuple):
    server: testing.Server
    http: httpx.Client
    tokens: dict[str, str]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    webhooks = tmp_path_factory.mktemp("webhooks") / "webhooks.toml"
    webhooks.write_text('[webhooks.plain]\ncontext = "shop"\nstream = "plain"\n')
    webhooks.chmod(0o600)
    with testing.server(http_webhooks=str(webhooks)) as server, httpx.Client(base_url=server.http, timeout=30) as http:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            tokens = {"root": issue(client, "root").token}
        with penstock.connect(server.url, token=tokens["root"]) as root:
            put(root, "elsewhere", "read,append,consume,admin:elsewhere")
            put(root, "late", "all")
            put(root, "one", "read,append:shop/s")
            tokens["elsewhere"], tokens["one"] = issue(root, "elsewhere").token, issue(root, "one").token
            soon = now_ticks() + 200 * TICKS_PER_MS
            tokens["expired"] = issue(root, "late", expires=soon).token
            root.append("shop", "s", [penstock.event("T", 1)])
            root.append("shop", "t", [penstock.event("T", 2)])
        until(lambda: now_ticks() > soon)
        tokens["wrong"] = tokens["root"][:-1] + ("A" if tokens["root"][-1] != "A" else "B")
        yield Guarded(server, http, tokens)


def path_of(route: Route) -> str:
    return route.path.format(**{**HERE, "webhook": "w", "queue": "q", "id": "1"})


def ask(guarded: Guarded, route: Route, who: str | None, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if who is not None:
        sent["authorization"] = f"Bearer {guarded.tokens[who]}"
    content = json.dumps(BODIES[route.name]).encode() if route.takes else b""
    if route.takes:
        sent["content-type"] = "application/json"
    return guarded.http.request(route.method, path_of(route), headers=sent, content=content)


OF_PRINCIPALS: Final = [route for route in ROUTES if not route.is_public]


@pytest.mark.parametrize("route", OF_PRINCIPALS, ids=lambda route: route.name)
@pytest.mark.parametrize("who", [None, "wrong", "expired"])
def test_without_a_valid_token_every_route_is_closed(guarded: Guarded, route: Route, who: str | None) -> None:
    answer = ask(guarded, route, who)
    found = problem(answer, 401)
    assert answer.headers["www-authenticate"] == "Bearer"
    assert found["class"] == "NotAuthenticated"
    if who is None:
        assert found["detail"] == NO_BEARER
    # What is left of a body is not read.
    assert ("connection" in answer.headers) == (route.method == "POST")


@pytest.mark.parametrize("route", OF_PRINCIPALS, ids=lambda route: route.name)
def test_in_the_wrong_place_a_route_is_closed_or_shows_nothing(guarded: Guarded, route: Route) -> None:
    answer = ask(guarded, route, "elsewhere")
    if route.name == "progress":
        # Progress of what does not exist does nothing.
        assert answer.status_code == 204
    elif answer.status_code == 200:
        assert [found for found in answer.json().values() if isinstance(found, list)] == [[]]
    else:
        assert problem(answer, answer.status_code)["class"] in ("NotAllowed", "QueueNotFound", "SubscriptionNotFound")
        assert answer.status_code in (403, 404)


@pytest.mark.parametrize("route", OF_PRINCIPALS, ids=lambda route: route.name)
def test_with_the_right_no_route_is_closed(guarded: Guarded, route: Route) -> None:
    answer = ask(guarded, route, "root")
    if answer.status_code == 409:
        assert problem(answer, 409)["class"] == "AllocationLost"
    else:
        assert answer.status_code in (route.status, 404)


@pytest.mark.parametrize("path", [named("shop", "s"), "/v1/webhooks/plain"])
def test_who_is_revoked_while_its_body_comes_changes_nothing(guarded: Guarded, path: str) -> None:
    with penstock.connect(guarded.server.url, token=guarded.tokens["root"]) as root:
        put(root, "leaving", "append:shop")
        token = issue(root, "leaving").token
        before = root.stats().head
        with socket.create_connection((guarded.http.base_url.host, guarded.http.base_url.port), 30) as slow:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            slow.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 14\r\n".encode())
            slow.sendall(b"Expect: 100-continue\r\n\r\n")
            # The server has let it in, and asks for its body.
            assert slow.recv(100).startswith(b"HTTP/1.1 100 ")
            slow.sendall(b'[{"type"')
            root.access.revoke("leaving")
            slow.sendall(b':"T"}]')
            assert slow.recv(1000).startswith(b"HTTP/1.1 401 ")
        assert [one for one in root.read_all(before + 1) if one.context == "shop"] == []


def test_the_description_is_open_and_says_nothing_of_the_store(guarded: Guarded) -> None:
    assert guarded.http.get("/openapi.json").status_code == 200


def test_a_principal_sees_and_changes_its_part(guarded: Guarded) -> None:
    bearer = {"authorization": f"Bearer {guarded.tokens['one']}"}
    http = guarded.http
    assert {one["stream"] for one in events(http.get("/v1/events", headers=bearer))} == {"s"}
    found = problem(http.get(named("shop", "t"), headers=bearer), 403)
    assert found["fields"] == {"principal": "one", "right": "read", "place": "shop/t"}
    # It is the same whether there is such a stream or not.
    assert problem(http.get(named("shop", "nothing"), headers=bearer), 403)["fields"]["place"] == "shop/nothing"
    assert problem(append(http, "shop", "t", 1, **bearer), 403)["fields"]["right"] == "append"


def test_a_key_of_one_principal_is_not_that_of_another(guarded: Guarded) -> None:
    http = guarded.http
    root, one = ({"authorization": f"Bearer {guarded.tokens[who]}"} for who in ("root", "one"))
    assert append(http, "shop", "s", "root", Idempotency_Key="k", **root).status_code == 201
    second = append(http, "shop", "s", "one", Idempotency_Key="k", **one)
    assert (second.status_code, "idempotent-replayed" in second.headers) == (201, False)
    assert append(http, "shop", "s", "one", Idempotency_Key="k", **one).headers["idempotent-replayed"] == "true"


def test_an_authorization_that_is_none_is_not_repeated(guarded: Guarded) -> None:
    answer = guarded.http.get("/v1/events", headers={"authorization": guarded.tokens["root"]})
    assert guarded.tokens["root"] not in answer.text
    problem(answer, 401)


# ---------------------------------------------------------------- pages in browsers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Origin": "http://evil.example", "Content_Type": "text/plain"}, 403),
    ],
    ids=str,
)
@pytest.mark.parametrize("route", [route for route in ROUTES if route.method == "POST"], ids=lambda route: route.name)
def test_pages_of_others_change_nothing(guarded: Guarded, route: Route, headers: dict[str, str], status: int) -> None:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    names["authorization"] = f"Bearer {guarded.tokens['root']}"
    before = len(events(guarded.http.get(named("shop", "s"), headers={"authorization": names["authorization"]})))
    answer = guarded.http.request("POST", path_of(route), headers=names, content=b'[{"type":"T"}]')
    problem(answer, status)
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    after = len(events(guarded.http.get(named("shop", "s"), headers={"authorization": names["authorization"]})))
    assert before == after


@pytest.mark.parametrize("path", ["/v1/events", "/v1/streams/shop/s", "/openapi.json"])
def test_a_page_whose_name_leads_here_reads_nothing(guarded: Guarded, path: str) -> None:
    bearer = {"authorization": f"Bearer {guarded.tokens['root']}"}
    for headers in ({"Host": "evil.example"}, {"Host": "evil.example", "accept": "text/event-stream"}):
        problem(guarded.http.get(path, headers={**headers, **bearer}), 421)
    # A page of another origin may send this request, and its browser does not show it the answer.
    answer = guarded.http.get(path, headers={"Origin": "http://evil.example", **bearer})
    assert "access-control-allow-origin" not in answer.headers
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_a_client_certificate_speaks_for_its_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, theirs = authority.issue("server", "127.0.0.1"), authority.issue("client", common="worker")
    access = tmp_path / "access.toml"
    access.write_text('[principals.worker]\ngrants = ["read,append"]\ncertificates = ["worker"]\n')
    files = {"tls_cert": ours.cert, "tls_key": ours.key, "tls_client_ca": authority.cert, "access_file": access}
    context = ssl.create_default_context(cafile=str(authority.cert))
    with testing.server(**{name: str(file) for name, file in files.items()}) as server:
        with httpx.Client(base_url=server.http, verify=context) as http:
            problem(http.get("/v1/events"), 401)
        context.load_cert_chain(theirs.cert, theirs.key)
        with httpx.Client(base_url=server.http, verify=context) as http:
            assert append(http, "shop", "s", 1).status_code == 201
            assert [one["body"] for one in events(http.get("/v1/events"))] == [1]
