"""Where commands look for a server, and what they say if there is none."""

import json
import socket
from pathlib import Path

import pytest
import typer

import penstock
from penstock.cli.connection import address_of, default_url, error_line
from penstock.cli.options import moment
from penstock.errors import CannotConnect
from penstock.testing import Server
from tests.certificates import Authority
from tests.cli.support import called as command
from tests.cli.support import run, run_process, variables

NOBODY = "penstock://127.0.0.1:1"
ADVICE = "start one with `penstock serve`, or name it with --url"
REFUSED = f"penstock: no server answers at {NOBODY}: connection refused; {ADVICE}\n"

COMMANDS = [
    ("append", "shop", "s", "T"),
    ("read", "shop"),
    ("tail", "-f"),
    ("contexts",),
    ("streams", "shop"),
    ("stats",),
    ("queue", "list"),
    ("queue", "consume", "shop", "q"),
    ("queue", "reset", "shop", "q", "--to", "end"),
    ("queue", "dead", "shop", "q"),
    ("queue", "requeue", "shop", "q", "--all"),
    ("subscription", "list"),
    ("subscription", "set", "s", "shop", "--to", "end"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_server_that_is_down_is_told_in_a_line(arguments: tuple[str, ...]) -> None:
    assert command(*arguments, "--url", NOBODY) == (1, "", REFUSED)


def test_a_server_that_is_down_is_told_to_a_process_too() -> None:
    assert run_process("read", "shop", url=NOBODY) == (1, "", REFUSED)
    done = run("append", "-", url=NOBODY, stdin='{"context": "shop", "stream": "s", "type": "T"}\n')
    assert done == (1, "", REFUSED)


def test_a_command_goes_on_at_the_next_host_of_its_url(served: Server) -> None:
    place = served.url.partition("://")[2]
    assert command("append", "hosts", "s", "T", "--url", f"{NOBODY},{place}").code == 0
    assert command("streams", "hosts", "--url", f"penstock://{place},127.0.0.1:1").out.split()[-2:] == ["s", "1"]
    both = f"{NOBODY},127.0.0.1:2"
    why = "127.0.0.1:1: connection refused; 127.0.0.1:2: connection refused"
    assert command("contexts", "--url", both) == (1, "", f"penstock: no server answers at {both}: {why}; {ADVICE}\n")


@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("penstock://nobody.invalid:8472", 1, "no server answers at penstock://nobody.invalid:8472: "),
        ("zmq+tcp://127.0.0.1:1", 1, "no server answers at zmq+tcp://127.0.0.1:1: no server listens there"),
        ("https://127.0.0.1:8472", 2, "'https://127.0.0.1:8472' is no address of a Penstock"),
        ("penstock://127.0.0.1:port", 2, "is no address of a Penstock"),
        ("penstock://a..b:1", 2, "its host is not a valid host name"),
        ("zmq+tcp://a..b:1", 2, "its host is not a valid host name"),
        (f"penstock://{'x' * 64}.org", 2, "its host is not a valid host name"),
        ("penstock://\udcff:1", 2, "its host is not a valid host name"),
        ("sqlite:///", 2, "is no address of a Penstock"),
        ("sqlite:///nowhere", 1, "nowhere is not a Penstock store: it has no penstock.db"),
    ],
)
def test_a_wrong_address_is_told_in_a_line(url: str, code: int, reason: str) -> None:
    found, out, err = command("contexts", "--url", url)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert reason in err


