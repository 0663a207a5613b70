"""`/livez`, `/readyz` and `/health`: what they say while a server works, drains, stops, or cannot write."""

import signal
from pathlib import Path

import httpx

import penstock
from penstock.engine import Engine
from penstock.gates.http import application
from penstock.settings import Settings
from penstock.store import store_url
from penstock.testing import server
from penstock.testing.harness import ThreadedEngine
from tests.test_server import ONE_WORKER, PATIENCE_S, Served, until

PATHS = ("/livez", "/readyz", "/health")


def statuses(served: Served) -> dict[str, int]:
    return {path: served.get(path).status_code for path in PATHS}


def test_a_server_that_works_is_alive_ready_and_healthy() -> None:
    with server() as served:
        for path in PATHS:
            answer = httpx.get(served.http + path, timeout=PATIENCE_S)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok")


def test_a_server_that_drains_is_not_ready_and_takes_appends_until_it_stops(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER, "--drain-ms", "3600000") as served:
        assert statuses(served) == {"/livez": 200, "/readyz": 200, "/health": 200}
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.get("/readyz").status_code == 503)
        assert served.get("/readyz").json()["reasons"] == ["the server is draining: it stops soon"]
        assert statuses(served) == {"/livez": 200, "/readyz": 503, "/health": 200}
        mq = served.ready.partition(" mq=")[2].split()[0]
        with penstock.connect(f"penstock://{mq}") as client:
            assert client.append("shop", "order-1", [penstock.event("OrderPlaced")]).count == 1
        # A second signal does not wait for load balancers.
        assert served.stop(signal.SIGTERM) == 128 + signal.SIGTERM
        assert "draining for 3600000 ms: /readyz answers 503" in served.said()


def test_a_server_that_has_drained_stops_cleanly(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER, "--drain-ms", "1") as served:
        assert served.stop() == 0


async def test_a_server_that_stops_is_not_ready(tmp_path: Path) -> None:
    engine = ThreadedEngine(store_url(tmp_path / "data"), Settings(workers=1))
    await engine.start()
    engine.drain()
    await engine.stop()
    assert engine.unready == ["the server is stopping"]


async def asked(engine: Engine, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application(engine))) as client:
        return await client.get(f"http://localhost{path}", headers=headers)


async def test_a_server_whose_disk_is_full_is_not_ready_and_says_why(tmp_path: Path) -> None:
    full = Settings(workers=1, disk_refuse_bytes=1 << 60)
    async with ThreadedEngine(store_url(tmp_path / "data"), full) as engine:
        answer = await asked(engine, "/readyz")
        assert answer.status_code == 503
        (reason,) = answer.json()["reasons"]
        assert reason.startswith("appends are refused: ")
        assert "disk_refuse_bytes" in reason
        assert (await asked(engine, "/livez")).status_code == 200


async def test_whoever_has_no_token_gets_no_reasons(tmp_path: Path) -> None:
    with penstock.connect(store_url(tmp_path / "data")) as client:
        client.access.put("admin", ["all"])
        token = client.access.issue_token("admin").token
    async with ThreadedEngine(store_url(tmp_path / "data"), Settings(workers=1)) as engine:
        engine.drain()
        for headers in ({}, {"authorization": "Bearer wrong"}):
            answer = await asked(engine, "/readyz", **headers)
            assert (answer.status_code, answer.json()) == (503, {"status": "unavailable"})
            assert (await asked(engine, "/livez", **headers)).status_code == 200
        answer = await asked(engine, "/readyz", authorization=f"Bearer {token}")
        assert answer.json()["reasons"] == ["the server is draining: it stops soon"]
