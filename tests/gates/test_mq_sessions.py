"""Sessions of a running server: listed and cut off, by HTTP and on the command line."""

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from typer.testing import CliRunner

from penstock.cli import app
from tests.gates.mq_client import SERVER_CLOSING, MqClient
from tests.gates.res_client import PATIENCE_S
from tests.gates.res_frames import an_event
from tests.gates.serving import Served, until

SERVER_FLAGS: tuple[str, ...] = ()
"""None, but a server of its own."""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("PENSTOCK_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture(autouse=True)
def nobody_is_left(server: Served) -> None:
    """The sessions of the test before are gone."""
    until(lambda: server.sessions() == [])


def penstock(*arguments: str) -> tuple[int, str, str]:
    """Run a command; exit code, standard output, standard error."""
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def fails(*arguments: str) -> str:
    """Run a command that must fail; the one line that it says."""
    code, out, err = penstock(*arguments)
    assert (code, out) == (1, "")
    assert re.fullmatch(r"penstock: .+\n", err), err
    return err


def peer_of(client: MqClient) -> str:
    host, port = client.connection.socket.getsockname()
    return f"{host}:{port}"


# ---------------------------------------------------------------- listing


def test_the_ready_line_names_the_gates_in_their_order(server: Served) -> None:
    gates = [part.partition("=")[0] for part in server.ready.split()[2:]]
    assert gates == ["res", "res-legacy", "mq", "remits", "http"]
    assert int(server.mq.rpartition(":")[2]) > 0


def test_sessions_are_listed_with_what_they_did(server: Served, context: str) -> None:
    started = time.time()
    with MqClient(server.mq) as first, MqClient(server.mq) as second:
        for version in range(1, 11):
            first.append(context, "s", version, an_event(bytes(100)))
        second.stats()
        sessions = server.sessions()
        assert [info["peer"] for info in sessions] == [peer_of(first), peer_of(second)]
        assert all(re.fullmatch(r"mq-\d+", info["id"]) for info in sessions)
        assert len({info["id"] for info in sessions}) == 2
        assert [(info["messages_received"], info["messages_sent"]) for info in sessions] == [(10, 10), (1, 1)]
        assert sessions[0]["bytes_received"] > 10 * 100 > sessions[1]["bytes_received"] > 10
        assert all(info["bytes_sent"] > 20 and info["unsent_bytes"] == 0 for info in sessions)
        assert all(0 <= info["last_seen"] <= info["age"] <= PATIENCE_S for info in sessions)
        assert all(abs(info["opened"] - started) < PATIENCE_S for info in sessions)


def test_a_command_shows_a_table_to_people(server: Served) -> None:
    with MqClient(server.mq) as client:
        for _ in range(3):
            client.stats()
        (info,) = server.sessions()
        code, out, err = penstock("sessions", "--http", server.http)
        assert (code, err) == (0, "")
        head, row = (re.split(r" {2,}", line.strip()) for line in out.splitlines() if re.search(r"\w", line))
        assert head == ["session", "peer", "age", "last seen", "received", "sent", "unsent"]
        assert row[:2] == [info["id"], peer_of(client)]
        assert re.fullmatch(r"\d+ s", row[2])
        assert re.fullmatch(r"\d+ s ago", row[3])
        assert [cell.partition(" ")[0] for cell in row[4:]] == ["3", "3", "0"]


def test_a_command_gives_programs_what_http_says(server: Served) -> None:
    with MqClient(server.mq) as client:
        client.stats()
        code, out, err = penstock("sessions", "--http", server.http, "--json")
        (listed,), (info,) = json.loads(out), server.sessions()
        assert (code, err) == (0, "")
        changing = ("age", "last_seen", "opened")
        assert {k: v for k, v in listed.items() if k not in changing} == {
            k: v for k, v in info.items() if k not in changing
        }
        assert set(changing) < set(listed)


def test_no_sessions_are_told_in_words_or_as_an_empty_list(server: Served) -> None:
    assert penstock("sessions", "--http", server.http) == (0, "", "no sessions\n")
    code, out, _ = penstock("sessions", "--http", server.http, "--json")
    assert (code, json.loads(out)) == (0, [])


def test_the_address_may_come_from_the_environment(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP", server.http)
    assert penstock("sessions") == (0, "", "no sessions\n")


# ---------------------------------------------------------------- cutting off


def test_a_kicked_client_is_told_that_the_server_closes_and_the_others_go_on(server: Served, context: str) -> None:
    closed = server.closed("server closing")
    with MqClient(server.mq) as client, MqClient(server.mq) as other:
        client.stats()
        other.stats()
        number = server.sessions()[0]["id"]
        assert penstock("kick", number, "--http", server.http) == (0, f"kicked {number}\n", "")
        assert client.connection.reason() == SERVER_CLOSING
        other.append(context, "s", 1, an_event())
        until(lambda: server.closed("server closing") == closed + 1)
        assert [info["peer"] for info in server.sessions()] == [peer_of(other)]


def test_a_kicked_client_waits_for_nothing_any_more_and_may_come_back(server: Served, context: str) -> None:
    with MqClient(server.mq) as client:
        client.send("RA", b"1000000000", b"", b"", b"25000")
        until(lambda: server.metric("penstock_waiting_polls") == 1)
        (info,) = server.sessions()
        assert httpx.delete(f"http://{server.http}/sessions/{info['id']}").json() == {"kicked": info["id"]}
        assert client.connection.reason() == SERVER_CLOSING
        until(lambda: server.metric("penstock_waiting_polls") == 0)
    with MqClient(server.mq) as again:
        again.append(context, "s", 1, an_event())
        assert server.sessions()[0]["id"] != info["id"]


def test_a_client_that_does_not_read_can_be_kicked(server: Served, context: str) -> None:
    with MqClient(server.mq, receive_bytes=1 << 16) as client, MqClient(server.mq) as other:
        for _ in range(8):
            other.append(context, "s", -1, *(an_event(bytes(16_000)) for _ in range(60)))
        for _ in range(20):
            client.send("QS", context.encode(), b"s", b"1", b"")
        until(lambda: server.sessions()[0]["unsent_bytes"] > 1 << 20)
        penstock("kick", server.sessions()[0]["id"], "--http", server.http)
        until(lambda: len(server.sessions()) == 1)


@pytest.mark.parametrize("number", ["mq-999999", "nobody", "mq-1/2", "../health", "é %00", "-1", "?"])
def test_kicking_who_is_not_there_is_told_in_a_line(server: Served, number: str) -> None:
    assert "there is no " in fails("kick", "--http", server.http, "--", number)


def test_a_kick_needs_an_id(server: Served) -> None:
    assert penstock("kick", "--http", server.http)[0] == 2


# ---------------------------------------------------------------- HTTP


def test_sessions_answers_get_only_and_a_session_delete_only(server: Served) -> None:
    with MqClient(server.mq) as client:
        client.stats()
        (info,) = server.sessions()
        for method, path, allowed in [
            ("GET", f"/sessions/{info['id']}", "DELETE"),
            ("POST", f"/sessions/{info['id']}", "DELETE"),
            ("PUT", f"/sessions/{info['id']}", "DELETE"),
            ("POST", "/sessions", "GET"),
            ("DELETE", "/sessions", "GET"),
        ]:
            answer = httpx.request(method, f"http://{server.http}{path}", timeout=PATIENCE_S)
            assert answer.status_code == 405
            assert answer.json()["error"].startswith(f"{path} answers ")
            assert allowed in answer.headers["allow"]
        answer = httpx.request("DELETE", f"http://{server.http}/sessions/{info['id']}", content=b"x" * 10)
        assert answer.status_code == 413
        client.stats()


def test_deleting_a_session_that_is_not_there_is_404_in_json(server: Served) -> None:
    answer = httpx.delete(f"http://{server.http}/sessions/mq-0", timeout=PATIENCE_S)
    assert (answer.status_code, answer.json()) == (404, {"error": "there is no session mq-0"})
    answer = httpx.delete(f"http://{server.http}/sessions/{'x' * 5000}", timeout=PATIENCE_S)
    assert (answer.status_code, len(answer.text) < 500) == (404, True)


# ---------------------------------------------------------------- no server, another server


@contextmanager
def something_else(says: bytes) -> Iterator[str]:
    """Something that listens and says this to the first who asks; where it listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(PATIENCE_S)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


def http_answer(body: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


@pytest.mark.parametrize("command", [("sessions",), ("kick", "mq-1")])
def test_no_server_is_told_in_a_line_with_the_address(command: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        line = fails(*command, "--http", address)
    assert f"no server answers at {address}: connection refused" in line


@pytest.mark.parametrize("command", [("sessions",), ("kick", "mq-1")])
@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"\xff\0\0\0\0\0\0\0\x01\x7f",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        http_answer(""),
        http_answer("<html>hello</html>"),
        http_answer("\xff"),
        http_answer("{}"),
        http_answer("[]"),
        http_answer("null"),
        http_answer('"sessions"'),
        http_answer("null", "404 Not Found"),
        http_answer('{"detail": "Not Found"}', "404 Not Found"),
        http_answer("[]", "500 Internal Server Error"),
        http_answer("<html>", "404 Not Found"),
    ],
)
def test_something_else_that_answers_is_told_in_a_line_with_the_address(command: tuple[str, ...], says: bytes) -> None:
    with something_else(says) as address:
        assert address in fails(*command, "--http", address)


def test_a_port_that_is_no_http_gate_is_told_in_a_line(server: Served) -> None:
    assert server.mq in fails("sessions", "--http", server.mq)


@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1", "127.0.0.1:x"])
def test_what_is_no_address_is_wrong_use(address: str) -> None:
    code, out, err = penstock("sessions", "--http", address)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("penstock: http = ")