def test_what_answers_and_is_no_penstock_is_told(served: Server) -> None:
    port = served.http.rpartition(":")[2]
    code, out, err = command("contexts", "--url", f"penstock://127.0.0.1:{port}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"the server at penstock://127.0.0.1:{port} is not a Penstock server, or speaks another protocol" in err


def test_a_server_that_speaks_tls_over_http_is_said_to(tmp_path: Path) -> None:
    own = Authority(tmp_path).issue("own", "127.0.0.1")
    with Server(tls_cert=str(own.cert), tls_key=str(own.key)) as secure:
        place = secure.http.removeprefix("https://")
        reason = f"no encrypted connection to http://{place}: the server at {place} speaks TLS: add ?tls"
        assert command("sessions", "--http", place) == (1, "", f"penstock: {reason}\n")


def test_nobody_is_told_to_start_a_server_that_ended_a_handshake(tmp_path: Path) -> None:
    assert run("access", "curve-keygen", "--out", tmp_path / "key").code == 0
    other = json.loads(run("access", "curve-keygen", "--json", "--out", tmp_path / "other").out)["in_url"]
    with Server(curve_secret_key=str(tmp_path / "key")) as served:
        url = f"{served.zmq_url.partition('?')[0]}?curve_server_key={other}"
        with pytest.raises(CannotConnect) as caught, penstock.connect(url, timeout=0.5) as client:
            client.stats()
    line = error_line(caught.value)
    assert line.endswith("check that curve_server_key is the public key that its log names")


def test_a_store_that_is_served_is_asked_for_through_its_server(served: Server) -> None:
    code, _, err = command("contexts", "--data", served.data)
    assert (code, err.count("\n")) == (1, 1)
    assert err.endswith("; connect to it with --url penstock://HOST:PORT\n")


def test_a_directory_without_a_store_is_made_one_by_those_who_write(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert command("read", "--data", data)[0] == 1
    assert not data.exists()
    assert command("append", "shop", "s", "T", "--data", data)[0] == 0
    assert command("streams", "shop", "--json", "--data", data) == (0, '{"name":"s","events":1}\n', "")


def test_the_server_is_found_by_flag_variable_or_setting(monkeypatch: pytest.MonkeyPatch, served: Server) -> None:
    assert default_url() == "penstock://127.0.0.1:8472"
    monkeypatch.setenv("PENSTOCK_MQ", "0.0.0.0:1234")
    assert address_of(None) == "penstock://127.0.0.1:1234"
    monkeypatch.setenv("PENSTOCK_MQ", "[::1]:1234")
    assert address_of(None) == "penstock://[::1]:1234"
    assert address_of("penstock://there:1") == "penstock://there:1"
    monkeypatch.setenv("PENSTOCK_URL", served.url)
    assert command("contexts")[0] == 0
    # What the command itself says beats the variable.
    assert command("contexts", "--data", "nowhere")[2].startswith("penstock: nowhere is not a Penstock store")
    assert command("stats", "--data", "nowhere")[2].startswith("penstock: nowhere is not a Penstock store")


def test_a_file_of_settings_is_read_also_where_a_variable_names_the_server(
    monkeypatch: pytest.MonkeyPatch, served: Server, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_URL", served.url)
    code, out, err = command("stats", "--config", tmp_path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "from --config" in err


def test_settings_that_lead_nowhere_are_wrong_use() -> None:
    done = run("contexts", env=variables())
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "mq = '127.0.0.1:0' means any free port: name the server with --url" in done.err
    done = run("contexts", env=variables(PENSTOCK_MQ="nonsense"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "PENSTOCK_MQ" in done.err


def test_a_server_that_takes_connections_and_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.connection.ANSWER_S_MAX", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, out, err = command("contexts", "--url", f"penstock://127.0.0.1:{silent.getsockname()[1]}")
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_times_are_read_as_people_write_them() -> None:
    assert moment("2026-11-15T06:00:00").isoformat() == "2026-11-15T06:00:00+00:00"
    assert moment("2026-11-15").isoformat() == "2026-11-15T00:00:00+00:00"
    assert (moment("now") - moment("2h")).total_seconds() == pytest.approx(7200, abs=60)
    far = ("0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00")
    for wrong in ("", "soon", "5", "5x", "99999999999d", "999999999d", *far):
        with pytest.raises(typer.BadParameter):
            moment(wrong)
