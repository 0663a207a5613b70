"""What the HTTP API does in worker processes, and with clients that are slow."""

import json
import socket
from collections.abc import Callable
from typing import Any, Final

import httpx
import pyarrow as pa
import pytest

import penstock
from penstock import testing
from penstock.engine import Engine
from penstock.gates.api import call
from penstock.gates.api.streams import INLINE_BYTES_MAX
from penstock.model import ANONYMOUS, ANY, Append, Appended, IdempotencyKey, event, now_ticks
from penstock.model.times import TICKS_PER_MS
from penstock.settings import Settings
from penstock.store import store_url
from tests.gates.serving import Served
from tests.gates.test_api import ARROW, BATCH, JSON, LINES, append, cloud, named, problem

LARGE: Final = "y" * 1000


def http_of(server: Served) -> httpx.Client:
    return httpx.Client(base_url=f"http://{server.http}", timeout=30)


def test_workers_read_large_bodies_and_say_what_is_wrong_with_them(server: Served, context: str) -> None:
    plain: list[Any] = [{"type": "T", "body": {"text": LARGE, "n": n}} for n in range(50)]
    clouds = [cloud(n, data=LARGE) for n in range(50)]
    assert len(json.dumps(plain)) > INLINE_BYTES_MAX
    with http_of(server) as http:
        assert append(http, context, "s", *plain).json()["events"] == 50
        assert problem(append(http, context, "s", *plain, {"type": "T", "id": "x"}), 422)["fields"]["field"] == (
            "events[50].id"
        )

        def send(body: bytes) -> httpx.Response:
            return http.post(named(context, "c"), content=body, headers={"content-type": BATCH})

        first = send(json.dumps(clouds).encode())
        assert first.json()["version"] == 1
        assert send(json.dumps(clouds).encode()).headers["idempotent-replayed"] == "true"
        assert problem(send(json.dumps([*clouds, cloud(99, time="soon")]).encode()), 422)["class"] == "NotACloudEvent"
        found = problem(send(b"[{" + b" " * INLINE_BYTES_MAX), 400)
        assert (found["class"], found["title"]) == ("NotJson", "Not json")


def test_workers_write_pages_in_every_form(server: Served, context: str) -> None:
    with http_of(server) as http:
        append(http, context, "s", *range(300))
        path = f"/v1/events?context={context}"
        counts: dict[str, Callable[[httpx.Response], int]] = {
            JSON: lambda answer: len(answer.json()["events"]),
            LINES: lambda answer: len(answer.text.splitlines()),
            BATCH: lambda answer: len(answer.json()),
            ARROW: lambda answer: pa.ipc.open_stream(answer.content).read_all().num_rows,
        }
        for media, count in counts.items():
            assert count(http.get(path, headers={"accept": media})) == 300


def test_an_event_that_is_no_cloudevent_is_named(server: Served, context: str) -> None:
    with penstock.connect(f"penstock://{server.mq}") as client, http_of(server) as http:
        done = client.append(context, "a\x01b", [penstock.event("T", b"x")])
        found = problem(http.get(f"/v1/events?context={context}", headers={"accept": BATCH}), 422)
        assert found["fields"]["attribute"] == f"the event at position {done.position}: its subject"
        assert found["title"] == "Not a cloud event"
        assert http.get(f"/v1/events?context={context}").status_code == 200


# ---------------------------------------------------------------- slow clients


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n5\r\n"])
def test_a_body_that_does_not_come_costs_only_its_connection(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "STALL_S_MAX", 0.3)
    with testing.server() as served:
        host, port = served.http.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 30) as slow, httpx.Client(base_url=served.http) as http:
            slow.sendall(b"POST /v1/streams/shop/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
            slow.sendall(head + b"[")
            assert append(http, "shop", "s", 1).status_code == 201
            assert slow.recv(100) == b""
            assert len(http.get(named("shop", "s")).json()["events"]) == 1
            assert served._running is not None
            assert served._running.engine.budget.taken == 0


# ---------------------------------------------------------------- housekeeping


async def test_keys_are_forgotten_after_their_time(tmp_path: Any) -> None:
    settings = Settings(workers=1, idempotency_ms_max=60_000)
    async with Engine(store_url(tmp_path / "store"), settings) as engine:
        key = IdempotencyKey("key:a", 1)

        async def write() -> bool:
            done = await engine.execute(ANONYMOUS, Append("shop", "s", [event("T")], ANY, keys=(key,)))
            assert isinstance(done, Appended)
            return done.repeated

        assert [await write(), await write()] == [False, True]
        await engine._forget_idle(now_ticks() + 50_000 * TICKS_PER_MS)
        assert await write()
        await engine._forget_idle(now_ticks() + 70_000 * TICKS_PER_MS)
        assert not await write()
