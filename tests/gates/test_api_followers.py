"""Followers over HTTP: what comes, what continues, what ends them; and long polls."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import httpx
import pytest

import penstock
from penstock import testing
from penstock.gates.api import followers
from tests.gates.serving import Served
from tests.gates.test_api import append, problem
from tests.principals import issue, put
from tests.test_server import until

PATIENCE_S: Final = 30.0
FOLLOW: Final = {"accept": "text/event-stream"}


class Told(NamedTuple):
    """One block of an event stream."""

    id: str | None
    event: dict[str, Any] | None
    comment: str | None


class Follower:
    """A client of server-sent events that does not come again by itself."""

    def __init__(self, address: str, path: str = "/v1/events", **headers: str) -> None:
        self._client = httpx.Client(base_url=address, timeout=PATIENCE_S)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = self._client.build_request("GET", path, headers={**FOLLOW, **names})
        self.answer = self._client.send(request, stream=True)
        if self.answer.status_code == 200:
            assert self.answer.headers["content-type"] == "text/event-stream"
            self._blocks = self._read()
            assert self.next().comment is None
        else:
            self.answer.read()

    def _read(self) -> Iterator[Told]:
        block: dict[str, str] = {}
        for line in self.answer.iter_lines():
            if line:
                name, _, value = line.partition(":")
                block[name or "comment"] = value.removeprefix(" ")
                continue
            data = block.get("data")
            yield Told(block.get("id"), None if data is None else json.loads(data), block.get("comment"))
            block = {}

    def next(self) -> Told:
        return next(self._blocks)

    def events(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            if (told := self.next()).event is not None:
                assert told.id is not None
                found.append({**told.event, "_id": told.id})
        return found

    def bodies(self, count: int) -> list[Any]:
        return [one["body"] for one in self.events(count)]

    def rest(self) -> list[Told]:
        """What comes until the server ends the stream as it should."""
        return list(self._blocks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self._client.close()


@pytest.fixture
def server() -> Iterator[testing.Server]:
    with testing.server() as served:
        yield served


@pytest.fixture
def http(server: testing.Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.http, timeout=PATIENCE_S) as client:
        yield client


def engine_of(server: testing.Server) -> Any:
    assert server._running is not None
    return server._running.engine


# ---------------------------------------------------------------- what comes


def test_a_follower_gets_what_is_there_and_what_comes(server: testing.Server, http: httpx.Client) -> None:
    append(http, "shop", "a", 1, 2)
    with Follower(server.http) as follower:
        assert follower.bodies(2) == [1, 2]
        for number in range(3, 20):
            append(http, "shop", "a", number)
        found = follower.events(17)
        assert [one["body"] for one in found] == list(range(3, 20))
        identity = engine_of(server).identity
        assert found[0]["_id"] == f"{identity.id}.{identity.timeline}.{found[0]['position']}"
    until(lambda: engine_of(server).metrics.waiting_polls == 0)


def test_a_follower_chooses_where_it_begins_and_what_it_wants(server: testing.Server, http: httpx.Client) -> None:
    append(http, "shop", "a", *range(10))
    with (
        Follower(server.http, "/v1/events?from=end&context=shop&prefix=b&type=T&type=U") as chosen,
        Follower(server.http, "/v1/events?from=4") as later,
    ):
        assert later.bodies(7) == list(range(3, 10))
        until(lambda: engine_of(server).metrics.waiting_polls == 2)
        append(http, "other", "b", 1)
        append(http, "shop", "a", 2)
        append(http, "shop", "b", {"type": "V", "body": 3}, {"type": "U", "body": 4}, {"type": "T", "body": 5})
        assert chosen.bodies(2) == [4, 5]


def test_bodies_with_line_ends_stay_one_event(server: testing.Server) -> None:
    with penstock.connect(server.url) as client:
        client.append("shop", "a", [penstock.event("T", b'{\r\n"a":\n1}'), penstock.event("T", b"x\n\ny\rz")])
    with Follower(server.http) as follower:
        first, second = follower.events(2)
        assert (first["body"], second["text"]) == ({"a": 1}, "x\n\ny\rz")


def test_a_silent_follower_hears_signs_of_life_and_where_it_is(
    server: testing.Server, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "KEEP_ALIVE_S", 0.05)
    with Follower(server.http, "/v1/events?context=shop") as follower:
        assert follower.next().comment == "nothing new"
        assert follower.next().comment == "nothing new"


def test_followers_of_the_same_share_one_read(server: testing.Server, http: httpx.Client) -> None:
    with contextlib.ExitStack() as stack:
        several = [stack.enter_context(Follower(server.http)) for _ in range(8)]
        reads = engine_of(server).metrics.readers
        until(lambda: engine_of(server).metrics.waiting_polls == 1)
        before = reads.jobs
        append(http, "shop", "a", 1)
        assert [one.bodies(1) for one in several] == [[1]] * 8
        until(lambda: engine_of(server).metrics.waiting_polls == 1)
        # One that finds the event, and one or two that look for the next.
        assert reads.jobs - before <= 8


# ---------------------------------------------------------------- going on


def test_a_follower_goes_on_after_the_last_event_that_it_got(server: testing.Server, http: httpx.Client) -> None:
    append(http, "shop", "a", *range(10))
    with Follower(server.http) as follower:
        last = follower.events(4)[-1]["_id"]
    with Follower(server.http, "/v1/events?from=1", Last_Event_ID=last) as follower:
        assert follower.bodies(6) == list(range(4, 10))
    with Follower(server.http, Last_Event_ID="7") as follower:
        assert follower.bodies(3) == [7, 8, 9]


@pytest.mark.parametrize(
    ("last", "status"), [("0f.1.5", 410), ("x", 422), ("-1", 422), ("1.5.x", 410), ("9" * 25, 422)]
)
def test_an_id_of_another_history_or_none_is_refused(server: testing.Server, last: str, status: int) -> None:
    with Follower(server.http, Last_Event_ID=last) as refused:
        assert problem(refused.answer, status)["class"] == ("StoreChanged" if status == 410 else "InvalidRequest")


def test_a_follower_through_a_restart_loses_nothing_and_gets_nothing_twice(server: testing.Server) -> None:
    address = server.http
    written: list[int] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        with penstock.connect(server.url) as client:
            while not stop.is_set():
                client.append("shop", f"s{number % 3}", [penstock.event("T", number)])
                written.append(number)
                number += 1
                time.sleep(0.001)

    writer = threading.Thread(target=write)
    writer.start()
    found: list[dict[str, Any]] = []
    headers: dict[str, str] = {}
    try:
        for _ in range(3):
            with Follower(address, **headers) as follower:
                found += follower.events(40)
                server.restart()
                found += [{**told.event, "_id": told.id} for told in follower.rest() if told.event is not None]
            headers = {"Last_Event_ID": found[-1]["_id"]}
    finally:
        stop.set()
        writer.join()
    with Follower(address, **headers) as follower:
        found += follower.events(len(written) - len(found))
    assert [one["body"] for one in found] == written
    assert [one["position"] for one in found] == list(range(1, len(written) + 1))


def test_a_follower_through_a_kill_loses_nothing_and_gets_nothing_twice(tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    headers: dict[str, str] = {}
    sent = 0
    for _ in range(3):
        with Served(tmp_path / "data") as served, httpx.Client(base_url=f"http://{served.http}") as http:
            with Follower(f"http://{served.http}", **headers) as follower:
                firsts = [append(http, "shop", "s", n, Idempotency_Key=f"k{n}") for n in range(sent, sent + 20)]
                assert {one.status_code for one in firsts} == {201}
                sent += 20
                found += follower.events(20 - 5)
                served.process.send_signal(signal.SIGKILL)
                with contextlib.suppress(httpx.TransportError):
                    found += [{**told.event, "_id": told.id} for told in follower.rest() if told.event is not None]
            served.process.wait()
        headers = {"Last_Event_ID": found[-1]["_id"]}
        with Served(tmp_path / "data") as served, httpx.Client(base_url=f"http://{served.http}") as http:
            # What was answered before the kill is known after it.
            again = append(http, "shop", "s", sent - 1, Idempotency_Key=f"k{sent - 1}")
            assert (again.content, again.headers["idempotent-replayed"]) == (firsts[-1].content, "true")
    with Served(tmp_path / "data") as served, Follower(f"http://{served.http}", **headers) as follower:
        found += follower.events(sent - len(found))
    assert [one["body"] for one in found] == list(range(sent))


# ---------------------------------------------------------------- ends


def test_a_stop_ends_followers_and_long_polls_as_it_should(server: testing.Server) -> None:
    polled: list[httpx.Response] = []
    address = server.http

    def poll() -> None:
        polled.append(httpx.get(f"{address}/v1/events?wait=60", timeout=PATIENCE_S))

    with Follower(address) as follower:
        thread = threading.Thread(target=poll)
        thread.start()
        until(lambda: engine_of(server).metrics.waiting_polls == 2)
        server.restart()
        # Without its last chunk this would raise.
        assert [told for told in follower.rest() if told.event is not None] == []
    thread.join()
    assert polled[0].json()["events"] == []


def test_whoever_is_revoked_follows_and_waits_no_more(server: testing.Server) -> None:
    address = server.http
    with penstock.connect(server.url) as client:
        put(client, "root", "all")
        token = issue(client, "root").token
    with penstock.connect(server.url, token=token) as root:
        put(root, "reader", "read:shop")
        bearer = f"Bearer {issue(root, 'reader').token}"
        waiting: list[httpx.Response] = []

        def poll() -> None:
            path = f"{address}/v1/events?context=shop&from=end&wait=60"
            waiting.append(httpx.get(path, headers={"authorization": bearer}, timeout=PATIENCE_S))

        usage = engine_of(server).access.usage["reader"]
        with (
            Follower(address, authorization=bearer) as follower,
            Follower(address, "/v1/events?context=shop", authorization=f"Bearer {token}") as other,
        ):
            root.append("hidden", "s", [penstock.event("T", 1)])
            root.append("shop", "s", [penstock.event("T", 2)])
            # It follows everything, and sees what it may see.
            assert follower.bodies(1) == other.bodies(1) == [2]
            thread = threading.Thread(target=poll)
            thread.start()
            until(lambda: (usage.polls, usage.connections) == (2, 2))
            root.access.revoke("reader")
            assert [told for told in follower.rest() if told.event is not None] == []
            thread.join()
            problem(waiting[0], 401)
            root.append("shop", "s", [penstock.event("T", 3)])
            assert other.bodies(1) == [3]
        until(lambda: (usage.polls, usage.connections) == (0, 0))
        with Follower(address, authorization=bearer) as refused:
            problem(refused.answer, 401)


def test_a_principal_has_so_many_followers(server: testing.Server) -> None:
    from penstock.model import PutPrincipal
    from penstock.model.access import Limits
    from penstock.model.replies import Done
    from tests.principals import ask

    with penstock.connect(server.url) as client:
        put(client, "root", "all")
        token = issue(client, "root").token
    with penstock.connect(server.url, token=token) as root:
        ask(root, PutPrincipal("few", ("read",), Limits(polls_max=1)), Done)
        bearer = f"Bearer {issue(root, 'few').token}"
    with Follower(server.http, authorization=bearer):
        with Follower(server.http, authorization=bearer) as refused:
            found = problem(refused.answer, 429)
            assert found["fields"]["limit"] == "polls_max"
        # What was refused is not counted.
        assert engine_of(server).access.usage["few"].connections == 1


def test_a_follower_that_does_not_read_loses_its_connection_and_others_do_not_notice(
    server: testing.Server, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.gates.api import api

    monkeypatch.setattr(api, "STALL_S_MAX", 2.0)
    host, port = server.http.removeprefix("http://").split(":")
    budget = engine_of(server).budget
    with socket.create_connection((host, int(port)), PATIENCE_S) as deaf, Follower(server.http) as other:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
        until(lambda: engine_of(server).metrics.waiting_polls == 1)
        for number in range(30):
            large = {"type": "T", "body": number, "headers": {"x": "y" * 1_000_000}}
            assert append(http, "shop", "s", large).is_success
            # This one reads: the time is up only for a client that takes nothing at all.
            assert other.bodies(1) == [number]
        # It is gone when nothing is kept for it any more.
        until(lambda: budget.taken == 0 and len(engine_of(server).access._logins.get("anonymous", ())) == 1)
        append(http, "shop", "s", 30)
        assert other.bodies(1) == [30]


# ---------------------------------------------------------------- long polls


def test_a_long_poll_waits_for_what_it_wants(server: testing.Server, http: httpx.Client) -> None:
    assert http.get("/v1/events?wait=0.01").json() == {
        "events": [],
        "end": True,
        "next": "/v1/events?wait=0.01&from=1",
        "prev": None,
    }
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(http.get("/v1/events?context=shop&wait=60").json()))
    thread.start()
    until(lambda: engine_of(server).metrics.waiting_polls == 1)
    with httpx.Client(base_url=server.http) as other:
        append(other, "elsewhere", "s", 1)
        append(other, "shop", "s", 2)
    thread.join()
    assert [one["body"] for one in found[0]["events"]] == [2]


def test_a_client_that_leaves_its_long_poll_is_forgotten(server: testing.Server) -> None:
    host, port = server.http.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as leaving:
        leaving.sendall(b"GET /v1/events?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: engine_of(server).metrics.waiting_polls == 1)
    until(lambda: engine_of(server).metrics.waiting_polls == 0)
    assert engine_of(server).access.usage["anonymous"].polls == 0


# ---------------------------------------------------------------- many


@pytest.mark.parametrize("count", [300, pytest.param(1000, marks=pytest.mark.long)])
def test_many_idle_followers_take_little_memory_and_few_reads(tmp_path: Path, count: int) -> None:
    maximum = str(2 * count)
    flags = ("--http-connections-max", maximum, "--http-connections-per-address-max", maximum)
    opening = b"GET /v1/events?from=end HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
    with Served(tmp_path / "data", *flags) as served, contextlib.ExitStack() as stack:
        host, port = served.http.split(":")
        with httpx.Client(base_url=f"http://{served.http}") as http:
            append(http, "shop", "s", *range(100))

            def follow(many: int) -> list[socket.socket]:
                opened = []
                for _ in range(many):
                    one = stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
                    one.sendall(opening)
                    opened.append(one)
                for one in opened:
                    received = b""
                    while b"retry: " not in received:
                        received += one.recv(4096)
                return opened

            few = follow(10)
            before = served.memory_bytes()
            many = [*few, *follow(count - 10)]
            until(lambda: served.metric("penstock_waiting_polls") == 1)
            each = (served.memory_bytes() - before) / count
            assert each < 100_000
            steady, reads = served.memory_bytes(), served.metric("penstock_reads_total")
            for number in range(20):
                append(http, "shop", "s", f"event {number}")
                for one in many:
                    received = b""
                    while f'"body":"event {number}"'.encode() not in received:
                        received += one.recv(1 << 16)
            until(lambda: served.metric("penstock_waiting_polls") == 1)
            # The reads do not grow with the followers, nor does the memory with the events.
            assert served.metric("penstock_reads_total") - reads < 20 * 5
            assert served.memory_bytes() - steady < 32 << 20
