"""Whom the HTTP gate answers: names, origins, headers, and how many connections of one address."""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from starlette.types import Receive, Scope, Send

import penstock
from penstock import testing
from penstock.gates import http
from penstock.gates.api import api, call
from penstock.gates.http import SECURITY_HEADERS, Guard, HttpGate, application, is_same_origin
from penstock.settings import Settings
from penstock.store import store_url
from penstock.tcp.server import LINES_PER_ADDRESS_MAX
from penstock.testing.harness import ThreadedEngine
from tests.mq.support import until

PATIENCE_S = 30.0
APPEND = b"POST /v1/streams/shop/s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
NAME, ORIGIN = "penstock.example.com", "https://console.example.com"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: str

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


@pytest.fixture(scope="module")
def server() -> Iterator[testing.Server]:
    with testing.server(http_hosts=f"{NAME},events", http_origins=ORIGIN) as served:
        yield served


def ask(server: testing.Server, method: str, target: str, **headers: str) -> Answer:
    """Send a request with exactly these headers; `_` stands for `-`."""
    with contextlib.closing(HTTPConnection(server.http.removeprefix("http://"), timeout=PATIENCE_S)) as connection:
        connection.request(method, target, headers={name.replace("_", "-"): value for name, value in headers.items()})
        response = connection.getresponse()
        head = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, head, response.read().decode())


def ask_raw(server: testing.Server, request: bytes) -> str:
    """Send bytes, and read until the server closes."""
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b"")).decode()


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8470",
        "192.168.7.9:1",
        "[::1]",
        "[::1]:8470",
        "localhost",
        "LocalHost:8470",
        "localhost.",
        NAME,
        f"{NAME.upper()}:9090",
        "events",
    ],
)
def test_addresses_localhost_and_configured_names_are_answered(server: testing.Server, host: str) -> None:
    assert ask(server, "GET", "/health", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8470",
        f"{NAME}.evil.example",
        f"evil.{NAME}",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "[::1].evil.example",
        "2130706433",
        "::1",
        "localhost:8470:1",
        "localhost:http",
        "evil.example, localhost",
        "",
        ":8470",
        "[]",
        "\u00e9",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("path", ["/health", "/nothing"])
def test_any_other_name_is_refused_with_what_to_do(server: testing.Server, host: str, path: str) -> None:
    answer = ask(server, "GET", path, Host=host)
    assert answer.status == 421
    assert answer.error.startswith("this server does not answer to the name '")
    assert answer.error.endswith("; if it is its own, add it to http_hosts")
    assert len(answer.error) < 400


def test_a_page_whose_name_leads_here_cannot_cut_anybody_off(server: testing.Server) -> None:
    with penstock.connect(server.url) as client:
        client.stats()
        (session,) = json.loads(ask(server, "GET", "/sessions").body)["sessions"]
        path = f"/sessions/{session['id']}"
        assert ask(server, "DELETE", path, Host="evil.example").status == 421
        assert ask(server, "DELETE", path, Host="evil.example", Origin="http://evil.example").status == 421
        assert ask(server, "DELETE", path, Origin="http://evil.example").status == 403
        assert [each["id"] for each in json.loads(ask(server, "GET", "/sessions").body)["sessions"]] == [session["id"]]
        assert ask(server, "DELETE", path).status == 200


@pytest.mark.parametrize("target", ["http://localhost:8470/health", "HTTP://127.0.0.1/health?x=1"])
def test_a_target_may_name_its_host(server: testing.Server, target: str) -> None:
    assert json.loads(ask(server, "GET", target).body)["status"] == "ok"


def test_a_target_without_a_path_is_the_index(server: testing.Server) -> None:
    assert ask(server, "GET", "http://localhost").body.startswith("Penstock ")


@pytest.mark.parametrize("target", ["http://evil.example/health", "https://evil.example", "http:///health"])
def test_a_target_that_names_another_host_is_refused_whatever_host_says(server: testing.Server, target: str) -> None:
    assert ask(server, "GET", target, Host="localhost").status == 421


def test_a_host_that_is_refused_is_refused_whatever_the_target_names(server: testing.Server) -> None:
    assert ask(server, "GET", "http://localhost/health", Host="evil.example").status == 421


def test_a_request_without_a_host_is_answered_in_http_1_0_only(server: testing.Server) -> None:
    assert ask_raw(server, b"GET /health HTTP/1.0\r\n\r\n").startswith("HTTP/1.1 200 ")
    assert ask_raw(server, b"GET /health HTTP/1.0\r\nHost: evil.example\r\n\r\n").startswith("HTTP/1.1 421 ")
    assert ask_raw(server, b"GET /health HTTP/1.1\r\n\r\n").startswith("HTTP/1.1 400 ")
    twice = b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert ask_raw(server, twice).startswith("HTTP/1.1 400 ")
    with_origin = b"DELETE /sessions/x HTTP/1.0\r\nOrigin: http://localhost\r\n\r\n"
    assert ask_raw(server, with_origin).startswith("HTTP/1.1 403 ")


def test_the_rule_is_the_same_beyond_loopback() -> None:
    with testing.server(http="0.0.0.0:0", allow_plaintext=True, allow_anonymous=True) as served:
        address = served.http.replace("0.0.0.0", "127.0.0.1")
        connection = HTTPConnection(address.removeprefix("http://"), timeout=PATIENCE_S)
        for host, status in (("evil.example", 421), ("10.0.0.7", 200)):
            connection.request("GET", "/health", headers={"Host": host})
            response = connection.getresponse()
            response.read()
            assert response.status == status
        connection.close()


async def test_a_name_to_listen_on_is_answered(tmp_path: Path) -> None:
    async with ThreadedEngine(store_url(tmp_path / "data"), Settings(workers=1, http="Ours.example:0")) as engine:
        transport = httpx.ASGITransport(application(engine))
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("http://ours.example:8470/health")).status_code == 200
            assert (await client.get("http://other.example:8470/health")).status_code == 421


