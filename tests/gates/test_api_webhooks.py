"""Webhooks in: signed messages, and the handshake of CloudEvents."""

import base64
import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import httpx
import pytest
from standardwebhooks import Webhook

import penstock
from penstock import testing
from penstock.errors import InvalidRequest
from penstock.gates.api.webhooks import BODY_BYTES_MAX, Webhooks
from penstock.settings import Settings
from tests.gates.test_api import events, named, problem
from tests.principals import issue, put

OLD: Final = "whsec_" + base64.b64encode(b"o" * 24).decode()
NEW: Final = "whsec_" + base64.b64encode(b"n" * 32).decode()
FILE: Final = f"""
[webhooks.payments]
context = "shop"
stream = "payments"
principal = "payments"
secrets = ["{OLD}", "{NEW}"]
type = "Payment"

[webhooks.clouds]
context = "shop"
stream = "clouds"
origins = ["Events.example.com"]
rate = 120
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("webhooks") / "webhooks.toml"
    made.touch(0o600)
    made.write_text(FILE, encoding="utf-8")
    return made


@pytest.fixture
def server(path: Path) -> Iterator[testing.Server]:
    with testing.server(http_webhooks=str(path)) as served:
        yield served


@pytest.fixture
def http(server: testing.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=30) as client:
        yield client


def signed(secret: str, number: str, body: bytes, when: datetime | None = None) -> dict[str, str]:
    """What a sender that uses the library of Standard Webhooks adds to a message."""
    when = when or datetime.now(UTC)
    return {
        "webhook-id": number,
        "webhook-timestamp": str(int(when.timestamp())),
        "webhook-signature": Webhook(secret).sign(number, when, body.decode()),
        "content-type": "application/json",
    }


BODY: Final = b'{"type": "invoice.paid", "data": {"amount": 4200000000000000000000}}'


def test_a_signed_message_becomes_an_event_once(http: httpx.Client) -> None:
    for secret in (OLD, NEW):
        number = f"msg_{secret[-6:]}"
        headers = signed(secret, number, BODY)
        first = http.post("/v1/webhooks/payments", content=BODY, headers=headers)
        assert first.status_code == 201
        again = http.post("/v1/webhooks/payments", content=BODY, headers=signed(secret, number, BODY))
        assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
    one, two = events(http.get(named("shop", "payments")))
    assert (one["type"], one["body"]["data"]) == ("invoice.paid", {"amount": 4200000000000000000000})
    assert one["headers"] == {"content-type": "application/json", "webhook-id": f"msg_{OLD[-6:]}"}
    assert one["id"] != two["id"]


def test_a_message_that_says_no_type_has_that_of_its_webhook(http: httpx.Client) -> None:
    for number, body in enumerate((b"[]", b"not json", b'{"type": 7}', b'{"type": ""}', b"")):
        headers = signed(NEW, f"m{number}", body)
        assert http.post("/v1/webhooks/payments", content=body, headers=headers).status_code == 201
    assert {one["type"] for one in events(http.get(named("shop", "payments")))} == {"Payment"}


LATER: Final = "a second later"


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-signature": ""},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v2,AAAA"},
        {"webhook-signature": "\u00e9"},
        {"webhook-id": "another"},
        {"webhook-id": ""},
        {"webhook-timestamp": "0"},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": LATER},
    ],
    ids=str,
)
def test_a_message_that_is_not_signed_rightly_is_refused(http: httpx.Client, change: dict[str, str]) -> None:
    if change.get("webhook-timestamp") == LATER:
        change = {"webhook-timestamp": str(int(time.time()) + 1)}
    headers = {**signed(NEW, "m", BODY), **change}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    refused = http.post("/v1/webhooks/payments", content=BODY, headers=raw)
    found = problem(refused, 401)
    assert "the signature of this message is not valid" in found["detail"]
    assert events(http.get(named("shop", "payments"))) == []


def test_an_old_message_and_another_secret_and_another_body_are_refused(http: httpx.Client) -> None:
    other = "whsec_" + base64.b64encode(b"x" * 24).decode()
    long_ago = datetime.now(UTC) - timedelta(minutes=6)
    for headers, body in (
        (signed(NEW, "m", BODY, long_ago), BODY),
        (signed(other, "m", BODY), BODY),
        (signed(NEW, "m", BODY), BODY + b" "),
    ):
        problem(http.post("/v1/webhooks/payments", content=body, headers=headers), 401)
    problem(http.post("/v1/webhooks/nothing", content=BODY, headers=signed(NEW, "m", BODY)), 404)
    large = b"x" * (BODY_BYTES_MAX + 1)
    problem(http.post("/v1/webhooks/payments", content=large, headers=signed(NEW, "m", large)), 413)


def test_a_signed_cloudevent_is_one_event(http: httpx.Client) -> None:
    body = json.dumps({"specversion": "1.0", "id": "1", "source": "/x", "type": "T", "data": 7}).encode()
    headers = {**signed(NEW, "m1", body), "content-type": "application/cloudevents+json"}
    assert http.post("/v1/webhooks/payments", content=body, headers=headers).status_code == 201
    (found,) = events(http.get(named("shop", "payments")))
    assert (found["type"], found["body"]) == ("T", 7)


def test_a_closed_server_takes_them_from_the_principal_of_the_webhook(server: testing.Server) -> None:
    with penstock.connect(server.url) as client:
        put(client, "root", "all")
        token = issue(client, "root").token
    with httpx.Client(base_url=server.http) as http:

        def deliver(number: str) -> httpx.Response:
            return http.post("/v1/webhooks/payments", content=BODY, headers=signed(NEW, number, BODY))

        assert "has no principal on this server" in problem(deliver("m1"), 401)["detail"]
        with penstock.connect(server.url, token=token) as root:
            put(root, "payments", "append:elsewhere")
            found = problem(deliver("m1"), 403)
            assert found["fields"] == {"principal": "payments", "right": "append", "place": "shop/payments"}
            put(root, "payments", "append:shop/payments")
            assert deliver("m1").status_code == 201
            assert root.stats().head > 0
        cloud = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "T"}
        problem(http.post("/v1/webhooks/clouds", headers=cloud), 401)
        bearer = {**cloud, "authorization": f"Bearer {token}"}
        assert http.post("/v1/webhooks/clouds", headers=bearer).status_code == 201


def test_a_sender_of_cloudevents_asks_whether_it_may_deliver(http: httpx.Client) -> None:
    asked = {"webhook-request-origin": "events.EXAMPLE.com", "webhook-request-rate": "1000"}
    answer = http.options("/v1/webhooks/clouds", headers=asked)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["webhook-allowed-origin"] == "events.example.com"
    assert answer.headers["webhook-allowed-rate"] == "120"
    assert "POST" in answer.headers["allow"]
    for origin, name in (("evil.example", "clouds"), ("", "clouds"), ("events.example.com", "payments")):
        refused = http.options(f"/v1/webhooks/{name}", headers={"webhook-request-origin": origin})
        problem(refused, 403)
        assert "webhook-allowed-origin" not in refused.headers
    problem(http.options("/v1/webhooks/clouds"), 400)
    problem(http.options("/v1/webhooks/nothing", headers=asked), 404)


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize(
    "text",
    [
        "webhooks = 1",
        "x = 1",
        "[webhooks.a]\ncontext = 'c'",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\ncolour = 1",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nsecrets = ['whsec_SECRET!']",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nsecrets = ['SECRET']",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nsecrets = ['whsec_AAAA']",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nsecrets = 'whsec_SECRET'",
        "[webhooks.a]\ncontext = 'c'\nstream = ''",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nrate = 0",
        "[webhooks.a]\ncontext = 'c'\nstream = 's'\nprincipal = 1",
        "secrets = [whsec_SECRET",
    ],
)
def test_a_file_that_is_wrong_is_refused_without_its_secrets(tmp_path: Path, text: str) -> None:
    made = tmp_path / "webhooks.toml"
    made.touch(0o600)
    made.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidRequest) as caught:
        Webhooks(Settings(http_webhooks=made))
    assert str(made) in str(caught.value)
    assert "SECRET" not in str(caught.value)


def test_a_file_that_others_can_read_is_refused(tmp_path: Path, path: Path) -> None:
    made = tmp_path / "webhooks.toml"
    made.write_text(FILE, encoding="utf-8")
    made.chmod(0o644)
    with pytest.raises(InvalidRequest, match="can be read by other users"):
        Webhooks(Settings(http_webhooks=made))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        Webhooks(Settings(http_webhooks=tmp_path / "nothing"))
    assert "b'n" not in repr(Webhooks(Settings(http_webhooks=path)).by_name)


def test_secrets_and_bodies_stay_out_of_the_log(http: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    http.post("/v1/webhooks/payments", content=BODY, headers={**signed(NEW, "m", BODY), "webhook-id": "other"})
    http.post("/v1/webhooks/payments", content=BODY, headers=signed(NEW, "m", BODY))
    for text in (NEW, OLD, "nnnnnnnn", "invoice.paid"):
        assert text not in caplog.text