# ---------------------------------------------------------------- origins


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:8470", "Origin": "http://localhost:8470"},
        {"Host": NAME, "Origin": f"https://{NAME}"},
        {"Host": NAME, "Origin": f"http://{NAME}:80"},
        {"Host": f"{NAME}:443", "Origin": f"https://{NAME}", "Sec_Fetch_Site": "same-origin"},
        {"Host": "[::1]:8470", "Origin": "http://[::1]:8470"},
        {"Origin": ORIGIN},
        {"Origin": ORIGIN, "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "none"},
    ],
)
def test_what_changes_something_may_come_from_here_from_a_configured_origin_or_from_no_page(
    server: testing.Server, headers: dict[str, str]
) -> None:
    # There is no such session: the request was let in, and changed nothing.
    assert ask(server, "DELETE", "/sessions/mq-0", **headers).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": ""},
        {"Host": "localhost:8470", "Origin": "http://localhost:3000"},
        {"Host": "localhost:8470", "Origin": "localhost:8470"},
        {"Host": "localhost:8470", "Origin": "ftp://localhost:8470"},
        {"Host": "localhost:8470", "Origin": "http://localhost:8470.evil.example"},
        {"Host": NAME, "Origin": f"https://{NAME}:8443"},
        {"Origin": f"{ORIGIN}.evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "Cross-Site", "Host": "localhost:8470"},
    ],
)
@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_pages_of_others_may_change_nothing(server: testing.Server, headers: dict[str, str], method: str) -> None:
    answer = ask(server, method, "/sessions/mq-0", **headers)
    assert answer.status == 403
    assert "may change nothing here" in answer.error
    assert "http_origins" in answer.error


def test_two_origins_must_both_be_right(server: testing.Server) -> None:
    lines = (
        b"DELETE /sessions/x HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n"
    )
    assert ask_raw(server, lines + b"\r\n").startswith("HTTP/1.1 403 ")


def test_reading_needs_no_origin(server: testing.Server) -> None:
    assert ask(server, "GET", "/health", Origin="http://evil.example").status == 200


def test_an_origin_is_compared_with_its_port() -> None:
    assert is_same_origin("http://a:8470", "A:8470")
    assert is_same_origin("https://a", "a:443")
    assert not is_same_origin("https://a", "a:80")
    assert not is_same_origin("http://", "a")


# ---------------------------------------------------------------- headers


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("HEAD", "/", {}, 200),
        ("GET", "/health", {}, 200),
        ("GET", "/metrics", {}, 200),
        ("GET", "/sessions", {}, 200),
        ("GET", "/nothing", {}, 404),
        ("POST", "/health", {}, 405),
        ("GET", "/health", {"Content-Length": "5"}, 413),
        ("GET", "/health", {"Host": "evil.example"}, 421),
        ("DELETE", "/sessions/x", {"Origin": "null"}, 403),
    ],
)
def test_every_answer_has_the_security_headers(
    server: testing.Server, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = ask(server, method, path, **headers)
    assert answer.status == status
    assert answer.headers.items() >= SECURITY_HEADERS.items()
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


def test_an_answer_to_what_is_no_http_has_them_too(server: testing.Server) -> None:
    head, _, body = ask_raw(server, b"no http\r\n\r\n").partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert all(f"\r\n{name}: {value}" in head for name, value in SECURITY_HEADERS.items())
    assert f"content-length: {len(body)}" in head


async def test_a_page_may_have_a_policy_of_its_own() -> None:
    sent: list[dict[str, object]] = []

    async def page(scope: object, receive: object, send: object) -> None:
        headers = [(b"content-security-policy", b"default-src 'self'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})  # type: ignore[operator]

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "headers": []}
    await Guard(page)(scope, None, send)  # type: ignore[arg-type]
    headers = sent[0]["headers"]
    assert isinstance(headers, list)
    assert [value for name, value in headers if name == b"content-security-policy"] == [b"default-src 'self'"]
    assert (b"x-frame-options", b"DENY") in headers


async def test_a_websocket_of_another_site_is_refused() -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost:8470"), (b"origin", b"http://evil.example")]
    scope = {"type": "websocket", "path": "/", "raw_path": b"/", "headers": headers}
    await Guard(None)(scope, None, send)  # type: ignore[arg-type]
    assert (sent[0]["type"], sent[0]["status"]) == ("websocket.http.response.start", 403)


# ---------------------------------------------------------------- connections of one address


@contextlib.asynccontextmanager
async def gate_with(tmp_path: Path, **settings: int) -> AsyncIterator[HttpGate]:
    wanted = Settings(workers=1, http="127.0.0.1:0", **settings)  # type: ignore[arg-type]
    async with ThreadedEngine(store_url(tmp_path / "data"), wanted) as engine:
        gate = HttpGate(engine)
        await gate.start()
        yield gate
        await gate.stop()


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def opened(gate: HttpGate, address: str = "127.0.0.1") -> Streams:
    host, _, port = gate.address.rpartition(":")
    return await asyncio.open_connection(host, int(port), local_addr=(address, 0))


def peer_of(streams: Streams) -> str:
    host, port = streams[1].get_extra_info("sockname")
    return f"{host}:{port}"


async def status_of(streams: Streams) -> bytes:
    reader, writer = streams
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        return (await reader.readline()).split()[1]


async def is_cut_off(streams: Streams) -> bool:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_S):
            return await streams[0].read() == b""
    return True


async def test_one_connection_too_many_from_an_address_costs_that_address_its_longest_waiting_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gate_with(tmp_path, http_connections_per_address_max=2) as gate:
        other = await opened(gate, "127.0.0.2")
        mine = [await opened(gate) for _ in range(3)]
        assert await is_cut_off(mine[0])
        assert [await status_of(each) for each in (other, *mine[1:])] == [b"200", b"200", b"200"]
        reason = "there were too many connections from its address (http_connections_per_address_max is 2)"
        assert [each.getMessage() for each in caplog.records] == [
            f"http ended the connection of {peer_of(mine[0])}: {reason}"
        ]
        for _, writer in (other, *mine):
            writer.close()


async def test_when_all_connections_of_an_address_have_requests_under_way_the_next_one_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    asked = 0
    original = Guard.__call__

    async def slowly(self: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += 1
        await go_on.wait()
        await original(self, scope, receive, send)

    monkeypatch.setattr(Guard, "__call__", slowly)
    async with gate_with(tmp_path, http_connections_per_address_max=2) as gate:
        busy = [await opened(gate) for _ in range(2)]
        statuses = [asyncio.create_task(status_of(each)) for each in busy]
        await until(lambda: asked == 2)
        refused = await opened(gate)
        refused[1].write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            answer = (await refused[0].read()).decode()
        assert answer.startswith("HTTP/1.1 429 ")
        assert "x-frame-options: DENY" in answer
        sentence = (
            "there are too many connections from 127.0.0.1 (http_connections_per_address_max is 2); try again later"
        )
        assert json.loads(answer.partition("\r\n\r\n")[2]) == {"error": sentence}
        assert [each.getMessage() for each in caplog.records] == [f"http refused {peer_of(refused)}: {sentence}"]
        go_on.set()
        assert [await each for each in statuses] == [b"200", b"200"]
        for _, writer in (*busy, refused):
            writer.close()


async def test_one_address_cannot_take_all_connections(tmp_path: Path) -> None:
    async with gate_with(tmp_path, http_connections_max=6, http_connections_per_address_max=3) as gate:
        others = [await opened(gate, f"127.0.0.{number}") for number in (2, 3, 4)]
        mine = [await opened(gate) for _ in range(20)]
        assert [await status_of(each) for each in others] == [b"200"] * 3
        for _, writer in (*others, *mine):
            writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"no http\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nnot a number\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nno http\r\n\r\n",
    ],
)
async def test_what_is_no_http_has_one_line_in_the_log_that_names_its_peer_and_not_too_many(
    sent: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    peers: list[str] = []
    async with gate_with(tmp_path) as gate:
        for _ in range(LINES_PER_ADDRESS_MAX + 5):
            reader, writer = streams = await opened(gate)
            peers.append(peer_of(streams))
            writer.write(sent)
            async with asyncio.timeout(PATIENCE_S):
                await reader.read()
            writer.close()
        lines = [each.getMessage() for each in caplog.records]
        assert lines[0] == f"http ended the connection of {peers[0]}: what came was no HTTP"
        assert len(lines) == LINES_PER_ADDRESS_MAX
    assert caplog.records[-1].getMessage().startswith("http ended 5 more connections, the last one from 127.0.0.1;")


@pytest.mark.parametrize(
    ("sent", "level", "why"),
    [
        (b"", "DEBUG", "no request came"),
        (b"GET /heal", "INFO", "its request was not complete"),
        (APPEND + b"Content-Length: 9\r\n\r\n[", "INFO", "its request was not complete"),
    ],
)
async def test_only_a_client_that_is_in_the_middle_of_a_request_has_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, sent: bytes, level: str, why: str
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(http, "REQUEST_S_MAX", 0.05)
    monkeypatch.setattr(call, "STALL_S_MAX", 0.05)
    async with gate_with(tmp_path) as gate:
        silent = await opened(gate)
        silent[1].write(sent)
        assert await is_cut_off(silent)
        silent[1].close()
        (ours,) = [each for each in caplog.records if each.name == http.__name__]
        words = f"http ended the connection of {peer_of(silent)}: {why} within "
        assert (ours.levelname, ours.getMessage().startswith(words)) == (level, True), ours.getMessage()


async def test_a_client_that_does_not_take_its_answer_has_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(api, "STALL_S_MAX", 0.05)
    async with gate_with(tmp_path) as gate:
        reader, writer = streams = await opened(gate)
        # The reader takes no more than its limit, and all buffers of a connection hold less than this.
        description = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        writer.write(description * 1000)
        await until(lambda: any(each.name == http.__name__ for each in caplog.records))
        (ours,) = [each for each in caplog.records if each.name == http.__name__]
        words = f"http ended the connection of {peer_of(streams)}: its answer was not taken within "
        assert ours.getMessage().startswith(words)
        assert not reader.at_eof()
        writer.close()


async def test_a_connection_that_is_kept_ends_silently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(http, "KEEP_ALIVE_S_MAX", 0.05)
    async with gate_with(tmp_path) as gate:
        kept = await opened(gate)
        for _ in range(2):
            assert await status_of(kept) == b"200"
            await kept[0].readuntil(b"}")
        assert await is_cut_off(kept)
        kept[1].close()
        assert [each for each in caplog.records if each.name == http.__name__] == []


async def test_a_client_that_left_before_its_answer_has_no_time_that_could_be_up(tmp_path: Path) -> None:
    async with gate_with(tmp_path) as gate:
        _, writer = await opened(gate)
        writer.write(APPEND + b'Content-Length: 14\r\n\r\n[{"type":"T"}]')
        served = gate._server.server_state
        await until(lambda: len(served.connections) == 1)
        (left,) = served.connections
        writer.transport.abort()
        await until(lambda: not served.connections and not served.tasks)
        assert isinstance(left, http.BoundedProtocol)
        left.give_time(0.0)
        assert left._alarm is None or left._alarm.cancelled()
